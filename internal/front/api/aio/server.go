// Package aio serves the HTTP interface of AIO sandboxes (agent-infra/sandbox) for sandboxes
// of the server: below /aio/SANDBOX is what such a sandbox has below /. Each request calls
// tools of internal/agents/tool, so the same happens as over MCP.
//
// A sandbox has one session for all requests, which lasts until nobody has asked for half an
// hour: its shells and kernels go on between them. Answers are an envelope: success, message
// and data. As there, a tool that fails is success false with status 200, and a command that
// fails is success true with an exit_code; requests that fit no schema are 422.
package aio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Path is what all paths begin with; the sandbox's ID follows.
const Path = "/aio/"

const (
	// idleTimeout is how long a session lasts without a request, sweep how often that is looked at.
	idleTimeout   = 30 * time.Minute
	sweepInterval = time.Minute
	// maxBody bounds the body of a request, in bytes, and writeTimeout the time of reading
	// an answer.
	maxBody      = 16 << 20
	writeTimeout = 60 * time.Second
	// callCost is how much memory a request takes besides what it keeps, in bytes.
	callCost = 256 << 10
	// bodyCost is how many bytes of memory each byte of a body takes: as it comes, as a
	// value, and as the input of a tool on its way through the schema.
	bodyCost = 7
)

// Options say what a Server works with. Manager must be given.
type Options struct {
	Manager *manager.Manager
	// Memory is what sessions may keep in memory. Default: there is no limit.
	Memory *memory.Budget
	// CommandTimeout is how long a command may take whose request names no time. Default: an
	// hour.
	CommandTimeout time.Duration
	// Version is told to clients.
	Version string
	// Log hears of sessions that cannot be closed. Default: nobody does.
	Log *slog.Logger
}

// Server has the sessions. All methods may be called concurrently.
type Server struct {
	o     Options
	tools *tool.Registry
	life  context.Context //nolint:containedctx // that of sessions which begin, for none of their requests outlives them all
	stop  context.CancelFunc
	group sync.WaitGroup

	mu       sync.Mutex
	closed   bool
	sessions map[sandpit.ID]*sandboxSession
}

// sandboxSession is the session of a sandbox, as long as its guest is the same.
type sandboxSession struct {
	guest sandpit.Guest
	used  time.Time // guarded by Server.mu, as is calls
	calls int

	ready   chan struct{} // closed when session or err is set
	session *tool.Session // nil: it could not begin
	err     error

	mu     sync.Mutex
	last   map[string]commandResult // of shells whose newest command was no background one
	memory *memory.Account          // of last
}

// closeSession ends the session, once it has begun.
func (b *sandboxSession) closeSession() error {
	<-b.ready
	b.memory.Close()
	if b.session == nil {
		return nil
	}
	return b.session.Close()
}

// New returns a Server. The caller must Close it.
func New(o Options) (*Server, error) {
	tools, err := tool.New(nil)
	if err != nil {
		return nil, err
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, tools: tools, sessions: make(map[sandpit.ID]*sandboxSession)}
	s.life, s.stop = context.WithCancel(context.Background())
	s.group.Go(s.sweepIdle)
	return s, nil
}

// Close ends all sessions. It is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	boxes := s.sessions
	s.sessions = nil
	s.mu.Unlock()
	s.stop()
	s.group.Wait()
	var errs []error
	for _, b := range boxes {
		errs = append(errs, b.closeSession())
	}
	return errors.Join(errs...)
}

// sweepIdle ends the sessions that nobody uses.
func (s *Server) sweepIdle() {
	ticker := time.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-s.life.Done():
			return
		case <-ticker.C:
		}
		for id, b := range s.takeIdle(time.Now()) {
			if err := b.closeSession(); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
				s.o.Log.Warn("an idle session cannot be closed", slog.String("sandbox", string(id)), slog.Any("error", err))
			}
		}
	}
}

// takeIdle takes out the sessions that nobody uses, or whose sandbox is no more.
func (s *Server) takeIdle(now time.Time) map[sandpit.ID]*sandboxSession {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[sandpit.ID]*sandboxSession)
	for id, b := range s.sessions {
		about, err := s.o.Manager.Get(id)
		ended := err != nil || about.State == sandpit.StateDeleted || about.State == sandpit.StateDeleting
		if b.calls == 0 && (ended || now.Sub(b.used) >= idleTimeout) {
			out[id] = b
			delete(s.sessions, id)
		}
	}
	return out
}

// acquireSession returns the session of a sandbox. The caller must leave it.
func (s *Server) acquireSession(ctx context.Context, about sandpit.Sandbox, guest sandpit.Guest) (*sandboxSession, error) {
	b, err := s.findSession(about, guest)
	if err != nil {
		return nil, err
	}
	select {
	case <-b.ready:
		err = b.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		s.releaseSession(b)
		return nil, err
	}
	return b, nil
}

// findSession returns the session of a sandbox, which may just begin. No lock is held while it
// does: a guest may take its time.
func (s *Server) findSession(about sandpit.Sandbox, guest sandpit.Guest) (*sandboxSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, api.ErrDraining
	}
	b := s.sessions[about.ID]
	if b == nil || b.guest != guest {
		if b != nil {
			s.group.Go(func() { _ = b.closeSession() }) // what was in it has ended with the guest that it had
		}
		open := func() *memory.Account { return s.o.Memory.OpenSession(about.Lease.Owner) }
		b = &sandboxSession{guest: guest, ready: make(chan struct{}), last: make(map[string]commandResult), memory: open()}
		s.sessions[about.ID] = b
		s.group.Go(func() {
			s.openSession(b, about.ID, tool.SessionOptions{ID: string(about.ID), User: about.Spec.User, Memory: open})
		})
	}
	b.calls++
	return b, nil
}

// openSession begins the session, for which every request of the sandbox waits. One that cannot
// begin is forgotten, so that the next request tries again.
func (s *Server) openSession(b *sandboxSession, id sandpit.ID, o tool.SessionOptions) {
	session, err := tool.NewSession(s.life, b.guest, o)
	s.mu.Lock()
	b.session, b.err = session, err
	if err != nil && s.sessions[id] == b {
		delete(s.sessions, id)
		b.memory.Close()
	}
	s.mu.Unlock()
	close(b.ready)
}

func (s *Server) releaseSession(b *sandboxSession) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.calls--
	b.used = time.Now()
}

// Register adds the server to a mux, behind which requests have a principal. The mux must
// not bound the time of requests.
func (s *Server) Register(mux api.Router) {
	for pattern, h := range newRoutes() {
		method, path, _ := cutPattern(pattern)
		mux.HandleFunc(method+" "+Path+"{sandbox}"+path, func(w http.ResponseWriter, r *http.Request) {
			if err := s.serveRequest(w, r, h); err != nil {
				api.WriteError(w, r, err)
			}
		})
	}
}

// serveRequest answers a request. An error is about the sandbox or who asks, and not about what was to be done.
func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request, h handler) error {
	if err := memory.AccountOf(r.Context()).Reserve(callCost); err != nil {
		return err
	}
	body, err := api.ReadBody(w, r, maxBody, bodyCost)
	if err != nil {
		return err
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	held, err := api.UseResumed(r.Context(), s.o.Manager, sandpit.ID(r.PathValue("sandbox")))
	if err != nil {
		return err
	}
	defer held.Release()
	about, err := api.Find(r.Context(), s.o.Manager, sandpit.ID(r.PathValue("sandbox")))
	if err != nil {
		return err
	}
	b, err := s.acquireSession(held.Context(), about, held.Guest())
	if err != nil {
		return err
	}
	defer s.releaseSession(b)
	c := &call{server: s, session: b, r: r.WithContext(held.Context()), w: w}
	data, message, err := h(c)
	if why := context.Cause(held.Context()); err != nil && sandpit.CodeOf(why) == sandpit.Gone {
		return why
	}
	if c.responded {
		return nil
	}
	return c.writeEnvelope(data, message, err)
}

// call is a request.
type call struct {
	server  *Server
	session *sandboxSession
	r       *http.Request
	w       http.ResponseWriter
	// responded is true if the handler has written the answer.
	responded bool
}

// handler does what a request asks for, and returns its data and a message.
type handler func(c *call) (data any, message string, err error)

// envelope is every answer.
type envelope struct {
	Success bool   `json:"success"`
	Message string `json:"message"`
	Data    any    `json:"data"`
	Hint    string `json:"hint,omitempty"`
}

// validationError is the answer to a request that fits no schema.
type validationError struct {
	Detail []validationDetail `json:"detail"`
}

type validationDetail struct {
	Where   []string `json:"loc"`
	Message string   `json:"msg"`
	Type    string   `json:"type"`
}

func (c *call) writeEnvelope(data any, message string, err error) error {
	status := http.StatusOK
	var body any = envelope{Success: true, Message: message, Data: data}
	switch {
	case sandpit.CodeOf(err) == sandpit.Invalid:
		status, body = http.StatusUnprocessableEntity, validationError{[]validationDetail{{[]string{"body"}, err.Error(), "value_error"}}}
	case err != nil:
		body = envelope{Message: err.Error(), Hint: sandpit.HintOf(err)}
	default:
		if s, ok := data.(selfContained); ok {
			body = s.toEnvelope()
		}
	}
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // what cannot have one needs none
	return api.WriteJSON(c.w, c.r, status, body)
}

// selfContained is data that is an envelope itself.
type selfContained interface{ toEnvelope() any }

// readBody reads the body of a request.
func (c *call) readBody(into any) error {
	if err := json.NewDecoder(c.r.Body).Decode(into); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "the body does not fit: %w", err)
	}
	return nil
}

// fields is the input of a tool. Those that are nil are left out.
type fields map[string]any

// callTool calls a tool, whose data goes to into unless that is nil.
func (c *call) callTool(name string, in fields, into any) (tool.Result, error) {
	for key, value := range in {
		if isUnset(value) {
			delete(in, key)
		}
	}
	input, err := json.Marshal(in)
	if err != nil {
		return tool.Result{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	client, err := api.PrincipalOf(c.r.Context())
	if err != nil {
		return tool.Result{}, err
	}
	tools := c.server.tools.Audited(c.server.newAuditor(client))
	r := tools.Invoke(c.r.Context(), c.session.session, name, input)
	if r.Problem != nil {
		return r, sandpit.WithHint(sandpit.Errorf(r.Problem.Code, "%s", r.Problem.Message), r.Problem.Hint)
	}
	if into == nil || r.Data == nil {
		return r, nil
	}
	data, err := json.Marshal(r.Data)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return r, sandpit.Errorf(sandpit.Internal, "the data of %s: %w", name, err)
	}
	return r, nil
}

// isUnset reports whether a field was left out.
func isUnset(value any) bool {
	switch v := value.(type) {
	case nil:
		return true
	case *string:
		return v == nil
	case *int:
		return v == nil
	case *float64:
		return v == nil
	case *bool:
		return v == nil
	case string:
		return v == ""
	}
	return false
}

// newAuditor returns what writes calls down, without what was said.
func (s *Server) newAuditor(client api.Principal) func(tool.Call) {
	return func(c tool.Call) {
		r := manager.Report{
			Actor: client.Owner, Action: "tool", Sandbox: sandpit.ID(c.Session), Took: c.Took, Args: map[string]string{"tool": fmt.Sprintf("%.100s", c.Tool)},
		}
		switch {
		case c.Code != "":
			r.Err = sandpit.Errorf(c.Code, "the call was not carried out")
		case c.Failed:
			r.Args["failed"] = "true"
		}
		s.o.Manager.Events().Record(r)
	}
}
