package api

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// LocalOwner is the owner of sandboxes that programs of this machine create without a key.
const LocalOwner = "local"

// EdgeOptions configure an Edge. Keys is required; the zero value of another field means the
// default stated with it.
type EdgeOptions struct {
	// Keys are the valid keys.
	Keys *Keys
	// Report records refusals: manager.Manager.Report. Default: they are not recorded.
	Report func(manager.Report)
	// Keyless admits programs of this machine without a key, as administrators with the owner
	// LocalOwner, if they use a loopback address, run as the server's own user or as root, and
	// do not forward requests of others. Default: they need a key. Requests over the Unix
	// socket never need one.
	Keyless bool
	// Names are the host names of the server in addition to localhost and addresses;
	// "*.example.org" means every name below. Default: none.
	Names []string
	// Public are paths that need no key. Default: none.
	Public []string
	// PublicBelow are prefixes, which end in a slash, of paths that need no key because their
	// handlers also accept tokens. Default: none.
	PublicBelow []string
	// Rate is how many requests per second each key may make, and Burst how many at once.
	// Zero: no limit.
	Rate  float64
	Burst int
	// FailedRate is how many wrong keys per minute each address may send, and FailedBurst how
	// many at once; after that, wrong keys get Exhausted. Valid keys are not affected by
	// wrong ones from their address. Default: 10 and 20.
	FailedRate  float64
	FailedBurst int
	// MaxRequests is how many requests may be active at a time, and MaxRequestsPerOwner how
	// many of one owner. The same limits apply separately to requests for previews. Requests
	// over the Unix socket are not counted. Zero: no limit, and a quarter of MaxRequests.
	MaxRequests, MaxRequestsPerOwner int
	// Proxies are trusted to report the client of a request. Default: none.
	Proxies Proxies
	// Memory limits the memory of requests. Default: no limit.
	Memory *memory.Budget
	// Refuse responds to a request that was refused or has failed. Default: WriteError.
	Refuse func(http.ResponseWriter, *http.Request, error)
	// Observe is called after each request. Default: nothing is called.
	Observe func(*http.Request, Outcome)
	// Private removes internals of the server from errors for clients that are not
	// administrators. Default: one that knows no directories.
	Private Redactor
	// Log receives panics, failures of the server at the level info, and all other requests at
	// the level debug. Default: nothing is logged.
	Log *slog.Logger
}

// Outcome is the result of a request.
type Outcome struct {
	// Route is the pattern of the request; "" if no pattern matched.
	Route  string
	Status int
	Bytes  int64 // of the body
	Took   time.Duration
}

// Edge is the first handler of every request: it authenticates the client, limits requests and
// logs them. All methods may be called concurrently.
type Edge struct {
	o        EdgeOptions
	origins  *http.CrossOriginProtection
	public   map[string]bool
	rates    *limiter // by key; nil: no limit
	failed   *limiter // wrong keys, by address
	refusals *limiter // of the other refusals that are recorded, by address
	// lookups limits look-ups of keys, by address.
	lookups *fairshare.Pool
	// requests limits requests for the API, previews those for ports of sandboxes.
	requests, previews *fairshare.Pool
}

// maxLookups is how many keys that are not cached are looked up at a time. Others wait for
// their turn, shared fairly between addresses.
const maxLookups = 4

// The defaults of EdgeOptions for wrong keys.
const (
	defaultFailedRate  = 10 // a minute
	defaultFailedBurst = 20
)

// NewEdge returns an edge.
func NewEdge(o EdgeOptions) *Edge {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Refuse == nil {
		o.Refuse = WriteError
	}
	if o.Report == nil {
		o.Report = func(manager.Report) {}
	}
	if o.FailedRate <= 0 || o.FailedBurst <= 0 {
		o.FailedRate, o.FailedBurst = defaultFailedRate, defaultFailedBurst
	}
	if o.MaxRequests <= 0 {
		o.MaxRequests = math.MaxInt32
	}
	if o.MaxRequestsPerOwner <= 0 {
		o.MaxRequestsPerOwner = max(o.MaxRequests/4, 1)
	}
	e := &Edge{
		o: o, origins: http.NewCrossOriginProtection(), public: make(map[string]bool),
		failed:   newLimiter(rate.Limit(o.FailedRate/60), o.FailedBurst),
		refusals: newLimiter(rate.Limit(o.FailedRate/60), o.FailedBurst),
		lookups: fairshare.NewPool(fairshare.Options{
			Name: "look-ups of keys", Total: maxLookups, PerOwner: maxLookups / 2, MaxWaiting: math.MaxInt32, // the number of connections limits them
		}),
		requests: requestPool("requests", o), previews: requestPool("requests for previews", o),
	}
	if o.Rate > 0 {
		e.rates = newLimiter(rate.Limit(o.Rate), max(o.Burst, 1))
	}
	for _, p := range o.Public {
		e.public[p] = true
	}
	return e
}

func requestPool(name string, o EdgeOptions) *fairshare.Pool {
	return fairshare.NewPool(fairshare.Options{
		Name: name, Total: int64(o.MaxRequests), PerOwner: int64(min(o.MaxRequestsPerOwner, o.MaxRequests)),
		Hint: "wait for responses to earlier requests",
	})
}

// Shares returns the use of the limits on requests.
func (e *Edge) Shares() []fairshare.Status {
	return []fairshare.Status{e.requests.Status(), e.previews.Status(), e.lookups.Status()}
}

// Handler returns next behind the edge. Requests that reach next have a request ID, a memory
// account and, except for public paths, a Principal.
func (e *Edge) Handler(next *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		a := &responseRecorder{ResponseWriter: w, exchange: &exchange{private: e.o.Private}}
		ctx := withExchange(WithRequestID(r.Context(), requestID(r)), a.exchange)
		r = r.WithContext(ctx)
		w.Header().Set(wire.HeaderRequestID, RequestID(ctx))
		setSecurityHeaders(w.Header())
		// The last request may have left a deadline on the connection.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // connections without deadlines need none
		a.request = r
		defer func() { e.finishRequest(a, begin, recover()) }()
		e.serveRequest(a, next)
	})
}

// Admit authenticates a request that is not for Handler's next. The request that it returns
// has a Principal, except for public paths. The caller attaches what it does to the key:
// Keys.Attach.
//
// PermissionDenied: the request is for another server, or from a page of another site.
// Unauthenticated: it has no valid key. Exhausted: there are too many.
func (e *Edge) Admit(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	return e.admitRequest(w, r.WithContext(WithRequestID(r.Context(), requestID(r))))
}

// CountPreview counts a request for a preview of an owner's sandbox, and its connection. The
// caller calls leave after the response.
//
// Exhausted: there are too many.
func (e *Edge) CountPreview(r *http.Request, owner string) (leave func(), err error) {
	// No owner has such a name, so that previews do not use up the owner's own requests.
	return countRequest(r, e.previews, "previews of "+owner)
}

// The keys of contexts for the edge: of requests for public paths without a principal, and of all.
type (
	edgeKey        struct{}
	servingEdgeKey struct{}
)

// CountRequest counts a request for a public path, and its connection, as one of an owner. The
// caller calls leave after the response.
//
// Exhausted: the owner has too many.
func CountRequest(r *http.Request, owner string) (leave func(), err error) {
	e, ok := r.Context().Value(edgeKey{}).(*Edge)
	if !ok {
		return func() {}, nil // the request is counted already, or not behind an edge
	}
	return countRequest(r, e.requests, owner)
}

// countRequest counts a request of an owner, and its connection.
func countRequest(r *http.Request, pool *fairshare.Pool, owner string) (leave func(), err error) {
	if peerOf(r).unix {
		return func() {}, nil
	}
	grant, err := pool.TryAcquire(owner, 1)
	if err != nil {
		return nil, sandpit.WithRetry(err, time.Second)
	}
	if err := connectionOf(r.Context()).assignOwner(owner); err != nil {
		grant.Release()
		return nil, err
	}
	return grant.Release, nil
}

// serveRequest admits a request and serves it, or refuses it.
func (e *Edge) serveRequest(a *responseRecorder, next *http.ServeMux) {
	r, err := e.admitRequest(a, a.request)
	owner := ""
	if p, unknown := PrincipalOf(r.Context()); unknown == nil {
		owner = p.Owner
	}
	if err == nil && owner != "" {
		a.leave, err = countRequest(r, e.requests, owner)
	}
	if err != nil {
		a.refused = true
		connectionOf(r.Context()).markRefused()
		if r.ProtoMajor == 1 && r.ContentLength != 0 {
			a.Header().Set("Connection", "close") // its body is not read
		}
		e.o.Refuse(a, r, err)
		return
	}
	p, _ := PrincipalOf(r.Context()) // a public path needs none
	ctx, release, err := e.o.Keys.Attach(r.Context(), p.KeyID)
	if err != nil {
		e.o.Refuse(a, r, err)
		return
	}
	defer release()
	a.account = e.o.Memory.OpenRequest(owner)
	ctx = context.WithValue(memory.WithAccount(ctx, a.account), servingEdgeKey{}, e)
	if owner == "" {
		ctx = context.WithValue(ctx, edgeKey{}, e)
	}
	r = r.WithContext(ctx)
	a.request = r
	_, pattern := next.Handler(r)
	if pattern == "" || !isCleanPath(r.URL.Path) {
		serveUnrouted(a, r, next)
		return
	}
	a.exchange.setRoute(r, pattern)
	next.ServeHTTP(a, r) // which writes the pattern into r
}

// admitRequest authenticates a request.
func (e *Edge) admitRequest(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	from := e.o.clientOf(r)
	if err := e.o.checkHost(r, from); err != nil {
		e.reportRefusal(r, e.refusals, "host", err)
		return r, err
	}
	if err := e.origins.Check(r); err != nil {
		err = sandpit.Errorf(sandpit.PermissionDenied, "pages of other sites may not do this: %w", err)
		e.reportRefusal(r, e.refusals, "cross-origin", err)
		return r, err
	}
	p, err := e.identifyClient(w, r, from)
	if err != nil {
		if e.isPublic(r.URL.Path) && sandpit.CodeOf(err) == sandpit.Unauthenticated {
			return r, nil
		}
		return r, err
	}
	name := p.KeyID
	if name == "" {
		name = from.actorName()
	}
	if e.rates != nil && !from.unix {
		if wait, ok := e.rates.takeToken(name); !ok {
			retryAfter(w, wait)
			err := sandpit.WithRetry(sandpit.Errorf(sandpit.Exhausted, "too many requests with this key"), wait)
			return r, sandpit.WithHint(err, "wait for the time in Retry-After")
		}
	}
	return r.WithContext(WithPrincipal(r.Context(), p)), nil
}

// isPublic reports whether a path needs no key.
func (e *Edge) isPublic(path string) bool {
	return e.public[path] || slices.ContainsFunc(e.o.PublicBelow, func(prefix string) bool { return strings.HasPrefix(path, prefix) })
}

// finishRequest reports the outcome of a request. It recovers a panic of the handler.
func (e *Edge) finishRequest(a *responseRecorder, begin time.Time, panicked any) {
	r, started := a.request, a.status != 0
	err, ok := panicked.(error)
	aborted := ok && errors.Is(err, http.ErrAbortHandler) // the handler wants to cut the connection
	if panicked != nil && !aborted {
		e.o.Log.ErrorContext(r.Context(), "api: request panicked", slog.Any("panic", panicked), slog.String("method", r.Method),
			slog.String("route", r.Pattern), slog.String("request_id", RequestID(r.Context())), slog.String("stack", string(debug.Stack())))
		if !started {
			e.o.Refuse(a, r, sandpit.Errorf(sandpit.Internal, "internal error of the server"))
		}
	}
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		// The rest of a body is read before the connection is used again, in a limited time.
		limitRest(a, a.refused)
	}
	a.account.Close()
	if a.leave != nil {
		a.leave()
	}
	done := Outcome{Route: r.Pattern, Status: a.status, Bytes: a.bytes, Took: time.Since(begin)}
	if done.Status == 0 {
		done.Status = http.StatusOK // as net/http sends it
	}
	if e.o.Observe != nil {
		e.o.Observe(r, done)
	}
	e.logRequest(r, a.exchange, done)
	if panicked != nil && (started || aborted) {
		panic(http.ErrAbortHandler) // the response must not look complete
	}
}

// logRequest logs the outcome of a request. Failures of the server are logged at the level
// info, with the reason; all other requests, whose number clients determine, at the level
// debug.
func (e *Edge) logRequest(r *http.Request, x *exchange, done Outcome) {
	attrs := []slog.Attr{
		slog.String("method", r.Method), slog.String("route", done.Route), slog.Int("status", done.Status),
		slog.Duration("took", done.Took), slog.String("request_id", RequestID(r.Context())),
	}
	if p, err := PrincipalOf(r.Context()); err == nil {
		attrs = append(attrs, slog.String("actor", p.Owner))
	}
	if about := x.toSubject(); about.Sandbox != "" {
		attrs = append(attrs, slog.String("sandbox", string(about.Sandbox)))
	}
	if err := x.lastFailure(); err != nil {
		attrs = append(attrs, slog.String("code", string(sandpit.CodeOf(err))), slog.Any("error", err))
	}
	if done.Status >= http.StatusInternalServerError {
		e.o.Log.LogAttrs(r.Context(), slog.LevelInfo, "api: request failed", attrs...)
		return
	}
	e.o.Log.LogAttrs(r.Context(), slog.LevelDebug, "api: request", attrs...)
}

// requestIDPattern is the form of request IDs that clients may send.
var requestIDPattern = pattern.New(`^[A-Za-z0-9._:-]{1,64}$`)

func requestID(r *http.Request) string {
	if id := r.Header.Get(wire.HeaderRequestID); requestIDPattern().MatchString(id) {
		return id
	}
	return randomHex(12)
}

// setSecurityHeaders sets the headers of every response. Handlers may change them.
func setSecurityHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
}

// isCleanPath reports whether a path has no . and .. elements.
func isCleanPath(p string) bool {
	cleaned := path.Clean(p)
	return p == cleaned || p == cleaned+"/"
}

// serveUnrouted responds to a request that matches no pattern with a problem.
func serveUnrouted(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	probe := &headRecorder{header: make(http.Header)}
	if isCleanPath(r.URL.Path) {
		h, _ := mux.Handler(r)
		h.ServeHTTP(probe, r)
	}
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		p := ProblemOf(r.Context(), sandpit.Errorf(sandpit.Invalid, "method %.20s is not allowed for this path; allowed: %s", r.Method, allow))
		p.Status, p.Title = probe.status, http.StatusText(probe.status)
		WriteProblem(w, p)
		return
	}
	WriteError(w, r, sandpit.Errorf(sandpit.NotFound, "no such call: %.20s %.200q", r.Method, r.URL.Path))
}

// headRecorder records the head of a response.
type headRecorder struct {
	header http.Header
	status int
}

func (b *headRecorder) Header() http.Header         { return b.header }
func (b *headRecorder) WriteHeader(status int)      { b.status = status }
func (b *headRecorder) Write(p []byte) (int, error) { return len(p), nil }

// responseRecorder counts what is sent.
type responseRecorder struct {
	http.ResponseWriter

	exchange *exchange

	request *http.Request // as the handler gets it
	refused bool          // by the edge itself
	account *memory.Account
	leave   func() // nil: the request is not counted
	status  int    // 0: nothing was sent yet
	bytes   int64
}

// Unwrap lets http.ResponseController find what the connection can do.
func (a *responseRecorder) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *responseRecorder) WriteHeader(status int) {
	if a.status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		a.status = status
	}
	a.ResponseWriter.WriteHeader(status)
}

func (a *responseRecorder) Write(p []byte) (int, error) {
	if a.status == 0 {
		a.status = http.StatusOK
	}
	n, err := a.ResponseWriter.Write(p)
	a.bytes += int64(n)
	return n, err
}

// Flush implements http.Flusher.
func (a *responseRecorder) Flush() {
	_ = http.NewResponseController(a.ResponseWriter).Flush() // as http.Flusher, which cannot fail
}

func retryAfter(w http.ResponseWriter, wait time.Duration) {
	seconds := int64((wait + time.Second - 1) / time.Second)
	w.Header().Set("Retry-After", strconv.FormatInt(max(seconds, 1), 10))
}

func cutText(s string, limit int) string {
	return strings.ToValidUTF8(textlen.Cut(s, limit), "?")
}
