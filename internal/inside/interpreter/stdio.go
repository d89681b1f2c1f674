package interpreter

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Requests of a Remote.
const (
	askRun       = "run"
	askInterrupt = "interrupt"
	askRestart   = "restart"
	askRemove    = "remove"
)

// maxReplyLine bounds a line of either side, in bytes: a line of a kernel, or the code of the largest request.
const maxReplyLine = maxLine + 1<<20

// remoteRequest is a line from a Remote.
type remoteRequest struct {
	ID       uint64            `json:"id"` // an interrupt has the ID of the run
	Do       string            `json:"do"`
	Context  string            `json:"context,omitempty"` // the Remote's name for it
	Language string            `json:"language,omitempty"`
	Dir      string            `json:"dir,omitempty"`
	Code     string            `json:"code,omitempty"`
	Environ  map[string]string `json:"environ,omitempty"` // for all runs from now on
	Env      map[string]string `json:"env,omitempty"`     // for this run only
}

// reply is a line to a Remote: that its request was received, an event, or the end.
type reply struct {
	ID    uint64          `json:"id"`
	Begun bool            `json:"begun,omitempty"`
	Event json.RawMessage `json:"event,omitempty"`
	Done  bool            `json:"done,omitempty"`
	Error *refusal        `json:"error,omitempty"`
}

// refusal is the reason why nothing was run, or not completely.
type refusal struct {
	Code    sandpit.Code `json:"code"`
	Message string       `json:"message"`
}

// stdioServer serves a Remote over two streams.
type stdioServer struct {
	service *Service

	creating sync.Mutex // serializes the creation of contexts

	mu      sync.Mutex
	names   map[string]string // IDs of contexts by the Remote's names
	runs    map[uint64]context.CancelFunc
	environ map[string]string // replaced, never modified

	writing sync.Mutex
	out     io.Writer
}

// serveStdio serves a Remote until it closes the input, or ctx ends.
func serveStdio(ctx context.Context, dir string) error {
	const input = 0
	if err := syscall.SetNonblock(input, true); err != nil { // so that reads can be interrupted
		return err
	}
	in := os.NewFile(input, "input")
	stop := context.AfterFunc(ctx, func() { _ = in.SetReadDeadline(time.Now()) })
	defer stop()
	return newStdioServer(dir, os.Stdout).serveRequests(ctx, in)
}

func newStdioServer(dir string, out io.Writer) *stdioServer {
	h := &stdioServer{names: make(map[string]string), runs: make(map[uint64]context.CancelFunc), out: out}
	h.service = New(Options{Dir: dir, Identity: readBootID, Environ: h.currentEnviron})
	return h
}

// currentEnviron returns the environment of runs.
func (h *stdioServer) currentEnviron(context.Context) (map[string]string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.environ, nil
}

// serveRequests handles requests until the input or ctx ends, and then ends all kernels.
func (h *stdioServer) serveRequests(ctx context.Context, in io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	var under sync.WaitGroup
	defer under.Wait()
	defer h.service.Close()
	defer cancel()
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 4096), maxReplyLine)
	for lines.Scan() {
		var a remoteRequest
		if json.Unmarshal(lines.Bytes(), &a) != nil {
			continue // it was cut off; no reply is possible
		}
		doing := h.beginRequest(ctx, a)
		h.writeReply(reply{ID: a.ID, Begun: true})
		if a.Do != askInterrupt {
			under.Go(func() { h.doRequest(doing, a) })
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return lines.Err()
}

// beginRequest returns the context for a request. For an interrupt it cancels the context of the run.
func (h *stdioServer) beginRequest(ctx context.Context, a remoteRequest) context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch a.Do {
	case askRun:
		ctx, h.runs[a.ID] = context.WithCancel(ctx)
	case askInterrupt:
		if interrupt := h.runs[a.ID]; interrupt != nil {
			interrupt()
		}
	}
	return ctx
}

func (h *stdioServer) doRequest(ctx context.Context, a remoteRequest) {
	end := reply{ID: a.ID, Done: true}
	if err := h.performRequest(ctx, a); err != nil && ctx.Err() == nil { // the Remote knows that it interrupted the run
		end.Error = &refusal{Code: sandpit.CodeOf(err), Message: err.Error()}
	}
	h.mu.Lock()
	if done := h.runs[a.ID]; done != nil {
		done()
	}
	delete(h.runs, a.ID)
	h.mu.Unlock()
	h.writeReply(end)
}

func (h *stdioServer) performRequest(ctx context.Context, a remoteRequest) error {
	if err := checkEnv(a.Environ); err != nil {
		return err
	}
	h.mu.Lock()
	h.environ = maps.Clone(a.Environ)
	h.mu.Unlock()
	switch a.Do {
	case askRun:
		return h.runCode(ctx, a)
	case askRestart, askRemove:
		id, ok := h.contextID(a.Context)
		switch {
		case !ok:
			return nil // the next run creates it
		case a.Do == askRestart:
			return h.service.Restart(ctx, id)
		}
		h.setContextID(a.Context, "")
		return h.service.Remove(id)
	}
	return sandpit.Errorf(sandpit.Invalid, "unknown request %.40q", a.Do)
}

func (h *stdioServer) runCode(ctx context.Context, a remoteRequest) error {
	id, err := h.contextOf(ctx, a)
	if err != nil {
		return err
	}
	return h.service.Run(ctx, Request{Code: a.Code, Context: id, Env: a.Env}, func(e Event) error {
		event, err := json.Marshal(e)
		if err == nil {
			h.writeReply(reply{ID: a.ID, Event: event})
		}
		return err
	})
}

// contextOf returns the context that a Remote names, and creates it if it does not exist.
func (h *stdioServer) contextOf(ctx context.Context, a remoteRequest) (string, error) {
	h.creating.Lock()
	defer h.creating.Unlock()
	if id, ok := h.contextID(a.Context); ok {
		return id, nil
	}
	c, err := h.service.Create(ctx, a.Language, a.Dir)
	if err == nil {
		h.setContextID(a.Context, c.ID)
	}
	return c.ID, err
}

func (h *stdioServer) contextID(name string) (id string, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	id, ok = h.names[name]
	return id, ok
}

// setContextID records the ID for a name, or removes the name if id is empty.
func (h *stdioServer) setContextID(name, id string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names[name] = id
	if id == "" {
		delete(h.names, name)
	}
}

func (h *stdioServer) writeReply(t reply) {
	line, err := json.Marshal(t)
	if err != nil {
		line, _ = json.Marshal(reply{ID: t.ID, Done: true, Error: &refusal{Code: sandpit.Internal, Message: err.Error()}})
	}
	h.writing.Lock()
	defer h.writing.Unlock()
	_, _ = h.out.Write(append(line, '\n')) // a broken output also ends the input
}
