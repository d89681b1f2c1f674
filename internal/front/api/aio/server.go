// Package aio serves the HTTP interface of AIO sandboxes (agent-infra/sandbox) for sandboxes
// of the server: the paths of such a sandbox are below /aio/SANDBOX. Requests call tools of
// internal/agents/tool, like requests over MCP.
//
// A sandbox has one session for all requests, which ends after half an hour without a
// request. Its shells and interpreters keep running between requests. Responses are an
// envelope of success, message and data. As in AIO, a tool that fails is success false with
// status 200, a command that fails is success true with an exit_code, and requests that do
// not match a schema get 422.
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
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Path is the prefix of all paths. The ID of the sandbox follows it.
const Path = "/aio/"

const (
	// idleTimeout is how long a session lasts without a request, sweepInterval how often that
	// is checked.
	idleTimeout   = 30 * time.Minute
	sweepInterval = time.Minute
	// maxBody bounds the body of a request, in bytes, and writeTimeout the time of reading
	// an answer.
	maxBody      = 16 << 20
	writeTimeout = 60 * time.Second
	// callCost is how many bytes of memory a request takes in addition to its data.
	callCost = 256 << 10
	// bodyCost is how many bytes of memory each byte of a body takes: as text, as a value, and
	// as the input of a tool during validation.
	bodyCost = 7
)

// Options configure a Server. Manager is required.
type Options struct {
	Manager *manager.Manager
	// Servers are the MCP servers of every session. Default: none.
	Servers mcpclient.Config
	// Memory limits the memory of sessions. Default: no limit.
	Memory *memory.Budget
	// CommandTimeout is the timeout of commands whose request has none. Default: an hour.
	CommandTimeout time.Duration
	// Version is the version that clients get.
	Version string
	// Log receives errors of closing sessions. Default: nothing is logged.
	Log *slog.Logger
}

// Server holds the sessions. All methods may be called concurrently.
type Server struct {
	o     Options
	tools *tool.Registry
	life  context.Context //nolint:containedctx // of opening sessions, which outlive requests
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
	session *tool.Session // nil: it could not be opened
	err     error

	mu     sync.Mutex
	last   map[string]commandResult // of shells whose latest command did not run in the background
	memory *memory.Account          // of last
}

// closeSession closes the session after it has opened.
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

// sweepIdle closes idle sessions.
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
				s.o.Log.Warn("aio: cannot close an idle session", slog.String("sandbox", string(id)), slog.Any("error", err))
			}
		}
	}
}

// takeIdle removes and returns the sessions that are idle or whose sandbox was deleted.
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

// acquireSession returns the session of a sandbox. The caller must call releaseSession.
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

// findSession returns the session of a sandbox, which may still be opening. The lock is not
// held while it opens, because a guest may be slow.
func (s *Server) findSession(about sandpit.Sandbox, guest sandpit.Guest) (*sandboxSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, api.ErrDraining
	}
	b := s.sessions[about.ID]
	if b == nil || b.guest != guest {
		if b != nil {
			s.group.Go(func() { _ = b.closeSession() }) // its programs have ended with the previous guest
		}
		open := func() *memory.Account { return s.o.Memory.OpenSession(about.Lease.Owner) }
		b = &sandboxSession{guest: guest, ready: make(chan struct{}), last: make(map[string]commandResult), memory: open()}
		s.sessions[about.ID] = b
		s.group.Go(func() {
			s.openSession(b, about.ID, tool.SessionOptions{ID: string(about.ID), User: about.Spec.User, Servers: s.o.Servers, Memory: open})
		})
	}
	b.calls++
	return b, nil
}

// openSession opens the session, for which all requests of the sandbox wait. A session that
// cannot be opened is removed, so that the next request tries again.
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

// Register adds the server to a mux whose requests have a principal. The mux must not limit
// the time of requests.
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

// serveRequest serves a request. It returns errors about the sandbox or the client; errors of
// the requested action are in the response.
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
	// responded says that the handler has written the response.
	responded bool
}

// handler handles a request, and returns the data and message of the envelope.
type handler func(c *call) (data any, message string, err error)

// envelope is the form of all responses.
type envelope struct {
	Success bool   `json:"success"`
	Message string `json:"message"`
	Data    any    `json:"data"`
	Hint    string `json:"hint,omitempty"`
}

// validationError is the response to a request that does not match its schema.
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
	_ = http.NewResponseController(c.w).SetWriteDeadline(time.Now().Add(writeTimeout)) // connections without deadlines need none
	return api.WriteJSON(c.w, c.r, status, body)
}

// selfContained is data that contains the envelope.
type selfContained interface{ toEnvelope() any }

// readBody decodes the body of a request.
func (c *call) readBody(into any) error {
	if err := json.NewDecoder(c.r.Body).Decode(into); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "decode the body: %w", err)
	}
	return nil
}

// fields is the input of a tool. Fields that are nil are left out.
type fields map[string]any

// callTool calls a tool, and stores its data in into unless that is nil.
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
		return r, sandpit.Errorf(sandpit.Internal, "decode the result of %s: %w", name, err)
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

// newAuditor returns a function that records calls in the audit trail, without their content.
func (s *Server) newAuditor(client api.Principal) func(tool.Call) {
	return func(c tool.Call) {
		r := manager.Report{
			Actor: client.Owner, Action: "tool", Sandbox: sandpit.ID(c.Session), Took: c.Took, Args: map[string]string{"tool": fmt.Sprintf("%.100s", c.Tool)},
		}
		switch {
		case c.Code != "":
			r.Err = sandpit.Errorf(c.Code, "the call failed")
		case c.Failed:
			r.Args["failed"] = "true"
		}
		s.o.Manager.Events().Record(r)
	}
}
