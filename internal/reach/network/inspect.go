package network

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// inspector sets headers in HTTPS requests. To the sandbox it acts as the host, with a
// certificate of the sandbox's authority. To the host it is an ordinary client, and sends
// nothing before the host has presented a valid certificate for its name.
type inspector struct {
	g      *Gateway
	server *http.Server
	conns  chan net.Conn
	ended  chan struct{}
}

// The bounds of one inspected connection.
const (
	inspectGreeting  = 30 * time.Second // for the TLS handshake, and for each request's headers
	inspectIdle      = 5 * time.Minute
	inspectStreams   = 100 // concurrent requests, and so connections to the host
	inspectMaxHeader = 256 << 10
)

func newInspector(g *Gateway) *inspector {
	i := &inspector{g: g, conns: make(chan net.Conn), ended: make(chan struct{})}
	discard := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug) // errors of clients are not logged
	i.server = &http.Server{
		Handler: i, ErrorLog: discard,
		TLSConfig:         &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: i.certificateFor},
		ReadHeaderTimeout: inspectGreeting, IdleTimeout: inspectIdle, MaxHeaderBytes: inspectMaxHeader,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: inspectStreams},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, inspectedKey{}, inspectedOf(c))
		},
	}
	return i
}

// serveAll serves until the gateway ends.
func (i *inspector) serveAll() {
	defer close(i.ended)
	_ = i.server.ServeTLS(i, "", "") // ends with Accept
	_ = i.server.Close()             // closes the connections
}

// Accept implements net.Listener.
func (i *inspector) Accept() (net.Conn, error) {
	select {
	case c := <-i.conns:
		return c, nil
	case <-i.g.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (i *inspector) Close() error { return nil }

// Addr implements net.Listener.
func (i *inspector) Addr() net.Addr { return &net.TCPAddr{} }

// inspected is a connection of the sandbox to a host for which headers are set.
type inspected struct {
	*sandboxConn

	flow   *flow
	name   string
	first  io.Reader // the bytes already read, and then the rest
	once   sync.Once
	closed chan struct{}

	usual    *http.Transport // to the host
	upgrades *http.Transport // for upgrades, which HTTP/2 does not support
}

type inspectedKey struct{}

func inspectedOf(c net.Conn) *inspected {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	found, _ := c.(*inspected)
	return found
}

// Read implements net.Conn.
func (c *inspected) Read(p []byte) (int, error) { return c.first.Read(p) }

// Close implements net.Conn.
func (c *inspected) Close() error {
	err := c.sandboxConn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// serveConn serves a connection to name until it ends. It owns box.
func (i *inspector) serveConn(f *flow, box *sandboxConn, first io.Reader, name string) {
	c := &inspected{sandboxConn: box, flow: f, name: name, first: io.MultiReader(first, box), closed: make(chan struct{})}
	c.usual, c.upgrades = i.hostTransport(c, true), i.hostTransport(c, false)
	defer c.usual.CloseIdleConnections()
	defer c.upgrades.CloseIdleConnections()
	f.onEnd(func() { box.abortConn(); _ = c.Close() })
	select {
	case i.conns <- c:
		<-c.closed
	case <-i.g.ctx.Done():
		box.abortConn()
		_ = c.Close()
	}
}

// hostTransport returns a transport to the host of a connection, at the decided address.
func (i *inspector) hostTransport(c *inspected, two bool) *http.Transport {
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			ctx, cancel := context.WithTimeout(ctx, dialTimeout)
			defer cancel()
			return i.g.machine.Dial(ctx, "tcp", c.flow.to)
		},
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, ServerName: c.name, RootCAs: i.g.trustedRoots()},
		TLSHandshakeTimeout: inspectGreeting, DisableCompression: true, Protocols: new(http.Protocols),
		MaxConnsPerHost: inspectStreams, MaxResponseHeaderBytes: inspectMaxHeader, IdleConnTimeout: inspectIdle,
	}
	t.Protocols.SetHTTP1(true)
	t.Protocols.SetHTTP2(two)
	return t
}

func (i *inspector) certificateFor(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	c := inspectedOf(hello.Conn)
	authority := i.g.currentAuthority()
	if c == nil || authority == nil {
		return nil, errors.New("no connection or no authority")
	}
	return authority.leafFor(c.name)
}

// ServeHTTP forwards one request.
func (i *inspector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, _ := r.Context().Value(inspectedKey{}).(*inspected)
	switch {
	case c == nil:
		http.Error(w, "sandpit: no connection", http.StatusInternalServerError)
		return
	case hostOf(r.Host) != c.name:
		// One server may serve many names, also those of other tenants.
		i.writeRefusal(w, c, http.StatusMisdirectedRequest, "the request is for another host than the connection")
		return
	case r.Method == http.MethodTrace || r.Method == http.MethodConnect:
		i.writeRefusal(w, c, http.StatusMethodNotAllowed, "a "+r.Method+" request would reveal the headers that are set") // to the sandbox
		return
	}
	set := make(http.Header)
	for _, h := range i.g.currentRules().HeadersFor(c.name, c.flow.to.Port()) {
		value, missing := i.g.fillSecrets(h)
		if missing != "" {
			i.writeRefusal(w, c, http.StatusBadGateway, "header "+h.Name+" needs the unknown secret "+missing)
			return
		}
		set.Set(h.Name, value)
	}
	transport := c.usual
	if r.Header.Get("Upgrade") != "" {
		transport = c.upgrades
	}
	proxy := httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1, ErrorLog: i.server.ErrorLog,
		Rewrite: func(p *httputil.ProxyRequest) { rewriteRequest(p, set) },
		ErrorHandler: func(w http.ResponseWriter, r *http.Request, err error) {
			if r.Context().Err() == nil {
				i.writeRefusal(w, c, http.StatusBadGateway, reasonOf(err))
			}
		},
	}
	proxy.ServeHTTP(w, r)
}

// rewriteRequest creates the request to the host: the client's request with the headers set.
func rewriteRequest(p *httputil.ProxyRequest, set http.Header) {
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "https", p.In.Host, p.In.Host
	p.Out.URL.RawQuery = p.In.URL.RawQuery
	for _, name := range []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"} {
		if values := p.In.Header.Values(name); len(values) > 0 {
			p.Out.Header[name] = values
		}
	}
	maps.Copy(p.Out.Header, set)
}

// reasonOf returns why a request to a host failed, without the text of the error.
func reasonOf(err error) string {
	var untrusted *tls.CertificateVerificationError
	switch {
	case errors.As(err, &untrusted):
		return "the host's certificate is not trusted"
	case errors.Is(err, sandpit.PermissionDenied):
		return reasonDialer
	case errors.Is(err, context.DeadlineExceeded):
		return "the host did not answer in time"
	default:
		return "the host did not answer"
	}
}

// writeRefusal responds to the sandbox, and logs, that a request was refused.
func (i *inspector) writeRefusal(w http.ResponseWriter, c *inspected, status int, reason string) {
	i.g.logFlow(c.flow, policy.Verdict{Reason: reason})
	http.Error(w, "sandpit: "+reason, status)
}

// hostOf returns the name in a Host header, in Normal form.
func hostOf(host string) string {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return normalName(host)
}

// trustedRoots returns the certificate authorities for hosts. It parses them at the first use,
// because few sandboxes need them.
func (g *Gateway) trustedRoots() *x509.CertPool {
	g.rootsOnce.Do(func() {
		g.rootPool = x509.NewCertPool()
		g.rootPool.AppendCertsFromPEM(g.rootsPEM)
		g.rootsPEM = nil
	})
	return g.rootPool
}

// fillSecrets replaces the references in a header by secrets. It returns the name of a missing
// secret, or "".
func (g *Gateway) fillSecrets(h policy.Header) (value, missing string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return h.Fill(g.secrets)
}

// SetSecrets replaces all secrets. Invalid: a secret is invalid. Exhausted: too many.
func (g *Gateway) SetSecrets(secrets map[string]string) error {
	if err := CheckSecrets(secrets); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.secrets = secrets
	return nil
}

// maxSecrets bounds the secrets of a gateway.
const maxSecrets = 64

// CheckSecrets refuses invalid secrets, and too many.
func CheckSecrets(secrets map[string]string) error {
	if len(secrets) > maxSecrets {
		return sandpit.Errorf(sandpit.Exhausted, "%d secrets: want at most %d", len(secrets), maxSecrets)
	}
	for name, value := range secrets {
		if err := policy.CheckSecret(name, value); err != nil {
			return err
		}
	}
	return nil
}

// SetAuthority sets the authority that the sandbox trusts. Without one, connections to hosts
// for which headers are set fail.
func (g *Gateway) SetAuthority(a *Authority) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.authority = a
}

func (g *Gateway) currentAuthority() *Authority {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.authority
}
