package e2b

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Options configure the API. Manager, Store, Keys, Tokens and MaxBody are required; the zero value
// of another field means the default stated with it.
type Options struct {
	Manager *manager.Manager
	Store   *store.Store
	Keys    *api.Keys
	// Tokens open the guest and the ports of a sandbox.
	Tokens Tokens
	// Templates are images by the names of templates. An owner's template of the same name
	// takes precedence. Default: none.
	Templates map[string]sandpit.Image
	// Cached returns nil if a client may use a template of the image cache, which the
	// administrator has built without the server. Default: there are no such templates.
	Cached func(ctx context.Context, who api.Principal, ref sandpit.Image) error
	// Default is the image of "base" if there is no template of that name and the built-in one
	// cannot be built.
	Default sandpit.Image
	// BuildPatience is how long a request waits for the first build of a built-in template.
	// Default: 45 s.
	BuildPatience time.Duration
	// Log receives errors that clients do not get. Default: nothing is logged.
	Log *slog.Logger
	// Uploads has the files of builds. Default: no uploads are accepted.
	Uploads *uploads.Store
	// Limits are the limits that clients see of sandboxes without their own.
	Limits sandpit.Resources
	// Internet lets sandboxes have a network if their request wants it. Default: they have none.
	Internet bool
	// HostAccess says which parts of the server's machine sandboxes may use. Clients can use
	// them only by snapshots.
	HostAccess api.HostAccess
	// Public makes ports of sandboxes reachable without a token, unless the request for the
	// sandbox says otherwise. Default: ports need a token.
	Public bool
	// Domain returns the domain of host names of ports, with a port if there is one, or "".
	// Default: "".
	Domain func() string
	// MaxBody is the maximum number of bytes of a request.
	MaxBody int64
	// Memory limits the memory of waiting builds. Default: no limit.
	Memory *memory.Budget
}

// Tokens open the guest and the ports of a sandbox. All methods may be called concurrently.
type Tokens interface {
	// AccessTokens returns the token that opens the guest of a sandbox and signs URLs of
	// files and, if wantTraffic is set, the token that opens all other ports. They belong to
	// the client of the request in ctx.
	AccessTokens(ctx context.Context, id sandpit.ID, wantTraffic bool) (guest, traffic string, err error)
}

// Server serves the calls. All methods may be called concurrently.
type Server struct {
	maxBody int64

	sandboxes *sandboxHandlers
	metrics   *metricHandlers
	logs      *logHandlers
	snapshots *snapshotHandlers
	templates *templateHandlers
	builds    *buildHandlers
	uploads   *uploadHandler
	volumes   *volumeHandlers
	keys      *keyHandlers
	teams     *teamHandlers
	nodes     *nodeHandlers
}

// New returns a Server.
func New(o Options) *Server {
	if o.Domain == nil {
		o.Domain = func() string { return "" }
	}
	if o.BuildPatience <= 0 {
		o.BuildPatience = defaultBuildWait
	}
	if o.Uploads == nil {
		o.Uploads = uploads.New(uploads.Options{})
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	var (
		m         = o.Manager
		describer = &describer{tokens: o.Tokens, domain: o.Domain, limits: o.Limits}
		resolver  = &templateResolver{manager: m, images: o.Templates, cached: o.Cached, patience: o.BuildPatience, log: o.Log}
		links     = newLinkSigner()
		recipes   = recipeReader{resolver: resolver, uploads: o.Uploads, image: o.Default, internet: o.Internet}
	)
	return &Server{
		maxBody: o.MaxBody,
		sandboxes: &sandboxHandlers{
			manager: m, describer: describer, resolver: resolver, egress: egress{internet: o.Internet}, access: o.HostAccess, public: o.Public,
		},
		metrics:   &metricHandlers{manager: m},
		logs:      &logHandlers{manager: m, store: o.Store},
		snapshots: &snapshotHandlers{manager: m, resolver: resolver, describer: describer},
		templates: &templateHandlers{manager: m, resolver: resolver, limits: o.Limits},
		builds:    &buildHandlers{manager: m, resolver: resolver, recipes: recipes, uploads: o.Uploads, links: links, memory: o.Memory},
		uploads:   &uploadHandler{store: o.Uploads, links: links, keys: o.Keys},
		volumes:   &volumeHandlers{manager: m, describer: describer},
		keys:      &keyHandlers{manager: m, keys: o.Keys},
		teams:     &teamHandlers{manager: m},
		nodes:     &nodeHandlers{manager: m, describer: describer},
	}
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
	size    int64 // of the body, once it was read
}

// Register adds the calls to a mux whose requests have a principal.
func (s *Server) Register(mux api.Router) {
	for _, r := range s.newRoutes() {
		mux.Handle(r.method+" "+r.path, s.newHandler(r.serve))
	}
	mux.HandleFunc(http.MethodPut+" "+PathUpload, func(w http.ResponseWriter, r *http.Request) {
		if err := s.uploads.receiveUpload(w, r); err != nil {
			WriteError(w, r, err)
			return
		}
		writeResponse(w, r, http.StatusOK, nil)
	})
	for _, r := range missingRoutes() {
		mux.Handle(r.method+" "+r.path, s.newHandler(refuseMissing))
	}
	for _, prefix := range pathPrefixes() {
		for _, path := range []string{prefix, prefix + "/"} {
			mux.Handle(path, s.newHandler(refuseUnknown))
		}
	}
}

// newHandler returns an HTTP handler that calls h.
func (s *Server) newHandler(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		client, err := api.PrincipalOf(r.Context())
		if err != nil {
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
func (c *call) readBody(to any) (err error) {
	c.size, err = api.ReadJSON(c.w, c.r, c.maxBody, to)
	return err
}

// findSandbox returns the sandbox in the path. NotFound: no such sandbox, or it was deleted.
func findSandbox(c *call, m *manager.Manager) (sandpit.Sandbox, error) {
	// Clients of the first version add the name of a node.
	id, _, _ := strings.Cut(c.r.PathValue("id"), "-")
	found, err := api.Find(c.r.Context(), m, sandpit.ID(id))
	if err == nil && (found.State == sandpit.StateDeleting || found.State == sandpit.StateDeleted) {
		err = sandpit.Errorf(sandpit.NotFound, "Sandbox %s not found: %s", id, found.Reason)
	}
	return found, err
}
