package toolbox

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

const (
	// maxCommands is how many commands of a session are listed, the oldest ended ones are
	// forgotten first; maxPending is how many may wait or run.
	maxCommands = 1000
	maxPending  = 100
	// maxTexts bounds the texts of the listed commands of a session, in bytes, and commandCost is the
	// memory of a command besides its text and output.
	maxTexts    = 2 * maxCommand
	commandCost = 1 << 10
	// maxSessionID is the maximum number of bytes of the name of a session or terminal.
	maxSessionID = 256
)

// session is a shell whose directory and variables persist between commands, which run one
// after the other.
type session struct {
	id    string
	shell *shell.Session // nil while it opens; set before the session is found by others

	mu       sync.Mutex
	closed   bool
	commands []*command
	size     int             // of the texts of commands
	account  *memory.Account // of these
	last     <-chan struct{} // closed when the latest command has ended
}

// command is a command in a session.
type command struct {
	id, text string
	log      *outputLog
	input    *shell.Input  // nil: the command has an empty input
	echoes   bool          // whether the log shows the input
	started  chan struct{} // closed when the shell has been given the command, or it has to wait
	starting sync.Once     // closes started
	done     chan struct{} // closed when the following are set
	exitCode int
	err      error // why the command did not run, or not to its end
}

// sessionDTO is a session as clients see it.
type sessionDTO struct {
	ID       string       `json:"sessionId"`
	Commands []commandDTO `json:"commands"`
}

// commandDTO is a command as clients see it.
type commandDTO struct {
	ID       string `json:"id"`
	Command  string `json:"command"`
	ExitCode *int   `json:"exitCode,omitempty"` // absent while the command runs
}

// registerSessions adds the calls about sessions.
func (s *Server) registerSessions(mux api.Router) {
	s.handle(mux, "POST /process/session", createSession)
	s.handle(mux, "GET /process/session", listSessions)
	s.handle(mux, "GET /process/session/{session}", getSession)
	s.handle(mux, "DELETE /process/session/{session}", deleteSession)
	s.handle(mux, "POST /process/session/{session}/exec", executeInSession)
	s.handle(mux, "GET /process/session/{session}/command/{command}", getCommand)
	s.handle(mux, "GET /process/session/{session}/command/{command}/logs", readLogs)
	s.handle(mux, "POST /process/session/{session}/command/{command}/input", sendInput)
	s.handle(mux, "GET /process/session/entrypoint", getEntrypoint)
	s.handle(mux, "GET /process/session/entrypoint/logs", readEntrypointLogs)
}

func createSession(ctx context.Context, c *call) error {
	var in struct {
		ID string `json:"sessionId"`
	}
	if err := c.readBody(&in); err != nil {
		return err
	}
	if err := checkName("sessionId", in.ID); err != nil {
		return err
	}
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	if err := p.openSession(ctx, in.ID); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusCreated)
}

// checkName checks the name of a session or terminal.
func checkName(field, name string) error {
	if name == "" || len(name) > maxSessionID || name == entrypointID {
		return sandpit.Errorf(sandpit.Invalid, "invalid %s %.300q: want 1 to %d bytes, and not %q", field, name, maxSessionID, entrypointID)
	}
	return nil
}

// openSession opens a session. AlreadyExists.
func (p *programs) openSession(ctx context.Context, id string) error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return p.endError()
	}
	if _, taken := p.sessions[id]; taken {
		p.mu.Unlock()
		return sandpit.Errorf(sandpit.AlreadyExists, "session already exists")
	}
	p.sessions[id] = nil // taken, but not found by others
	p.mu.Unlock()
	opened, err := p.shells.Create(ctx, "", shell.Options{Timeout: maxTimeout})
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		delete(p.sessions, id)
		return err
	}
	p.sessions[id] = &session{id: id, shell: opened, account: p.account}
	return nil
}

// findSession returns the session in the path. NotFound.
func findSession(c *call) (*programs, *session, error) {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return nil, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.sessions[c.r.PathValue("session")]; found != nil {
		return p, found, nil
	}
	return nil, nil, sandpit.Errorf(sandpit.NotFound, "session not found")
}

// findCommand returns the command in the path. NotFound.
func findCommand(c *call) (*command, error) {
	_, found, err := findSession(c)
	if err != nil {
		return nil, err
	}
	found.mu.Lock()
	defer found.mu.Unlock()
	id := c.r.PathValue("command")
	if i := slices.IndexFunc(found.commands, func(cmd *command) bool { return cmd.id == id }); i >= 0 {
		return found.commands[i], nil
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "command not found")
}

func listSessions(_ context.Context, c *call) error {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	list := []sessionDTO{}
	p.mu.Lock()
	for _, found := range p.sessions {
		if found != nil {
			list = append(list, found.toDTO())
		}
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b sessionDTO) int { return strings.Compare(a.ID, b.ID) })
	return c.writeJSON(http.StatusOK, list)
}

func getSession(_ context.Context, c *call) error {
	_, found, err := findSession(c)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, found.toDTO())
}

func deleteSession(_ context.Context, c *call) error {
	p, found, err := findSession(c)
	if err != nil {
		return err
	}
	p.mu.Lock()
	if p.sessions[found.id] != found {
		p.mu.Unlock()
		return sandpit.Errorf(sandpit.NotFound, "session not found")
	}
	p.sessions[found.id] = nil // taken until its programs have ended
	p.mu.Unlock()
	err = p.shells.CloseSession(found.shell.ID())
	found.releaseLogs()
	p.mu.Lock()
	delete(p.sessions, found.id)
	p.mu.Unlock()
	if err != nil && sandpit.CodeOf(err) != sandpit.Gone {
		return err
	}
	return c.writeEmpty(http.StatusNoContent)
}

// releaseLogs drops the output of the commands of a session that is closed.
func (o *session) releaseLogs() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for len(o.commands) > 0 {
		o.dropOldest()
	}
}

// dropOldest forgets the oldest command, and its output. The caller holds the lock.
func (o *session) dropOldest() {
	oldest := o.commands[0]
	oldest.log.release()
	o.size -= len(oldest.text)
	o.account.Return(int64(len(oldest.text) + commandCost))
	o.commands[0] = nil
	o.commands = o.commands[1:]
}

func getCommand(_ context.Context, c *call) error {
	cmd, err := findCommand(c)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, cmd.toDTO())
}

func (o *session) toDTO() sessionDTO {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := make([]commandDTO, len(o.commands))
	for i, cmd := range o.commands {
		list[i] = cmd.toDTO()
	}
	return sessionDTO{o.id, list}
}

func (cmd *command) toDTO() commandDTO {
	d := commandDTO{ID: cmd.id, Command: cmd.text}
	if cmd.hasEnded() {
		d.ExitCode = &cmd.exitCode
	}
	return d
}

func (cmd *command) hasEnded() bool { return isClosed(cmd.done) }

// executeRequest is a command for a session.
type executeRequest struct {
	Command  string `json:"command"`
	RunAsync bool   `json:"runAsync"`
	Async    bool   `json:"async"` // of older clients
	NoEcho   bool   `json:"suppressInputEcho"`
}

// executeResult is the result of a command in a session. Output has both outputs; Stdout and
// Stderr are for clients that can use them.
type executeResult struct {
	ID       string  `json:"cmdId"`
	Output   *string `json:"output,omitempty"`
	Stdout   *string `json:"stdout,omitempty"`
	Stderr   *string `json:"stderr,omitempty"`
	ExitCode *int    `json:"exitCode,omitempty"`
}

// executeInSession runs a command in a session. If the client disconnects, the command keeps
// running: it belongs to the session.
func executeInSession(ctx context.Context, c *call) error {
	var in executeRequest
	if err := c.readBody(&in); err != nil {
		return err
	}
	if err := checkCommand(in.Command); err != nil {
		return err
	}
	p, found, err := findSession(c)
	if err != nil {
		return err
	}
	cmd := &command{
		id: newID(), text: in.Command, log: newOutputLog(maxLog, p.account), echoes: !in.NoEcho,
		started: make(chan struct{}), done: make(chan struct{}),
	}
	async, limit := in.RunAsync || in.Async, c.server.o.CommandTimeout
	if async {
		cmd.input, limit = shell.NewInput(), maxTimeout // no client waits for it
	}
	// The programs outlive the request, but act in its name.
	running, cancel := context.WithCancelCause(memory.WithAccount(context.WithoutCancel(ctx), nil))
	stop := context.AfterFunc(p.ctx, func() { cancel(p.endError()) })
	err = p.startCommand(found, cmd, func() {
		defer cancel(nil)
		defer stop()
		cmd.run(running, found, limit)
	})
	if err != nil {
		stop()
		cancel(nil)
		return err
	}
	if async {
		// The client may pause the sandbox next, which must not lose the command.
		select {
		case <-cmd.started:
		case <-cmd.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return c.writeJSON(http.StatusAccepted, executeResult{ID: cmd.id})
	}
	select {
	case <-cmd.done:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if cmd.err != nil {
		return cmd.err
	}
	return c.writeJSON(http.StatusOK, cmd.toResult(splitsOutput(c.r)))
}

// toResult returns the result of a command that has ended.
func (cmd *command) toResult(split bool) executeResult {
	texts := cmd.log.texts()
	r := executeResult{ID: cmd.id, Output: &texts.Output, ExitCode: &cmd.exitCode}
	if split {
		r.Stdout, r.Stderr = &texts.Stdout, &texts.Stderr
	}
	return r
}

// newID returns a random ID in the form of a UUID.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: crypto/rand ends the program instead
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// startCommand lists a command in its session, and has run called after the earlier commands.
// Exhausted: too many commands wait.
func (p *programs) startCommand(o *session, cmd *command, run func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return withStatus(sandpit.Errorf(sandpit.Gone, "the session has ended"), http.StatusGone, "SESSION_ENDED")
	}
	if err := o.makeRoom(len(cmd.text)); err != nil {
		return err
	}
	earlier := o.last
	started := p.followLocked(func() {
		defer close(cmd.done)
		defer cmd.log.end()
		if earlier != nil {
			cmd.waitFor(earlier)
		}
		run()
	})
	if !started {
		o.account.Return(int64(len(cmd.text) + commandCost))
		return p.endError()
	}
	o.size += len(cmd.text)
	o.commands, o.last = append(o.commands, cmd), cmd.done
	return nil
}

// waitFor waits for the end of the earlier commands of the session.
func (cmd *command) waitFor(earlier <-chan struct{}) {
	select {
	case <-earlier:
	default:
		cmd.markStarted()
		<-earlier
	}
}

func (cmd *command) markStarted() { cmd.starting.Do(func() { close(cmd.started) }) }

// makeRoom reserves memory for a command with a text of a number of bytes. It forgets the oldest
// ended commands of a session that has too many. The caller holds the lock.
//
// Exhausted: too many commands wait, or there is not enough memory.
func (o *session) makeRoom(size int) error {
	pending := 0
	for i := len(o.commands) - 1; i >= 0 && !o.commands[i].hasEnded(); i-- {
		pending++
	}
	if pending >= maxPending {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d commands of this session run or wait, the limit is reached", pending), "use another session")
	}
	for len(o.commands) > 0 && (len(o.commands) >= maxCommands || o.size+size > maxTexts && o.commands[0].hasEnded()) {
		o.dropOldest()
	}
	return o.account.Reserve(int64(size + commandCost))
}

// run runs a command in the shell of its session, and sets its result.
func (cmd *command) run(ctx context.Context, o *session, limit time.Duration) {
	if cmd.input != nil {
		defer cmd.input.Abandon()
	}
	r, err := o.shell.Run(ctx, shell.RunRequest{
		Command: cmd.text, Timeout: limit, Input: cmd.input, SeparateStderr: true, MaxOutput: 1, Output: cmd.log.add,
		Started: cmd.markStarted,
	})
	cmd.exitCode = r.ExitCode
	switch {
	case err == nil:
		return
	case r.TimedOut:
		err = newTimeoutError(limit)
	case sandpit.CodeOf(err) == sandpit.Invalid && r.ExitCode == exitSyntax: // as from a shell
		cmd.log.add(true, []byte(err.Error()+"\n"))
		return
	case errors.Is(err, context.Canceled) && context.Cause(ctx) != nil:
		err = context.Cause(ctx)
	default:
	}
	if cmd.err = err; cmd.exitCode == 0 {
		cmd.exitCode = exitFailed
	}
	cmd.log.add(true, []byte(err.Error()+"\n"))
}

const (
	// exitSyntax is the exit code of shells for a command that they cannot parse, and
	// exitFailed that of a command that was not run.
	exitSyntax = 2
	exitFailed = 126
)

// sendInput gives a running command input, which ends a line.
func sendInput(ctx context.Context, c *call) error {
	var in struct {
		Data string `json:"data"`
	}
	if err := c.readBody(&in); err != nil {
		return err
	}
	cmd, err := findCommand(c)
	if err != nil {
		return err
	}
	completed := withStatus(sandpit.Errorf(sandpit.Gone, "command has already completed"), http.StatusGone, "COMMAND_ALREADY_COMPLETED")
	switch {
	case cmd.hasEnded():
		return completed
	case cmd.input == nil:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the command has no input"), "run it with runAsync")
	}
	if !strings.HasSuffix(in.Data, "\n") {
		in.Data += "\n" // clients send the answer to a question without it
	}
	if err := cmd.input.Write(ctx, []byte(in.Data)); err != nil {
		if sandpit.CodeOf(err) == sandpit.Gone {
			err = completed
		}
		return err
	}
	if cmd.echoes {
		cmd.log.add(false, []byte(in.Data))
	}
	return c.writeEmpty(http.StatusNoContent)
}
