package stdioconn

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// AttachFunc attaches to the container's input and output. Link calls it again whenever the returned stream has
// broken. An error ends the Link and all of its connections, so the function itself must wait for temporary problems.
// The Link closes the stream; Close must end a pending Read and Write.
type AttachFunc func(ctx context.Context) (io.ReadWriteCloser, error)

// Link is the client's side: one attachment at a time, with any number of connections. All methods may be called
// concurrently.
type Link struct {
	attach AttachFunc
	cancel context.CancelFunc
	done   chan struct{}
	wg     sync.WaitGroup // goroutines of the connections

	mu     sync.Mutex
	stream io.ReadWriteCloser
	conns  map[uint64]*conn
	err    error // the reason for the end

	writing sync.Mutex
}

var errDown = errors.New("not attached")

// NewLink returns a Link over first. When a stream has broken, it calls attach for the next one. The caller must
// Close it.
func NewLink(first io.ReadWriteCloser, attach AttachFunc) *Link {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Link{attach: attach, cancel: cancel, done: make(chan struct{}), conns: make(map[uint64]*conn), stream: first}
	go func() {
		defer close(l.done)
		l.runAttachments(ctx, first)
	}()
	return l
}

// reattachPause limits how often an engine that breaks every attachment at once is called.
const reattachPause = 50 * time.Millisecond

func (l *Link) runAttachments(ctx context.Context, stream io.ReadWriteCloser) {
	for {
		stop := context.AfterFunc(ctx, func() { _ = stream.Close() }) // ends a pending read
		l.readStream(stream)
		stop()
		_ = stream.Close() // it has broken already
		l.setStream(nil)
		var err error
		select {
		case <-ctx.Done():
			err = net.ErrClosed
		case <-time.After(reattachPause):
			stream, err = l.attach(ctx)
		}
		if err != nil {
			l.endAll(err)
			return
		}
		l.setStream(stream)
		for _, c := range l.listConns() {
			c.requestResume()
		}
	}
}

// readStream handles frames until the stream breaks.
func (l *Link) readStream(stream io.Reader) {
	var p parser
	buf := make([]byte, 2*maxFrame)
	for {
		n, err := stream.Read(buf)
		p.parseFrames(buf[:n], l.dispatchFrame)
		if err != nil {
			return
		}
	}
}

func (l *Link) dispatchFrame(f frame) {
	l.mu.Lock()
	c := l.conns[f.conn]
	l.mu.Unlock()
	if c != nil { // otherwise it belongs to another client
		c.handleFrame(f)
	}
}

func (l *Link) setStream(stream io.ReadWriteCloser) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stream = stream
}

func (l *Link) listConns() []*conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	list := make([]*conn, 0, len(l.conns))
	for _, c := range l.conns {
		list = append(list, c)
	}
	return list
}

func (l *Link) writeFrame(frame []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	stream := l.stream
	l.mu.Unlock()
	if stream == nil {
		return errDown
	}
	_, err := stream.Write(frame)
	return err
}

// Dial opens a connection and returns when the container has answered. Its error is the reason why the Link has
// ended, or that of ctx.
func (l *Link) Dial(ctx context.Context) (net.Conn, error) {
	var raw [8]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the program instead
	id := binary.BigEndian.Uint64(raw[:])
	l.mu.Lock()
	if l.err != nil {
		defer l.mu.Unlock()
		return nil, l.err
	}
	c := newConn(id, true, l.writeFrame, l.forgetConn)
	l.conns[id] = c
	l.wg.Go(c.sendFrames)
	l.mu.Unlock()
	select {
	case <-c.opened:
		return c, nil
	case <-c.ended:
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, c.err
	case <-ctx.Done():
		_ = c.Close() // never fails
		return nil, ctx.Err()
	}
}

func (l *Link) forgetConn(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, c.id)
}

// endAll ends all connections with a reason.
func (l *Link) endAll(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	for _, c := range l.listConns() {
		c.endWith(err)
	}
}

// Fail ends the Link and its connections with a reason, without waiting for them or notifying the container. The caller
// must still Close it.
func (l *Link) Fail(err error) {
	l.endAll(err)
	l.cancel()
}

// Done returns a channel that is closed when the Link has ended.
func (l *Link) Done() <-chan struct{} { return l.done }

// closeTime bounds how long Close tries to notify the other side.
const closeTime = time.Second

// Close ends the Link and its connections and waits for them. It is idempotent.
func (l *Link) Close() error {
	l.mu.Lock()
	if l.err == nil {
		l.err = net.ErrClosed // no new connections
	}
	l.mu.Unlock()
	for _, c := range l.listConns() {
		c.endWith(net.ErrClosed)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.wg.Wait()
	}()
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
	l.cancel()
	<-closed
	<-l.done
	return nil
}
