package e2b

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// watcher finds out about sandboxes that end, or are paused, without a request of this provider. E2B reports no events, so
// it lists the sandboxes from time to time while callers wait.
type watcher struct {
	p *Provider

	mu      sync.Mutex
	waiting map[*waiter]bool
	running bool
	stopped chan struct{}
	once    sync.Once
}

// waiter is a caller that waits for the end of a sandbox.
type waiter struct {
	b     *sandbox
	since time.Time
	exits chan sandpit.Exit // has room for one
}

func newWatcher(p *Provider) *watcher {
	return &watcher{p: p, waiting: make(map[*waiter]bool), stopped: make(chan struct{})}
}

func (w *watcher) stop() { w.once.Do(func() { close(w.stopped) }) }

// wait returns when a sandbox has ended, or the cloud has paused it.
func (w *watcher) wait(ctx context.Context, b *sandbox) (sandpit.Exit, error) {
	if b.isEnded() {
		return b.exit, nil
	}
	me := &waiter{b: b, since: time.Now(), exits: make(chan sandpit.Exit, 1)}
	if err := w.add(me); err != nil {
		return sandpit.Exit{}, err
	}
	defer w.remove(me)
	select {
	case <-b.ended:
		return b.exit, nil
	case exit := <-me.exits:
		return exit, nil
	case <-w.stopped:
		return sandpit.Exit{}, errClosed
	case <-ctx.Done():
		return sandpit.Exit{}, ctx.Err()
	}
}

func (w *watcher) add(me *waiter) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.running {
		if err := w.p.begin(); err != nil {
			return err
		}
		w.running = true
		go w.run()
	}
	w.waiting[me] = true
	return nil
}

func (w *watcher) remove(me *waiter) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, me)
}

// run looks at the sandboxes while callers wait.
func (w *watcher) run() {
	defer w.p.wg.Done()
	for {
		pause := w.p.o.Poll/2 + rand.N(w.p.o.Poll) //nolint:gosec // it is not a secret
		select {
		case <-time.After(pause):
		case <-w.stopped:
			return
		}
		w.mu.Lock()
		all := make([]*waiter, 0, len(w.waiting))
		for one := range w.waiting {
			all = append(all, one)
		}
		if len(all) == 0 {
			w.running = false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		w.look(all)
	}
}

// look compares the waiters' sandboxes with the list.
func (w *watcher) look(all []*waiter) {
	begin := time.Now()
	list, err := w.p.listOwn(w.p.ctx, nil)
	if err != nil {
		return // the next look tries again
	}
	states := make(map[string]string, len(list))
	for _, one := range list {
		states[one.ID] = one.State
	}
	for _, one := range all {
		state, listed := states[one.b.h.Cloud]
		if one.since.After(begin) || listed && state == stateRunning {
			continue
		}
		w.settle(one)
	}
}

// settle reads the state of a sandbox that the list has not as running.
func (w *watcher) settle(one *waiter) {
	ctx, cancel := context.WithTimeout(w.p.ctx, w.p.o.CallTimeout)
	defer cancel()
	if one.b.lock(ctx) != nil { // an operation changes it: the next look tries again
		return
	}
	defer one.b.unlock()
	if one.b.currentState() != sandpit.StateRunning {
		return // this program has paused it
	}
	state, err := one.b.readState(ctx) // records the end
	if err != nil || state != sandpit.StatePaused && state != sandpit.StateStopped {
		return
	}
	select {
	case one.exits <- sandpit.Exit{State: state, Reason: "the cloud has paused the sandbox at its expiry, or another program has"}:
	default:
	}
}
