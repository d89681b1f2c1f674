package stdioconn

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// maxConns bounds how many connections there are at once.
	maxConns = 64
	// tick is how time is counted: a process that was held still has no ticks.
	tick = time.Second
	// silence is after how many ticks without a word a connection ends, and
	// doubt the same once another client has come.
	silence = 60
	doubt   = 15
	// tornAfter is when the beginning of a frame is given up.
	tornAfter = 250 * time.Millisecond
)

// Listener is the container's side. It is a net.Listener.
type Listener struct {
	out      io.Writer
	accepted chan *conn
	closed   chan struct{}
	wg       sync.WaitGroup
	pumps    sync.WaitGroup

	writing sync.Mutex // of out

	mu    sync.Mutex
	conns map[uint64]*peer
}

// peer is a connection and for how many ticks nothing was heard of it.
type peer struct {
	*conn
	silent, patience int
}

// Listen serves connections over in and out until in ends or the Listener is
// closed. It does not close them; a read of in may be outstanding afterwards.
func Listen(in io.Reader, out io.Writer) *Listener {
	l := &Listener{out: out, accepted: make(chan *conn), closed: make(chan struct{}), conns: make(map[uint64]*peer)}
	pieces := make(chan []byte)
	go read(in, pieces, l.closed) // ends with in
	l.wg.Go(func() { l.serve(pieces) })
	return l
}

// read passes on what comes.
func read(in io.Reader, pieces chan<- []byte, closed <-chan struct{}) {
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

func (l *Listener) serve(pieces <-chan []byte) {
	var p parser
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	torn := time.NewTimer(time.Hour)
	defer torn.Stop()
	for {
		torn.Stop()
		if p.waiting() {
			torn.Reset(tornAfter)
		}
		select {
		case piece, ok := <-pieces:
			if !ok {
				l.shut()
				return
			}
			p.feed(piece, l.take)
		case <-torn.C:
			p.giveUp(l.take)
		case <-ticks.C:
			l.tick()
		case <-l.closed:
			return
		}
	}
}

func (l *Listener) take(f frame) {
	l.mu.Lock()
	p := l.conns[f.conn]
	if p != nil {
		p.silent, p.patience = 0, silence
	}
	l.mu.Unlock()
	switch {
	case p != nil:
		p.take(f)
	case f.kind == kindOpen:
		l.open(f)
	case f.kind != kindClose && f.kind != kindGone:
		_ = l.write(appendFrame(nil, frame{kind: kindGone, conn: f.conn})) // a client that went away hears nothing
	}
}

func (l *Listener) open(f frame) {
	l.mu.Lock()
	var oldest *peer
	for _, p := range l.conns {
		p.patience = min(p.patience, doubt)
		p.silent = min(p.silent, p.patience)
		if oldest == nil || p.silent > oldest.silent {
			oldest = p
		}
	}
	full := len(l.conns) >= maxConns
	c := newConn(f.conn, false, l.write, l.forget)
	l.pumps.Go(c.pump)
	l.conns[f.conn] = &peer{conn: c, patience: silence}
	l.mu.Unlock()
	if full {
		oldest.end(errSilent)
	}
	c.take(f)
	l.wg.Go(func() {
		select {
		case l.accepted <- c:
		case <-c.ended:
		case <-l.closed:
			c.end(net.ErrClosed)
		}
	})
}

var errSilent = errors.New("nothing was heard of the other side")

func (l *Listener) tick() {
	var over []*peer
	l.mu.Lock()
	for _, p := range l.conns {
		if p.silent++; p.silent > p.patience {
			over = append(over, p)
		}
	}
	l.mu.Unlock()
	for _, p := range over {
		p.end(errSilent)
	}
}

func (l *Listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p := l.conns[c.id]; p != nil && p.conn == c {
		delete(l.conns, c.id)
	}
}

func (l *Listener) write(frame []byte) error {
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

// shut ends everything but waits for nothing.
func (l *Listener) shut() {
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
		p.end(net.ErrClosed)
	}
}

// Close implements net.Listener. It ends all connections and waits for the
// Listener's own goroutines, but not for a read of the input, which nobody can end,
// nor for longer than partingTime for a write of the output.
func (l *Listener) Close() error {
	l.shut()
	l.wg.Wait() // so that there are no more pumps
	told := make(chan struct{})
	go func() {
		defer close(told)
		l.pumps.Wait()
	}()
	select {
	case <-told:
	case <-time.After(partingTime):
	}
	return nil
}

// Addr implements net.Listener.
func (l *Listener) Addr() net.Addr { return addr{} }
