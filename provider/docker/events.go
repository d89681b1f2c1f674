package docker

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// eventStream follows the events of the engine's containers, in one stream for all sandboxes, and
// so notices when the engine does not answer.
type eventStream struct {
	engine    *engine
	sandboxes *sandboxTable
	breaks    atomic.Int64  // how often the engine was lost
	ask       chan struct{} // requests a check whether the engine is back

	mu      sync.Mutex
	started bool
	away    chan struct{} // closed while the engine does not answer
	back    chan struct{} // closed once it answers again; nil while it does
}

func newEventStream(e *engine, t *sandboxTable) *eventStream {
	return &eventStream{engine: e, sandboxes: t, ask: make(chan struct{}, 1), away: make(chan struct{})}
}

// lostSignal returns a channel that is closed when the engine has not answered for a while.
func (s *eventStream) lostSignal() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// foundSignal returns a channel that is closed when the engine answers again, or nil if it is not
// lost.
func (s *eventStream) foundSignal() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.back
}

func (s *eventStream) setAway(isAway bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case isAway && s.back == nil:
		s.back = make(chan struct{})
		close(s.away)
	case !isAway && s.back != nil:
		close(s.back)
		s.away, s.back = make(chan struct{}), nil
	}
}

// startFollowing starts to follow the events, unless it already does.
func (s *eventStream) startFollowing(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started {
		return nil
	}
	since, err := s.engine.readTime(ctx)
	if err != nil {
		return err
	}
	if !s.engine.goDo(func() {
		ctx, free := s.engine.calls.bindContext(context.Background())
		defer free()
		s.readEvents(ctx, since)
	}) {
		return errClosed
	}
	s.started = true
	return nil
}

// readEvents follows the engine's events until life ends. After a gap in the stream it asks for the
// state of all sandboxes.
func (s *eventStream) readEvents(life context.Context, since string) {
	heard := time.Now()
	for pause := 100 * time.Millisecond; life.Err() == nil; {
		ctx, cancel := context.WithCancel(life)
		res := s.engine.api.Events(ctx, client.EventsListOptions{
			Since: since, Filters: make(client.Filters).Add("label", labelManager+"="+s.engine.o.Manager).Add("type", string(events.ContainerEventType)),
		})
		if s.catchUp(ctx) {
			pause = 100 * time.Millisecond
			s.setAway(false)
			since, heard = s.handleEvents(ctx, res, since)
			s.breaks.Add(1)
		}
		cancel()
		if time.Since(heard) >= s.engine.o.Patience {
			s.giveUp()
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		case <-s.ask:
		case <-life.Done():
		}
	}
}

// giveUp fails everything that waits for the engine, because the streams of an engine that hangs do
// not break.
func (s *eventStream) giveUp() {
	s.setAway(true)
	for _, b := range s.sandboxes.listSandboxes() {
		b.failLink(s.awayError())
	}
}

// awayError returns the error for an engine that has not answered for a while.
func (s *eventStream) awayError() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the docker engine at %s does not answer", s.engine.address()),
		"check that it runs: docker version; running sandboxes can be used again when it is back")
}

// askAgain is how long a call waits for a lost engine to answer.
const askAgain = time.Second

// checkReachable fails while the engine is lost, so that calls need not wait for their own timeout.
// It requests an immediate check of the engine.
func (s *eventStream) checkReachable(ctx context.Context) error {
	back := s.foundSignal()
	if back == nil {
		return nil
	}
	select {
	case s.ask <- struct{}{}:
	default:
	}
	wait := time.NewTimer(askAgain)
	defer wait.Stop()
	select {
	case <-back:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-wait.C:
		return s.awayError()
	}
}

// contextWhileReachable returns a context that ends when the engine is lost, with that cause.
func (s *eventStream) contextWhileReachable(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost := s.lostSignal()
	if !s.engine.goDo(func() {
		select {
		case <-lost:
			cancel(s.awayError())
		case <-ctx.Done():
		}
	}) {
		cancel(errClosed)
	}
	return ctx, func() { cancel(nil) }
}

// lookers is how many sandboxes are refreshed at the same time.
const lookers = 8

// catchUp starts to refresh the state of all sandboxes. It returns false if the engine does not
// answer; a failure for one sandbox does not count.
func (s *eventStream) catchUp(ctx context.Context) bool {
	if !s.engine.isResponding(ctx) {
		return false
	}
	todo := make(chan *sandbox)
	for range lookers {
		s.engine.goDo(func() {
			for b := range todo {
				b.lookAgain()
			}
		})
	}
	return s.engine.goDo(func() {
		defer close(todo)
		for _, b := range s.sandboxes.listSandboxes() {
			select {
			case todo <- b:
			case <-s.engine.calls.over:
				return
			}
		}
	})
}

// handleEvents handles events until the stream breaks. It returns the engine's time of the last
// event and when the engine last answered. It checks the engine periodically, because the stream of
// an engine that hangs does not break.
func (s *eventStream) handleEvents(ctx context.Context, res client.EventsResult, since string) (last string, heard time.Time) {
	heard = time.Now()
	ask := time.NewTicker(max(s.engine.o.Patience/2, time.Millisecond))
	defer ask.Stop()
	for {
		select {
		case m := <-res.Messages:
			since = strconv.FormatInt(m.Time, 10)
			s.handleEvent(m)
		case <-ask.C:
			if !s.engine.isResponding(ctx) {
				return since, heard
			}
			heard = time.Now()
		case <-res.Err: //nolint:errcheck // the stream is opened again, whatever broke it
			return since, time.Now()
		}
	}
}

func (s *eventStream) handleEvent(m events.Message) {
	b := s.sandboxes.findSandbox(m.Actor.ID)
	if b == nil {
		return
	}
	switch m.Action { //nolint:exhaustive // the others do not matter
	case events.ActionOOM:
		b.mu.Lock()
		b.ooms++
		b.mu.Unlock()
	case events.ActionKill:
		b.noteSignal(m.Actor.Attributes["signal"])
	case events.ActionDie:
		b.noteDeath(m)
		_ = s.engine.goDo(b.lookAgain)
	case events.ActionStart:
		b.noteStart()
		_ = s.engine.goDo(b.lookAgain)
	case events.ActionDestroy, events.ActionPause, events.ActionUnPause:
		_ = s.engine.goDo(b.lookAgain) // fails only when the provider is closed
	}
}
