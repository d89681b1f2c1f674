package guest

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// The conduit is a socket that the guest inherits, and the only way into a sandbox. The process at its other end
// sends connections over it: a message of two bytes with a port number in big-endian order, and a descriptor. On the
// new connection the guest first writes one of the answers below. The rest of the connection belongs to the port: to
// the guest itself for Port, otherwise to a program in the sandbox.
const (
	// ConduitFD is the conduit's descriptor in the guest.
	ConduitFD = 3
	// ConduitMessage is the size of a message.
	ConduitMessage = 2
	// AnswerOpen says that the connection is open.
	AnswerOpen = 0
	// AnswerRefused says that nothing listens on the port.
	AnswerRefused = 1

	// killOrder is not a port. Without a descriptor it means that memory has run out. With a descriptor it is another
	// order: see Quiesce.
	killOrder = 0
)

// OrderKill asks the guest at the other end of the conduit to kill the program that uses the most memory. It does not
// wait.
func OrderKill(conduit *os.File) error {
	message := binary.BigEndian.AppendUint16(nil, killOrder)
	return syscall.Sendmsg(int(conduit.Fd()), message, nil, nil, syscall.MSG_DONTWAIT|syscall.MSG_NOSIGNAL)
}

const dialTimeout = 10 * time.Second

// conduit is a net.Listener for the connections to the guest. It relays those to other ports itself.
type conduit struct {
	conn     *net.UnixConn
	guest    *Guest
	accepted chan net.Conn
	closed   chan struct{}
	once     sync.Once
	wg       sync.WaitGroup

	mu        sync.Mutex
	allClosed sync.Cond             // signaled when open is empty
	open      map[*conduitConn]bool // every connection that came through the conduit
}

// conduitConn is a connection that came through the conduit.
type conduitConn struct {
	*net.UnixConn
	conduit *conduit
}

// Close implements net.Conn.
func (c *conduitConn) Close() error {
	err := c.UnixConn.Close() // returns when it is closed
	if errors.Is(err, net.ErrClosed) {
		return err // closed concurrently
	}
	c.conduit.mu.Lock()
	defer c.conduit.mu.Unlock()
	delete(c.conduit.open, c)
	if len(c.conduit.open) == 0 {
		c.conduit.allClosed.Broadcast()
	}
	return err
}

// ReadFrom implements io.ReaderFrom for files that are sent. It copies in pieces of copyBuffer, because system calls
// are slow in a sandbox.
func (c *conduitConn) ReadFrom(r io.Reader) (int64, error) {
	size := int64(copyBuffer)
	if limited, ok := r.(*io.LimitedReader); ok {
		size = min(size, max(limited.N, 1))
	}
	return io.CopyBuffer(struct{ io.Writer }{c.UnixConn}, r, make([]byte, size))
}

// closeOpen closes every connection and waits until all are closed.
func (c *conduit) closeOpen() {
	c.mu.Lock()
	list := slices.Collect(maps.Keys(c.open))
	c.mu.Unlock()
	for _, conn := range list {
		_ = conn.Close() // may be closed already
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.open) > 0 {
		c.allClosed.Wait()
	}
}

func openConduit(f *os.File, g *Guest) (*conduit, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("open the conduit: %w", err)
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.New("open the conduit: not a unix socket")
	}
	c := &conduit{
		conn: unixConn, guest: g, accepted: make(chan net.Conn), closed: make(chan struct{}), open: make(map[*conduitConn]bool),
	}
	c.allClosed.L = &c.mu
	c.wg.Go(c.receiveConns)
	return c, nil
}

// receiveConns accepts connections until the conduit is closed.
func (c *conduit) receiveConns() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	message := make([]byte, ConduitMessage)
	rights := make([]byte, syscall.CmsgSpace(4))
	for {
		n, rn, _, _, err := c.conn.ReadMsgUnix(message, rights)
		if err != nil || n == 0 {
			_ = c.Close() // the sandbox is ending
			return
		}
		if n == ConduitMessage && rn == 0 && binary.BigEndian.Uint16(message) == killOrder {
			c.guest.processes.killLargest()
			continue
		}
		conn, err := receivedConn(rights[:rn])
		if err != nil {
			continue // the sender sees its end closed
		}
		if n != ConduitMessage {
			_ = conn.Close()
			continue
		}
		port := int(binary.BigEndian.Uint16(message))
		if port == orderPort {
			c.handleOrder(conn)
			continue
		}
		tracked := c.trackConn(conn)
		c.wg.Go(func() { c.handOver(ctx, tracked, port) })
	}
}

func (c *conduit) trackConn(conn *net.UnixConn) net.Conn {
	tracked := &conduitConn{conn, c}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[tracked] = true
	return tracked
}

func receivedConn(rights []byte) (*net.UnixConn, error) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return nil, errors.New("no descriptor")
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		for _, fd := range fds { // the buffer has room for two
			_ = syscall.Close(fd)
		}
		return nil, errors.New("not one descriptor")
	}
	syscall.CloseOnExec(fds[0])
	f := os.NewFile(uintptr(fds[0]), "connection")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a unix socket"), conn.Close())
	}
	return unixConn, nil
}

// handOver passes a connection to the guest's server, or relays it to another port.
func (c *conduit) handOver(ctx context.Context, conn net.Conn, port int) {
	if port == Port {
		if _, err := conn.Write([]byte{AnswerOpen}); err != nil {
			_ = conn.Close()
			return
		}
		select {
		case c.accepted <- conn:
		case <-c.closed:
			_ = conn.Close()
		}
		return
	}
	defer conn.Close()
	dialer := net.Dialer{Timeout: dialTimeout}
	inside, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		_, _ = conn.Write([]byte{AnswerRefused}) // the caller may have disconnected
		return
	}
	defer inside.Close()
	if _, err := conn.Write([]byte{AnswerOpen}); err != nil {
		return
	}
	relayConns(ctx, conn, inside)
}

// relayConns copies both ways. It passes on a half-close, so either direction may end first.
func relayConns(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() {
		_ = a.Close()
		_ = b.Close()
	})
	defer stop()
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		wg.Go(func() {
			_, err := io.Copy(way[1], way[0])
			half, ok := way[1].(interface{ CloseWrite() error })
			if err != nil || !ok || half.CloseWrite() != nil {
				_ = a.Close()
				_ = b.Close()
			}
		})
	}
	wg.Wait()
}

// Accept implements net.Listener.
func (c *conduit) Accept() (net.Conn, error) {
	select {
	case conn := <-c.accepted:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener. It does not wait; waitForRelays does.
func (c *conduit) Close() error {
	c.once.Do(func() {
		close(c.closed)
		_ = c.conn.Close()
	})
	return nil
}

// waitForRelays waits until all relayed connections have ended.
func (c *conduit) waitForRelays() { c.wg.Wait() }

// Addr implements net.Listener.
func (c *conduit) Addr() net.Addr { return c.conn.LocalAddr() }
