package toolbox

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

const (
	defaultCols, defaultRows = 80, 24
	// terminalCost is the memory of a terminal besides what its request says and its output, in bytes.
	terminalCost = 64 << 10
	// envsProtocol is the subprotocol with the environment of a new terminal.
	envsProtocol = "X-Daytona-Pty-Envs"
	// exitProtocol is the subprotocol of clients that can use the frame with the exit code.
	exitProtocol = "X-Daytona-Pty-Exit-Control"
)

// terminal is an interactive shell in a terminal. It keeps running while no client is connected.
type terminal struct {
	id      string
	dir     string
	envs    map[string]string
	lazy    bool
	created time.Time
	cost    int64 // reserved bytes of memory, without its output
	screen  *outputLog
	input   *shell.Input
	ended   chan struct{} // closed when the following is set
	result  terminalResult

	starting sync.Mutex // held during the start
	mu       sync.Mutex
	size     sandpit.TerminalSize
	process  sandpit.Process // nil before the start
	seen     logPosition     // after the output that any client has got
}

// terminalResult is how a terminal has ended.
type terminalResult struct {
	ExitCode int    `json:"exitCode"`
	Reason   string `json:"exitReason,omitempty"`
}

// terminalDTO is a terminal as clients see it.
type terminalDTO struct {
	ID        string            `json:"id"`
	Dir       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	Cols      uint16            `json:"cols"`
	Rows      uint16            `json:"rows"`
	CreatedAt time.Time         `json:"createdAt"`
	Active    bool              `json:"active"`
	Lazy      bool              `json:"lazyStart"`
}

// registerTerminals adds the calls about terminals.
func (s *Server) registerTerminals(mux api.Router) {
	s.handle(mux, "POST /process/pty", createTerminal)
	s.handle(mux, "GET /process/pty", listTerminals)
	s.handle(mux, "GET /process/pty/create-connect", createAndConnect)
	s.handle(mux, "GET /process/pty/{terminal}", getTerminal)
	s.handle(mux, "DELETE /process/pty/{terminal}", deleteTerminal)
	s.handle(mux, "GET /process/pty/{terminal}/connect", connectTerminal)
	s.handle(mux, "POST /process/pty/{terminal}/resize", resizeTerminal)
}

// terminalRequest describes a new terminal.
type terminalRequest struct {
	ID   string            `json:"id"`
	Dir  string            `json:"cwd"`
	Envs map[string]string `json:"envs"`
	Cols *int              `json:"cols"`
	Rows *int              `json:"rows"`
	Lazy bool              `json:"lazyStart"`
}

// cost returns the memory of a terminal without its output, in bytes.
func (r terminalRequest) cost() int64 { return terminalCost + memory.SizeOf(r) }

func createTerminal(ctx context.Context, c *call) error {
	var in terminalRequest
	if err := c.readBody(&in); err != nil {
		return err
	}
	t, err := openTerminal(ctx, c, in)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusCreated, map[string]string{"sessionId": t.id})
}

// createAndConnect opens a terminal and connects it. Clients get an error as a control frame,
// because they do not show the response to a refused WebSocket.
func createAndConnect(ctx context.Context, c *call) error {
	if err := checkUpgrade(c.r); err != nil {
		return err
	}
	var t *terminal
	in, err := readTerminalQuery(c.r)
	if err == nil {
		t, err = openTerminal(ctx, c, in)
	}
	if err != nil {
		return refuseTerminal(ctx, c, err)
	}
	return serveTerminal(ctx, c, t)
}

// readTerminalQuery reads the description of a new terminal from a query, and its environment
// from a subprotocol.
func readTerminalQuery(r *http.Request) (terminalRequest, error) {
	query := r.URL.Query()
	in := terminalRequest{ID: query.Get("id"), Dir: query.Get("cwd")}
	for name, to := range map[string]**int{"cols": &in.Cols, "rows": &in.Rows} {
		text := query.Get(name)
		if text == "" {
			continue
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			return in, sandpit.Errorf(sandpit.Invalid, "invalid %s %.20q", name, text)
		}
		*to = &n
	}
	for _, name := range offeredProtocols(r) {
		key, value, ok := strings.Cut(name, "~")
		if !ok || !strings.EqualFold(key, envsProtocol) {
			continue
		}
		text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(value, "="))
		if err == nil {
			err = json.Unmarshal(text, &in.Envs)
		}
		if err != nil {
			return in, sandpit.Errorf(sandpit.Invalid, "invalid subprotocol %s: want a JSON object in base64url", envsProtocol)
		}
	}
	return in, nil
}

// parseSize converts the size of a terminal.
func parseSize(cols, rows *int) (sandpit.TerminalSize, error) {
	size := sandpit.TerminalSize{Cols: defaultCols, Rows: defaultRows}
	for _, part := range []struct {
		name  string
		value *int
		to    *uint16
	}{{"cols", cols, &size.Cols}, {"rows", rows, &size.Rows}} {
		switch {
		case part.value == nil || *part.value == 0:
		case *part.value < 0 || *part.value > maxSide:
			return size, sandpit.Errorf(sandpit.Invalid, "invalid %s %d: want 1 to %d", part.name, *part.value, maxSide)
		default:
			*part.to = uint16(*part.value)
		}
	}
	return size, nil
}

// maxSide is the maximum number of columns and rows of a terminal.
const maxSide = 1000

// openTerminal creates a terminal, and starts its shell unless that starts with the first
// connection. AlreadyExists. Exhausted: there are too many.
func openTerminal(ctx context.Context, c *call, in terminalRequest) (*terminal, error) {
	in.ID = cmp.Or(in.ID, newID())
	if err := checkName("id", in.ID); err != nil {
		return nil, err
	}
	size, err := parseSize(in.Cols, in.Rows)
	if err != nil {
		return nil, err
	}
	if in.Dir, err = c.shownDir(ctx, in.Dir); err != nil {
		return nil, err
	}
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return nil, err
	}
	t := &terminal{
		id: in.ID, dir: in.Dir, envs: in.Envs, lazy: in.Lazy, created: time.Now().UTC(), size: size, cost: in.cost(),
		screen: newOutputLog(maxScreen, p.account), input: shell.NewInput(), ended: make(chan struct{}),
	}
	if err := p.addTerminal(t); err != nil {
		return nil, err
	}
	if !t.lazy {
		err = p.startTerminal(ctx, t)
	}
	return t, err
}

// addTerminal lists a terminal. It replaces an ended one of the same name, and forgets an ended
// one if there are too many.
func (p *programs) addTerminal(t *terminal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.endError()
	}
	if other := p.terminals[t.id]; other != nil {
		if !other.hasEnded() {
			return sandpit.Errorf(sandpit.AlreadyExists, "PTY session with ID %q already exists", t.id)
		}
		p.removeTerminal(other)
	}
	for _, other := range p.terminals {
		if len(p.terminals) >= maxTerminals && other.hasEnded() {
			p.removeTerminal(other)
		}
	}
	if len(p.terminals) >= maxTerminals {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d terminals are open, the limit is reached", len(p.terminals)), "close one first")
	}
	if err := p.account.Reserve(t.cost); err != nil {
		return err
	}
	p.terminals[t.id] = t
	return nil
}

// removeTerminal removes a terminal from the list. The caller holds the lock. It does nothing
// if the terminal was removed before.
func (p *programs) removeTerminal(t *terminal) {
	if p.terminals[t.id] != t {
		return
	}
	delete(p.terminals, t.id)
	t.screen.release()
	p.account.Return(t.cost)
}

func (t *terminal) hasEnded() bool { return isClosed(t.ended) }

// loginShell starts the best interactive shell of an image.
const loginShell = "if command -v bash >/dev/null; then exec bash -i; fi; exec sh -i"

// startTerminal starts the shell of a terminal, unless it was started. If that fails, the
// terminal is removed.
func (p *programs) startTerminal(ctx context.Context, t *terminal) error {
	t.starting.Lock()
	defer t.starting.Unlock()
	t.mu.Lock()
	started, size := t.process != nil, t.size
	t.mu.Unlock()
	if started || t.hasEnded() {
		return nil
	}
	env := map[string]string{"TERM": "xterm-256color"}
	maps.Copy(env, t.envs)
	following, cancel := context.WithCancel(memory.WithAccount(context.WithoutCancel(ctx), nil))
	process, err := p.starter.Start(following, sandpit.Command{
		Args: sandpit.ShellArgs(loginShell), Env: env, Dir: t.dir, Terminal: &size, Stdin: t.input, Stdout: t.screen,
	})
	if err != nil {
		cancel()
		p.dropTerminal(t)
		return err
	}
	t.mu.Lock()
	t.process = process
	t.mu.Unlock()
	if !p.follow(func() { p.followTerminal(following, cancel, t) }) {
		defer cancel()
		p.dropTerminal(t)
		return cmp.Or(killProcess(ctx, process), p.endError())
	}
	return nil
}

// dropTerminal removes a terminal that has no shell.
func (p *programs) dropTerminal(t *terminal) {
	t.input.Abandon()
	close(t.ended)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removeTerminal(t)
}

// followTerminal waits for the end of a terminal's shell. It kills it when the programs are
// closed.
func (p *programs) followTerminal(ctx context.Context, cancel context.CancelFunc, t *terminal) {
	defer cancel()
	stop := context.AfterFunc(p.ctx, func() {
		_ = killProcess(ctx, t.process) // fails only if the sandbox has ended, or does not respond
		cancel()
	})
	defer stop()
	status, err := t.process.Wait(ctx)
	t.input.Abandon()
	t.result = toTerminalResult(status, err)
	close(t.ended)
	t.screen.end()
}

// toTerminalResult describes how a shell has ended.
func toTerminalResult(status sandpit.ExitStatus, err error) terminalResult {
	switch {
	case err != nil:
		return terminalResult{ExitCode: 128 + int(sandpit.SIGKILL), Reason: "connection to the terminal lost"}
	case status.OutOfMemory:
		return terminalResult{ExitCode: status.Code, Reason: "out of memory"}
	case status.Code != 0:
		return terminalResult{ExitCode: status.Code, Reason: status.String()}
	}
	return terminalResult{}
}

// killTime is how long killing a program may take.
const killTime = 5 * time.Second

// killProcess kills a process and its descendants. It succeeds if the process has ended.
func killProcess(ctx context.Context, p sandpit.Process) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTime)
	defer cancel()
	if err := p.Signal(ctx, sandpit.SIGKILL); sandpit.CodeOf(err) != sandpit.Gone {
		return err
	}
	return nil
}

// findTerminal returns the terminal in the path. NotFound.
func findTerminal(c *call) (*programs, *terminal, error) {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if t := p.terminals[c.r.PathValue("terminal")]; t != nil {
		return p, t, nil
	}
	return nil, nil, sandpit.Errorf(sandpit.NotFound, "PTY session not found")
}

func listTerminals(_ context.Context, c *call) error {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	list := []terminalDTO{}
	p.mu.Lock()
	for _, t := range p.terminals {
		list = append(list, t.toDTO())
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b terminalDTO) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), strings.Compare(a.ID, b.ID))
	})
	return c.writeJSON(http.StatusOK, map[string]any{"sessions": list})
}

func (t *terminal) toDTO() terminalDTO {
	t.mu.Lock()
	defer t.mu.Unlock()
	envs := t.envs
	if envs == nil {
		envs = map[string]string{}
	}
	active := t.process != nil && !t.hasEnded()
	return terminalDTO{t.id, t.dir, envs, t.size.Cols, t.size.Rows, t.created, active, t.lazy}
}

func getTerminal(_ context.Context, c *call) error {
	_, t, err := findTerminal(c)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, t.toDTO())
}

// deleteTerminal kills the shell of a terminal, and removes the terminal.
func deleteTerminal(ctx context.Context, c *call) error {
	p, t, err := findTerminal(c)
	if err != nil {
		return err
	}
	t.starting.Lock()
	defer t.starting.Unlock()
	t.mu.Lock()
	process := t.process
	t.mu.Unlock()
	switch {
	case process != nil:
		err = killProcess(ctx, process)
	case !t.hasEnded(): // it was never started
		close(t.ended)
	}
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.removeTerminal(t)
	p.mu.Unlock()
	return c.writeJSON(http.StatusOK, struct{}{}) // clients for Go decode an object of objects
}

func resizeTerminal(ctx context.Context, c *call) error {
	var in struct {
		Cols *int `json:"cols"`
		Rows *int `json:"rows"`
	}
	if err := c.readBody(&in); err != nil {
		return err
	}
	if in.Cols == nil || in.Rows == nil || *in.Cols == 0 || *in.Rows == 0 {
		return sandpit.Errorf(sandpit.Invalid, "want cols and rows above 0")
	}
	size, err := parseSize(in.Cols, in.Rows)
	if err != nil {
		return err
	}
	_, t, err := findTerminal(c)
	if err != nil {
		return err
	}
	t.mu.Lock()
	process := t.process
	t.mu.Unlock()
	if t.hasEnded() {
		return withStatus(sandpit.Errorf(sandpit.Gone, "the terminal has ended"), http.StatusGone, "SESSION_ENDED")
	}
	if process != nil {
		if err := process.Resize(ctx, size); err != nil {
			return err
		}
	}
	t.mu.Lock()
	t.size = size
	t.mu.Unlock()
	return c.writeJSON(http.StatusOK, t.toDTO())
}
