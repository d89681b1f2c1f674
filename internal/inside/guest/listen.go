package guest

import (
	"context"
	"crypto/sha1" //nolint:gosec // the protocol of WebSockets requires it
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"sync"
	"syscall"
)

// DialPath is the path on which a guest that listens on a TCP port connects to other ports of its computer. A request
// with "?port=NUMBER", the guest's key and "Upgrade: websocket" becomes a raw connection: no frames follow the
// response 101. The protocol's name is that of WebSockets because proxies of clouds pass no other one.
const DialPath = "/dial"

// listenTCP serves on a TCP port of all addresses until the process receives SIGTERM.
func listenTCP(port int, key string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	g := newGuest(launchDir)
	defer g.Close()
	g.settings.token = key
	if stop, err := g.shareEnviron(ctx); err != nil {
		// The first process of the computer may be a guest, too.
		_, _ = fmt.Fprintln(os.Stderr, "guest: share the environment:", err)
	} else {
		defer stop()
	}
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	server := newServer(g.listenHandler())
	ended := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer ended()
	if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// listenHandler serves the protocol and DialPath.
func (g *Guest) listenHandler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", g.Handler())
	mux.Handle("GET "+DialPath, g.requireKey(http.HandlerFunc(serveDial)))
	return mux
}

// serveDial connects the client to a port.
func serveDial(w http.ResponseWriter, r *http.Request) {
	port, err := strconv.ParseUint(r.URL.Query().Get("port"), 10, 16)
	if err != nil || port == 0 {
		writeError(w, http.StatusBadRequest, fmt.Sprintf("invalid port %q", r.URL.Query().Get("port")))
		return
	}
	dialer := net.Dialer{Timeout: dialTimeout}
	inside, err := dialer.DialContext(r.Context(), "tcp", net.JoinHostPort("127.0.0.1", strconv.FormatUint(port, 10)))
	if err != nil {
		writeError(w, http.StatusServiceUnavailable, fmt.Sprintf("port %d is not open", port))
		return
	}
	defer inside.Close()
	outside, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	defer outside.Close()
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11")) //nolint:gosec // the protocol requires it
	if _, err := fmt.Fprintf(outside, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\n\r\n",
		base64.StdEncoding.EncodeToString(sum[:])); err != nil {
		return
	}
	var wg sync.WaitGroup
	wg.Go(func() { joinHalf(inside, buffered) })
	joinHalf(outside, inside)
	wg.Wait()
}

// joinHalf copies until the source ends, and then ends the destination's direction. After an error it closes the
// destination.
func joinHalf(to net.Conn, from io.Reader) {
	_, err := io.Copy(to, from)
	half, ok := to.(interface{ CloseWrite() error })
	if err != nil || !ok || half.CloseWrite() != nil {
		_ = to.Close()
	}
}
