package daytona

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// sandbox is the Provider's state of one sandbox. Instances of the same sandbox share it.
type sandbox struct {
	p   *Provider
	id  sandpit.ID
	ref string // its ID at Daytona

	locked chan struct{} // full while a call changes the state
	ended  chan struct{} // closed after exit is set
	guests sync.Mutex    // held while the guest is started

	mu    sync.Mutex
	base  string        // the URL of the toolboxes, "" if unknown
	state sandpit.State // "" before it is known
	moves int           // how often this provider changed the state
	exit  sandpit.Exit
	own   chan struct{} // closed while the cloud has stopped it by itself, with ownExit
	// ownExit says how the cloud has stopped it.
	ownExit    sandpit.Exit
	paused     bool // by Pause and not by Suspend
	transports map[int]*http.Transport
	tools      *toolGuest            // nil if the sandbox has sandpit's guest
	previews   map[int]previewTarget // by port
	noPreviews time.Time             // until then, URLs of previews count as unreachable

	tunnel  *tunnel
	monitor *liveness.Monitor
	client  *envd.Client
}

func newSandbox(p *Provider, id sandpit.ID, ref string) *sandbox {
	b := &sandbox{
		p: p, id: id, ref: ref, locked: make(chan struct{}, 1), ended: make(chan struct{}), own: make(chan struct{}),
		transports: make(map[int]*http.Transport), previews: make(map[int]previewTarget),
	}
	b.tunnel = newTunnel(b)
	b.monitor = liveness.New(id, b.probeGuest, p.o.Liveness)
	b.client = envd.New(b.monitor.Guest(b.tunnel), "")
	if p.o.Toolbox {
		b.tools = newToolGuest(b)
	}
	return b
}

// guestless returns the toolbox API in place of a guest, or nil if the sandbox has sandpit's guest.
func (b *sandbox) guestless() *toolGuest {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.tools
}

// probeGuest asks the guest for a sign of life.
func (b *sandbox) probeGuest(ctx context.Context, asked func()) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/health", http.NoBody)
	if err != nil {
		return err
	}
	asked()
	res, err := b.tunnel.RoundTrip(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// lock gives the caller the exclusive right to change the state.
func (b *sandbox) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.locked <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *sandbox) unlock() { <-b.locked }

// whileLocked runs do with the lock, and adds the operation to its error.
func (b *sandbox) whileLocked(ctx context.Context, doing string, do func(context.Context) error) error {
	if err := b.lock(ctx); err != nil {
		return fmt.Errorf("%s of sandbox %s: %w", doing, b.id, err)
	}
	defer b.unlock()
	if err := do(ctx); err != nil {
		return fmt.Errorf("%s of sandbox %s: %w", doing, b.id, err)
	}
	return nil
}

func (b *sandbox) currentState() sandpit.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *sandbox) moveCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.moves
}

// recordChange records the state after a change that this provider made. Earlier reports of the
// cloud are obsolete.
func (b *sandbox) recordChange(s sandpit.State) {
	b.mu.Lock()
	b.moves++
	b.setStateLocked(s)
	b.mu.Unlock()
	if s != sandpit.StateRunning {
		b.closeConnections()
	}
}

// setStateLocked sets the state unless the sandbox has ended. The caller holds mu.
func (b *sandbox) setStateLocked(s sandpit.State) {
	if b.state == sandpit.StateDeleted {
		return
	}
	b.state = s
	if s == sandpit.StateRunning && b.ownExit.State != "" {
		b.own, b.ownExit = make(chan struct{}), sandpit.Exit{}
	}
}

// applyBox applies a report of the cloud. moves is the move count at the time of the request: the
// report is obsolete if it has changed.
func (b *sandbox) applyBox(now box, moves int) {
	if now.State.isGone() {
		b.recordEnd(sandpit.Exit{Reason: "the sandbox was deleted at Daytona"})
		return
	}
	b.mu.Lock()
	if base := now.ToolboxURL; base != "" && b.p.toolbox.checkURL(base) == nil {
		b.base = base
	}
	next, stopped := now.State.toState(), false
	switch {
	case b.moves != moves || next == "" || next == b.state: // obsolete, or a transition
	case b.state == sandpit.StateRunning:
		stopped = true
		b.ownExit = sandpit.Exit{State: next, Reason: "Daytona has " + string(next) + " the sandbox"}
		b.state = next
		close(b.own)
	default:
		b.setStateLocked(next)
	}
	b.mu.Unlock()
	if stopped {
		b.closeConnections()
	}
}

// recordEnd records the end of the sandbox and wakes its waiters.
func (b *sandbox) recordEnd(exit sandpit.Exit) {
	b.mu.Lock()
	first := b.state != sandpit.StateDeleted
	if first {
		b.state, b.exit = sandpit.StateDeleted, exit
		close(b.ended)
	}
	b.mu.Unlock()
	if first {
		b.closeConnections()
		b.p.forgetSandbox(b)
	}
}

// closeConnections closes idle connections into the sandbox. Active ones end with it.
func (b *sandbox) closeConnections() {
	b.tunnel.http.CloseIdleConnections()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, t := range b.transports {
		t.CloseIdleConnections()
	}
	clear(b.previews) // tokens change with each start
}

// readBox reads the sandbox's description and applies it. Gone: it has ended.
func (b *sandbox) readBox(ctx context.Context) (box, error) {
	if b.currentState() == sandpit.StateDeleted {
		return box{}, b.stateError(sandpit.StateDeleted)
	}
	moves := b.moveCount()
	now, err := b.p.control.getBox(ctx, b.id, b.ref)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		now.State, err = stateDestroyed, nil
	}
	if err != nil {
		return now, err
	}
	b.applyBox(now, moves)
	if now.State.isGone() {
		return now, b.stateError(sandpit.StateDeleted)
	}
	return now, nil
}

// checkUsable returns an error if programs inside cannot be reached. It reads the state of a sandbox
// that did not run, because another program may just have started it.
func (b *sandbox) checkUsable(ctx context.Context) error {
	now := b.currentState()
	if now == sandpit.StateRunning || now == sandpit.StateDeleted {
		return b.stateError(now)
	}
	return b.checkFresh(ctx)
}

// checkFresh reads the state, and returns an error if programs inside cannot be reached.
func (b *sandbox) checkFresh(ctx context.Context) error {
	now, err := b.readBox(ctx)
	if err != nil {
		return err
	}
	if now.State.toState() == "" {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %.40q at Daytona", b.id, string(now.State))
	}
	return b.stateError(now.State.toState())
}

// stateError returns why a sandbox in a state cannot be used, or nil.
func (b *sandbox) stateError(s sandpit.State) error {
	switch s {
	case sandpit.StateRunning:
		return nil
	case sandpit.StateDeleted:
		b.mu.Lock()
		defer b.mu.Unlock()
		return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended: %s", b.id, b.exit.Reason)
	default:
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", b.id, s)
	}
}

// explainFailure returns the error of a connection into the sandbox that failed: what has become of
// the sandbox, if that is the reason.
func (b *sandbox) explainFailure(ctx context.Context, err error) error {
	if own, ok := errors.AsType[*sandpit.Error](err); ok {
		return own
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err // a parent of ctx has ended, and ctx is about to
	}
	if b.p.checkOpen() != nil {
		return errClosed
	}
	limited, cancel := b.p.cleanupContext(ctx)
	defer cancel()
	if state := b.checkFresh(limited); state != nil {
		return state
	}
	return sandpit.Errorf(sandpit.Unavailable, "the connection to sandbox %s broke: %s", b.id, cleanText(err.Error()))
}

// requireState returns the sandbox's description if it is in one of some states. Otherwise the error
// is Conflict, or Gone.
func (b *sandbox) requireState(ctx context.Context, want ...state) (box, error) {
	now, err := b.readBox(ctx)
	if err == nil && !slices.Contains(want, now.State) {
		if now.State.toState() == "" { // wait for a transition to end
			if now, err = b.p.awaitLasting(ctx, b.id, b.ref, b.p.o.StartTimeout); err != nil {
				return now, err
			}
		}
		if !slices.Contains(want, now.State) {
			err = sandpit.Errorf(sandpit.Conflict, "it is %s", cleanText(string(now.State)))
		}
	}
	return now, err
}

// waitForEnd waits until the sandbox has ended, or the cloud has stopped it.
func (b *sandbox) waitForEnd(ctx context.Context) (sandpit.Exit, error) {
	stop := b.p.watch.add(b)
	defer stop()
	b.mu.Lock()
	own := b.own
	b.mu.Unlock()
	select {
	case <-b.ended:
		return b.exit, nil
	default:
	}
	select {
	case <-b.ended:
		return b.exit, nil
	case <-own:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.ownExit.State == "" { // it runs again
			return sandpit.Exit{State: sandpit.StateStopped, Reason: "Daytona had stopped the sandbox, which runs again"}, nil
		}
		return b.ownExit, nil
	case <-ctx.Done():
		return sandpit.Exit{}, ctx.Err()
	case <-b.p.life.Done():
		return sandpit.Exit{}, errClosed
	}
}

// watcher reads the states of all sandboxes periodically while calls wait for the end of some.
type watcher struct {
	p *Provider

	mu      sync.Mutex
	waiting map[*sandbox]int
	active  bool
}

// add adds a sandbox to those that are watched, until stop is called.
func (w *watcher) add(b *sandbox) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waiting == nil {
		w.waiting = make(map[*sandbox]int)
	}
	w.waiting[b]++
	if !w.active {
		w.active = w.p.goDo(w.run)
	}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiting[b]--; w.waiting[b] == 0 {
			delete(w.waiting, b)
		}
	}
}

// list returns the watched sandboxes, and nil, once, when the list is empty.
func (w *watcher) list() []*sandbox {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := make([]*sandbox, 0, len(w.waiting))
	for b := range w.waiting {
		all = append(all, b)
	}
	w.active = len(all) > 0
	return all
}

// run watches until no call waits.
func (w *watcher) run() {
	for {
		all := w.list()
		if len(all) == 0 {
			return
		}
		if err := w.look(all); err != nil && w.p.life.Err() == nil {
			w.p.o.Log.DebugContext(w.p.life, "daytona: read the states of sandboxes", slog.Any("error", err))
		}
		select {
		case <-time.After(w.p.o.Poll):
		case <-w.p.life.Done():
			return
		}
	}
}

// look reads the states of all sandboxes with one list. A sandbox that is not in it is read alone.
func (w *watcher) look(all []*sandbox) error {
	moves := make(map[*sandbox]int, len(all))
	for _, b := range all {
		moves[b] = b.moveCount()
	}
	listed, err := w.p.control.listBoxes(w.p.life, map[string]string{labelManager: w.p.o.Manager})
	if err != nil {
		return err
	}
	found := make(map[string]box, len(listed))
	for _, one := range listed {
		found[one.ID] = one
	}
	var errs []error
	for _, b := range all {
		if now, ok := found[b.ref]; ok {
			b.applyBox(now, moves[b])
			continue
		}
		if _, err := b.readBox(w.p.life); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
