package docker

import (
	"context"
	"strconv"
	"sync"
	"time"

	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"
)

// eventStream hears of the ends of containers: one stream for all.
type eventStream struct {
	mu      sync.Mutex
	started bool
	away    chan struct{} // closed while the engine does not answer
}

// lost returns what is closed once the engine has not answered for a while.
func (s *eventStream) lost() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away == nil {
		s.away = make(chan struct{})
	}
	return s.away
}

func (s *eventStream) setAway(isAway bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.away == nil {
		s.away = make(chan struct{})
	}
	was := false
	select {
	case <-s.away:
		was = true
	default:
	}
	switch {
	case isAway && !was:
		close(s.away)
	case !isAway && was:
		s.away = make(chan struct{})
	}
}

// follow sees to it that events are heard from now on.
func (p *Provider) follow(ctx context.Context) error {
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
		ctx, free := p.calls.bind(context.Background())
		defer free()
		p.hear(ctx, since)
	}) {
		return errClosed
	}
	p.events.started = true
	return nil
}

// engineTime returns the engine's clock.
func (p *Provider) engineTime(ctx context.Context) (string, error) {
	limited, cancel := p.limited(ctx)
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

// hear follows the engine's events until its life ends. What happened while there was no
// stream is found out by asking.
func (p *Provider) hear(life context.Context, since string) {
	heard := time.Now()
	for pause := 100 * time.Millisecond; life.Err() == nil; {
		ctx, cancel := context.WithCancel(life)
		res := p.api.Events(ctx, client.EventsListOptions{
			Since: since, Filters: make(client.Filters).Add("label", labelManager+"="+p.o.Manager).Add("type", string(events.ContainerEventType)),
		})
		if p.catchUp(ctx) {
			pause = 100 * time.Millisecond
			p.events.setAway(false)
			since, heard = p.listen(ctx, res, since)
			p.breaks.Add(1)
		}
		cancel()
		if time.Since(heard) >= p.o.Patience {
			p.events.setAway(true)
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 5*time.Second)
		case <-life.Done():
		}
	}
}

// catchUp looks at all sandboxes. It returns false if the engine does not answer.
func (p *Provider) catchUp(ctx context.Context) bool {
	if !p.answers(ctx) {
		return false
	}
	for _, b := range p.all() {
		if b.refresh(ctx) != nil {
			return false
		}
	}
	return true
}

// answers reports whether the engine does, within the time that Wait is patient.
func (p *Provider) answers(ctx context.Context) bool {
	limited, cancel := context.WithTimeout(ctx, min(p.o.Patience, p.o.CallTimeout))
	defer cancel()
	_, err := p.api.Ping(limited, client.PingOptions{})
	return err == nil
}

// listen handles events until the stream breaks, and returns the engine's time of the
// last and when the engine was heard of. It asks now and then: the stream of one that
// hangs does not break.
func (p *Provider) listen(ctx context.Context, res client.EventsResult, since string) (last string, heard time.Time) {
	heard = time.Now()
	ask := time.NewTicker(max(p.o.Patience/2, time.Millisecond))
	defer ask.Stop()
	for {
		select {
		case m := <-res.Messages:
			since = strconv.FormatInt(m.Time, 10)
			p.heard(m)
		case <-ask.C:
			if !p.answers(ctx) {
				return since, heard
			}
			heard = time.Now()
		case <-res.Err: //nolint:errcheck // whatever broke it, it is opened again
			return since, time.Now()
		}
	}
}

func (p *Provider) heard(m events.Message) {
	b := p.known(m.Actor.ID)
	if b == nil {
		return
	}
	switch m.Action { //nolint:exhaustive // there are many more
	case events.ActionOOM:
		b.mu.Lock()
		b.ooms++
		b.mu.Unlock()
	case events.ActionDie:
		b.noteDeath(m)
		_ = p.goDo(b.lookAgain) // as below
	case events.ActionDestroy, events.ActionPause, events.ActionUnPause, events.ActionStart:
		_ = p.goDo(b.lookAgain) // there is nothing to look at when the provider is closed
	}
}
