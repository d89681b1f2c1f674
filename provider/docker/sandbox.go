package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
	"github.com/sandpit-dev/sandpit/internal/reach/stdioconn"
)

// state is a state of a sandbox.
type state string

const (
	starting state = "starting"
	running  state = "running"
	paused   state = "paused"
	stopping state = "stopping"
	stopped  state = "stopped"
	over     state = "over"
)

// sandbox is the Provider's state of one sandbox. Instances of the same container share it.
type sandbox struct {
	p         *Provider
	id        sandpit.ID
	container string

	locked chan struct{} // full while a call changes the state
	ended  chan struct{} // closed after exit is set

	mu     sync.Mutex
	state  state
	moves  int // how often this provider started, paused or resumed it
	exit   sandpit.Exit
	ooms   int64
	died   *container.State // the end that an event reported
	killed bool             // an event reported a request to kill it
	dead   chan struct{}    // full when an event has reported its end
	breaks int64            // eventStream.breaks when the sandbox was last seen running
	link   *stdioconn.Link
	// saving is set while the engine freezes the container for a snapshot. Calls wait.
	saving bool
	// unsettled is set while the container may run although its guest lacks its key, because its start
	// was interrupted. Such a sandbox counts as stopped, and can be started again.
	unsettled bool
	// removers counts the calls that destroy the sandbox. removed is closed when they are done.
	removers int
	removed  chan struct{}

	asking chan struct{} // full while the engine is asked, so that responses are applied in order

	linking sync.Mutex      // held while a link is created
	guest   *http.Transport // over the link
	monitor *liveness.Monitor
}

func newSandbox(p *Provider, id sandpit.ID, container string) *sandbox {
	b := &sandbox{
		p: p, id: id, container: container, locked: make(chan struct{}, 1), ended: make(chan struct{}), state: starting,
		asking: make(chan struct{}, 1), dead: make(chan struct{}, 1), breaks: p.events.breaks.Load(),
	}
	b.guest = b.newTransport()
	b.monitor = liveness.New(id, b.probeGuest, p.o.Liveness)
	return b
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

// lockInState locks the sandbox if the engine reports one of the wanted states. Otherwise it returns
// an error.
func (b *sandbox) lockInState(ctx context.Context, want ...state) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	err := b.p.events.checkReachable(ctx)
	if err == nil {
		err = b.refreshState(ctx)
	}
	if now := b.currentState(); err == nil && !slices.Contains(want, now) {
		err = b.stateError(now)
		if err == nil {
			err = sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", b.id, now)
		}
	}
	if err != nil {
		b.unlock()
	}
	return err
}

func (b *sandbox) currentState() state {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

// setState changes the state, unless the sandbox is over.
func (b *sandbox) setState(s state) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.state != over {
		b.state = s
	}
}

// recordChange records the new state after a change of the container. It makes earlier responses of
// the engine obsolete.
func (b *sandbox) recordChange(s state) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.moves++
	if b.state != over {
		b.state = s
	}
}

func (b *sandbox) moveCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.moves
}

// checkUsable returns an error if programs inside cannot be reached. It refreshes the state of a
// paused or stopped sandbox first, because another program may just have changed it.
func (b *sandbox) checkUsable(ctx context.Context) error {
	if now := b.currentState(); now == paused || now == stopped {
		if err := b.refreshState(ctx); err != nil {
			return err
		}
	}
	return b.stateError(b.currentState())
}

// stateError returns why a sandbox in a state cannot be used, or nil.
func (b *sandbox) stateError(s state) error {
	switch s {
	case running:
		return nil
	case starting:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s is starting", b.id)
	case paused, stopping, stopped:
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", b.id, s)
	case over:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended: %s", b.id, b.exit.Reason)
}

// recordEnd records the end of the sandbox and wakes its waiters.
func (b *sandbox) recordEnd(exit sandpit.Exit) {
	b.mu.Lock()
	first := b.state != over
	if first {
		b.state, b.exit = over, exit
		close(b.ended)
	}
	b.mu.Unlock()
	if first {
		b.p.engine.goDo(b.closeLink)
	}
}

// refreshState updates the state from the engine.
func (b *sandbox) refreshState(ctx context.Context) error {
	if b.currentState() == over {
		return nil
	}
	select {
	case b.asking <- struct{}{}:
		defer func() { <-b.asking }()
	case <-ctx.Done():
		return ctx.Err()
	}
	moves := b.moveCount()
	c, err := b.p.engine.inspectContainer(ctx, b.container)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if !b.isBeingRemoved() { // otherwise the removal records the end
			b.recordEnd(b.vanishedExit())
		}
		return nil
	}
	if err != nil {
		return err
	}
	b.applyEngineState(*c.State, moves)
	return nil
}

// applyEngineState applies a state that the engine reported. moves is the move count at the time of
// the request: the state is obsolete if it has changed.
func (b *sandbox) applyEngineState(s container.State, moves int) {
	isStopped := !s.Running && b.wasStopped() // before the move count is read
	switch {
	case b.moveCount() != moves: // obsolete
	case s.Paused && b.isSaving():
	case s.Paused:
		b.setState(paused)
	case s.Running && b.isUnsettled():
		b.setState(stopped)
	case s.Running:
		if b.currentState() != stopping { // Stop sets the next state
			b.setState(running)
		}
		b.markRunning()
	case s.Status == container.StateCreated, s.Restarting, b.isBeingRemoved():
	default:
		if isStopped {
			b.setState(stopped)
			return
		}
		b.recordEnd(b.exitReason(s))
	}
}

// wasStopped reports whether the record says that the sandbox was stopped.
func (b *sandbox) wasStopped() bool {
	rec, err := b.p.records.readRecord(b.id, b.container)
	return err == nil && rec.Stopped
}

// beginRemoval marks the sandbox as being destroyed until the returned function is called. Calls
// that fail meanwhile wait for the outcome, see awaitRemoval.
func (b *sandbox) beginRemoval() (done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.removers++; b.removers == 1 {
		b.removed = make(chan struct{})
	}
	return func() {
		b.mu.Lock()
		b.removers--
		if b.removers == 0 {
			close(b.removed)
		}
		failed := b.removers == 0 && b.state != over
		b.mu.Unlock()
		if failed { // the states reported meanwhile were ignored
			b.p.engine.goDo(b.lookAgain)
		}
	}
}

// lookAgain refreshes the state. It ignores errors, because the event stream detects an engine that
// does not answer.
func (b *sandbox) lookAgain() {
	ctx, cancel := b.p.engine.callContext(context.Background())
	defer cancel()
	_ = b.refreshState(ctx)
}

func (b *sandbox) isBeingRemoved() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.removers > 0
}

// awaitRemoval waits until no call is destroying the sandbox.
func (b *sandbox) awaitRemoval(ctx context.Context) {
	b.mu.Lock()
	removed, busy := b.removed, b.removers > 0
	b.mu.Unlock()
	if !busy {
		return
	}
	select {
	case <-removed:
	case <-b.ended:
	case <-ctx.Done():
	}
}

func (b *sandbox) isSaving() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.saving
}

func (b *sandbox) setSaving(saving bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.saving = saving
}

func (b *sandbox) isUnsettled() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.unsettled
}

func (b *sandbox) setUnsettled(unsettled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unsettled = unsettled
}

// startContainer starts the container, unless an interrupted call has, and sends the guest its key
// and defaults. The caller holds the lock.
func (b *sandbox) startContainer(ctx context.Context, inst *Instance, rec record) error {
	if err := b.startGuest(ctx, inst, rec); err != nil {
		b.setUnsettled(true)
		b.recordChange(stopped)
		return err
	}
	b.setUnsettled(false)
	b.recordChange(running)
	return nil
}

func (b *sandbox) startGuest(ctx context.Context, inst *Instance, rec record) error {
	stream, err := b.attachStill(ctx) // before it runs, so that no output is lost
	if err != nil {
		return err
	}
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	_, err = b.p.engine.api.ContainerStart(limited, b.container, client.ContainerStartOptions{})
	if err != nil {
		b.p.guest.markLost() // it may be the reason
		_ = stream.Close()
		return b.p.engine.wrapError(ctx, "start the container", err)
	}
	b.recordChange(running)
	if err := b.newLink(stream); err != nil {
		return err
	}
	if err := b.settleStart(liveness.Exempt(limited), inst, rec); err != nil {
		if said := stream.stderrTail(); said != "" {
			return sandpit.Errorf(sandpit.CodeOf(err), "%w; guest: %s", err, said)
		}
		return err
	}
	return nil
}

// settleStart initializes a guest that has just started, and records that the sandbox runs.
func (b *sandbox) settleStart(ctx context.Context, inst *Instance, rec record) error {
	if err := inst.guest.Init(ctx, initFor(rec.Spec, rec.Image)); err != nil {
		return err
	}
	if !rec.Stopped {
		return nil
	}
	rec.Stopped = false
	return b.p.records.writeRecord(rec)
}

func initFor(spec sandpit.Spec, img imageInfo) envd.InitRequest {
	env := maps.Clone(img.Env)
	if env == nil {
		env = make(map[string]string)
	}
	maps.Copy(env, spec.Env)
	user := spec.User
	if user == "" {
		user = img.User
	}
	return envd.InitRequest{Env: env, User: user, WorkDir: workDir(spec, img)}
}

// removeContainer removes the container, whatever state it is in.
func (b *sandbox) removeContainer(ctx context.Context) error {
	if err := b.p.events.checkReachable(ctx); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	done := b.beginRemoval()
	defer done()
	if err := b.p.engine.removeContainer(ctx, b.container); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	b.recordEnd(sandpit.Exit{Reason: "the sandbox was destroyed"})
	b.closeLink() // before removeSandbox, after which Close cannot find it
	b.p.sandboxes.removeSandbox(b)
	if err := b.p.records.removeRecord(b.id, b.container); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	return nil
}

// waitForEnd waits until the sandbox has ended.
func (b *sandbox) waitForEnd(ctx context.Context) (sandpit.Exit, error) {
	select {
	case <-b.ended:
		return b.exit, nil
	default:
	}
	select {
	case <-b.ended:
		return b.exit, nil
	case <-ctx.Done():
		return sandpit.Exit{}, ctx.Err()
	case <-b.p.events.lostSignal():
		return sandpit.Exit{}, fmt.Errorf("wait for the end of sandbox %s: %w", b.id, b.p.events.awayError())
	case <-b.p.engine.calls.over:
		return sandpit.Exit{}, errClosed
	}
}

// errLinkOver is the error of a link whose container does not run.
var errLinkOver = errors.New("the container does not run")

// attachAgain retries to attach until it succeeds. It fails when the container does not run, or when
// the engine is lost.
func (b *sandbox) attachAgain(ctx context.Context) (*stream, error) {
	pause := 100 * time.Millisecond
	for {
		if err := b.refreshState(ctx); err == nil {
			if now := b.currentState(); now != running && now != paused {
				return nil, errLinkOver
			}
			if s, err := b.attachStream(ctx); err == nil {
				return s, nil
			}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		case <-b.p.events.lostSignal():
			return nil, b.p.events.awayError()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
