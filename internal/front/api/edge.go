package api

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"path"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// LocalOwner is whose sandboxes those are that are made without a key, by programs
// of this machine.
const LocalOwner = "local"

// EdgeOptions say whom the edge lets in. Keys must be given; the zero value of
// another field means the default stated with it.
type EdgeOptions struct {
	// Keys are those that may be shown.
	Keys *Keys
	// Report is told of refusals: manager.Manager.Report. Default: nobody is.
	Report func(manager.Report)
	// Keyless lets programs of this machine in that show no key, as administrators
	// called LocalOwner, if they come by a loopback address, are of the server's own user
	// or of root, and pass on nobody else's requests. Default: they need a key. Who comes by a unix socket never does.
	Keyless bool
	// Names are the names that the server is reached by, besides localhost and
	// addresses; "*.example.org" means every name below. Default: none.
	Names []string
	// Public are paths that nobody needs a key for. Default: none.
	Public []string
	// Rate is how many requests a second each key may make, and Burst how many at
	// once. Default: 1000 and 2000. Below zero: as many as they like.
	Rate  float64
	Burst int
	// FailedRate is for how many wrong keys a minute each address is told that they are
	// wrong, and FailedBurst for how many at once; more are told to wait. Right keys are let
	// in whatever else comes from their address. Default: 10 and 20.
	FailedRate  float64
	FailedBurst int
	// MaxRequests is how many requests may be answered at a time, and MaxRequestsPerOwner
	// how many of one owner; of those for previews there may be as many again. Requests by
	// the unix socket are not counted. Default: 10,000, and a quarter of MaxRequests.
	MaxRequests, MaxRequestsPerOwner int
	// Proxies are trusted to tell from whom a request comes. Default: none.
	Proxies Proxies
	// Memory is what requests may keep in memory. Default: there is no limit.
	Memory *memory.Budget
	// Refuse answers a request that is not let in, or that has failed. Default: WriteError.
	Refuse func(http.ResponseWriter, *http.Request, error)
	// Observe is told of each request when it has been answered. Default: nobody is.
	Observe func(*http.Request, Outcome)
	// Private takes internals of the server out of errors for ordinary keys. Default: it
	// knows no directories.
	Private Redactor
	// Log hears of panics, of requests that the server failed to answer at the level info,
	// and of all others at the level debug. Default: nobody does.
	Log *slog.Logger
}

// Outcome is how a request was answered.
type Outcome struct {
	// Route is the pattern that the request was for; "" if there is none.
	Route  string
	Status int
	Bytes  int64 // of the body
	Took   time.Duration
}

// Edge is what every request passes first. All methods may be called concurrently.
type Edge struct {
	o        EdgeOptions
	origins  *http.CrossOriginProtection
	public   map[string]bool
	rates    *limiter // by key; nil: no limit
	failed   *limiter // wrong keys, by address
	refusals *limiter // refusals of other kinds that are told, by address
	// lookups are keys that are being looked up, by address.
	lookups *fairshare.Pool
	// requests are those being answered by this API, previews those by sandboxes.
	requests, previews *fairshare.Pool
}

// maxLookups is how many keys that were not shown of late are looked up at a time. All
// others wait for their turn, in which addresses are equal.
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
	if o.Rate == 0 {
		o.Rate, o.Burst = 1000, 2000
	}
	if o.FailedRate <= 0 || o.FailedBurst <= 0 {
		o.FailedRate, o.FailedBurst = defaultFailedRate, defaultFailedBurst
	}
	if o.MaxRequests <= 0 {
		o.MaxRequests = 10_000
	}
	if o.MaxRequestsPerOwner <= 0 {
		o.MaxRequestsPerOwner = max(o.MaxRequests/4, 1)
	}
	e := &Edge{
		o: o, origins: http.NewCrossOriginProtection(), public: make(map[string]bool),
		failed:   newLimiter(rate.Limit(o.FailedRate/60), o.FailedBurst),
		refusals: newLimiter(rate.Limit(o.FailedRate/60), o.FailedBurst),
		lookups: fairshare.NewPool(fairshare.Options{
			Name: "look-ups of keys", Total: maxLookups, PerOwner: maxLookups / 2, MaxWaiting: math.MaxInt32, // connections bound them
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

// Shares returns how many requests are being answered, and what they wait for.
func (e *Edge) Shares() []fairshare.Status {
	return []fairshare.Status{e.requests.Status(), e.previews.Status(), e.lookups.Status()}
}

// Handler returns next behind the edge. Whatever next gets carries a request ID, an account
// of memory and, but for public paths, a Principal.
func (e *Edge) Handler(next *http.ServeMux) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		a := &responseRecorder{ResponseWriter: w, exchange: &exchange{private: e.o.Private}}
		ctx := withExchange(WithRequestID(r.Context(), requestID(r)), a.exchange)
		r = r.WithContext(ctx)
		w.Header().Set(wire.HeaderRequestID, RequestID(ctx))
		setSecurityHeaders(w.Header())
		// Deadlines are the connection's, and the last request may have left one.
		_ = http.NewResponseController(w).SetWriteDeadline(time.Time{}) // what cannot have one needs none
		a.request = r
		defer func() { e.finishRequest(a, begin, recover()) }()
		e.serveRequest(a, next)
	})
}

// Admit finds out who makes a request that is answered by others than Handler's next,
// and whether they may. What it returns carries a Principal, but for public paths. The
// caller attaches what it does then to the key: Keys.Attach.
//
// PermissionDenied: the request is for another server, or made by a page of another
// site. Unauthenticated: it shows no key that is good. Exhausted: there are too many.
func (e *Edge) Admit(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	return e.admitRequest(w, r.WithContext(WithRequestID(r.Context(), requestID(r))))
}

// CountPreview counts a request for a preview of an owner's sandbox, and its connection.
// The caller calls leave when it was answered.
//
// Exhausted: there are too many.
func (e *Edge) CountPreview(r *http.Request, owner string) (leave func(), err error) {
	// No owner has such a name: viewers of previews must not use up what their owner has
	// for itself.
	return countRequest(r, e.previews, "previews of "+owner)
}

type edgeKey struct{}

// CountRequest counts a request for a public path, and its connection, as one of an owner. The
// caller calls leave when it was answered.
//
// Exhausted: the owner has too many.
func CountRequest(r *http.Request, owner string) (leave func(), err error) {
	e, ok := r.Context().Value(edgeKey{}).(*Edge)
	if !ok {
		return func() {}, nil // it is counted, or is not behind an edge
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

// serveRequest lets a request in, or refuses it.
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
			a.Header().Set("Connection", "close") // nobody reads its body
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
	ctx = memory.WithAccount(ctx, a.account)
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

// admitRequest finds out who makes a request, and whether they may.
func (e *Edge) admitRequest(w http.ResponseWriter, r *http.Request) (*http.Request, error) {
	from := e.o.clientOf(r)
	if err := e.o.checkHost(r, from); err != nil {
		e.reportRefusal(r, e.refusals, "host", err)
		return r, err
	}
	if err := e.origins.Check(r); err != nil {
		err = sandpit.Errorf(sandpit.PermissionDenied, "a page of another site may not do this: %w", err)
		e.reportRefusal(r, e.refusals, "cross-origin", err)
		return r, err
	}
	p, err := e.identifyClient(w, r, from)
	if err != nil {
		if e.public[r.URL.Path] && sandpit.CodeOf(err) == sandpit.Unauthenticated {
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
			return r, sandpit.WithHint(err, "wait as long as Retry-After says")
		}
	}
	return r.WithContext(WithPrincipal(r.Context(), p)), nil
}

// finishRequest tells how a request went, and survives its handler.
func (e *Edge) finishRequest(a *responseRecorder, begin time.Time, panicked any) {
	r, started := a.request, a.status != 0
	err, ok := panicked.(error)
	aborted := ok && errors.Is(err, http.ErrAbortHandler) // on purpose: the connection is to be cut
	if panicked != nil && !aborted {
		e.o.Log.ErrorContext(r.Context(), "a request panicked", slog.Any("panic", panicked), slog.String("method", r.Method),
			slog.String("route", r.Pattern), slog.String("request_id", RequestID(r.Context())), slog.String("stack", string(debug.Stack())))
		if !started {
			e.o.Refuse(a, r, sandpit.Errorf(sandpit.Internal, "something went wrong in the server"))
		}
	}
	if r.ContentLength != 0 && r.ProtoMajor == 1 {
		// The rest of a body is read before the connection is used again. It must not come slowly.
		limitRest(a, a.refused)
	}
	a.account.Close()
	if a.leave != nil {
		a.leave()
	}
	done := Outcome{Route: r.Pattern, Status: a.status, Bytes: a.bytes, Took: time.Since(begin)}
	if done.Status == 0 {
		done.Status = http.StatusOK // as net/http has it
	}
	if e.o.Observe != nil {
		e.o.Observe(r, done)
	}
	e.logRequest(r, a.exchange, done)
	if panicked != nil && (started || aborted) {
		panic(http.ErrAbortHandler) // whoever reads must not take it for a whole answer
	}
}

// logRequest writes down how a request went. Requests that the server itself failed to answer are
// told at the level info, with the reason; all others, which clients decide the number of,
// at the level debug.
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

// requestIDPattern is what a client's own request ID may look like.
var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._:-]{1,64}$`)

func requestID(r *http.Request) string {
	if id := r.Header.Get(wire.HeaderRequestID); requestIDPattern.MatchString(id) {
		return id
	}
	return randomHex(12)
}

// setSecurityHeaders sets the headers that every answer has; a handler may set others.
func setSecurityHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Cache-Control", "no-store")
}

// isCleanPath reports whether a path is one that leads nowhere else.
func isCleanPath(p string) bool {
	cleaned := path.Clean(p)
	return p == cleaned || p == cleaned+"/"
}

// serveUnrouted answers a request that no pattern fits, as a problem.
func serveUnrouted(w http.ResponseWriter, r *http.Request, mux *http.ServeMux) {
	probe := &headRecorder{header: make(http.Header)}
	if isCleanPath(r.URL.Path) {
		h, _ := mux.Handler(r)
		h.ServeHTTP(probe, r)
	}
	if probe.status == http.StatusMethodNotAllowed {
		allow := probe.header.Get("Allow")
		w.Header().Set("Allow", allow)
		p := ProblemOf(r.Context(), sandpit.Errorf(sandpit.Invalid, "%.20s is not for this path, but %s", r.Method, allow))
		p.Status, p.Title = probe.status, http.StatusText(probe.status)
		WriteProblem(w, p)
		return
	}
	WriteError(w, r, sandpit.Errorf(sandpit.NotFound, "there is no %.20s %.200q", r.Method, r.URL.Path))
}

// headRecorder keeps the head of an answer.
type headRecorder struct {
	header http.Header
	status int
}

func (b *headRecorder) Header() http.Header         { return b.header }
func (b *headRecorder) WriteHeader(status int)      { b.status = status }
func (b *headRecorder) Write(p []byte) (int, error) { return len(p), nil }

// responseRecorder counts what is answered.
type responseRecorder struct {
	http.ResponseWriter

	exchange *exchange

	request *http.Request // as it was passed on
	refused bool          // by the edge itself
	account *memory.Account
	leave   func() // nil: it is not counted
	status  int    // 0: nothing yet
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
