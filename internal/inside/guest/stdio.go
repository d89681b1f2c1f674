package guest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"

	"github.com/sandpit-dev/sandpit/internal/reach/stdioconn"
)

// StdioArg as the guest's first argument makes it serve over its standard input and output with package stdioconn,
// instead of a conduit. On such a connection it speaks unencrypted HTTP/2; it connects a CONNECT request with the
// authority 127.0.0.1:PORT to a port in the sandbox, or refuses it with StatusBadGateway.
const StdioArg = "stdio"

// maxStreams is how many calls there may be at once on one connection.
const maxStreams = 10_000

// serveStdio serves until ctx ends or the input does.
func serveStdio(ctx context.Context, g *Guest) error {
	in, out, err := takeStdio()
	if err != nil {
		return err
	}
	if err := protectSelf(); err != nil {
		return err
	}
	keepThreads(ownThreads)
	t := &tunnels{own: g.Handler(), accepted: make(chan net.Conn), closed: make(chan struct{})}
	ln := stdioconn.Listen(in, out)
	server := newServer(t)
	server.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: maxStreams}
	direct := newServer(t.own)
	stop := context.AfterFunc(ctx, func() {
		_ = server.Close()
		_ = direct.Close()
		_ = t.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { _ = direct.Serve(t) }) // until it is closed
	err = server.Serve(ln)
	_ = direct.Close()
	_ = t.Close()
	wg.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("the input ended: %w", err)
}

// takeStdio moves the standard input and output to descriptors that programs do not inherit, and where nothing is
// written by mistake.
func takeStdio() (in, out *os.File, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, err
	}
	defer null.Close()
	var files [2]*os.File
	for fd := range files {
		own, err := syscall.Dup(fd)
		if err != nil {
			return nil, nil, fmt.Errorf("take over descriptor %d: %w", fd, err)
		}
		syscall.CloseOnExec(own)
		if err := syscall.Dup3(int(null.Fd()), fd, 0); err != nil {
			return nil, nil, fmt.Errorf("replace descriptor %d: %w", fd, err)
		}
		files[fd] = os.NewFile(uintptr(own), "stdio")
	}
	return files[0], files[1], nil
}

// protectSelf protects this process's memory and descriptors from programs in the sandbox, those of root included.
func protectSelf() error {
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_DUMPABLE, 0, 0); errno != 0 {
		return fmt.Errorf("protect the guest: %w", errno)
	}
	return nil
}

// tunnels connects to ports in the sandbox. It is also the net.Listener of connections to the guest's own port.
type tunnels struct {
	own      http.Handler
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

// ServeHTTP implements http.Handler.
func (t *tunnels) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodConnect {
		t.own.ServeHTTP(w, r)
		return
	}
	_, text, err := net.SplitHostPort(r.Host)
	port, portErr := strconv.ParseUint(text, 10, 16)
	if err != nil || portErr != nil || port == 0 {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	inside, err := t.dialInside(r.Context(), int(port))
	if err != nil {
		w.WriteHeader(http.StatusBadGateway)
		return
	}
	defer inside.Close()
	stop := context.AfterFunc(r.Context(), func() { _ = inside.Close() })
	defer stop()
	w.WriteHeader(http.StatusOK)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := io.Copy(inside, r.Body)
		half, ok := inside.(interface{ CloseWrite() error })
		if err != nil || !ok || half.CloseWrite() != nil {
			_ = inside.Close()
		}
	})
	copyFlushed(w, inside)
	_ = inside.Close() // later data has no receiver
	_ = r.Body.Close()
	wg.Wait()
}

func (t *tunnels) dialInside(ctx context.Context, port int) (net.Conn, error) {
	if port != Port {
		dialer := net.Dialer{Timeout: dialTimeout}
		return dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	ours, theirs := net.Pipe()
	select {
	case t.accepted <- theirs:
		return ours, nil
	case <-t.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// copyFlushed copies and flushes each piece.
func copyFlushed(w http.ResponseWriter, from io.Reader) {
	rc := http.NewResponseController(w)
	if rc.Flush() != nil {
		return
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil || rc.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// Accept implements net.Listener.
func (t *tunnels) Accept() (net.Conn, error) {
	select {
	case c := <-t.accepted:
		return c, nil
	case <-t.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (t *tunnels) Close() error {
	t.once.Do(func() { close(t.closed) })
	return nil
}

// Addr implements net.Listener.
func (t *tunnels) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "stdio"} }
