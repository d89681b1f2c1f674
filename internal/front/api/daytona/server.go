package daytona

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Prefix is the first part of all paths.
const Prefix = "/api"

// PathToolbox is the path of the toolbox API. The ID of the sandbox follows it.
const PathToolbox = "/toolbox"

// Options configure the API. Manager, Keys and MaxBody are required; the zero value of another
// field means the default stated with it.
type Options struct {
	Manager *manager.Manager
	Keys    *api.Keys
	// Previews give access to ports of sandboxes. Default: ports have no URLs.
	Previews Previews
	// SSH gives access to sandboxes by SSH. The zero value is a server without SSH.
	SSH SSH
	// ParseDockerfile converts a Dockerfile to a recipe. Default: only FROM is accepted.
	ParseDockerfile func(text []byte) (sandpit.Recipe, error)
	// Uploads has the files of images that clients upload. Default: no uploads are accepted.
	Uploads *uploads.Store
	// Pending stores the sandboxes that wait for the builds of their images. Default: they are lost
	// when the server ends.
	Pending *store.PendingSandboxes
	// Log gets failures that no client gets. Default: they are discarded.
	Log *slog.Logger
	// Limits are the limits that clients see of sandboxes without their own.
	Limits sandpit.Resources
	// Internet gives sandboxes a network unless their request says otherwise. Default: they
	// have the network of any sandbox.
	Internet bool
	// HostAccess says which parts of the server's machine sandboxes may use. Clients can use
	// them only by snapshots.
	HostAccess api.HostAccess
	// Version is the version that clients get. Default: none.
	Version string
	// MaxBody is the maximum number of bytes of a request.
	MaxBody int64
}

// SSH gives access to sandboxes by SSH.
type SSH struct {
	Tokens *sshkey.Tokens
	// Where returns the address of the SSH server. Unsupported: the server has no SSH.
	Where func() (wire.SSHServer, error)
}

// Server serves the calls. All methods may be called concurrently.
type Server struct {
	maxBody int64
	changes *changes

	sandboxes *sandboxHandlers
	ports     *portHandlers
	ssh       *sshHandlers
	snapshots *snapshotHandlers
	volumes   *volumeHandlers
	about     *aboutHandlers
	keys      *keyHandlers
	objects   *objectHandlers
	events    *eventHandlers
}

// New returns a Server. The caller must Close it.
func New(o Options) *Server {
	if o.Uploads == nil {
		o.Uploads = uploads.New(uploads.Options{})
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	m := o.Manager
	changes := newChanges(answerTimeout)
	describer := &describer{manager: m, limits: o.Limits}
	builder := &imageBuilder{manager: m, parse: o.ParseDockerfile, internet: o.Internet, uploads: o.Uploads}
	sandboxes := &sandboxHandlers{
		manager: m, describer: describer, images: &imageResolver{manager: m, builder: builder}, egress: egress{internet: o.Internet},
		access: o.HostAccess, changes: changes, pending: &pendingSet{store: o.Pending, log: o.Log},
	}
	return &Server{
		maxBody: o.MaxBody, changes: changes, sandboxes: sandboxes,
		ports:     &portHandlers{manager: m, previews: o.Previews},
		ssh:       &sshHandlers{manager: m, describer: describer, ssh: o.SSH},
		snapshots: &snapshotHandlers{manager: m, builder: builder, limits: o.Limits},
		volumes:   &volumeHandlers{manager: m},
		about:     &aboutHandlers{version: o.Version, since: time.Now().UTC()},
		keys:      &keyHandlers{manager: m, keys: o.Keys},
		objects:   &objectHandlers{store: o.Uploads, keys: o.Keys, grants: newObjectGrants()},
		events:    newEvents(m, describer),
	}
}

// Resume continues to create the sandboxes that waited for builds of their images when an earlier
// server ended. Internal: some of them cannot be read.
func (s *Server) Resume(ctx context.Context) error { return s.sandboxes.resume(ctx) }

// Close ends the connections of clients that listen to events, and waits for changes that
// requests have begun. It is idempotent.
func (s *Server) Close() error {
	s.events.close()
	s.changes.close()
	return nil
}

// handler handles a call. It returns a status and the value of the JSON response; nil for no
// body.
type handler func(c *call) (status int, answer any, err error)

// call is one call.
type call struct {
	r       *http.Request
	w       http.ResponseWriter
	client  api.Principal
	maxBody int64
}

// Register adds the calls to a mux whose requests have a principal, except those for Public.
func (s *Server) Register(mux api.Router) {
	for _, r := range s.newRoutes() {
		mux.Handle(r.method+" "+Prefix+r.path, s.newHandler(r.serve, false))
	}
	for _, r := range s.publicRoutes() {
		mux.Handle(r.method+" "+Prefix+r.path, s.newHandler(r.serve, true))
	}
	mux.HandleFunc(PathObjects, s.objects.serveObjects)
	mux.HandleFunc(http.MethodGet+" "+PathEvents+"{$}", s.events.serveSocket)
	for _, r := range s.textRoutes() {
		mux.HandleFunc(r.method+" "+Prefix+r.path, r.serve)
	}
	for _, r := range missingRoutes() {
		mux.Handle(r.method+" "+Prefix+r.path, s.newHandler(refuseMissing, false))
	}
	for _, path := range []string{Prefix, Prefix + "/"} {
		mux.Handle(path, s.newHandler(refuseUnknown, false))
	}
}

// newHandler returns an HTTP handler that calls h. A public one needs no principal.
func (s *Server) newHandler(h handler, public bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := api.PrincipalOf(r.Context())
		if err != nil && !public {
			WriteError(w, r, err)
			return
		}
		status, answer, err := h(&call{r: r, w: w, client: client, maxBody: s.maxBody})
		if err != nil {
			WriteError(w, r, err)
			return
		}
		writeResponse(w, r, status, answer)
	})
}

// writeResponse sends a response.
func writeResponse(w http.ResponseWriter, r *http.Request, status int, answer any) {
	api.Respond(w, r, status, answer, WriteError)
}

// readBody decodes the body of a call, as api.ReadJSON does.
func (c *call) readBody(to any) error {
	_, err := api.ReadJSON(c.w, c.r, c.maxBody, to)
	return err
}

// externalURL returns the address of the server as the client of a request knows it.
func externalURL(r *http.Request) string {
	scheme := "http"
	if r.TLS != nil || r.Header.Get("X-Forwarded-Proto") == "https" {
		scheme = "https"
	}
	return scheme + "://" + r.Host
}

// answerTimeout is the usual time that a request waits for the change that it has begun.
const answerTimeout = 30 * time.Second

// changes are changes of sandboxes that requests have begun and that continue after the
// response. All methods may be called concurrently.
type changes struct {
	life  context.Context //nolint:containedctx // of the changes, which outlive requests
	stop  context.CancelFunc
	wait  time.Duration // until the response
	group sync.WaitGroup

	mu     sync.Mutex
	closed bool
}

func newChanges(wait time.Duration) *changes {
	life, stop := context.WithCancel(context.Background())
	return &changes{life: life, stop: stop, wait: wait}
}

// close refuses further changes, and waits for those that have begun.
func (h *changes) close() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.stop()
	h.group.Wait()
}

// begin counts a change. The caller calls h.group.Done at its end.
func (h *changes) begin() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return api.ErrDraining
	}
	h.group.Add(1)
	return nil
}

// start makes a change in the background. ctx also ends with the server.
func (h *changes) start(ctx context.Context, do func(context.Context)) error {
	if err := h.begin(); err != nil {
		return err
	}
	// The change outlives the request, with which the request's account of memory ends.
	ctx, cancel := context.WithCancel(memory.WithAccount(ctx, nil))
	stop := context.AfterFunc(h.life, cancel)
	go func() {
		defer h.group.Done()
		defer cancel()
		defer stop()
		do(ctx)
	}()
	return nil
}

// run makes a change, which continues if the client disconnects. It returns the error of the
// change, or nil if the change still continues after the wait.
func (h *changes) run(ctx context.Context, do func(context.Context) error) error {
	done := make(chan error, 1)
	if err := h.start(context.WithoutCancel(ctx), func(ctx context.Context) { done <- do(ctx) }); err != nil {
		return err
	}
	timer := time.NewTimer(h.wait)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
