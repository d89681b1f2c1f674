// Package mcp serves the Model Context Protocol over HTTP: the tools of agents, in a sandbox
// that the server makes for each session of a client.
//
// A session belongs to the key that began it. Its sandbox is made with the first call of a
// tool, as one of the owner's and under their quotas, and is removed when the session ends:
// when its client says so, when it is idle for too long, or when the server ends. What a
// server leaves behind that was killed is removed by the next one; if there is none, the
// sandbox's own idle time ends it.
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
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcp"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Path is where clients find the server.
const Path = "/mcp"

// Options say what a Server works with. Manager and Request must be given; the zero value
// of another field means the default stated with it.
type Options struct {
	Manager *manager.Manager
	// Request puts what a client wants for a sandbox into the words of the manager, if they
	// may have it.
	Request func(context.Context, api.Principal, wire.Create) (manager.CreateRequest, error)
	// Preview returns where a port of a sandbox is seen; the context is of who owns it. Default: nowhere.
	Preview func(ctx context.Context, id sandpit.ID, port int, life time.Duration) (wire.PreviewURL, error)
	// Template says whether there is an image of a template that the manager does not know: NotFound if there is
	// none. Default: that is found out with the first call.
	Template func(ctx context.Context, ref sandpit.Image) error
	// MaxSessions is how many each owner may have at a time. Default: 100.
	MaxSessions int
	// Idle is how long a session lasts without a request. Default: 30 min.
	Idle time.Duration
	// Tools are the words, as tool.Choose takes them, that choose the tools of clients that
	// choose none. Default: the default set.
	Tools []string
	// CommandTimeout as in tool.Registry.WithCommandTimeout.
	CommandTimeout time.Duration
	// Memory is what calls and sessions may keep in memory. Default: there is no limit.
	Memory *memory.Budget
	// Version is told to clients.
	Version string
	// Log hears of sandboxes that cannot be removed. Default: nobody does.
	Log *slog.Logger
}

// bodyCost is how many bytes of memory each byte of a message takes: as it comes, as a
// message, and as the input of a tool on its way through the schema.
const bodyCost = 7

// writeTimeout is how long a client may take to read a part of an answer.
const writeTimeout = 30 * time.Second

// Server has the sessions. All methods may be called concurrently.
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

// session is one client's.
type session struct {
	*mcp.Session

	client api.Principal
	// ended is closed when its sandbox is gone.
	ended chan struct{}
}

// CheckTools refuses Options.Tools that choose nothing. Invalid.
func CheckTools(words []string) error { return tool.CheckChoice(words) }

// New returns a Server, which removes the sandboxes that an earlier one left in ctx. The
// caller must Close it.
func New(ctx context.Context, o Options) *Server {
	if o.MaxSessions <= 0 {
		o.MaxSessions = 100
	}
	if o.Idle <= 0 {
		o.Idle = 30 * time.Minute
	}
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
				o.Log.WarnContext(ctx, "the sandbox of a session of an earlier server is not removed yet",
					slog.String("sandbox", string(left.ID)), slog.Any("error", err))
			}
		})
	}
	return s
}

// Close ends all sessions, removes their sandboxes and waits for that. It is idempotent.
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

// Register adds the server to a mux, behind which requests have a principal. The mux must
// not bound the bodies or the time of requests.
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

// serveRequest answers a request. An error is one that is to be told.
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
		return sandpit.Errorf(sandpit.Invalid, "the header %s is missing", mcp.HeaderSession)
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

// checkOrigin refuses what pages of other sites ask for, by whatever method. The edge lets
// them read what changes nothing.
func (s *Server) checkOrigin(r *http.Request) error {
	as := r.Clone(r.Context())
	as.Method = http.MethodPost
	if err := s.origins.Check(as); err != nil {
		return sandpit.Errorf(sandpit.PermissionDenied, "a page of another site may not do this: %w", err)
	}
	return nil
}

// findSession returns a session of whoever asks. NotFound, also for one of others.
func (s *Server) findSession(id string, client api.Principal) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	one := s.sessions[id]
	if one == nil || one.client.Owner != client.Owner || one.client.KeyID != client.KeyID {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no session %.64q, or it has ended", id), "begin a new one")
	}
	return one, nil
}

// beginSession answers a request outside of a session, which begins one if it says hello. Others
// are questions about the server, or mistakes.
func (s *Server) beginSession(w http.ResponseWriter, r *http.Request, client api.Principal, hello bool) error {
	wanted, err := parseChoice(r)
	if err != nil {
		return err
	}
	wanted.idle = s.o.Idle
	if err := s.checkChoice(r.Context(), client, wanted); err != nil {
		return err // sooner than with the first call
	}
	if len(wanted.tools) == 0 {
		wanted.tools = s.o.Tools
	}
	tools, err := s.tools.chooseTools(wanted.tools)
	if err != nil {
		return err
	}
	id := rand.Text()
	one := &session{client: client, ended: make(chan struct{}), Session: mcp.NewSession(mcp.Options{
		Tools: tools.Audited(s.newAuditor(client)).WithCommandTimeout(s.o.CommandTimeout), Version: s.o.Version, Open: s.newOpener(client, wanted),
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

// checkChoice refuses what can be told of a sandbox before it is made.
func (s *Server) checkChoice(ctx context.Context, client api.Principal, wanted choice) error {
	err := s.checkImage(ctx, client, wanted)
	if sandpit.CodeOf(err) == sandpit.NotFound { // which would say that there is no session
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%w", err), sandpit.HintOf(err))
	}
	return err
}

func (s *Server) checkImage(ctx context.Context, client api.Principal, wanted choice) error {
	request, err := s.o.Request(ctx, client, wanted.toCreate())
	if err != nil {
		return err
	}
	_, isTemplate := request.Spec.Image.Template()
	if !isTemplate || request.Spec.Template != (sandpit.TemplateOrigin{}) || s.o.Template == nil {
		return nil
	}
	return s.o.Template(ctx, request.Spec.Image)
}

// newAuditor returns what writes down calls of tools, without what was said.
func (s *Server) newAuditor(client api.Principal) func(tool.Call) {
	return func(c tool.Call) {
		r := manager.Report{
			Actor: client.Owner, Action: "tool", Sandbox: sandpit.ID(c.Session), Took: c.Took,
			Args: map[string]string{"tool": fmt.Sprintf("%.100s", c.Tool)},
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

// addSession counts a session. Exhausted: the owner has too many. Unavailable: the server ends.
func (s *Server) addSession(id string, one *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	owner := one.client.Owner
	if s.closed {
		return api.ErrDraining
	}
	if s.owners[owner] >= s.o.MaxSessions {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "owner %.100q has %d sessions already", owner, s.owners[owner]),
			"end those that nobody needs, by DELETE; those that are idle end by themselves")
	}
	s.owners[owner]++
	s.sessions[id] = one
	return nil
}

// awaitEnd sees to it that a session is forgotten when it has ended, which one that did not
// begin has already.
func (s *Server) awaitEnd(ctx context.Context, id string, one *session) {
	end := func() {
		if err := one.Wait(ctx); err != nil {
			s.o.Log.WarnContext(ctx, "the sandbox of a session is not removed yet", slog.Any("error", err))
		}
		s.removeSession(id, one)
	}
	s.mu.Lock()
	isRunning := one.Begun() && !s.closed // Close waits for what it has seen only
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

// endSession ends a session, and answers when its sandbox is gone.
func (one *session) endSession(w http.ResponseWriter, r *http.Request) error {
	one.Close()
	select {
	case <-one.ended:
	case <-r.Context().Done(): // it goes on without this client
		return context.Cause(r.Context())
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// isInitialize reports whether a body may begin a session. It is one message, or several.
func isInitialize(body []byte) bool {
	type message struct {
		Method string `json:"method"`
	}
	var list []message
	if json.Unmarshal(body, &list) != nil {
		var one message
		_ = json.Unmarshal(body, &one) // what is none says nothing
		list = append(list, one)
	}
	return slices.ContainsFunc(list, func(m message) bool { return m.Method == "initialize" })
}

// untilDraining is a context that ends with ctx, or when the server is about to: who only
// listens is not waited for.
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

// deadlineWriter gives each part of an answer its own time, since the whole has none.
type deadlineWriter struct{ http.ResponseWriter }

// Unwrap lets http.ResponseController find what the connection can do.
func (u *deadlineWriter) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u *deadlineWriter) Write(p []byte) (int, error) {
	// What cannot have one needs none.
	_ = http.NewResponseController(u.ResponseWriter).SetWriteDeadline(time.Now().Add(writeTimeout))
	return u.ResponseWriter.Write(p)
}
