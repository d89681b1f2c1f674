package survive_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testport"
)

// patience bounds every wait for something that must come.
const patience = 3 * time.Minute

// world is one server after another on the same address and state.
type world struct {
	t       *testing.T
	dir     string
	address string
	key     string
	process *exec.Cmd
	words   *words
	environ []string // further variables of the servers
}

// words are what servers said, one after another.
type words struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *words) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.Write(p)
}

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}

func newWorld(t *testing.T) *world {
	t.Helper()
	testengine.Path(t)
	w := &world{t: t, dir: t.TempDir(), address: testport.Reserve(t), words: &words{}}
	text := fmt.Sprintf("[server]\nlisten = %q\nrate = 100000\nburst = 100000\n", w.address)
	if err := os.WriteFile(filepath.Join(w.dir, "config.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		w.kill()
		if t.Failed() {
			said := w.words.String()
			t.Logf("the servers said:\n%s", said[max(0, len(said)-8000):])
		}
	})
	return w
}

// start starts a server and waits until it is ready.
func (w *world) start() {
	w.t.Helper()
	w.process = exec.Command(testengine.Path(w.t), "serve", "--config", filepath.Join(w.dir, "config.toml")) //nolint:noctx // it is killed by hand
	w.process.Env = append(testengine.Environ(w.dir), w.environ...)
	w.process.Stderr = w.words
	if err := w.process.Start(); err != nil {
		w.t.Fatal(err)
	}
	c := w.client("http://" + w.address)
	defer c.Close()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	for c.Ready(ctx) != nil {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			w.t.Fatalf("the server does not get ready:\n%s", w.words.String())
		}
	}
}

// makeKey makes the key that clients show from then on. Root's server wants one.
func (w *world) makeKey() {
	w.t.Helper()
	c := w.client("unix://" + filepath.Join(w.dir, "run", "sandpit.sock"))
	defer c.Close()
	key, err := c.Keys.Create(w.t.Context(), "survivor", "", 0, false)
	if err != nil {
		w.t.Fatal(err)
	}
	w.key = key.Secret
}

func (w *world) client(url string) *client.Client {
	w.t.Helper()
	c, err := client.New(client.Options{URL: url, Key: w.key, Timeout: patience})
	if err != nil {
		w.t.Fatal(err)
	}
	return c
}

// kill ends the server as a crash would.
func (w *world) kill() {
	if w.process == nil {
		return
	}
	_ = w.process.Process.Kill() // or it has ended
	_ = w.process.Wait()
	w.process = nil
}

// stop ends the server in order.
func (w *world) stop() {
	w.t.Helper()
	if err := w.process.Process.Signal(syscall.SIGTERM); err != nil {
		w.t.Fatal(err)
	}
	if err := w.process.Wait(); err != nil {
		w.t.Errorf("the server's end: %v", err)
	}
	w.process = nil
}

// proxy is something between clients and the server that loses its temper.
type proxy struct {
	target string
	ln     net.Listener
	group  sync.WaitGroup

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool
}

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{target: target, ln: ln, conns: make(map[net.Conn]bool)}
	p.group.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) url() string { return "http://" + p.ln.Addr().String() }

func (p *proxy) serve() {
	for {
		from, err := p.ln.Accept()
		if err != nil {
			return
		}
		p.group.Go(func() { p.carry(from) })
	}
}

// carry copies between a client and the server until either ends.
func (p *proxy) carry(from net.Conn) {
	defer from.Close()
	to, err := net.DialTimeout("tcp", p.target, 5*time.Second) //nolint:noctx // bounded by itself
	if err != nil {
		return
	}
	defer to.Close()
	if !p.keep(from, to) {
		return
	}
	defer p.forget(from, to)
	var both sync.WaitGroup
	for _, pair := range [][2]net.Conn{{to, from}, {from, to}} {
		both.Go(func() {
			_, _ = pair[0].(*net.TCPConn).ReadFrom(pair[1])
			_ = pair[0].Close()
			_ = pair[1].Close()
		})
	}
	both.Wait()
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
	}
	return !p.closed
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		delete(p.conns, c)
	}
}

// reset breaks some of the connections, as a proxy does that is restarted: with resets.
func (p *proxy) reset(choose func() bool) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for c := range p.conns {
		if !choose() {
			continue
		}
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
		n++
	}
	return n
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.ln.Close()
	p.reset(func() bool { return true })
	p.group.Wait()
}

var errStopped = errors.New("the test is over")
