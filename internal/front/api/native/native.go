package native

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"
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
	// HostAccess says which parts of the server's machine sandboxes may use.
	api.HostAccess
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
	r := &registrar{api: humago.New(mux, newConfig()), maxBody: o.MaxBody, log: o.Log}
	schemas := r.api.OpenAPI().Components.Schemas
	// Both are the same in JSON, and the latter has the descriptions.
	schemas.RegisterTypeAlias(reflect.TypeFor[sandpit.Policy](), reflect.TypeFor[wire.Policy]())
	r.api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(&reply{request: ctx}) })
	o.addHandlers(r)
	delete(schemas.Map(), "ErrorModel") // huma's own errors, which are never sent
	delete(schemas.Map(), "ErrorDetail")
	serveDocument(mux, r.api.OpenAPI())
	return r.api
}

// addHandlers registers the operations of all resources.
func (o Options) addHandlers(r *registrar) {
	access := access{report: o.Manager.Events().Record}
	sandboxes := &sandboxHandlers{manager: o.Manager, requests: o.requests(), access: access}
	sandboxes.register(r)
	sandboxes.registerLifecycle(r)
	(&previewHandlers{manager: o.Manager, previews: o.Previews}).register(r)
	(&networkHandlers{manager: o.Manager}).register(r)
	(&eventHandlers{store: o.Store, access: access, log: o.Log}).register(r)
	(&queueHandlers{manager: o.Manager, access: access}).register(r)
	(&keyHandlers{keys: o.Keys, access: access}).register(r)
	(&tokenHandlers{manager: o.Manager, tokens: o.Tokens, access: access}).register(r)
	(&sshHandlers{manager: o.Manager, ssh: o.SSH, access: access}).register(r)
	(&imageHandlers{images: o.Images, prePulls: o.PrePulls, access: access, log: o.Log}).register(r)
	(&volumeHandlers{manager: o.Manager, access: access}).register(r)
	(&snapshotHandlers{manager: o.Manager, access: access, log: o.Log}).register(r)
	(&templateHandlers{manager: o.Manager, access: access}).register(r)
	(&buildHandlers{manager: o.Manager, contexts: o.Contexts, access: access}).register(r)
	server := &serverHandlers{
		manager: o.Manager, providers: o.Providers, checks: &checker{list: o.Checks}, version: o.Version, url: o.URL,
	}
	server.register(r)
	server.registerHealth(r)
}

// newConfig describes the API as a whole.
func newConfig() huma.Config {
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
