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

// state is where a sandbox is in its life.
type state string

const (
	starting state = "starting"
	running  state = "running"
	paused   state = "paused"
	stopping state = "stopping"
	stopped  state = "stopped"
	over     state = "over"
)

// sandbox is a sandbox as its Provider knows it. Instances of the same container share
// one.
type sandbox struct {
	p         *Provider
	id        sandpit.ID
	container string

	turn  chan struct{} // full while somebody changes the state
	ended chan struct{} // closed after exit is set

	mu     sync.Mutex
	state  state
	moves  int // how often somebody here has started, paused or resumed it
	exit   sandpit.Exit
	ooms   int64
	died   *container.State // as an event told it
	killed bool             // the engine was asked to kill it, as an event told
	dead   chan struct{}    // full when an event has told of its end
	breaks int64            // of the engine, when the sandbox was last seen running
	link   *stdioconn.Link
	// saving has the engine hold the container still for a moment, which is nobody's
	// business: calls wait.
	saving bool
	// removers are destroying the sandbox, and removed is closed when they are done.
	removers int
	removed  chan struct{}

	asking chan struct{} // full while the engine is asked, so that the last answer counts

	linking sync.Mutex      // held while a link is being made
	guest   *http.Transport // over the link
	monitor *liveness.Monitor
}

func newBox(p *Provider, id sandpit.ID, container string) *sandbox {
	b := &sandbox{
		p: p, id: id, container: container, turn: make(chan struct{}, 1), ended: make(chan struct{}), state: starting,
		asking: make(chan struct{}, 1), dead: make(chan struct{}, 1), breaks: p.breaks.Load(),
	}
	b.guest = b.newTransport()
	b.monitor = liveness.New(id, b.probeGuest, p.o.Liveness)
	return b
}

// lock waits for the turn to change the state.
func (b *sandbox) lock(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case b.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *sandbox) unlock() { <-b.turn }

// lockInState takes the turn if the sandbox is in one of those states, as the engine says.
func (b *sandbox) lockInState(ctx context.Context, want ...state) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	err := b.p.checkReachable(ctx)
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

// recordChange notes what was just done to the container. Answers that the engine gave before do
// not count any more.
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

// checkUsable is stateError for who wants something of the inside. That it is stopped or paused
// may have changed by another program, of which the engine tells a moment later.
func (b *sandbox) checkUsable(ctx context.Context) error {
	if now := b.currentState(); now == paused || now == stopped {
		if err := b.refreshState(ctx); err != nil {
			return err
		}
	}
	return b.stateError(b.currentState())
}

// stateError is why there is nobody to talk to, if so.
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

// recordEnd tells everybody that the sandbox is over.
func (b *sandbox) recordEnd(exit sandpit.Exit) {
	b.mu.Lock()
	first := b.state != over
	if first {
		b.state, b.exit = over, exit
		close(b.ended)
	}
	b.mu.Unlock()
	if first {
		b.p.goDo(b.closeLink)
	}
}

// refreshState brings the state up to date with what the engine says.
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
	c, err := b.p.inspectContainer(ctx, b.container)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		if !b.isBeingRemoved() { // else whoever removes it says how it ended
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

// applyEngineState takes the state that the engine tells, having been asked after so many moves.
func (b *sandbox) applyEngineState(s container.State, moves int) {
	wasAsked := !s.Running && b.wasStopped() // before the moves are counted again
	switch {
	case b.moveCount() != moves: // it was something else that it told
	case s.Paused && b.isSaving():
	case s.Paused:
		b.setState(paused)
	case s.Running:
		if b.currentState() != stopping { // which whoever stops it ends
			b.setState(running)
		}
		b.markRunning()
	case s.Status == container.StateCreated, s.Restarting, b.isBeingRemoved():
	default:
		if wasAsked {
			b.setState(stopped)
			return
		}
		b.recordEnd(b.exitReason(s))
	}
}

// wasStopped reports whether the container does not run because somebody asked for that.
func (b *sandbox) wasStopped() bool {
	rec, err := b.p.readRecord(b.id, b.container)
	return err == nil && rec.Stopped
}

// beginRemoval tells that the sandbox is being destroyed, until the returned function
// is called. What breaks meanwhile is explained by how that comes out.
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
		if failed { // what was heard of it meanwhile did not count
			b.p.goDo(b.lookAgain)
		}
	}
}

// lookAgain refreshes the state. An engine that does not answer is noticed by the
// stream of its events.
func (b *sandbox) lookAgain() {
	ctx, cancel := b.p.callContext(context.Background())
	defer cancel()
	_ = b.refreshState(ctx)
}

func (b *sandbox) isBeingRemoved() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.removers > 0
}

// awaitRemoval returns when nobody is destroying the sandbox.
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

// startContainer starts the container and gives its guest its key and defaults. Whoever
// calls it has the turn.
func (b *sandbox) startContainer(ctx context.Context, inst *Instance, rec record) error {
	stream, err := b.attachStill(ctx) // before it runs, so that nothing is missed
	if err != nil {
		return err
	}
	limited, cancel := b.p.callContext(ctx)
	defer cancel()
	_, err = b.p.api.ContainerStart(limited, b.container, client.ContainerStartOptions{})
	if err != nil {
		b.p.guest.markLost() // if it was that, the next one finds it
		_ = stream.Close()
		return b.p.engineError(ctx, "start the container", err)
	}
	b.recordChange(running)
	if err := b.newLink(stream); err != nil {
		return err
	}
	if err := b.settleStart(liveness.Exempt(limited), inst, rec); err != nil {
		if said := stream.stderrTail(); said != "" {
			return sandpit.Errorf(sandpit.CodeOf(err), "%w; it says: %s", err, said)
		}
		return err
	}
	return nil
}

// settleStart makes a guest that has just started ready.
func (b *sandbox) settleStart(ctx context.Context, inst *Instance, rec record) error {
	if err := inst.guest.Init(ctx, initFor(rec.Spec, rec.Image)); err != nil {
		return err
	}
	if !rec.Stopped {
		return nil
	}
	rec.Stopped = false
	return b.p.writeRecord(rec)
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
	if err := b.p.checkReachable(ctx); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	done := b.beginRemoval()
	defer done()
	if err := b.p.removeContainer(ctx, b.container); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	b.recordEnd(sandpit.Exit{Reason: "the sandbox was destroyed"})
	b.closeLink() // before it is forgotten, so that Close need not know of it
	b.p.forgetSandbox(b)
	if err := b.p.removeRecord(b.id, b.container); err != nil {
		return fmt.Errorf("destroy sandbox %s: %w", b.id, err)
	}
	return nil
}

// waitForEnd returns when the sandbox has ended.
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
		return sandpit.Exit{}, fmt.Errorf("wait for the end of sandbox %s: %w", b.id, b.p.awayError())
	case <-b.p.calls.over:
		return sandpit.Exit{}, errClosed
	}
}

// errLinkOver ends a link whose container does not run.
var errLinkOver = errors.New("the container does not run")

// attachAgain attaches again as soon as that is possible, or returns why it will not be:
// the container does not run, or the engine has not answered for too long.
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
			return nil, b.p.awayError()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}
