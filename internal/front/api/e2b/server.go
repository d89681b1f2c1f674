package e2b

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
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

// Server answers the calls. All methods may be called concurrently.
type Server struct {
	o       Options
	uploads *uploads

	mu sync.Mutex
	// userless are images that have no account as E2B's have one.
	userless map[ownImage]bool
}

// New returns a Server.
func New(o Options) *Server {
	if o.Domain == nil {
		o.Domain = func() string { return "" }
	}
	if o.BuildPatience <= 0 {
		o.BuildPatience = buildPatience
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.MaxBody <= 0 {
		o.MaxBody = 1 << 20
	}
	return &Server{o: o, uploads: newUploads(o.Files, o.Space), userless: make(map[ownImage]bool)}
}

// handler answers one call with a status and what is sent as JSON; nil is nothing.
type handler func(c *call) (status int, answer any, err error)

// call is one call.
type call struct {
	r    *http.Request
	w    http.ResponseWriter
	who  api.Principal
	most int64
	size int64 // of the body, once it was read
}

// Register adds the calls to a mux, behind which requests have a principal.
func (s *Server) Register(mux api.Router) {
	for _, r := range s.routes() {
		mux.Handle(r.method+" "+r.path, s.on(r.serve))
	}
	mux.HandleFunc(http.MethodPut+" "+PathUpload, func(w http.ResponseWriter, r *http.Request) {
		if err := s.upload(w, r); err != nil {
			WriteError(w, r, err)
			return
		}
		write(w, r, http.StatusOK, nil)
	})
	for _, r := range missing() {
		mux.Handle(r.method+" "+r.path, s.on(notThere))
	}
	for _, prefix := range prefixes() {
		for _, path := range []string{prefix, prefix + "/"} {
			mux.Handle(path, s.on(unknown))
		}
	}
}

// answerLimit is how long an answer may take to be sent.
const answerLimit = 30 * time.Second

// on has h answer.
func (s *Server) on(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := api.PrincipalOf(r.Context())
		if err != nil {
			WriteError(w, r, err)
			return
		}
		status, answer, err := h(&call{r: r, w: w, who: who, most: s.o.MaxBody})
		if err != nil {
			WriteError(w, r, err)
			return
		}
		write(w, r, status, answer)
	})
}

// write sends an answer.
func write(w http.ResponseWriter, r *http.Request, status int, answer any) {
	// The edge takes it away again before the next request.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerLimit)) // what cannot have one needs none
	if answer == nil {
		w.WriteHeader(status)
		return
	}
	if err := api.WriteJSON(w, r, status, answer); err != nil {
		WriteError(w, r, err)
	}
}

// read takes the body of a call; one that has none leaves to as it is. What is not
// known in it is left aside, since clients of later versions say more.
func (c *call) read(to any) error {
	text, err := api.Whole(c.w, c.r, c.most, api.BodyCost)
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

// find returns the sandbox that the path names, which is there still. NotFound.
func (s *Server) find(c *call) (sandpit.Sandbox, error) {
	// Clients of the first generation add the name of a node.
	id, _, _ := strings.Cut(c.r.PathValue("id"), "-")
	found, err := api.Find(c.r.Context(), s.o.Manager, sandpit.ID(id))
	if err == nil && (found.State == sandpit.StateDeleting || found.State == sandpit.StateDeleted) {
		err = sandpit.Errorf(sandpit.NotFound, "Sandbox %s not found: %s", id, found.Reason)
	}
	return found, err
}
