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

// Options are what a Server works with. The zero value of a field means the default
// stated with it.
type Options struct {
	// Manager has the sandboxes. It is required for all but a description.
	Manager *manager.Manager
	// Timeout is how long a command may take that says nothing itself. Default: 300
	// seconds.
	Timeout time.Duration
	// SessionTimeout is the same for sessions that name no time. Default: that of package
	// shell.
	SessionTimeout time.Duration
	// MaxOutput is how much of each stream of a command one answer may hold, in
	// bytes; a request for more is refused. Default: 16 MiB.
	MaxOutput int64
	// Heartbeat is how often a stream of events says that it lives, and a terminal asks
	// whether its client does. Default: api.HeartbeatEvery.
	Heartbeat time.Duration
	// Memory is what sessions may keep in memory. Default: there is no limit.
	Memory *memory.Budget
}

const (
	defaultTimeout   = 300 * time.Second
	defaultMaxOutput = 16 << 20

	// copyBuffer is how much is moved at once, in bytes.
	copyBuffer = 64 << 10
	// finalTimeout is how long an answer may take to be sent when the sandbox has been
	// taken away. Whoever ends the sandbox waits for it.
	finalTimeout = 2 * time.Second
	// callCost is how much memory a call takes besides what it keeps, in bytes: what is on
	// its way between client and sandbox.
	callCost = 256 << 10
)

// Server answers the calls. All methods may be called concurrently.
type Server struct {
	o        Options
	buffers  sync.Pool // of *[copyBuffer]byte
	sessions sessionSets
}

// New returns a Server. The caller must Close it, when no call is under way any more.
func New(o Options) *Server {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
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

// Register adds the calls to a mux, behind which requests have a principal. The mux
// must not bound the bodies or the time of these calls.
func (s *Server) Register(mux api.Router) {
	for _, o := range allOperations() {
		mux.Handle(o.pattern(), s.handle(func(ctx context.Context, c *call) error { return o.serve(s, ctx, c) }))
	}
}

// call is one call on a sandbox that is held.
type call struct {
	w       *response
	r       *http.Request
	id      sandpit.ID
	guest   sandpit.Guest
	sandbox *manager.Handle
}

// handler answers a call. An error becomes the answer unless that has begun; then it
// is broken off. ctx ends with the request, or when the sandbox is taken away.
type handler func(ctx context.Context, c *call) error

// handle holds the sandbox that a request names while h answers.
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
		c.w.drainBody() // nobody needs the sandbox for that
	})
}

// serve lets h answer, and lets go of the sandbox.
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
		err = context.Cause(ctx) // why the call ended comes before how it felt
	}
	if c.w.begun {
		panic(http.ErrAbortHandler) // it must not look whole
	}
	for _, name := range contentHeaders {
		c.w.Header().Del(name)
	}
	api.WriteError(c.w, c.r, sandpit.WithSubject(err, sandpit.Subject{Provider: c.sandbox.Provider(), Sandbox: c.id}))
}

// contentHeaders are headers of an answer that do not fit an error in its place.
var contentHeaders = []string{
	"Accept-Ranges", "Content-Disposition", "Content-Encoding", "Content-Length", "Content-Range", "ETag", "Last-Modified",
}

// limitEnd makes reading and writing end soon once ctx has: else a client that does
// neither would keep a sandbox that is to go. What it returns is to be called when
// the answer has been given.
func limitEnd(ctx context.Context, w *response) (release func()) {
	limited := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(limited)
		_ = w.body.interruptRead() // a connection without deadlines ends by itself, or not at all
		w.setFinalDeadline()
	})
	return func() {
		if !stop() {
			<-limited
		}
	}
}
