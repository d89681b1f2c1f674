package toolbox

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// Path is the prefix of the paths of a sandbox. The ID of the sandbox follows it.
const Path = "/toolbox/"

// legacyPath is the prefix for clients before version 0.120. The ID of the sandbox and
// "/toolbox" follow it.
const legacyPath = "/api/toolbox/"

// callCost is how many bytes of memory a call takes for data on its way between client and
// sandbox.
const callCost = 256 << 10

// Options configure a Server. Manager is required; the zero value of another field means the
// default stated with it.
type Options struct {
	Manager *manager.Manager
	// Admit returns the context, with a principal, of a request without an API key that shows
	// a token for a sandbox. The caller calls release after the response. Unauthenticated: the
	// token does not open the sandbox. Default: requests need an API key.
	Admit func(r *http.Request, id sandpit.ID, secret string) (ctx context.Context, release func(), err error)
	// AdmitSigned is Admit for a request whose URL was signed with a token for a sandbox: matches
	// reports whether it was signed with a secret. Default: requests need an API key.
	AdmitSigned func(r *http.Request, id sandpit.ID, matches func(secret string) bool) (ctx context.Context, release func(), err error)
	// Memory limits the memory of sessions, and of requests that show a token. Default: no limit.
	Memory *memory.Budget
	// CommandTimeout is the timeout of commands whose request has none. Default: an hour.
	CommandTimeout time.Duration
	// Heartbeat is the interval of pings of WebSockets. Default: api.HeartbeatEvery.
	Heartbeat time.Duration
	// Version is the version that clients get. Default: "".
	Version string
	// Log receives errors that clients do not get. Default: nothing is logged.
	Log *slog.Logger
}

// Server serves the calls. All methods may be called concurrently.
type Server struct {
	o         Options
	programs  *registry
	locations locations
	variables variableSets
}

// New returns a Server. The caller must Close it when no call is active any more.
func New(o Options) *Server {
	if o.CommandTimeout <= 0 {
		o.CommandTimeout = time.Hour
	}
	if o.Heartbeat <= 0 {
		o.Heartbeat = api.HeartbeatEvery
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	s := &Server{o: o, programs: &registry{manager: o.Manager, resumes: newResumes(o.Manager), memory: o.Memory, sets: make(map[sandpit.ID]*programs)}}
	o.Manager.OnEnd(func(id sandpit.ID, why error) {
		s.locations.forget(id)
		s.variables.forget(id)
		s.programs.endPrograms(id, why)
	})
	return s
}

// Close ends the sessions, terminals and interpreters of all sandboxes. It is idempotent.
func (s *Server) Close() error { return s.programs.closeAll() }

// Is reports whether a path belongs to this API, whose clients expect its form of errors.
func Is(path string) bool {
	return strings.HasPrefix(path, Path) || strings.HasPrefix(path, legacyPath)
}

// PublicBelow returns the prefixes of paths whose requests may show a token instead of a key.
func PublicBelow() []string { return []string{Path, legacyPath} }

// Register adds the calls to a mux whose requests have a principal, unless they show a token.
// The mux must not limit the bodies or the time of these calls.
func (s *Server) Register(mux api.Router) {
	s.registerProcess(mux)
	s.registerFiles(mux)
	s.registerGit(mux)
	s.registerLSP(mux)
	s.registerMachine(mux)
	s.registerProxy(mux)
	s.handle(mux, "/", refuseUnknown)
}

// handle adds a call to a mux by its method, or all methods, and its path below a sandbox's:
// "POST /files", "/proxy/".
func (s *Server) handle(mux api.Router, pattern string, h handler) {
	method, path, found := strings.Cut(pattern, " ")
	if !found {
		method, path = "", pattern
	}
	for _, prefix := range []string{Path + "{sandbox}", legacyPath + "{sandbox}/toolbox"} {
		mux.Handle(strings.TrimSpace(method+" "+prefix+path), s.newHandler(h))
	}
}

// refuseUnknown handles a call that there is not.
func refuseUnknown(_ context.Context, c *call) error {
	return sandpit.Errorf(sandpit.NotFound, "no such call: %.20s %.200q", c.r.Method, c.r.URL.Path)
}
