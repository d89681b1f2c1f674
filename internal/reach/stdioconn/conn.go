package stdioconn

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

const (
	// maxBuffered is how many bytes each side buffers that were not read yet, and how many that the other side has
	// not confirmed.
	maxBuffered = 1 << 20
	// minWindow and firstWindow are how many bytes are sent ahead of their confirmation, after losses and at first.
	minWindow   = 4 << 10
	firstWindow = 256 << 10
	// ackDelay is how long a confirmation waits for data to travel with; after ackBytes received bytes it does not
	// wait.
	ackDelay = 50 * time.Millisecond
	ackBytes = 128 << 10
	// firstProbe and maxProbe are the first and the longest time without a confirmation after which the other side is
	// asked for one.
	firstProbe = 500 * time.Millisecond
	maxProbe   = 8 * time.Second
	// keepAlive is after how long without a frame a client sends one.
	keepAlive = 10 * time.Second
	// nakPause is how long the same loss is not reported again.
	nakPause = 100 * time.Millisecond
)

// conn is one connection. It is a net.Conn.
type conn struct {
	id     uint64
	client bool
	write  func([]byte) error // writes one frame; may block
	forget func(*conn)        // called once, when it has ended

	wake     chan struct{} // signals that a frame is to be sent
	readable chan struct{} // signals data or the end
	writable chan struct{} // signals free space or the end
	ended    chan struct{} // closed after err is set
	opened   chan struct{} // closed when the other side has answered
	readBy   deadline
	writeBy  deadline

	mu  sync.Mutex
	err error // the reason for the end

	out       []byte // unconfirmed bytes, from outBase on
	outBase   uint64
	outNext   uint64 // next offset to send
	window    uint64
	peerLimit uint64
	probeAfter,
	probeAt time.Duration // since start; 0 is not
	probeNow kind

	in        []byte // unread bytes; they end at inEnd
	inEnd     uint64
	ackedEnd  uint64 // the last confirmed offset
	sentLimit uint64
	ackAt     time.Duration // since start; 0 is not
	answers   []frame       // to be sent
	nakAt     time.Duration
	nakFor    uint64

	start    time.Time
	lastSent time.Duration
}

// newConn returns a connection. The caller runs sendFrames and waits for it.
func newConn(id uint64, client bool, write func([]byte) error, forget func(*conn)) *conn {
	return &conn{
		id: id, client: client, write: write, forget: forget, start: time.Now(),
		wake: make(chan struct{}, 1), readable: make(chan struct{}, 1),
		writable: make(chan struct{}, 1), ended: make(chan struct{}), opened: make(chan struct{}),
		readBy: newDeadline(), writeBy: newDeadline(), window: firstWindow, peerLimit: maxBuffered, sentLimit: maxBuffered,
		probeAfter: firstProbe,
	}
}

func (c *conn) elapsed() time.Duration { return time.Since(c.start) + 1 }

func notify(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	for {
		if c.readBy.isOver() {
			return 0, os.ErrDeadlineExceeded
		}
		c.mu.Lock()
		n := copy(p, c.in)
		c.in = c.in[n:]
		err := c.err
		if left := len(c.in); n > 0 && left > 0 {
			notify(c.readable)
		}
		if c.receiveLimit()-c.sentLimit >= maxBuffered/4 {
			c.ackAt = 1
			notify(c.wake)
		}
		c.mu.Unlock()
		if n > 0 || len(p) == 0 {
			return n, nil
		}
		if err != nil {
			return 0, err
		}
		select {
		case <-c.readable:
		case <-c.ended:
		case <-c.readBy.done():
		}
	}
}

// receiveLimit returns the offset up to which received bytes fit into the buffer.
func (c *conn) receiveLimit() uint64 { return c.inEnd - uint64(len(c.in)) + maxBuffered }

// Write implements net.Conn.
func (c *conn) Write(p []byte) (written int, err error) {
	for {
		if c.writeBy.isOver() {
			return written, os.ErrDeadlineExceeded
		}
		c.mu.Lock()
		err := c.err
		if err == nil {
			n := min(len(p), maxBuffered-len(c.out))
			c.out = append(c.out, p[:n]...)
			p = p[n:]
			written += n
			if len(c.out) < maxBuffered {
				notify(c.writable)
			}
			notify(c.wake)
		}
		c.mu.Unlock()
		if err != nil || len(p) == 0 {
			return written, writeError(err)
		}
		select {
		case <-c.writable:
		case <-c.ended:
		case <-c.writeBy.done():
		}
	}
}

// writeError returns the error of a write: io.ErrClosedPipe if the other side has closed the connection.
func writeError(err error) error {
	if err == io.EOF { //nolint:errorlint // it is our own, not wrapped
		return io.ErrClosedPipe
	}
	return err
}

// Close implements net.Conn. It notifies the other side, and does not wait for the confirmation of written data.
func (c *conn) Close() error {
	c.endWith(net.ErrClosed)
	return nil
}

// endWith ends the connection with a reason, unless it has ended.
func (c *conn) endWith(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		c.err = err
		close(c.ended)
	}
	c.mu.Unlock()
	if first {
		c.forget(c)
	}
}

// requestResume asks the other side for data that may have been lost while no stream was attached.
func (c *conn) requestResume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.probeNow = kindResume
	notify(c.wake)
}

// sendFrames sends all frames of the connection until it has ended and the other side has been notified. Only one
// goroutine runs it.
func (c *conn) sendFrames() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	buf := make([]byte, 0, maxFrame)
	for {
		c.mu.Lock()
		f, ready, wait := c.nextFrame()
		if ready {
			buf = appendFrame(buf[:0], f)
		}
		c.mu.Unlock()
		if ready {
			_ = c.write(buf) // lost frames are sent again
			if f.kind == kindClose {
				return
			}
			continue
		}
		if c.isOver() {
			return
		}
		timer.Reset(wait)
		select {
		case <-c.wake:
		case <-c.ended:
		case <-timer.C:
		}
	}
}

func (c *conn) isOver() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err != nil && c.err != net.ErrClosed //nolint:errorlint // it is set as it is
}

// nextFrame returns the next frame to send, or how long to wait for one. The lock must be held.
func (c *conn) nextFrame() (f frame, ready bool, wait time.Duration) {
	now := c.elapsed()
	f = frame{kind: kindData, conn: c.id, seq: c.outNext, ack: c.inEnd, limit: c.receiveLimit()}
	sent := func(f frame) (frame, bool, time.Duration) {
		c.ackedEnd, c.sentLimit, c.ackAt, c.lastSent = f.ack, f.limit, 0, now
		return f, true, 0
	}
	switch end := min(c.outBase+uint64(len(c.out)), c.outBase+c.window, c.peerLimit); {
	case c.err == net.ErrClosed: //nolint:errorlint // it is set as it is
		f.kind = kindClose
		return sent(f)
	case c.err != nil:
		return f, false, 0
	case len(c.answers) > 0:
		f.kind, f.seq = c.answers[0].kind, c.answers[0].seq
		c.answers = c.answers[1:]
		return sent(f)
	case c.client && !c.isOpened():
		if c.probeAt == 0 || now >= c.probeAt {
			f.kind = kindOpen
			c.armProbe(now)
			return sent(f)
		}
		return f, false, c.probeAt - now
	case c.probeNow != 0:
		f.kind, c.probeNow = c.probeNow, 0
		return sent(f)
	case c.outNext < end:
		n := min(end-c.outNext, maxPayload)
		at := c.outNext - c.outBase
		f.payload = c.out[at : at+n]
		c.outNext += n
		if c.probeAt == 0 {
			c.armProbe(now)
		}
		return sent(f)
	case c.ackAt != 0 && now >= c.ackAt:
		return sent(f)
	case c.probeAt != 0 && now >= c.probeAt:
		c.armProbe(now)
		f.kind = kindProbe
		return sent(f)
	case c.client && now-c.lastSent >= keepAlive:
		return sent(f)
	}
	wait = time.Hour
	if c.client {
		wait = keepAlive - (now - c.lastSent)
	}
	for _, at := range []time.Duration{c.ackAt, c.probeAt} {
		if at != 0 {
			wait = min(wait, at-now)
		}
	}
	return f, false, max(wait, time.Millisecond)
}

func (c *conn) isOpened() bool {
	select {
	case <-c.opened:
		return true
	default:
		return false
	}
}

func (c *conn) armProbe(now time.Duration) {
	c.probeAt = now + c.probeAfter
	c.probeAfter = min(2*c.probeAfter, maxProbe)
}

// handleFrame handles a received frame of this connection.
func (c *conn) handleFrame(f frame) {
	if f.kind == kindClose || f.kind == kindGone {
		err := io.EOF
		if f.kind == kindGone {
			err = io.ErrUnexpectedEOF
		}
		c.endWith(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	defer notify(c.wake)
	if !c.isOpened() {
		close(c.opened)
		c.probeAt, c.probeAfter = 0, firstProbe
	}
	c.handleAck(f)
	switch f.kind {
	case kindData:
		c.receiveData(f)
	case kindOpen, kindProbe, kindResume:
		if len(c.answers) < maxAnswers {
			c.answers = append(c.answers, frame{kind: kindAnswer, seq: f.seq})
		}
		if f.kind == kindResume {
			c.probeNow = kindProbe
		}
	case kindAnswer:
		if f.ack < f.seq && f.seq <= c.outNext { // the bytes sent before the probe were lost
			c.outNext = max(f.ack, c.outBase)
			c.window = max(c.window/2, minWindow)
		}
	case kindClose, kindGone: // above
	}
}

// maxAnswers bounds the answers that wait for a slow output.
const maxAnswers = 8

// handleAck handles the confirmation in a frame.
func (c *conn) handleAck(f frame) {
	c.peerLimit = max(c.peerLimit, min(f.limit, f.ack+maxBuffered))
	if f.ack > c.outBase && f.ack <= c.outBase+uint64(len(c.out)) {
		n := f.ack - c.outBase
		c.out = c.out[n:]
		c.outBase = f.ack
		c.outNext = max(c.outNext, c.outBase)
		c.window = min(c.window+n, maxBuffered)
		c.probeAt, c.probeAfter = 0, firstProbe
		if len(c.out) > 0 {
			c.armProbe(c.elapsed())
		} else {
			c.out = nil
		}
		notify(c.writable)
	} else if len(c.out) == 0 {
		c.probeAt = 0
	}
}

// receiveData buffers received bytes, as far as they fit.
func (c *conn) receiveData(f frame) {
	now := c.elapsed()
	end := f.seq + uint64(len(f.payload))
	switch {
	case f.seq > c.inEnd: // some are missing
		if c.nakFor != c.inEnd || c.nakAt == 0 || now-c.nakAt > nakPause {
			c.nakFor, c.nakAt = c.inEnd, now
			if len(c.answers) < maxAnswers {
				c.answers = append(c.answers, frame{kind: kindAnswer, seq: f.seq})
			}
		}
		return
	case end <= c.inEnd: // nothing new
		if len(f.payload) > 0 {
			c.ackAt = 1
		}
		return
	}
	fresh := f.payload[c.inEnd-f.seq:]
	fresh = fresh[:min(uint64(len(fresh)), c.receiveLimit()-c.inEnd)]
	c.in = append(c.in, fresh...)
	c.inEnd += uint64(len(fresh))
	if c.inEnd-c.ackedEnd >= ackBytes {
		c.ackAt = 1
	} else if c.ackAt == 0 {
		c.ackAt = now + ackDelay
	}
	notify(c.readable)
}

// addr is the address of both ends.
type addr struct{}

func (addr) Network() string { return "stdio" }
func (addr) String() string  { return "stdio" }

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return addr{} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return addr{} }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	c.readBy.setTime(t)
	c.writeBy.setTime(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.readBy.setTime(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	c.writeBy.setTime(t)
	return nil
}
