package data

import (
	"cmp"
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Options configure a Server. The zero value of a field means the default stated with it.
type Options struct {
	// Manager has the sandboxes. It is required, except to describe the calls.
	Manager *manager.Manager
	// Timeout is the timeout of commands whose request has none. It is required.
	Timeout time.Duration
	// SessionTimeout is the timeout of commands in sessions that have none. Default: that of
	// package shell.
	SessionTimeout time.Duration
	// MaxOutput is the maximum number of bytes of each stream of a command in a response. A
	// request for more is refused. Default: 16 MiB.
	MaxOutput int64
	// Heartbeat is the interval of heartbeats of event streams, and of pings of terminals.
	// Default: api.HeartbeatEvery.
	Heartbeat time.Duration
	// Memory limits the memory of sessions. Default: no limit.
	Memory *memory.Budget
}

const (
	defaultMaxOutput = 16 << 20

	// copyBuffer is the size of a buffer for copying, in bytes.
	copyBuffer = 64 << 10
	// finalTimeout is how long sending a response may take once the sandbox is stopping, which
	// waits for it.
	finalTimeout = 2 * time.Second
	// callCost is how many bytes of memory a call takes for data on its way between client and
	// sandbox.
	callCost = 256 << 10
)

// Server serves the calls. All methods may be called concurrently.
type Server struct {
	o        Options
	buffers  sync.Pool // of *[copyBuffer]byte
	sessions sessionSets
}

// New returns a Server. The caller must Close it when no call is active any more.
func New(o Options) *Server {
	o.MaxOutput = cmp.Or(o.MaxOutput, defaultMaxOutput)
	o.Heartbeat = cmp.Or(o.Heartbeat, api.HeartbeatEvery)
	s := &Server{
		o: o, buffers: sync.Pool{New: func() any { return new([copyBuffer]byte) }},
		sessions: sessionSets{manager: o.Manager, memory: o.Memory, sets: make(map[sandpit.ID]*sessionSet)},
	}
	if o.Manager != nil {
		o.Manager.OnEnd(s.sessions.endSessions)
	}
	return s
}

// Close ends the terminal sessions of all sandboxes. It is idempotent.
func (s *Server) Close() error { return s.sessions.closeAll() }

// base is the path of everything that is served here.
const base = wire.Prefix + "/sandboxes/{id}"

// Register adds the calls to a mux whose requests have a principal. The mux must not limit the
// bodies or the time of these calls.
func (s *Server) Register(mux api.Router) {
	for _, o := range allOperations() {
		mux.Handle(o.pattern(), s.handle(func(ctx context.Context, c *call) error { return o.serve(s, ctx, c) }))
	}
}

// call is one call on a sandbox that is in use.
type call struct {
	w       *response
	r       *http.Request
	id      sandpit.ID
	guest   sandpit.Guest
	sandbox *manager.Handle
}

// handler handles a call. An error becomes the response, unless that has begun; then the
// connection is cut. ctx ends with the request, or when the sandbox stops.
type handler func(ctx context.Context, c *call) error

// handle returns an HTTP handler that calls h while it holds the sandbox in the path.
func (s *Server) handle(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := sandpit.ID(r.PathValue("id"))
		err := memory.AccountOf(r.Context()).Reserve(callCost)
		var sandbox *manager.Handle
		if err == nil {
			sandbox, err = api.Use(r.Context(), s.o.Manager, id)
		}
		if err != nil {
			api.WriteError(w, r, err)
			return
		}
		body := newRequestBody(w, r)
		r.Body = body
		c := &call{w: &response{ResponseWriter: w, server: s, body: body}, r: r, id: id, guest: sandbox.Guest(), sandbox: sandbox}
		c.serve(h)
		c.w.drainBody() // after the sandbox was released
	})
}

// serve calls h and releases the sandbox.
func (c *call) serve(h handler) {
	defer c.sandbox.Release()
	ctx := c.sandbox.Context()
	stopLimit := limitEnd(ctx, c.w)
	err := h(ctx, c)
	stopLimit()
	if err == nil {
		return
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx) // the cause instead of its consequence
	}
	if c.w.begun {
		panic(http.ErrAbortHandler) // the response must not look complete
	}
	for _, name := range contentHeaders {
		c.w.Header().Del(name)
	}
	api.WriteError(c.w, c.r, sandpit.WithSubject(err, sandpit.Subject{Provider: c.sandbox.Provider(), Sandbox: c.id}))
}

// contentHeaders are the headers of a file that an error in its place must not have.
var contentHeaders = []string{
	"Accept-Ranges", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Range", "ETag", "Last-Modified",
}

// limitEnd limits reading and writing once ctx has ended: otherwise a client that does neither
// would keep the sandbox in use. The caller calls release when the response is complete.
func limitEnd(ctx context.Context, w *response) (release func()) {
	limited := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(limited)
		_ = w.body.interruptRead() // a connection without deadlines cannot be interrupted
		w.setFinalDeadline()
	})
	return func() {
		if !stop() {
			<-limited
		}
	}
}
