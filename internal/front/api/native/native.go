package native

import (
	"context"
	"encoding/json"
	"log/slog"
	"reflect"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Options configure the API. Fields without a stated default are required.
type Options struct {
	Manager *manager.Manager
	Store   *store.Store
	Keys    *api.Keys
	// SSH gives access to sandboxes by SSH. Default: none.
	SSH SSH
	// Images is the server's cache. Default: operations on images are Unsupported.
	Images Images
	// PrePulls returns the images that are fetched when the server starts. Default: none.
	PrePulls func() []wire.PrePull
	// Providers returns the state of the providers. Default: none.
	Providers func(context.Context) []wire.Provider
	// Tokens open sandboxes without an API key. Default: operations on tokens are Unsupported.
	Tokens Tokens
	// Previews give access to ports. Default: operations on ports are Unsupported.
	Previews Previews
	// Checks are the health checks of the server. Default: none.
	Checks []Check
	// Version has the versions of the server.
	Version wire.Version
	// URL returns the address at which the server listens, from its machine, or "". Default: "".
	URL func() string
	// HostAccess says which parts of the server's machine sandboxes may use.
	api.HostAccess
	// Contexts store the files of builds. Default: templates cannot be built.
	Contexts Contexts
	// MaxBody is the maximum number of bytes of a request.
	MaxBody int64
	// Log receives errors that clients do not get. Default: nothing is logged.
	Log *slog.Logger
}

// Images are the cache of images. All methods may be called concurrently.
type Images interface {
	// List returns the images of a provider that have a name for the client, or all for an
	// administrator. The provider "" is the default one.
	List(ctx context.Context, client api.Principal, provider string) ([]wire.Image, error)
	// Pull fetches an image for a client and reports its progress. Progress is called by one
	// goroutine at a time, and not after Pull has returned.
	Pull(ctx context.Context, client api.Principal, p wire.Pull, progress func(wire.Progress)) (wire.Image, error)
	// Remove deletes the image with an ID or name. NotFound. Conflict: it is in use.
	Remove(ctx context.Context, provider, id string) error
}

// Check is a health check of the server.
type Check struct {
	Name string
	// Do returns an error if the check fails.
	Do func(context.Context) error
}

// Public returns the paths that need no key.
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

// Register adds the API to a mux behind an api.Edge, and returns its description, to which
// the caller may add operations until the first request.
func Register(mux api.Router, o Options) huma.API {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Previews == nil {
		o.Previews = noPreviews{}
	}
	r := &registrar{api: humago.New(mux, newConfig()), maxBody: o.MaxBody, log: o.Log}
	schemas := r.api.OpenAPI().Components.Schemas
	schemas.RegisterTypeAlias(reflect.TypeFor[sandpit.Policy](), reflect.TypeFor[policySchema]())
	schemas.RegisterTypeAlias(reflect.TypeFor[wire.CreateRequest](), reflect.TypeFor[createSchema]())
	r.api.UseMiddleware(func(ctx huma.Context, next func(huma.Context)) { next(&responseContext{humaContext: ctx}) })
	o.addHandlers(r)
	delete(schemas.Map(), "ErrorModel") // huma's own errors, which are never sent
	delete(schemas.Map(), "ErrorDetail")
	serveDocument(mux, r.api.OpenAPI())
	return r.api
}

// addHandlers registers the operations of all resources.
func (o Options) addHandlers(r *registrar) {
	access := access{report: o.Manager.Events().Record}
	sandboxes := &sandboxHandlers{manager: o.Manager, hosts: o.HostAccess, access: access}
	sandboxes.addOperations(r)
	sandboxes.registerLifecycle(r)
	(&previewHandlers{manager: o.Manager, previews: o.Previews}).addOperations(r)
	(&networkHandlers{manager: o.Manager}).addOperations(r)
	(&eventHandlers{store: o.Store, access: access, log: o.Log}).addOperations(r)
	(&queueHandlers{manager: o.Manager, access: access}).addOperations(r)
	(&keyHandlers{keys: o.Keys, access: access}).addOperations(r)
	(&tokenHandlers{manager: o.Manager, tokens: o.Tokens, access: access}).addOperations(r)
	(&sshHandlers{manager: o.Manager, ssh: o.SSH, access: access}).addOperations(r)
	(&imageHandlers{images: o.Images, prePulls: o.PrePulls, access: access, log: o.Log}).addOperations(r)
	(&volumeHandlers{manager: o.Manager, access: access}).addOperations(r)
	(&snapshotHandlers{manager: o.Manager, access: access, log: o.Log}).addOperations(r)
	(&templateHandlers{manager: o.Manager, access: access}).addOperations(r)
	(&buildHandlers{manager: o.Manager, contexts: o.Contexts, access: access}).addOperations(r)
	server := &serverHandlers{
		manager: o.Manager, providers: o.Providers, checks: &checker{list: o.Checks}, version: o.Version, url: o.URL,
	}
	server.addOperations(r)
	server.registerHealth(r)
}

// newConfig describes the API as a whole.
func newConfig() huma.Config {
	jsonOnly := map[string]huma.Format{"application/json": {Marshal: encodeJSON, Unmarshal: json.Unmarshal}}
	jsonOnly["json"] = jsonOnly["application/json"]
	return huma.Config{
		OpenAPI: &huma.OpenAPI{
			OpenAPI: "3.1.0",
			Info: &huma.Info{
				Title: "sandpit", Version: "1",
				Description: "Isolated computers for untrusted code. Durations are seconds, sizes are bytes, times are RFC 3339.",
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
		Transformers:                 []huma.Transformer{toProblem},
	}
}

// schemaNames are the schema names of types whose default names are ambiguous.
var schemaNames = map[reflect.Type]string{
	reflect.TypeFor[createSchema]():  "CreateSandbox",
	reflect.TypeFor[policySchema]():  "Policy",
	reflect.TypeFor[wire.Lease]():    "NewLease",
	reflect.TypeFor[wire.Stats]():    "ServerStats",
	reflect.TypeFor[sandpit.Stats](): "SandboxStats",
}

func schemaName(t reflect.Type, hint string) string {
	if name, ok := schemaNames[t]; ok {
		return name
	}
	return huma.DefaultSchemaNamer(t, hint)
}
