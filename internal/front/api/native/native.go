package native

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Options say what the API is for. Manager, Store and Keys must be given; the zero
// value of another field means the default stated with it.
type Options struct {
	Manager *manager.Manager
	Store   *store.Store
	Keys    *api.Keys
	// SSH is how sandboxes are reached by SSH. Default: not at all.
	SSH SSH
	// Images are the server's cache. Default: what needs it is Unsupported.
	Images Images
	// PrePulls tells of the images that are made ready at the start. Default: there are
	// none.
	PrePulls func() []wire.PrePull
	// Providers tells which places make sandboxes. Default: none is told of.
	Providers func(context.Context) []wire.Provider
	// Tokens open sandboxes without an API key. Default: what needs them is Unsupported.
	Tokens Tokens
	// Previews let people see ports. Default: what needs them is Unsupported.
	Previews Previews
	// Checks are what the server needs to be ready. Default: nothing.
	Checks []Check
	// Version says what the server is.
	Version wire.Version
	// URL returns the address at which the server listens, from its machine, or "". Default:
	// no client hears of it.
	URL func() string
	// MountRoots are directories of the machine, absolute, below which clients may
	// have directories shown to their sandboxes. Administrators are not bound to them.
	// Default: none.
	MountRoots []string
	// OwnPaths and Homes are the server's own directories and the home directory of its
	// user: mounts show them only if an administrator insists.
	OwnPaths, Homes []string
	// TemporaryMounts lets clients have temporary directories of the machine. Default:
	// administrators may.
	TemporaryMounts bool
	// Lifetime is how long a sandbox may exist that says nothing of it. Default: for ever.
	Lifetime time.Duration
	// Contexts keep the files of builds. Default: templates cannot be built.
	Contexts Contexts
	// MaxBody is how many bytes a request may have. Default: 1 MiB.
	MaxBody int64
	// Log hears of what is not told to clients. Default: nobody does.
	Log *slog.Logger
}

// Images are the cache of images. All methods may be called concurrently.
type Images interface {
	// List returns the images for a provider's sandboxes that a client has names for, or all
	// to an administrator. The provider "" is the usual one.
	List(ctx context.Context, client api.Principal, provider string) ([]wire.Image, error)
	// Pull fetches an image for a client and reports its progress. Progress is called by one
	// goroutine at a time, and not after Pull has returned.
	Pull(ctx context.Context, client api.Principal, p wire.Pull, progress func(wire.Progress)) (wire.Image, error)
	// Remove forgets the image with an ID or name. NotFound. Conflict: it is in use.
	Remove(ctx context.Context, provider, id string) error
}

// Check is something the server needs to be ready.
type Check struct {
	Name string
	// Do returns why it is not there.
	Do func(context.Context) error
}

// Public are the paths that nobody needs a key for.
func Public() []string {
	return []string{pathHealth, pathReady, pathVersion, pathDocument, pathDocument30, pathPage}
}

const (
	pathHealth     = "/healthz"
	pathReady      = "/readyz"
	pathVersion    = "/version"
	pathDocument   = "/openapi.json"
	pathDocument30 = "/openapi-3.0.json"
	pathPage       = "/docs"
)

// bodyLimit is how long the body of a request may take to come.
const bodyLimit = 30 * time.Second

// server answers.
type server struct {
	Options

	api     huma.API
	streams streams
}

// maxStreams is how many streams each owner may listen to at a time: what happens is
// looked up for each of them.
const maxStreams = 100

// streams counts who listens to how many.
type streams struct {
	mu     sync.Mutex
	owners map[string]int
}

// enter counts one more. Exhausted: there are too many. Who gets no error calls leave.
func (s *streams) enter(owner string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[owner] >= maxStreams {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "owner %.100q listens to %d streams already", owner, maxStreams),
			"end those that nobody needs")
	}
	if s.owners == nil {
		s.owners = make(map[string]int)
	}
	s.owners[owner]++
	return nil
}

func (s *streams) leave(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.owners[owner]--; s.owners[owner] == 0 {
		delete(s.owners, owner)
	}
}

// Register adds the API to a mux that is behind an api.Edge, and returns its
// description, to which others may add until the first request comes.
func Register(mux api.Router, o Options) huma.API {
	if o.MaxBody <= 0 {
		o.MaxBody = 1 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Previews == nil {
		o.Previews = noPreviews{}
	}
	s := &server{Options: o}
	s.api = humago.New(mux, s.config())
	// Both are the same in JSON, and the latter is described.
	s.api.OpenAPI().Components.Schemas.RegisterTypeAlias(reflect.TypeFor[sandpit.Policy](), reflect.TypeFor[wire.Policy]())
	s.api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(&reply{request: ctx}) })
	s.sandboxes()
	s.changes()
	s.previews()
	s.network()
	s.events()
	s.queue()
	s.keys()
	s.tokens()
	s.ssh()
	s.images()
	s.volumes()
	s.snapshots()
	s.templates()
	s.facts()
	s.health()
	schemas := s.api.OpenAPI().Components.Schemas.Map()
	delete(schemas, "ErrorModel") // huma's own errors, which are never sent
	delete(schemas, "ErrorDetail")
	s.document(mux)
	return s.api
}

// config describes the API as a whole.
func (s *server) config() huma.Config {
	jsonOnly := map[string]huma.Format{"application/json": {Marshal: encode, Unmarshal: json.Unmarshal}}
	jsonOnly["json"] = jsonOnly["application/json"]
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "sandpit", Version: "1",
				Description: "Isolated computers for code that nobody vouches for. Durations are seconds, sizes are bytes, times are RFC 3339.",
			},
			Components: &huma.Components{
				Schemas: huma.NewMapRegistry("#/components/schemas/", schemaName),
				SecuritySchemes: map[string]*huma.SecurityScheme{
					"key":    {Type: "apiKey", In: "header", Name: wire.HeaderKey},
					"bearer": {Type: "http", Scheme: "bearer"},
				},
			},
			Security: []map[string][]string{{"key": {}}, {"bearer": {}}},
		},
		Formats: jsonOnly, DefaultFormat: "application/json",
		RejectUnknownQueryParameters: true,
		Transformers:                 []huma.Transformer{problemOf},
	}
}

// names are those of types that would have the name of another.
var names = map[reflect.Type]string{
	reflect.TypeFor[wire.Create]():   "CreateSandbox",
	reflect.TypeFor[wire.Lease]():    "NewLease",
	reflect.TypeFor[wire.Stats]():    "ServerStats",
	reflect.TypeFor[sandpit.Stats](): "SandboxStats",
}

func schemaName(t reflect.Type, hint string) string {
	if name, ok := names[t]; ok {
		return name
	}
	return huma.DefaultSchemaNamer(t, hint)
}

// operation begins the description of an operation.
func operation(method, path, id, summary string) huma.Operation {
	tag, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(path, wire.Prefix), "/"), "/")
	return huma.Operation{Method: method, Path: path, OperationID: id, Summary: summary, Tags: []string{tag}}
}

// add registers an operation. What f returns as an error is told as a problem.
func add[I, O any](s *server, op huma.Operation, f func(context.Context, *I) (*O, error)) {
	op.MaxBodyBytes, op.BodyReadTimeout = s.MaxBody, bodyLimit
	if op.Responses == nil {
		op.Responses = map[string]*huma.Response{}
	}
	s.describe(&op)
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*O, error) {
		out, err := f(ctx, in)
		if err == nil {
			err = api.ReserveAnswer(ctx, out)
		}
		if err != nil {
			return nil, &failure{Problem: api.ProblemOf(ctx, err)}
		}
		return out, nil
	})
}

// describe adds the answer that every operation may give.
func (s *server) describe(op *huma.Operation) {
	op.Responses["default"] = &huma.Response{
		Description: "A failure.",
		Content: map[string]*huma.MediaType{wire.ContentTypeProblem: {
			Schema: s.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[wire.Problem](), true, "Problem"),
		}},
	}
}

// stream registers an operation that answers with events. What begin returns sends
// them; its context is that of the request.
func stream[I any](s *server, op huma.Operation, begin func(context.Context, *I) (func(*http.Request, *api.Stream), error)) {
	op.MaxBodyBytes, op.BodyReadTimeout = s.MaxBody, bodyLimit
	op.Responses = map[string]*huma.Response{"200": {
		Description: "Server-sent events.",
		Content:     map[string]*huma.MediaType{api.ContentTypeStream: {Schema: &huma.Schema{Type: huma.TypeString}}},
	}}
	s.describe(&op)
	huma.Register(s.api, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		p, err := api.PrincipalOf(ctx)
		if err == nil {
			err = s.streams.enter(p.Owner)
		}
		if err != nil {
			return nil, &failure{Problem: api.ProblemOf(ctx, err)}
		}
		send, err := begin(ctx, in)
		if err != nil {
			s.streams.leave(p.Owner)
			return nil, &failure{Problem: api.ProblemOf(ctx, err)}
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			defer s.streams.leave(p.Owner)
			r, w := humago.Unwrap(hc)
			st, err := api.NewStream(w)
			if err != nil {
				s.Log.DebugContext(r.Context(), "a stream cannot begin", slog.Any("error", err))
				return
			}
			send(r, st)
		}}, nil
	})
}

// administrator refuses everybody else, and tells of it.
func (s *server) administrator(ctx context.Context, action string) error {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return err
	}
	if p.Admin {
		return nil
	}
	err = sandpit.Errorf(sandpit.PermissionDenied, "%s: this is for administrators", action)
	s.Manager.Report(manager.Report{Actor: p.Owner, Action: action, Err: err, Restricted: true})
	return err
}

// maxSeconds bounds spans of time: what is longer means never, and has a way to say so.
const maxSeconds = 100 * 365 * 24 * 3600

// seconds returns a number of them as a span.
func seconds(name string, n float64) (time.Duration, error) {
	if n > maxSeconds || n < -maxSeconds {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s: %g seconds are too many", name, n)
	}
	return time.Duration(n * float64(time.Second)), nil
}
