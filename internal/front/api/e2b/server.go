package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Options say what the API is for. Manager, Store, Keys and Tokens must be given; the
// zero value of another field means the default stated with it.
type Options struct {
	Manager *manager.Manager
	Store   *store.Store
	Keys    *api.Keys
	// Tokens open what is inside a sandbox.
	Tokens Tokens
	// Templates are the images that templates stand for, by name, unless an owner has a
	// template of that name. Default: there are none.
	Templates map[string]sandpit.Image
	// Cached returns no error if a client may use a template of the image cache, which the
	// administrator has built without the server. Default: there are none.
	Cached func(ctx context.Context, who api.Principal, ref sandpit.Image) error
	// Default is the image that "base" stands for if there is no template of that name, and
	// the built-in one cannot be built here.
	Default sandpit.Image
	// BuildPatience is how long a request waits for the first build of a built-in template.
	// Default: 45 s.
	BuildPatience time.Duration
	// Log hears of what is not told to clients. Default: nobody does.
	Log *slog.Logger
	// Files is a directory for what clients upload for builds. Default: nothing is taken.
	Files string
	// Limits are told of sandboxes that say nothing of a limit.
	Limits sandpit.Resources
	// Internet lets sandboxes reach the network if their makers ask for it. Default: none
	// does.
	Internet bool
	// HostAccess says which parts of the server's machine sandboxes may use. Clients can use
	// them only by snapshots.
	HostAccess api.HostAccess
	// Public lets everybody reach the ports of sandboxes, unless their makers say
	// otherwise. Default: nobody without a token.
	Public bool
	// Domain is what host names of ports end in, with a port if there is one; "" if there
	// are none. Default: there are none.
	Domain func() string
	// MaxBody is how many bytes a request may have. Default: 1 MiB.
	MaxBody int64
	// Space is where files of builds are counted. Default: they have no bounds together.
	Space *diskspace.Budget
	// Memory is what builds that wait may keep in memory. Default: there is no limit.
	Memory *memory.Budget
}

// Tokens open what is inside a sandbox. All methods may be called concurrently.
type Tokens interface {
	// AccessTokens returns the token that opens the guest of a sandbox and signs URLs of
	// files and, if traffic is wanted, the one that opens all other ports. They belong to the
	// caller whose request the context is of.
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
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 1 << 20
	}
	var (
		m         = o.Manager
		describer = &describer{tokens: o.Tokens, domain: o.Domain, limits: o.Limits}
		resolver  = &templateResolver{manager: m, images: o.Templates, cached: o.Cached, patience: o.BuildPatience, log: o.Log}
		uploads   = newUploads(o.Files, o.Space)
		recipes   = recipeReader{resolver: resolver, uploads: uploads, image: o.Default, internet: o.Internet}
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
		builds:    &buildHandlers{manager: m, resolver: resolver, recipes: recipes, uploads: uploads, memory: o.Memory},
		uploads:   &uploadHandler{uploads: uploads, keys: o.Keys},
		volumes:   &volumeHandlers{manager: m, describer: describer},
		keys:      &keyHandlers{manager: m, keys: o.Keys},
		teams:     &teamHandlers{manager: m},
		nodes:     &nodeHandlers{manager: m, describer: describer},
	}
}

// handler answers one call with a status and what is sent as JSON; nil is nothing.
type handler func(c *call) (status int, answer any, err error)

// call is one call.
type call struct {
	r       *http.Request
	w       http.ResponseWriter
	client  api.Principal
	maxBody int64
	size    int64 // of the body, once it was read
}

// Register adds the calls to a mux, behind which requests have a principal.
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

// writeTimeout is how long an answer may take to be sent.
const writeTimeout = 30 * time.Second

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
	// The edge takes it away again before the next request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout)) // what cannot have one needs none
	if answer == nil {
		w.WriteHeader(status)
		return
	}
	if err := api.WriteJSON(w, r, status, answer); err != nil {
		WriteError(w, r, err)
	}
}

// readBody takes the body of a call; one that has none leaves to as it is. What is not
// known in it is left aside, since clients of later versions say more.
func (c *call) readBody(to any) error {
	text, err := api.ReadBody(c.w, c.r, c.maxBody, api.BodyCost)
	c.size = int64(len(text))
	switch {
	case err != nil:
		return err
	case len(bytes.TrimSpace(text)) == 0:
		return nil
	}
	if err := json.Unmarshal(text, to); err != nil {
		if kind, ok := errors.AsType[*json.UnmarshalTypeError](err); ok { // the value itself may be a secret
			return sandpit.Errorf(sandpit.Invalid, "%.100s must be of another type", kind.Field)
		}
		return sandpit.Errorf(sandpit.Invalid, "the request is not JSON")
	}
	return nil
}

// findSandbox returns the sandbox in the path. NotFound: there is none, or it was deleted.
func findSandbox(c *call, m *manager.Manager) (sandpit.Sandbox, error) {
	// Clients of the first generation add the name of a node.
	id, _, _ := strings.Cut(c.r.PathValue("id"), "-")
	found, err := api.Find(c.r.Context(), m, sandpit.ID(id))
	if err == nil && (found.State == sandpit.StateDeleting || found.State == sandpit.StateDeleted) {
		err = sandpit.Errorf(sandpit.NotFound, "Sandbox %s not found: %s", id, found.Reason)
	}
	return found, err
}
