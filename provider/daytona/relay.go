package daytona

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"time"
)

// dialRelay returns a connection to a port of a sandbox without a guest. It carries requests of
// HTTP/1, upgrades included, and answers anything else with the status 400.
//
// Unavailable: no program listens.
func (b *sandbox) dialRelay(ctx context.Context, port int) (net.Conn, error) {
	if !b.isListening(ctx, port) {
		return nil, noProgram(port)
	}
	near, far := net.Pipe()
	conn := &relayConn{Conn: near, closed: make(chan struct{})}
	proxy := &httputil.ReverseProxy{
		Transport:     previewTransport{b, port},
		FlushInterval: -1, // a program may send events
		ErrorLog:      slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = "http", "sandbox", p.In.Host
		},
	}
	server := &http.Server{
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		ReadHeaderTimeout: relayIdle, IdleTimeout: relayIdle, MaxHeaderBytes: 64 << 10,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).EnableFullDuplex() // a pipe always has it
			proxy.ServeHTTP(w, r)
		}),
	}
	if !b.p.goDo(func() {
		stop := context.AfterFunc(b.p.life, func() { _ = conn.Close() })
		defer stop()
		_ = server.Serve(&oneListener{far: far, conn: conn}) // ends with the connection
		_ = server.Close()
	}) {
		return nil, errClosed
	}
	return conn, nil
}

// relayIdle is how long a connection may be open without a request.
const relayIdle = 10 * time.Minute

// relayConn is the near end of a relay's connection.
type relayConn struct {
	net.Conn

	once   sync.Once
	closed chan struct{}
}

// Close implements net.Conn.
func (c *relayConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// oneListener accepts the far end of a relay's connection, and ends with it.
type oneListener struct {
	far  net.Conn // nil after it was accepted
	conn *relayConn
}

// Accept implements net.Listener.
func (l *oneListener) Accept() (net.Conn, error) {
	if far := l.far; far != nil {
		l.far = nil
		return far, nil
	}
	<-l.conn.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (*oneListener) Close() error { return nil }

// Addr implements net.Listener.
func (l *oneListener) Addr() net.Addr { return l.conn.LocalAddr() }
