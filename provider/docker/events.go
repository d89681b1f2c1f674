package docker

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// eventStream hears of the ends of containers: one stream for all.
type eventStream struct {
	ask chan struct{} // somebody wants to know whether the engine is back

	mu      sync.Mutex
	started bool
	away    chan struct{} // closed while the engine does not answer
	back    chan struct{} // closed once it answers again; nil while it does
}

func (s *eventStream) init() {
	s.ask, s.away = make(chan struct{}, 1), make(chan struct{})
}

// lostSignal returns what is closed once the engine has not answered for a while.
func (s *eventStream) lostSignal() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.away
}

// foundSignal returns what is closed once the engine answers again, or nil if it does.
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

// followEvents sees to it that events are heard from now on.
func (p *Provider) followEvents(ctx context.Context) error {
	p.events.mu.Lock()
	defer p.events.mu.Unlock()
	if p.events.started {
		return nil
	}
	since, err := p.engineTime(ctx)
	if err != nil {
		return err
	}
	if !p.goDo(func() {
		ctx, free := p.calls.bindContext(context.Background())
		defer free()
		p.readEvents(ctx, since)
	}) {
		return errClosed
	}
	p.events.started = true
	return nil
}

// engineTime returns the engine's clock.
func (p *Provider) engineTime(ctx context.Context) (string, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	info, err := p.api.Info(limited, client.InfoOptions{})
	if err != nil {
		return "", p.engineError(ctx, "ask for the time", err)
	}
	now, err := time.Parse(time.RFC3339Nano, info.Info.SystemTime)
	if err != nil {
		now = time.Now()
	}
	return strconv.FormatInt(now.Unix(), 10), nil
}

// readEvents follows the engine's events until its life ends. What happened while there was no
// stream is found out by asking.
func (p *Provider) readEvents(life context.Context, since string) {
	heard := time.Now()
	for pause := 100 * time.Millisecond; life.Err() == nil; {
		ctx, cancel := context.WithCancel(life)
		res := p.api.Events(ctx, client.EventsListOptions{
			Since: since, Filters: make(client.Filters).Add("label", labelManager+"="+p.o.Manager).Add("type", string(events.ContainerEventType)),
		})
		if p.catchUp(ctx) {
			pause = 100 * time.Millisecond
			p.events.setAway(false)
			since, heard = p.handleEvents(ctx, res, since)
			p.breaks.Add(1)
		}
		cancel()
		if time.Since(heard) >= p.o.Patience {
			p.giveUp()
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		case <-p.events.ask:
		case <-life.Done():
		}
	}
}

// giveUp ends everything that waits for the engine. The streams of one that hangs do
// not break by themselves.
func (p *Provider) giveUp() {
	p.events.setAway(true)
	for _, b := range p.allSandboxes() {
		b.failLink(p.awayError())
	}
}

// awayError is what is said of an engine that has not answered for a while.
func (p *Provider) awayError() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the docker engine at %s does not answer", p.engineHost()),
		"see that it runs: docker version; what it keeps running goes on when it is back")
}

// askAgain is how long somebody waits who asks for an engine that is away.
const askAgain = time.Second

// checkReachable fails while the engine is away. So nobody else has to find that out by
// waiting; that it is asked now, and not when it is its turn, is all that it costs.
func (p *Provider) checkReachable(ctx context.Context) error {
	back := p.events.foundSignal()
	if back == nil {
		return nil
	}
	select {
	case p.events.ask <- struct{}{}:
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
		return p.awayError()
	}
}

// whileHere returns a context that ends when the engine is away, by that reason.
func (p *Provider) whileHere(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	lost := p.events.lostSignal()
	if !p.goDo(func() {
		select {
		case <-lost:
			cancel(p.awayError())
		case <-ctx.Done():
		}
	}) {
		cancel(errClosed)
	}
	return ctx, func() { cancel(nil) }
}

// lookers is how many sandboxes are looked at at the same time.
const lookers = 8

// catchUp has all sandboxes looked at. It returns false if the engine does not answer;
// that it does not tell of one sandbox is no reason to take it for away.
func (p *Provider) catchUp(ctx context.Context) bool {
	if !p.isResponding(ctx) {
		return false
	}
	todo := make(chan *sandbox)
	for range lookers {
		p.goDo(func() {
			for b := range todo {
				b.lookAgain()
			}
		})
	}
	return p.goDo(func() {
		defer close(todo)
		for _, b := range p.allSandboxes() {
			select {
			case todo <- b:
			case <-p.calls.over:
				return
			}
		}
	})
}

// isResponding reports whether the engine does, within the time that Wait is patient.
func (p *Provider) isResponding(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, min(p.o.Patience, p.o.CallTimeout))
	defer cancel()
	_, err := p.api.Ping(limited, client.PingOptions{})
	return err == nil
}

// handleEvents handles events until the stream breaks, and returns the engine's time of the
// last and when the engine was heard of. It asks now and then: the stream of one that
// hangs does not break.
func (p *Provider) handleEvents(ctx context.Context, res client.EventsResult, since string) (last string, heard time.Time) {
	heard = time.Now()
	ask := time.NewTicker(max(p.o.Patience/2, time.Millisecond))
	defer ask.Stop()
	for {
		select {
		case m := <-res.Messages:
			since = strconv.FormatInt(m.Time, 10)
			p.handleEvent(m)
		case <-ask.C:
			if !p.isResponding(ctx) {
				return since, heard
			}
			heard = time.Now()
		case <-res.Err: //nolint:errcheck // whatever broke it, it is opened again
			return since, time.Now()
		}
	}
}

func (p *Provider) handleEvent(m events.Message) {
	b := p.knownSandbox(m.Actor.ID)
	if b == nil {
		return
	}
	switch m.Action { //nolint:exhaustive // there are many more
	case events.ActionOOM:
		b.mu.Lock()
		b.ooms++
		b.mu.Unlock()
	case events.ActionKill:
		b.noteSignal(m.Actor.Attributes["signal"])
	case events.ActionDie:
		b.noteDeath(m)
		_ = p.goDo(b.lookAgain) // as below
	case events.ActionStart:
		b.noteStart()
		_ = p.goDo(b.lookAgain)
	case events.ActionDestroy, events.ActionPause, events.ActionUnPause:
		_ = p.goDo(b.lookAgain) // there is nothing to look at when the provider is closed
	}
}
