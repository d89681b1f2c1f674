package preview

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// bufferSize is how much is moved at once, in bytes, and largeSize how much of a body that
// says that it is larger than that.
const (
	bufferSize = 32 << 10
	largeSize  = 256 << 10
)

// maxHeader is how many bytes the head of an answer may have.
const maxHeader = 64 << 10

// Handler returns next, the API, with previews before it: requests for host names of
// ports, and those with headers that name one, never reach it.
func (g *Gateway) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if t, ok := hostTarget(r.Host, g.o.Domain); ok {
			t = g.resolveSigned(r, t)
			g.serveObserved(w, r, func(a *answer) { g.servePort(a, r, t) })
			return
		}
		if len(r.Header.Values(headerSandbox)) == 0 {
			if t, ok := g.bareTarget(r); ok {
				g.serveObserved(w, r, func(a *answer) { g.servePort(a, r, t) })
				return
			}
			if headSize(r)+cookieSize(r) > maxPlain {
				api.WriteProblem(w, headProblem(r))
				return
			}
			next.ServeHTTP(w, r)
			return
		}
		g.serveObserved(w, r, func(a *answer) {
			t, err := headerTarget(r.Header)
			if err != nil {
				writeError(a, r, t, err)
				return
			}
			g.servePort(a, r, t)
		})
	})
}

// Paths serves requests for /p/ID/PORT/. It needs a listener of its own, because all previews
// there share one origin.
func (g *Gateway) Paths() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.serveObserved(w, r, func(a *answer) { g.servePath(a, r) })
	})
}

func (g *Gateway) servePath(a *answer, r *http.Request) {
	t, ok := pathTarget(r.URL.Path)
	if !ok {
		if to := absoluteLink(r); to != "" {
			writeRedirect(a, http.StatusTemporaryRedirect, to)
			return
		}
		writeError(a, r, t, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "no preview at this path"), "the path is /p/SANDBOX/PORT/"))
		return
	}
	if r.URL.Path == t.prefix { // else relative links would lead elsewhere
		to := url.URL{Path: t.prefix + "/", RawQuery: r.URL.RawQuery}
		writeRedirect(a, http.StatusPermanentRedirect, to.String())
		return
	}
	g.servePort(a, r, t)
}

// absoluteLink returns the target of a link that a page below /p/ID/PORT/ wrote as if it had
// a host of its own, or "".
func absoluteLink(r *http.Request) string {
	from, err := url.Parse(r.Header.Get("Referer"))
	if err != nil || !strings.EqualFold(from.Host, r.Host) {
		return ""
	}
	t, ok := pathTarget(from.Path)
	if !ok {
		return ""
	}
	return t.prefix + pathAndQuery(r.URL.EscapedPath(), r.URL.RawQuery)
}

// pathAndQuery is a path, as it was written, with a query, as browsers leave it.
func pathAndQuery(path, query string) string {
	path = escapeRest(cleanPath("/" + strings.TrimLeft(path, "/")))
	if query == "" {
		return path
	}
	return path + "?" + escapeRest(query)
}

func writeRedirect(a *answer, status int, to string) {
	h := a.Header()
	h.Set("Location", to)
	h.Set("Cache-Control", "no-store")
	// The next request must carry its referrer, as far as another host may see it.
	h.Set("Referrer-Policy", "strict-origin-when-cross-origin")
	a.WriteHeader(status)
}

// serveObserved serves a request and reports its outcome.
func (g *Gateway) serveObserved(w http.ResponseWriter, r *http.Request, serve func(*answer)) {
	begin := time.Now()
	a := newAnswer(w, r)
	defer func() {
		a.drainBody()
		g.o.Observe(r, api.Outcome{Route: "preview", Status: a.status, Bytes: a.bytes, Took: time.Since(begin)})
	}()
	serve(a)
}

// servePort answers a request for a port.
func (g *Gateway) servePort(a *answer, r *http.Request, t target) {
	if r.Method == http.MethodConnect || r.Method == http.MethodTrace {
		a.Header().Set("Allow", "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS")
		a.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	t.rules = g.rulesOf(t.id)
	if headSize(r) > maxPlain {
		writeError(a, r, t, errHead)
		return
	}
	a.expired = expireCookies(boundCookies(r.Header), g.o.Domain, t)
	r, p, err := g.access.authorizeViewer(a, r, t)
	if err != nil {
		writeError(a, r, t, err)
		return
	}
	defer p.release()
	if p.fresh != "" && isVisit(r) {
		// The token must be neither seen nor passed on, and links inside have none.
		path, _, ok := t.innerPath(r.URL.EscapedPath(), "")
		if !ok {
			writeError(a, r, t, errPath)
			return
		}
		g.newView(r, t).setTokenCookie(a, p)
		writeRedirect(a, http.StatusSeeOther, t.prefix+pathAndQuery(path, withoutToken(r.URL.RawQuery)))
		return
	}
	if err := refuseWorker(r, t); err != nil {
		writeError(a, r, t, err)
		return
	}
	h, err := g.holdSandbox(r, t)
	if err != nil {
		writeError(a, r, t, goneFor(t, err))
		return
	}
	defer h.Release()
	leave, err := g.countRequest(r, t)
	if err != nil {
		writeError(a, r, t, err)
		return
	}
	defer leave()
	g.proxyRequest(a, r, t, h, p)
}

// countRequest counts a request for its sandbox's owner.
func (g *Gateway) countRequest(r *http.Request, t target) (leave func(), err error) {
	s, err := g.o.Manager.Get(t.id)
	if err != nil {
		return nil, err
	}
	leave, err = g.o.Enter(r, s.Lease.Owner)
	if err != nil { // whose sandbox it is and how much they have is not the viewer's business
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "too many viewers of sandbox %s", t.id), "try again later")
	}
	return leave, err
}

// errPath refuses a path that begins with what names a preview in other letters.
var errPath = sandpit.Errorf(sandpit.Invalid, "the path encodes the sandbox's name in an unsupported way")

// proxyRequest lets the sandbox answer.
func (g *Gateway) proxyRequest(a *answer, r *http.Request, t target, h *manager.Handle, p pass) {
	var group sync.WaitGroup
	defer group.Wait()
	ctx, cancel := context.WithCancelCause(h.Context())
	defer cancel(nil)
	defer a.endSoon(ctx)()
	path, raw, ok := t.innerPath(r.URL.Path, r.URL.RawPath)
	if !ok {
		writeError(a, r, t, errPath)
		return
	}
	transport, scheme, done := newUpstream(h, r, t)
	defer done()
	v := g.newView(r, t)
	pieces := &buffers{pool: &g.buffers, size: bufferSize}
	proxy := httputil.ReverseProxy{
		Transport:     transport,
		FlushInterval: -1, // what comes is passed on when it comes
		BufferPool:    pieces,
		ErrorLog:      slog.NewLogLogger(g.o.Log.Handler(), slog.LevelDebug),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: scheme, Host: "sandbox", Path: path, RawPath: raw, RawQuery: withoutToken(p.In.URL.RawQuery)}
			p.Out.Host = t.rules.hostFor(p.In.Host, t.port)
			cleanRequest(p.Out.Header, t)
			v.setForwarded(p.Out.Header)
		},
		ModifyResponse: func(res *http.Response) error {
			if code := res.StatusCode; code < 200 && code != http.StatusSwitchingProtocols || code > 599 {
				return fmt.Errorf("status %d", code)
			}
			if err := v.cleanAnswer(res.Header); err != nil {
				return err
			}
			v.confinePage(res.Header)
			v.guardFrames(res.Header, p)
			if res.ContentLength > largeSize {
				pieces.pool, pieces.size = &g.large, largeSize
			}
			if isEndless(res) {
				group.Go(func() { endOnDrain(ctx, cancel) })
			}
			return nil
		},
		ErrorHandler: func(_ http.ResponseWriter, _ *http.Request, err error) { g.writeFailure(ctx, a, r, t, err) },
	}
	proxy.ServeHTTP(a, r.WithContext(ctx))
}

// newUpstream is how a port is reached, and the scheme that is spoken there. What it
// returns besides is to be called at the end.
func newUpstream(h *manager.Handle, r *http.Request, t target) (http.RoundTripper, string, func()) {
	if server, ok := sandpit.As[sandpit.GuestServer](h.Guest()); ok && t.port == guestPort {
		return server.HTTP(), "http", func() {}
	}
	encrypted, grpc := t.port != guestPort && slices.Contains(t.rules.HTTPS, t.port), r.ProtoMajor == 2 && isGRPC(r.Header)
	dialer, ok := sandpit.As[sandpit.Dialer](h.Instance())
	if !ok || !encrypted && !grpc {
		return h.HTTP(t.port), "http", func() {}
	}
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.Dial(ctx, t.port) },
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
		Protocols:              new(http.Protocols),
	}
	if !encrypted {
		transport.Protocols.SetUnencryptedHTTP2(true) // gRPC is HTTP/2 from end to end
		return transport, "http", transport.CloseIdleConnections
	}
	transport.Protocols.SetHTTP1(!grpc)
	transport.Protocols.SetHTTP2(grpc)
	transport.TLSHandshakeTimeout = handshakeLimit
	transport.TLSClientConfig = &tls.Config{InsecureSkipVerify: true} //nolint:gosec // see Rules.HTTPS
	return transport, "https", transport.CloseIdleConnections
}

// handshakeLimit is how long a program may take to begin with TLS.
const handshakeLimit = 10 * time.Second

func isGRPC(h http.Header) bool {
	kind, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (kind == "application/grpc" || strings.HasPrefix(kind, "application/grpc+"))
}

// isEndless reports whether a response is a stream without an end.
func isEndless(res *http.Response) bool {
	kind, _, err := mime.ParseMediaType(res.Header.Get("Content-Type"))
	return res.StatusCode == http.StatusSwitchingProtocols || err == nil && kind == api.ContentTypeStream
}

// endOnDrain ends endless responses when the server drains.
func endOnDrain(ctx context.Context, cancel context.CancelCauseFunc) {
	select {
	case <-api.Draining(ctx):
		cancel(api.ErrDraining)
	case <-ctx.Done():
	}
}

// writeFailure writes why there is no response.
func (g *Gateway) writeFailure(ctx context.Context, a *answer, r *http.Request, t target, err error) {
	var known, why *sandpit.Error
	switch {
	case errors.As(context.Cause(ctx), &why):
		err = why // the sandbox was taken away, also if the viewer goes just then
	case r.Context().Err() != nil:
		err = sandpit.Errorf(sandpit.Canceled, "the viewer has gone")
	case ctx.Err() != nil:
		err = context.Cause(ctx) // why the sandbox was taken away
	case errors.As(err, &known) && known.Code == sandpit.Unavailable && sandpit.HintOf(err) == "": // otherwise there is another reason
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "nothing listens at port %d of sandbox %s", t.port, t.id),
			"start the program, or wait until it has started; it may listen at 127.0.0.1 only")
	case errors.As(err, &known):
	default:
		g.o.Log.DebugContext(ctx, "a program in a sandbox does not answer properly", slog.String("sandbox", string(t.id)),
			slog.Int("port", t.port), slog.Any("error", err))
		err = sandpit.Errorf(sandpit.Unavailable, "what listens at port %d of sandbox %s does not answer as HTTP wants it", t.port, t.id)
	}
	if a.status == http.StatusSwitchingProtocols {
		return // the connection is closed
	}
	writeError(a, r, t, err)
}

// buffers are used again. All of a pool have one size.
type buffers struct {
	pool *sync.Pool
	size int
}

// Get implements httputil.BufferPool.
func (b *buffers) Get() []byte {
	if buffer, ok := b.pool.Get().(*[]byte); ok {
		return *buffer
	}
	return make([]byte, b.size)
}

// Put implements httputil.BufferPool.
func (b *buffers) Put(buffer []byte) { b.pool.Put(&buffer) }
