package stdioconn

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// engine joins attachments like Docker's. It merges the input of clients in pieces of at most
// piece bytes, and sends output to all attached clients.
type engine struct {
	piece int
	input *io.PipeWriter

	merging sync.Mutex

	mu   sync.Mutex
	ears map[*attachment]bool
}

// attachment is one client's stream.
type attachment struct {
	*io.PipeReader
	ear    *io.PipeWriter
	engine *engine
}

// newEngine also starts a listener that sends back all that it is sent.
func newEngine(t *testing.T, piece int) *engine {
	t.Helper()
	in, input := io.Pipe()
	e := &engine{piece: piece, input: input, ears: make(map[*attachment]bool)}
	ln := Listen(in, e)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				_, _ = io.Copy(c, c) // until it ends
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = input.Close()
		_ = ln.Close()
		wg.Wait()
	})
	return e
}

func (e *engine) attach() *attachment {
	r, w := io.Pipe()
	a := &attachment{PipeReader: r, ear: w, engine: e}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ears[a] = true
	return a
}

// Write is what the container puts out.
func (e *engine) Write(b []byte) (int, error) {
	e.mu.Lock()
	var ears []*attachment
	for a := range e.ears {
		ears = append(ears, a)
	}
	e.mu.Unlock()
	for _, a := range ears {
		if _, err := a.ear.Write(b); err != nil {
			_ = a.Close()
		}
	}
	return len(b), nil
}

// Write is what a client sends: in pieces, between which others get their turn.
func (a *attachment) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		size := min(len(b), 1+rand.IntN(a.engine.piece))
		a.engine.mu.Lock()
		attached := a.engine.ears[a]
		a.engine.mu.Unlock()
		if !attached {
			return n, io.ErrClosedPipe
		}
		a.engine.merging.Lock()
		k, err := a.engine.input.Write(b[:size])
		a.engine.merging.Unlock()
		n += k
		if err != nil {
			return n, err
		}
		b = b[size:]
	}
	return n, nil
}

func (a *attachment) Close() error {
	a.engine.mu.Lock()
	delete(a.engine.ears, a)
	a.engine.mu.Unlock()
	_ = a.ear.Close()
	return a.PipeReader.Close()
}

// breakAll breaks all attachments.
func (e *engine) breakAll() {
	e.mu.Lock()
	var all []*attachment
	for a := range e.ears {
		all = append(all, a)
	}
	e.mu.Unlock()
	for _, a := range all {
		_ = a.Close()
	}
}

func (e *engine) link(t *testing.T) *Link {
	t.Helper()
	l := NewLink(e.attach(), func(context.Context) (io.ReadWriteCloser, error) { return e.attach(), nil })
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, l *Link) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := l.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(2 * time.Minute))
	return c
}

// echo sends size random bytes and complains unless they come back.
func echo(t *testing.T, c net.Conn, size int) {
	t.Helper()
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.Write(data); err != nil {
			t.Errorf("write: %v", err)
		}
	})
	got := make([]byte, size)
	if n, err := io.ReadFull(c, got); err != nil {
		t.Errorf("read: %v after %d of %d bytes", err, n, size)
	}
	wg.Wait()
	if sha256.Sum256(got) != sha256.Sum256(data) {
		t.Error("what came back is something else")
	}
}

func TestEcho(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1<<20)
	l := e.link(t)
	c := dial(t, l)
	for _, size := range []int{1, 100, maxPayload, maxPayload + 1, 3 * maxBuffered} {
		echo(t, c, size)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
}

// TestMerged has several clients at once whose frames are torn by each other.
func TestMerged(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 32<<10)
	var wg sync.WaitGroup
	for range 3 {
		l := e.link(t)
		for range 2 {
			c := dial(t, l)
			wg.Go(func() { echo(t, c, 1<<20) })
		}
	}
	wg.Wait()
}

// TestBroken breaks all attachments again and again while much is under way.
func TestBroken(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 32<<10)
	c := dial(t, e.link(t))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for range 20 {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
				e.breakAll()
			}
		}
	})
	echo(t, c, 4<<20)
	close(stop)
	wg.Wait()
}

// TestTorn leaves the beginning of a large frame in the input, as a client does
// that is killed, and then another client comes.
func TestTorn(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1<<20)
	whole := appendFrame(nil, frame{kind: kindData, conn: 1, payload: make([]byte, maxPayload)})
	killed := e.attach()
	if _, err := killed.Write(whole[:headerSize+10]); err != nil {
		t.Fatal(err)
	}
	_ = killed.Close()
	echo(t, dial(t, e.link(t)), 1000)
}

// TestNoReader shows that unread bytes are bounded, and arrive later.
func TestNoReader(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1<<20)
	c := dial(t, e.link(t))
	_ = c.SetWriteDeadline(time.Now().Add(3 * time.Second))
	sent, err := c.Write(make([]byte, 64*maxBuffered))
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("write: %v after %d bytes, want it to wait", err, sent)
	}
	if sent > 8*maxBuffered {
		t.Errorf("%d unread bytes were accepted", sent)
	}
	n, err := io.CopyN(io.Discard, c, int64(sent))
	if err != nil {
		t.Errorf("read: %v after %d bytes", err, n)
	}
}

func TestGone(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1<<20)
	l := e.link(t)
	c := dial(t, l)
	own, ok := c.(*conn)
	if !ok {
		t.Fatalf("a connection of another kind: %T", c)
	}
	own.handleFrame(frame{kind: kindGone, conn: own.id})
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("read: %v", err)
	}
	end := errors.New("the end")
	dead := NewLink(e.attach(), func(context.Context) (io.ReadWriteCloser, error) { return nil, end })
	t.Cleanup(func() { _ = dead.Close() })
	c = dial(t, dead)
	e.breakAll()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, end) {
		t.Errorf("read of a link that has ended: %v", err)
	}
	if _, err := dead.Dial(t.Context()); !errors.Is(err, end) {
		t.Errorf("dial: %v", err)
	}
}

// TestFail ends what waits for a container that is not heard of.
func TestFail(t *testing.T) {
	t.Parallel()
	e := newEngine(t, 1<<20)
	l := e.link(t)
	c := dial(t, l)
	read := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	end := errors.New("it does not answer")
	l.Fail(end)
	if err := <-read; !errors.Is(err, end) {
		t.Errorf("read: %v, want %v", err, end)
	}
	if _, err := l.Dial(t.Context()); !errors.Is(err, end) {
		t.Errorf("dial: %v, want %v", err, end)
	}
	<-l.Done()
}

func FuzzParser(f *testing.F) {
	one := appendFrame(nil, frame{kind: kindData, conn: 7, seq: 8, ack: 9, limit: 10, payload: []byte("hello")})
	f.Add(one, []byte{}, 3)
	f.Add(bytes.Repeat(one[:20], 3), one[:5], 1)
	f.Fuzz(func(t *testing.T, before, torn []byte, piece int) {
		var p parser
		found := 0
		count := func(f frame) {
			if len(f.payload) > maxPayload {
				t.Fatalf("payload of %d bytes", len(f.payload))
			}
			if f.conn == 4711 && string(f.payload) == "found again" {
				found++
			}
		}
		p.parseFrames(before, count)
		p.parseFrames(torn, count)
		for p.isWaiting() {
			p.skipTorn(count)
		}
		marked := appendFrame(nil, frame{kind: kindData, conn: 4711, payload: []byte("found again")})
		piece = 1 + int(uint(piece)%uint(len(marked)))
		p.parseFrames(marked[:piece], count)
		p.parseFrames(marked[piece:], count)
		if found < 1 {
			t.Error("a whole frame was not found")
		}
	})
}
