package gvisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// Instance is one sandbox of a Provider.
type Instance struct {
	id       sandpit.ID
	provider *Provider
	guest    *envd.Client
	gate     gate // in front of the guest
	monitor  *liveness.Monitor
	claims   atomic.Int64 // how often the sandbox had been claimed when this was made or claimed it

	mu         sync.Mutex
	engine     string // directory of the engine that held it when it was last asked; "" while it is stopped
	transports map[int]*http.Transport
}

var (
	_ sandpit.Instance = (*Instance)(nil)
	_ sandpit.Dialer   = (*Instance)(nil)
	_ sandpit.Statser  = (*Instance)(nil)
	_ sandpit.Claimer  = (*Instance)(nil)
)

func newInstance(p *Provider, engine string, rec record) *Instance {
	i := &Instance{id: rec.ID, provider: p, engine: engine, transports: make(map[int]*http.Transport)}
	i.claims.Store(int64(rec.Claims))
	i.monitor = liveness.New(rec.ID, i.probeGuest, p.cfg.Liveness)
	i.guest = envd.New(gated{&i.gate, i.HTTP(guest.Port)}, rec.Token)
	return i
}

// ID implements sandpit.Instance.
func (i *Instance) ID() sandpit.ID { return i.id }

// Handle implements sandpit.Instance.
func (i *Instance) Handle() []byte {
	return handle{Engine: handleEngine(i.engineDir()), ID: i.id}.encode()
}

// Guest implements sandpit.Instance.
func (i *Instance) Guest() sandpit.Guest { return i.guest }

// HTTP implements sandpit.Instance.
func (i *Instance) HTTP(port int) http.RoundTripper {
	if port == guest.Port {
		return i.monitor.Guest(i.transport(port))
	}
	return i.monitor.Port(i.transport(port))
}

// transport returns what reaches a port, without any bound.
func (i *Instance) transport(port int) *http.Transport {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t := i.transports[port]; t != nil {
		return t
	}
	dial := i.dialWide
	if port == guest.Port {
		dial = i.dialGuest
	}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, port) },
		// The far end is untrusted.
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
		WriteBufferSize:        64 << 10,
		ReadBufferSize:         64 << 10,
	}
	i.transports[port] = t
	return t
}

// dialLimit is how long a guest that is there may take to open a connection. It gives up
// itself after a third of that.
const dialLimit = 30 * time.Second

// Dial implements sandpit.Dialer.
func (i *Instance) Dial(ctx context.Context, port int) (net.Conn, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer i.monitor.Watch(ctx, dialLimit, cancel)()
	conn, err := i.connect(ctx, port)
	if why, ok := errors.AsType[*sandpit.Error](context.Cause(ctx)); ok && err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, why)
	}
	return conn, err
}

// connect is Dial without a bound.
func (i *Instance) connect(ctx context.Context, port int) (net.Conn, error) {
	conn, err := i.openConn(ctx, port)
	if err != nil {
		return nil, err
	}
	if err := awaitAnswer(ctx, conn, port); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// openConn opens a connection that the guest has not answered yet.
func (i *Instance) openConn(ctx context.Context, port int) (net.Conn, error) {
	_, f, err := i.call(ctx, request{Op: opDial, ID: i.id, Port: port})
	if err != nil {
		return nil, err
	}
	if f == nil {
		return nil, sandpit.Errorf(sandpit.Internal, "connect to port %d: the engine sent no connection", port)
	}
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("connect to port %d: %w", port, err)
	}
	return conn, nil
}

// heldTime is how long the engine may take to say that a sandbox is being held still.
const heldTime = 5 * time.Second

// probeGuest is a liveness.Probe: a guest that runs answers on each new connection.
func (i *Instance) probeGuest(ctx context.Context, asked func()) error {
	conn, err := i.openConn(ctx, guest.Port)
	if sandpit.CodeOf(err) == sandpit.Timeout { // it takes no connections
		return liveness.ErrSilent
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	asked()
	err = awaitAnswer(ctx, conn, guest.Port)
	if err == nil || !errors.Is(context.Cause(ctx), liveness.ErrSilent) {
		return err
	}
	// It may be held still since it was asked, by whomever.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), heldTime)
	defer cancel()
	again, err := i.openConn(ctx, guest.Port)
	switch code := sandpit.CodeOf(err); {
	case code == sandpit.Conflict, code == sandpit.Gone:
		return err
	case err == nil:
		_ = again.Close() // nothing was asked
	}
	return liveness.ErrSilent
}

// dialWide is Dial for who sends large bodies.
func (i *Instance) dialWide(ctx context.Context, port int) (net.Conn, error) {
	conn, err := i.Dial(ctx, port)
	if own, ok := conn.(*net.UnixConn); ok {
		return wideConn{own}, err
	}
	return conn, err
}

// dialGuest is dialWide for requests to the guest, and has them show the guest's present key.
// A guest that comes back from disk has a new one, and no connection lasts longer than a key.
// A claim ends this: afterwards an older Instance shows the key from before, in vain.
func (i *Instance) dialGuest(ctx context.Context, port int) (net.Conn, error) {
	conn, err := i.dialWide(ctx, port)
	if err != nil {
		return nil, err
	}
	if rec, err := readRecord(i.engineDir(), i.id); err == nil && int64(rec.Claims) == i.claims.Load() { // else it has just ended, as the connection tells
		i.guest.UseToken(rec.Token)
	}
	return conn, nil
}

// wideConn is a connection into a sandbox that takes what it is sent in large pieces: each
// wakes the guest, and costs it a system call.
type wideConn struct{ *net.UnixConn }

// pieceSize is how much such a connection takes at once, in bytes.
const pieceSize = 256 << 10

// ReadFrom implements io.ReaderFrom.
func (c wideConn) ReadFrom(r io.Reader) (int64, error) {
	return io.CopyBuffer(struct{ io.Writer }{c.UnixConn}, r, make([]byte, pieceSize))
}

// awaitAnswer waits for the guest to say whether the connection is open. While
// the guest is starting this takes as long as that.
func awaitAnswer(ctx context.Context, conn net.Conn, port int) error {
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Now()) })
	defer stop()
	answer := make([]byte, 1)
	if _, err := io.ReadFull(conn, answer); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("connect to port %d: %w", port, ctx.Err())
		}
		return sandpit.Errorf(sandpit.Gone, "connect to port %d: the sandbox ended", port)
	}
	if answer[0] != guest.AnswerOpen {
		if ctx.Err() != nil {
			return fmt.Errorf("connect to port %d: %w", port, ctx.Err())
		}
		return sandpit.Errorf(sandpit.Unavailable, "connect to port %d: nothing listens there", port)
	}
	return nil
}

// Wait implements sandpit.Instance. A sandbox that is stopped has not ended.
func (i *Instance) Wait(ctx context.Context) (sandpit.Exit, error) {
	for {
		exit, stopped, err := i.waitHere(ctx)
		if err != nil {
			return sandpit.Exit{}, err
		}
		if !stopped && i.provider.away(i.id) == nil && !i.provider.archived.has(i.id) {
			return exit, nil
		}
		err = i.awaitStart(ctx)
		if sandpit.CodeOf(err) == sandpit.Gone {
			return sandpit.Exit{Reason: "the sandbox was destroyed"}, nil
		}
		if err != nil {
			return sandpit.Exit{}, err
		}
	}
}

// waitHere waits for the sandbox's end in the engine that is known to hold it.
func (i *Instance) waitHere(ctx context.Context) (exit sandpit.Exit, stopped bool, err error) {
	rep, f, err := call(ctx, i.engineDir(), request{Op: opWait, ID: i.id})
	if f != nil {
		_ = f.Close()
	}
	if sandpit.CodeOf(err) == sandpit.Gone {
		dir, err := i.provider.locate(ctx, i.id)
		if err == nil && dir != i.engineDir() { // started elsewhere meanwhile
			i.moveTo(dir)
			return exit, true, nil
		}
		return sandpit.Exit{Reason: engineEnd(ctx, i.engineDir())}, false, nil
	}
	if err != nil {
		return exit, false, err
	}
	if rep.Exit == nil {
		return exit, false, sandpit.Errorf(sandpit.Internal, "wait: the engine sent no exit")
	}
	return *rep.Exit, rep.Stopped, nil
}

// Destroy implements sandpit.Instance.
func (i *Instance) Destroy(ctx context.Context) error {
	err := i.destroy(ctx)
	i.closeIdle()
	if err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", i.id, err)
	}
	return nil
}

// destroy ends the sandbox where it runs, and removes what is kept of it if it is
// stopped.
func (i *Instance) destroy(ctx context.Context) error {
	p := i.provider
	if p.keep.dir == "" {
		return i.end(ctx, i.engineDir(), false)
	}
	held, err := p.keep.lock(ctx, i.id)
	if err != nil {
		return err
	}
	defer held.Close()
	dirs := []string{i.engineDir()}
	if name, err := p.find(i.id); err != nil {
		return err
	} else if dir := filepath.Join(p.engines, name); name != "" && dir != dirs[0] {
		dirs = append(dirs, dir)
	}
	for _, dir := range dirs {
		if err := i.end(ctx, dir, false); err != nil {
			return err
		}
	}
	return errors.Join(p.keep.remove(i.id), p.saved.remove(i.id), p.suspended.remove(string(i.id)), p.removeArchive(ctx, i.id))
}

// end ends the sandbox in an engine, if it is there, for good or until it is started
// again.
func (i *Instance) end(ctx context.Context, dir string, stopped bool) error {
	if dir == "" {
		return nil
	}
	_, f, err := call(ctx, dir, request{Op: opDestroy, ID: i.id, Stopped: stopped})
	if f != nil {
		_ = f.Close()
	}
	if sandpit.CodeOf(err) == sandpit.Gone {
		err = nil // with its engine, or before
	}
	if err != nil {
		return err
	}
	if err := os.Remove(recordPath(dir, i.id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// closeIdle lets go of connections that nobody uses.
func (i *Instance) closeIdle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, t := range i.transports {
		t.CloseIdleConnections()
	}
}

// Stats implements sandpit.Statser.
func (i *Instance) Stats(ctx context.Context) (sandpit.Stats, error) {
	rep, f, err := i.call(ctx, request{Op: opStats, ID: i.id})
	if f != nil {
		_ = f.Close()
	}
	if err != nil {
		return sandpit.Stats{}, err
	}
	if rep.Stats == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Internal, "measure: the engine sent no figures")
	}
	s := *rep.Stats
	if rec, err := i.liveRecord(); err != nil {
		return s, err
	} else if rec.Spec.Network.Online {
		traffic, err := i.traffic(ctx)
		if err != nil && sandpit.CodeOf(err) != sandpit.Unavailable { // its gateway is just being started again
			return s, err
		}
		s.Received, s.Sent = traffic.Received, traffic.Sent
	}
	if rep.Paused {
		return s, nil
	}
	asking, cancel := context.WithTimeout(ctx, diskTime)
	defer cancel()
	s.Disk, err = i.guest.DiskUsed(asking)
	if asking.Err() != nil && ctx.Err() == nil || sandpit.CodeOf(err) == sandpit.Unavailable {
		return s, nil // the guest is stopped, or starved: what the machine counts is known all the same
	}
	return s, err
}

// diskTime is how long a guest may take to say how much of the disk is used.
const diskTime = 5 * time.Second

// keyGuest gives the guest its key and defaults, before anything else runs
// inside, and so waits until it answers.
func (i *Instance) keyGuest(ctx context.Context, rec record) error {
	req := initFor(rec.Spec, rec.Image)
	req.Token = rec.Token
	return i.guest.Init(ctx, req)
}

func initFor(spec sandpit.Spec, img image.Config) envd.InitRequest {
	env := make(map[string]string, len(img.Env)+len(spec.Env))
	maps.Copy(env, img.Env)
	maps.Copy(env, spec.Env)
	return envd.InitRequest{
		Env:     env,
		User:    cmp.Or(spec.User, img.User),
		WorkDir: cmp.Or(spec.WorkDir, img.WorkDir, sandpit.DefaultWorkDir),
	}
}

// Claim implements sandpit.Claimer.
func (i *Instance) Claim(ctx context.Context, spec sandpit.Spec) error {
	if err := i.claim(ctx, spec); err != nil {
		return fmt.Errorf("claim sandbox %s: %w", i.id, err)
	}
	return nil
}

func (i *Instance) claim(ctx context.Context, spec sandpit.Spec) error {
	if err := validateSpec(spec); err != nil {
		return err
	}
	dir := i.engineDir()
	rec, err := readRecord(dir, i.id)
	if err != nil {
		return err
	}
	if _, copied := spec.Image.Snapshot(); copied {
		spec.Image = rec.Spec.Image // that of the original, as of every copy
	}
	if !rec.Spec.SameMachine(spec) {
		return sandpit.Errorf(sandpit.Invalid, "image, mounts, limits, host name and being online cannot be changed any more")
	}
	if !rec.Spec.Network.Equal(spec.Network) {
		if err := i.setNetworkPolicy(ctx, spec.Network); err != nil {
			return err
		}
	}
	req := initFor(spec, rec.Image)
	req.Token, req.Shown, req.Forget = rand.Text(), rec.Token, true
	rec.Spec, rec.Token, rec.Claims = spec, req.Token, rec.Claims+1
	if err := rewriteRecord(dir, rec); err != nil {
		return err
	}
	i.claims.Store(int64(rec.Claims))
	if err := i.identify(ctx, dir, spec.Env); err != nil {
		return err
	}
	return i.guest.Init(ctx, req)
}

// identify tells the engine what it is asked for when the sandbox is stopped.
func (i *Instance) identify(ctx context.Context, dir string, env map[string]string) error {
	f, err := identity{Env: env}.file()
	if err != nil {
		return err
	}
	defer f.Close()
	_, got, err := call(ctx, dir, request{Op: opIdentify, ID: i.id}, f)
	if got != nil {
		_ = got.Close()
	}
	return err
}
