package manager_test

import (
	"context"
	"errors"
	"flag"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func TestMain(m *testing.M) {
	_ = flag.Set("rapid.checks", "20") // unless the command line asks for more
	goleak.VerifyTestMain(m)
}

// rig is a manager on a world of fake sandboxes, with a store on disk.
type rig struct {
	*manager.Manager

	world *fake.World
	cable *cable
	store *store.Store
	dir   string
	o     manager.Options
	log   *logbook
}

// newRig opens a manager that is closed, and whose world is checked, when the test
// ends. Required options may be zero.
func newRig(tb testing.TB, o manager.Options) *rig {
	tb.Helper()
	return newExactRig(tb, testoptions.Manager(o))
}

// newExactRig is newRig with all required options.
func newExactRig(tb testing.TB, o manager.Options) *rig {
	tb.Helper()
	r := &rig{world: fake.NewWorld(tb.TempDir()), dir: tb.TempDir(), o: o, log: &logbook{}}
	tb.Cleanup(func() {
		r.close(tb)
		if err := r.world.Close(); err != nil {
			tb.Errorf("close the world: %v", err)
		}
	})
	r.open(tb)
	return r
}

// open opens store and manager, on what the last ones have left.
func (r *rig) open(tb testing.TB) {
	tb.Helper()
	s, err := store.Open(tb.Context(), r.dir, store.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	r.store = s
	r.cable = newCable(r.world.NewProvider())
	o := r.o
	o.Store = s
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(r.log, nil))
	}
	if o.Providers == nil {
		o.Providers = map[string]sandpit.Provider{"fake": r.cable}
	}
	m, err := manager.Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	r.Manager = m
}

// close closes the manager and its store in order.
func (r *rig) close(tb testing.TB) {
	tb.Helper()
	if r.Manager == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(tb.Context()), 20*time.Second)
	defer cancel()
	r.cable.release()
	if err := errors.Join(r.Close(ctx), r.cable.Close(), r.store.Close()); err != nil {
		tb.Errorf("close: %v", err)
	}
	r.Manager = nil
}

// crash ends the manager as kill -9 would: from one moment on it reaches neither
// the world nor its store. What is left of its goroutines is waited for.
func (r *rig) crash(tb testing.TB) {
	tb.Helper()
	r.cable.cut.Store(true)
	_ = r.store.Close()
	r.cable.release()
	r.Abandon()
	_ = r.cable.Close()
	r.Manager = nil
}

// create makes a sandbox.
func (r *rig) create(tb testing.TB, req manager.CreateRequest) sandpit.Sandbox {
	tb.Helper()
	s, err := r.Create(tb.Context(), req)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func (r *rig) wantState(tb testing.TB, id sandpit.ID, want sandpit.State) {
	tb.Helper()
	got, err := r.Get(id)
	if err != nil || got.State != want {
		tb.Errorf("sandbox is %q (%s), %v; want %q", got.State, got.Reason, err, want)
	}
	row, err := r.store.Sandboxes().Sandbox(tb.Context(), id)
	if err != nil || row.State != want {
		tb.Errorf("the row says %q (%s), %v; want %q", row.State, row.Reason, err, want)
	}
}

// wantGone expects a tombstone with a reason, and nothing in the world.
func (r *rig) wantGone(tb testing.TB, id sandpit.ID, reason string) {
	tb.Helper()
	r.wantState(tb, id, sandpit.StateDeleted)
	_, err := r.Use(tb.Context(), id)
	wantCode(tb, err, sandpit.Gone)
	if err != nil && !strings.Contains(err.Error(), reason) {
		tb.Errorf("use: %v, want the reason %q", err, reason)
	}
	if view, there := r.world.Look(id); there {
		tb.Errorf("the world has it still: %+v", view)
	}
}

// eventually waits until something holds.
func eventually(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if holds() {
			return
		}
	}
	tb.Fatalf("timeout waiting until %s", what)
}

func (r *rig) state(id sandpit.ID) sandpit.State {
	s, err := r.Get(id)
	if err != nil {
		return ""
	}
	return s.State
}

// events returns the actions of a sandbox's events with their results.
func (r *rig) events(tb testing.TB, id sandpit.ID) []string {
	tb.Helper()
	if err := r.Flush(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	list, err := r.store.Events().ListEvents(tb.Context(), store.EventFilter{Sandbox: id, Limit: 1000})
	if err != nil {
		tb.Fatal(err)
	}
	var actions []string
	for _, e := range list {
		actions = append(actions, e.Actor+": "+e.Action+" "+e.Result)
	}
	return actions
}

func wantCode(tb testing.TB, err error, want sandpit.Code) {
	tb.Helper()
	if got := sandpit.CodeOf(err); got != want {
		tb.Errorf("got the error %v (%s), want %s", err, got, want)
	}
}

func wantText(tb testing.TB, err error, want string) {
	tb.Helper()
	if err == nil || !strings.Contains(err.Error(), want) {
		tb.Errorf("got the error %v, want one that says %q", err, want)
	}
}

// logbook keeps what is logged.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// cable leads to a fake provider. It can be cut, it can hang without regard to
// contexts, and its lists can lie.
type cable struct {
	*fake.Provider

	cut atomic.Bool

	mu    sync.Mutex
	hangs map[fake.Op]bool
	held  int // calls that hang
	free  chan struct{}
	lie   func([]sandpit.Placement) []sandpit.Placement
	plain bool   // instances have no abilities
	other []byte // the handle that is attached to whatever is asked for; nil: the right one
}

func newCable(p *fake.Provider) *cable {
	return &cable{Provider: p, hangs: make(map[fake.Op]bool), free: make(chan struct{})}
}

// hang makes calls of these operations hang until release.
func (c *cable) hang(ops ...fake.Op) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, op := range ops {
		c.hangs[op] = true
	}
}

// release lets all calls go on that hang; later ones do not hang.
func (c *cable) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.hangs)
	close(c.free)
	c.free = make(chan struct{})
}

func (c *cable) holding() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.held
}

func (c *cable) lies(f func([]sandpit.Placement) []sandpit.Placement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lie = f
}

var errCut = sandpit.Errorf(sandpit.Unavailable, "the cable is cut")

// pass is what every call goes through. One that hung continues as if no caller had
// given it up.
func (c *cable) pass(ctx context.Context, op fake.Op) (context.Context, error) {
	c.mu.Lock()
	hangs, free := c.hangs[op], c.free
	if hangs {
		c.held++
	}
	c.mu.Unlock()
	if hangs {
		<-free
		c.mu.Lock()
		c.held--
		c.mu.Unlock()
		ctx = context.WithoutCancel(ctx)
	}
	if c.cut.Load() {
		return nil, errCut
	}
	return ctx, nil
}

func (c *cable) wrap(i sandpit.Instance, err error) (sandpit.Instance, error) {
	if err != nil {
		return nil, err
	}
	own := &cabled{Instance: i.(*fake.Instance), cable: c}
	if c.plain {
		return &plain{own}, nil
	}
	return own, nil
}

func (c *cable) Create(ctx context.Context, id sandpit.ID, s sandpit.Spec) (sandpit.Instance, error) {
	ctx, err := c.pass(ctx, fake.OpCreate)
	if err != nil {
		return nil, err
	}
	return c.wrap(c.Provider.Create(ctx, id, s))
}

func (c *cable) List(ctx context.Context) ([]sandpit.Placement, error) {
	ctx, err := c.pass(ctx, fake.OpList)
	if err != nil {
		return nil, err
	}
	list, err := c.Provider.List(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lie != nil {
		list = c.lie(list)
	}
	return list, err
}

func (c *cable) Attach(ctx context.Context, handle []byte) (sandpit.Instance, error) {
	ctx, err := c.pass(ctx, fake.OpAttach)
	if err != nil {
		return nil, err
	}
	if c.other != nil {
		handle = c.other
	}
	return c.wrap(c.Provider.Attach(ctx, handle))
}

// cabled is an instance at the end of a cable.
type cabled struct {
	*fake.Instance

	cable *cable
}

func (i *cabled) over(ctx context.Context, op fake.Op, do func(context.Context) error) error {
	ctx, err := i.cable.pass(ctx, op)
	if err != nil {
		return err
	}
	return do(ctx)
}

func (i *cabled) Wait(ctx context.Context) (exit sandpit.Exit, err error) {
	err = i.over(ctx, fake.OpWait, func(ctx context.Context) error { exit, err = i.Instance.Wait(ctx); return err })
	return exit, err
}

func (i *cabled) Destroy(ctx context.Context) error {
	return i.over(ctx, fake.OpDestroy, i.Instance.Destroy)
}

func (i *cabled) Stop(ctx context.Context) error { return i.over(ctx, fake.OpStop, i.Instance.Stop) }

func (i *cabled) Start(ctx context.Context) error { return i.over(ctx, fake.OpStart, i.Instance.Start) }

func (i *cabled) Pause(ctx context.Context) error { return i.over(ctx, fake.OpPause, i.Instance.Pause) }

func (i *cabled) Resume(ctx context.Context) error {
	return i.over(ctx, fake.OpResume, i.Instance.Resume)
}

func (i *cabled) Suspend(ctx context.Context) error {
	return i.over(ctx, fake.OpSuspend, i.Instance.Suspend)
}

func (i *cabled) Checkpoint(ctx context.Context) error {
	return i.over(ctx, fake.OpCheckpoint, i.Instance.Checkpoint)
}

func (i *cabled) Revive(ctx context.Context) (next sandpit.Instance, err error) {
	err = i.over(ctx, fake.OpRevive, func(ctx context.Context) error {
		next, err = i.cable.wrap(i.Instance.Revive(ctx))
		return err
	})
	return next, err
}

func (i *cabled) Archive(ctx context.Context) error {
	return i.over(ctx, fake.OpArchive, i.Instance.Archive)
}

func (i *cabled) Restore(ctx context.Context) error {
	return i.over(ctx, fake.OpRestore, i.Instance.Restore)
}

// plain is an instance without abilities.
type plain struct{ sandpit.Instance }
