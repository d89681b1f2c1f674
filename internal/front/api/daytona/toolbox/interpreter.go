package toolbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

const (
	// defaultContext is the context of code that names none. It is not listed.
	defaultContext = "default"
	// maxContexts is how many contexts clients may create: the interpreter has 64, and code-run
	// needs some.
	maxContexts = 48
	// requestTimeout is how long a client may take to send the code after it has connected.
	requestTimeout = 30 * time.Second
	// defaultCodeTimeout is the timeout of code whose request has none.
	defaultCodeTimeout = 10 * time.Minute
	// closeTimedOut is the code of a close frame after code that took too long, and
	// closeTimedOutGo that which the SDK for Go expects.
	closeTimedOut   = websocket.StatusCode(4008)
	closeTimedOutGo = websocket.StatusCode(4001)
	// removeTimeout is how long ending an interpreter may take.
	removeTimeout = 30 * time.Second
)

// interpreterContext is an interpreter whose variables persist between runs, as clients see it.
type interpreterContext struct {
	ID        string    `json:"id"`
	Dir       string    `json:"cwd"`
	Language  string    `json:"language"`
	CreatedAt time.Time `json:"createdAt"`
	Active    bool      `json:"active"`
}

// interpreterHandlers serve the calls about interpreters.
type interpreterHandlers struct{}

// registerInterpreter adds the calls about interpreters.
func (s *Server) registerInterpreter(mux api.Router) {
	s.handle(mux, "POST /process/interpreter/context", interpreterHandlers{}.createContext)
	s.handle(mux, "GET /process/interpreter/context", interpreterHandlers{}.listContexts)
	s.handle(mux, "DELETE /process/interpreter/context/{context}", interpreterHandlers{}.deleteContext)
	s.handle(mux, "GET /process/interpreter/execute", interpreterHandlers{}.executeInContext)
}

// createContext creates a context. Its interpreter starts with the first run.
func (interpreterHandlers) createContext(ctx context.Context, c *call) error {
	var in struct {
		Dir      string `json:"cwd"`
		Language string `json:"language"`
	}
	if err := c.readBody(&in); err != nil {
		return err
	}
	in.Language = cmp.Or(in.Language, interpreter.Python)
	if !slices.Contains([]string{interpreter.Python, interpreter.JavaScript, interpreter.TypeScript}, in.Language) {
		return sandpit.Errorf(sandpit.Invalid, "unsupported language %.40q", in.Language)
	}
	dir, err := c.shownDir(ctx, in.Dir)
	if err != nil {
		return err
	}
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	created := &interpreterContext{ID: newID(), Dir: dir, Language: in.Language, CreatedAt: time.Now().UTC(), Active: true}
	p.mu.Lock()
	n := len(p.contexts)
	if n < maxContexts {
		p.contexts[created.ID] = created
	}
	p.mu.Unlock()
	if n >= maxContexts {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d interpreter contexts exist, the limit is reached", n), "delete one first")
	}
	return c.writeJSON(http.StatusOK, created)
}

func (interpreterHandlers) listContexts(_ context.Context, c *call) error {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	list := []interpreterContext{}
	p.mu.Lock()
	for _, found := range p.contexts {
		list = append(list, *found)
	}
	p.mu.Unlock()
	slices.SortFunc(list, func(a, b interpreterContext) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return c.writeJSON(http.StatusOK, map[string]any{"contexts": list})
}

// findContext returns a context by its ID, the default one for "". NotFound.
func (p *programs) findContext(id string) (interpreterContext, error) {
	if id == "" || id == defaultContext {
		return interpreterContext{ID: defaultContext, Language: interpreter.Python}, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if found := p.contexts[id]; found != nil {
		return *found, nil
	}
	return interpreterContext{}, sandpit.Errorf(sandpit.NotFound, "context not found")
}

// deleteContext ends the interpreter of a context, also while it runs code.
func (interpreterHandlers) deleteContext(ctx context.Context, c *call) error {
	id := c.r.PathValue("context")
	if id == defaultContext {
		return sandpit.Errorf(sandpit.Invalid, "the default context cannot be deleted")
	}
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	if _, err := p.findContext(id); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	if err := p.remote.Remove(ctx, id); err != nil {
		return err
	}
	p.mu.Lock()
	delete(p.contexts, id)
	p.mu.Unlock()
	return c.writeJSON(http.StatusOK, map[string]string{"message": "Context deleted"})
}

// codeRequest is the first frame of a client: code for a context.
type codeRequest struct {
	Code    string            `json:"code"`
	Context string            `json:"contextId"`
	Envs    map[string]string `json:"envs"`
	Timeout *float64          `json:"timeout"` // in seconds; 0 for no limit
}

// codeChunk is a frame about running code.
type codeChunk struct {
	Type      string `json:"type"` // stdout, stderr, error or control
	Text      string `json:"text,omitempty"`
	Name      string `json:"name,omitempty"`
	Value     string `json:"value,omitempty"`
	Traceback string `json:"traceback,omitempty"`
}

// executeInContext runs the code in the first frame of a WebSocket, and sends its output. The
// code is interrupted when the client disconnects.
func (interpreterHandlers) executeInContext(ctx context.Context, c *call) error {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return err
	}
	k, err := openSocket(ctx, c)
	if err != nil {
		return err
	}
	defer k.close()
	in, err := k.readCode()
	if err != nil {
		k.closeWith(websocket.StatusPolicyViolation, api.ProblemOf(c.r.Context(), err).Detail)
		return nil
	}
	k.ignoreInput()
	k.runInContext(p, in)
	return nil
}

// readCode reads and checks the first frame.
func (k *socket) readCode() (in codeRequest, err error) {
	ctx, cancel := context.WithTimeout(k.reading, requestTimeout)
	defer cancel()
	_, frame, err := k.conn.Read(ctx)
	if err != nil {
		return in, sandpit.Errorf(sandpit.Canceled, "read the code: %w", err)
	}
	switch err := json.Unmarshal(frame, &in); {
	case err != nil:
		return in, sandpit.Errorf(sandpit.Invalid, "the request is not JSON")
	case in.Code == "":
		return in, sandpit.Errorf(sandpit.Invalid, "code is required")
	case in.Timeout != nil && (math.IsNaN(*in.Timeout) || *in.Timeout < 0 || *in.Timeout > maxTimeout.Seconds()):
		return in, sandpit.Errorf(sandpit.Invalid, "invalid timeout %v", *in.Timeout)
	}
	return in, nil
}

// runInContext runs code, sends its output and closes the connection.
func (k *socket) runInContext(p *programs, in codeRequest) {
	found, err := p.findContext(in.Context)
	if err != nil {
		k.closeWith(websocket.StatusPolicyViolation, err.Error())
		return
	}
	ctx, cancel := k.ctx, context.CancelFunc(func() {})
	if limit := codeTimeout(in.Timeout); limit > 0 {
		ctx, cancel = context.WithTimeoutCause(k.ctx, limit, errCodeTimedOut)
	}
	defer cancel()
	cell := interpreter.Cell{Context: found.ID, Language: found.Language, Dir: found.Dir, Code: in.Code, Env: in.Envs}
	err = p.remote.Run(ctx, cell, k.sendEvent)
	switch {
	case err == nil:
		if k.sendChunk(codeChunk{Type: "control", Text: "completed"}) == nil {
			k.closeWith(websocket.StatusNormalClosure, "")
		}
	case errors.Is(context.Cause(ctx), errCodeTimedOut):
		k.closeWith(timedOutStatus(k.call.r), "execution timed out")
	default:
		k.finish(err)
	}
}

// timedOutStatus returns the code of the close frame after code that took too long.
func timedOutStatus(r *http.Request) websocket.StatusCode {
	if r.Header.Get(headerSource) == sourceGo {
		return closeTimedOutGo
	}
	return closeTimedOut
}

// errCodeTimedOut ends code that took too long.
var errCodeTimedOut = errors.New("execution timed out")

// codeTimeout converts a number of seconds: without one the default, 0 for no limit.
func codeTimeout(seconds *float64) time.Duration {
	if seconds == nil {
		return defaultCodeTimeout
	}
	return time.Duration(*seconds * float64(time.Second))
}

// sendEvent sends an event of running code. Clients do not get the values of expressions.
func (k *socket) sendEvent(e interpreter.Event) error {
	switch e := e.(type) {
	case interpreter.Output:
		return k.sendChunk(codeChunk{Type: string(e.Stream), Text: e.Text})
	case interpreter.Failure:
		return k.sendChunk(codeChunk{Type: "error", Name: e.Name, Value: e.Value, Traceback: e.Traceback})
	}
	return nil
}

func (k *socket) sendChunk(chunk codeChunk) error {
	text, err := json.Marshal(chunk)
	if err != nil {
		return err
	}
	return k.send(websocket.MessageText, text)
}
