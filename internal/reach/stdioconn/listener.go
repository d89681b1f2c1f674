package stdioconn

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxConns bounds the connections at a time.
	maxConns = 64
	// tick is the unit of silence: a paused process counts no ticks.
	tick = time.Second
	// maxSilentTicks is after how many ticks without a frame a connection ends, maxDoubtTicks the same once another
	// client has connected.
	maxSilentTicks = 60
	maxDoubtTicks  = 15
	// tornTimeout is how long an incomplete frame waits for its end.
	tornTimeout = 250 * time.Millisecond
)

// Listener is the container's side. It is a net.Listener.
type Listener struct {
	out      io.Writer
	accepted chan *conn
	closed   chan struct{}
	wg       sync.WaitGroup
	pumps    sync.WaitGroup

	writing sync.Mutex // guards out

	mu    sync.Mutex
	conns map[uint64]*peer
}

// peer is a connection, and for how many ticks it has been silent.
type peer struct {
	*conn
	silent, maxSilent int
}

// Listen accepts connections over in and out until in ends or the Listener is closed. It closes neither; a read of in
// may be pending afterwards.
func Listen(in io.Reader, out io.Writer) *Listener {
	l := &Listener{out: out, accepted: make(chan *conn), closed: make(chan struct{}), conns: make(map[uint64]*peer)}
	pieces := make(chan []byte)
	go readPieces(in, pieces, l.closed) // ends when in ends
	l.wg.Go(func() { l.serveFrames(pieces) })
	return l
}

// readPieces passes on the input in pieces.
func readPieces(in io.Reader, pieces chan<- []byte, closed <-chan struct{}) {
	defer close(pieces)
	for {
		buf := make([]byte, 2*maxFrame)
		n, err := in.Read(buf)
		if n > 0 {
			select {
			case pieces <- buf[:n]:
			case <-closed:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

func (l *Listener) serveFrames(pieces <-chan []byte) {
	var p parser
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	torn := time.NewTimer(time.Hour)
	defer torn.Stop()
	for {
		torn.Stop()
		if p.isWaiting() {
			torn.Reset(tornTimeout)
		}
		select {
		case piece, ok := <-pieces:
			if !ok {
				l.closeAll()
				return
			}
			p.parseFrames(piece, l.dispatchFrame)
		case <-torn.C:
			p.skipTorn(l.dispatchFrame)
		case <-ticks.C:
			l.countTick()
		case <-l.closed:
			return
		}
	}
}

func (l *Listener) dispatchFrame(f frame) {
	l.mu.Lock()
	p := l.conns[f.conn]
	if p != nil {
		p.silent, p.maxSilent = 0, maxSilentTicks
	}
	l.mu.Unlock()
	switch {
	case p != nil:
		p.handleFrame(f)
	case f.kind == kindOpen:
		l.openConn(f)
	case f.kind != kindClose && f.kind != kindGone:
		_ = l.writeFrame(appendFrame(nil, frame{kind: kindGone, conn: f.conn})) // the client may be gone
	}
}

func (l *Listener) openConn(f frame) {
	l.mu.Lock()
	var oldest *peer
	for _, p := range l.conns {
		p.maxSilent = min(p.maxSilent, maxDoubtTicks)
		p.silent = min(p.silent, p.maxSilent)
		if oldest == nil || p.silent > oldest.silent {
			oldest = p
		}
	}
	full := len(l.conns) >= maxConns
	c := newConn(f.conn, false, l.writeFrame, l.forgetConn)
	l.pumps.Go(c.sendFrames)
	l.conns[f.conn] = &peer{conn: c, maxSilent: maxSilentTicks}
	l.mu.Unlock()
	if full {
		oldest.endWith(errSilent)
	}
	c.handleFrame(f)
	l.wg.Go(func() {
		select {
		case l.accepted <- c:
		case <-c.ended:
		case <-l.closed:
			c.endWith(net.ErrClosed)
		}
	})
}

var errSilent = errors.New("no frame from the other side within the time limit")

func (l *Listener) countTick() {
	var over []*peer
	l.mu.Lock()
	for _, p := range l.conns {
		if p.silent++; p.silent > p.maxSilent {
			over = append(over, p)
		}
	}
	l.mu.Unlock()
	for _, p := range over {
		p.endWith(errSilent)
	}
}

func (l *Listener) forgetConn(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.conns[c.id]; p != nil && p.conn == c {
		delete(l.conns, c.id)
	}
}

func (l *Listener) writeFrame(frame []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.out.Write(frame)
	return err
}

// Accept implements net.Listener.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// closeAll closes the Listener and all connections without waiting.
func (l *Listener) closeAll() {
	l.mu.Lock()
	var all []*peer
	select {
	case <-l.closed:
	default:
		close(l.closed)
	}
	for _, p := range l.conns {
		all = append(all, p)
	}
	l.mu.Unlock()
	for _, p := range all {
		p.endWith(net.ErrClosed)
	}
}

// Close implements net.Listener. It ends all connections and waits for the Listener's goroutines. It does not wait
// for a read of the input, which cannot be interrupted, and at most closeTime for a write of the output.
func (l *Listener) Close() error {
	l.closeAll()
	l.wg.Wait() // afterwards no new sendFrames starts
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		l.pumps.Wait()
	}()
	select {
	case <-closed:
	case <-time.After(closeTime):
	}
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr{} }
