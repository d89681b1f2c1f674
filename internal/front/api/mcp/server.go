// Package mcp serves the Model Context Protocol over HTTP: the tools of agents, in a sandbox
// that the server creates for each session of a client.
//
// A session belongs to the key that began it. The first call of a tool creates its sandbox,
// which belongs to the key's owner and counts against the owner's quotas. The sandbox is
// removed when the session ends: when its client ends it, when it is idle for too long, or
// when the server ends. After a crash, the next server removes the sandbox, or the sandbox's
// own idle timeout ends it.
package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcp"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Path is where clients find the server.
const Path = "/mcp"

// Options configure a Server. Fields without a stated default are required.
type Options struct {
	Manager *manager.Manager
	// Request converts a client's request for a sandbox to one of the manager, which authorizes it.
	Request func(api.Principal, wire.CreateRequest) manager.CreateRequest
	// Preview returns a link that opens a port of a sandbox once. The principal in ctx owns the
	// sandbox. Default: there are no previews.
	Preview func(ctx context.Context, id sandpit.ID, port int, life, session time.Duration) (wire.PreviewTicket, error)
	// Template returns NotFound unless a template that the manager does not know has an image.
	// Default: it is not checked before the first call.
	Template func(ctx context.Context, ref sandpit.Image) error
	// MaxSessions is the maximum number of sessions of each owner.
	MaxSessions int
	// Idle is how long a session lasts without a request.
	Idle time.Duration
	// Tools are the words for tool.Choose that choose the tools of clients that choose none.
	// Default: the default set.
	Tools []string
	// Servers are the MCP servers whose tools every session can call: see ReadServers. Default:
	// none.
	Servers mcpclient.Config
	// CommandTimeout as in tool.Registry.WithCommandTimeout.
	CommandTimeout time.Duration
	// Memory limits the memory of calls and sessions. Default: no limit.
	Memory *memory.Budget
	// Version is the version that clients get.
	Version string
	// Log receives errors of removing sandboxes, and of Servers. Default: nothing is logged.
	Log *slog.Logger
}

// bodyCost is how many bytes of memory each byte of a message takes: as text, as a message,
// and as the input of a tool during validation.
const bodyCost = 7

// writeTimeout is how long a client may take to read a part of a response.
const writeTimeout = 30 * time.Second

// Server holds the sessions. All methods may be called concurrently.
type Server struct {
	o       Options
	tools   registries
	origins *http.CrossOriginProtection
	calls   callMemory
	group   sync.WaitGroup // of sessions, and of the removal of what others left

	mu       sync.Mutex
	closed   bool
	sessions map[string]*session
	owners   map[string]int // how many sessions each has
}

// session is the session of one client.
type session struct {
	*mcp.Session

	client api.Principal
	// ended is closed when its sandbox is gone.
	ended chan struct{}
}

// CheckTools checks Options.Tools. Invalid: a word chooses nothing.
func CheckTools(words []string) error { return tool.CheckChoice(words) }

// ReadServers reads a file of MCP servers; "" means no servers. Invalid: the file has an error.
func ReadServers(name string) (mcpclient.Config, error) {
	if name == "" {
		return nil, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "read the MCP servers: %w", err)
	}
	servers, err := mcpclient.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return servers, nil
}

// defaultTools returns the words that choose the tools of clients that choose none. Those for MCP
// servers are included by default when there are any.
func (o Options) defaultTools() []string {
	if len(o.Tools) == 0 && len(o.Servers) > 0 {
		return []string{tool.ChooseDefault, string(tool.MCP)}
	}
	return o.Tools
}

// New returns a Server. It removes the sandboxes that an earlier server left in the
// background, within ctx. The caller must Close it.
func New(ctx context.Context, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, origins: http.NewCrossOriginProtection(), sessions: make(map[string]*session), owners: make(map[string]int)}
	for _, left := range o.Manager.List(manager.Filter{}) {
		if left.Spec.Labels[label] != string(left.ID) {
			continue
		}
		s.group.Go(func() {
			if err := o.Manager.Delete(context.WithoutCancel(ctx), left.ID); err != nil {
				o.Log.WarnContext(ctx, "mcp: cannot remove a sandbox of an earlier server",
					slog.String("sandbox", string(left.ID)), slog.Any("error", err))
			}
		})
	}
	return s
}

// Close ends all sessions, and waits until their sandboxes are removed. It is idempotent.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, one := range s.sessions {
		s.group.Go(one.Close)
	}
	s.mu.Unlock()
	s.group.Wait()
	return nil
}

// Register adds the server to a mux whose requests have a principal. The mux must not limit
// the bodies or the time of requests.
func (s *Server) Register(mux api.Router) {
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		for _, path := range []string{Path, Path + "/{$}"} { // some clients add a slash
			mux.HandleFunc(method+" "+path, func(w http.ResponseWriter, r *http.Request) {
				if err := s.serveRequest(w, r); err != nil {
					api.WriteError(w, r, err)
				}
			})
		}
	}
}

// serveRequest serves a request. An error becomes the response.
func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request) error {
	client, err := api.PrincipalOf(r.Context())
	if err != nil {
		return err
	}
	if err := s.checkOrigin(r); err != nil {
		return err
	}
	body, err := api.ReadBody(w, r, mcp.MaxMessage, bodyCost)
	if err != nil {
		return err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	w = &deadlineWriter{w}
	defer s.calls.openAccount(r.Header, s.o.Memory.OpenRequest(client.Owner))()
	id := r.Header.Get(mcp.HeaderSession)
	if id == "" {
		if r.Method == http.MethodPost {
			return s.beginSession(w, r, client, isInitialize(body))
		}
		return sandpit.Errorf(sandpit.Invalid, "header %s is missing", mcp.HeaderSession)
	}
	one, err := s.findSession(id, client)
	if err != nil {
		return err
	}
	switch r.Method {
	case http.MethodDelete:
		return one.endSession(w, r)
	case http.MethodGet:
		ctx, stop := untilDraining(r.Context())
		defer stop()
		r = r.WithContext(ctx)
	}
	one.ServeHTTP(w, r)
	return nil
}

// checkOrigin refuses requests from pages of other sites, with any method. The edge allows
// them safe methods.
func (s *Server) checkOrigin(r *http.Request) error {
	as := r.Clone(r.Context())
	as.Method = http.MethodPost
	if err := s.origins.Check(as); err != nil {
		return sandpit.Errorf(sandpit.PermissionDenied, "pages of other sites may not do this: %w", err)
	}
	return nil
}

// findSession returns a session of the client. NotFound: there is no such session, or it
// belongs to another client.
func (s *Server) findSession(id string, client api.Principal) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.sessions[id]
	if one == nil || one.client.Owner != client.Owner || one.client.KeyID != client.KeyID {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "session %.64q not found; it may have ended", id), "begin a new session")
	}
	return one, nil
}

// beginSession serves a request outside of a session. If the request initializes a session, it
// begins one; other requests are questions about the server, or mistakes.
func (s *Server) beginSession(w http.ResponseWriter, r *http.Request, client api.Principal, hello bool) error {
	wanted, err := parseChoice(r)
	if err != nil {
		return err
	}
	wanted.idle = s.o.Idle
	if err := s.checkChoice(r.Context(), client, wanted); err != nil {
		return err // earlier than with the first call
	}
	if len(wanted.tools) == 0 {
		wanted.tools = s.o.defaultTools()
	}
	tools, err := s.tools.chooseTools(wanted.tools)
	if err != nil {
		return err
	}
	id := rand.Text()
	one := &session{client: client, ended: make(chan struct{}), Session: mcp.NewSession(mcp.Options{
		Tools: tools.Audited(s.newAuditor(client)).WithCommandTimeout(s.o.CommandTimeout), Version: s.o.Version, Open: s.newOpener(client, wanted),
		Servers: s.o.Servers, ServerLog: s.o.Log,
		Memory: func() *memory.Account { return s.o.Memory.OpenSession(client.Owner) },
		CallMemory: func(h http.Header) (*memory.Account, func()) {
			return s.calls.joinAccount(h, func() *memory.Account { return s.o.Memory.OpenRequest(client.Owner) })
		},
	}, id, s.o.Idle)}
	if !hello {
		one.ServeHTTP(w, r)
		one.Close()
		return one.Wait(r.Context())
	}
	if err := s.addSession(id, one); err != nil {
		return err
	}
	defer s.awaitEnd(context.WithoutCancel(r.Context()), id, one)
	one.ServeHTTP(w, r)
	return nil
}

// checkChoice checks a choice as far as possible before its sandbox is created.
func (s *Server) checkChoice(ctx context.Context, client api.Principal, wanted choice) error {
	err := s.checkImage(ctx, client, wanted)
	if sandpit.CodeOf(err) == sandpit.NotFound { // NotFound would mean that the session does not exist
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%w", err), sandpit.HintOf(err))
	}
	return err
}

func (s *Server) checkImage(ctx context.Context, client api.Principal, wanted choice) error {
	request, err := s.o.Manager.Expand(ctx, s.o.Request(client, wanted.toCreate()))
	if err != nil {
		return err
	}
	_, isTemplate := request.Spec.Image.Template()
	if !isTemplate || request.Spec.Template != (sandpit.TemplateOrigin{}) || s.o.Template == nil {
		return nil
	}
	return s.o.Template(ctx, request.Spec.Image)
}

// newAuditor returns a function that records calls of tools in the audit trail, without their
// content.
func (s *Server) newAuditor(client api.Principal) func(tool.Call) {
	return func(c tool.Call) {
		r := manager.Report{
			Actor: client.Owner, Action: "tool", Sandbox: sandpit.ID(c.Session), Took: c.Took,
			Args: map[string]string{"tool": fmt.Sprintf("%.100s", c.Tool)},
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

// addSession counts a session. Exhausted: the owner has too many. Unavailable: the server is
// shutting down.
func (s *Server) addSession(id string, one *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := one.client.Owner
	if s.closed {
		return api.ErrDraining
	}
	if s.owners[owner] >= s.o.MaxSessions {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "session limit reached: owner %.100q has %d of %d sessions", owner, s.owners[owner], s.o.MaxSessions),
			"end sessions that are not needed with DELETE; idle sessions end automatically")
	}
	s.owners[owner]++
	s.sessions[id] = one
	return nil
}

// awaitEnd removes a session when it has ended, which is at once if it did not begin.
func (s *Server) awaitEnd(ctx context.Context, id string, one *session) {
	end := func() {
		if err := one.Wait(ctx); err != nil {
			s.o.Log.WarnContext(ctx, "mcp: cannot remove the sandbox of a session", slog.Any("error", err))
		}
		s.removeSession(id, one)
	}
	s.mu.Lock()
	isRunning := one.Begun() && !s.closed // Close waits only for sessions that it has seen
	if isRunning {
		s.group.Go(end)
	}
	s.mu.Unlock()
	if !isRunning {
		one.Close()
		end()
	}
}

func (s *Server) removeSession(id string, one *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := one.client.Owner
	delete(s.sessions, id)
	if s.owners[owner]--; s.owners[owner] == 0 {
		delete(s.owners, owner)
	}
	close(one.ended)
}

// endSession ends a session, and responds when its sandbox was removed.
func (one *session) endSession(w http.ResponseWriter, r *http.Request) error {
	one.Close()
	select {
	case <-one.ended:
	case <-r.Context().Done(): // the session ends anyway
		return context.Cause(r.Context())
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// isInitialize reports whether a body, which is one message or several, initializes a session.
func isInitialize(body []byte) bool {
	type message struct {
		Method string `json:"method"`
	}
	var list []message
	if json.Unmarshal(body, &list) != nil {
		var one message
		_ = json.Unmarshal(body, &one) // an invalid body has no method
		list = append(list, one)
	}
	return slices.ContainsFunc(list, func(m message) bool { return m.Method == "initialize" })
}

// untilDraining returns a context that ends with ctx or when the server shuts down, which does
// not wait for clients that only listen.
func untilDraining(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-api.Draining(ctx):
			cancel()
		case <-ctx.Done():
		}
	})
	return ctx, func() {
		cancel()
		watching.Wait()
	}
}

// deadlineWriter limits the time of each write, because the response as a whole has no limit.
type deadlineWriter struct{ http.ResponseWriter }

// Unwrap lets http.ResponseController find what the connection can do.
func (u *deadlineWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *deadlineWriter) Write(p []byte) (int, error) {
	// Connections without deadlines need none.
	_ = http.NewResponseController(u.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	return u.ResponseWriter.Write(p)
}
