package e2b

import (
	"context"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// discardWait is how long a failed creation waits for the deletion of its sandbox.
	discardWait = 5 * time.Second
	// discardLate is how long the cloud may take to create a sandbox after the connection broke.
	discardLate = 3 * time.Minute
	// discardPause is the time between two attempts to delete, and discardPauses bounds its growth.
	discardPause    = 500 * time.Millisecond
	discardMaxPause = 30 * time.Second
)

// discard deletes the sandbox of a failed attempt to create one, and waits a moment for that. If that takes longer, it
// continues in the background, and List leaves the sandbox out. cloudID is "" if it is not known whether there is a
// sandbox: then the provider looks for it until the cloud cannot create it any more. If the program ends first, List of
// the next provider returns the sandbox.
func (p *Provider) discard(ctx context.Context, id sandpit.ID, attempt, cloudID string) {
	done := p.discardLater(id, attempt, func() (string, bool) { return cloudID, true })
	if ctx.Err() != nil {
		return
	}
	select {
	case <-done:
	case <-time.After(discardWait):
	}
}

// discardLater is discard without the wait. await returns the cloud's ID of the sandbox, if it is known, and whether there
// may be a sandbox. The caller must be counted in p.wg.
func (p *Provider) discardLater(id sandpit.ID, attempt string, await func() (cloudID string, exists bool)) (done <-chan struct{}) {
	p.mu.Lock()
	p.discards[attempt] = true
	p.mu.Unlock()
	ended := make(chan struct{})
	p.wg.Go(func() {
		defer close(ended)
		cloudID, exists := await()
		if !exists || p.deleteAttempt(id, attempt, cloudID) {
			p.mu.Lock()
			delete(p.discards, attempt)
			p.mu.Unlock()
		}
	})
	return ended
}

// deleteAttempt deletes the sandboxes of an attempt until none is left. It reports whether that is certain.
func (p *Provider) deleteAttempt(id sandpit.ID, attempt, cloudID string) bool {
	late := time.Now().Add(discardLate)
	pause := discardPause
	for {
		found, err := p.deleteFound(id, attempt, cloudID)
		switch {
		case err == nil && (found || cloudID != "" || time.Now().After(late)):
			return true
		case p.ctx.Err() != nil:
			return false
		}
		wait := pause
		if p.isClosed() {
			if err == nil {
				return false // it was looked for once more; the next provider lists what comes late
			}
			wait = discardPause
		}
		select {
		case <-time.After(wait):
		case <-p.ctx.Done():
			return false
		}
		pause = min(pause*2, discardMaxPause)
	}
}

// deleteFound deletes the sandboxes of an attempt, and reports whether there were any. There can be two: the network may
// have delivered the request twice.
func (p *Provider) deleteFound(id sandpit.ID, attempt, cloudID string) (found bool, err error) {
	if cloudID != "" {
		if err := p.api.deleteSandbox(p.ctx, id, cloudID); err != nil {
			return false, err
		}
	}
	list, err := p.api.listSandboxes(p.ctx, map[string]string{markServer: p.o.Identity, markAttempt: attempt})
	if err != nil {
		return false, err
	}
	for _, one := range list {
		if isCloudID(one.ID) {
			err = errors.Join(err, p.api.deleteSandbox(p.ctx, id, one.ID))
		}
	}
	return len(list) > 0, err
}

func (p *Provider) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// isDiscarded reports whether a sandbox is to be deleted.
func (p *Provider) isDiscarded(one item) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.discards[one.Metadata[markAttempt]] || p.discards[one.ID]
}

// discardTwins deletes sandboxes of the attempts of others that the provider uses: the network delivered the request
// twice. It returns the rest.
func (p *Provider) discardTwins(list []item) []item {
	p.mu.Lock()
	used := make(map[string]string, len(p.boxes)) // cloud's ID by attempt
	for cloudID, known := range p.boxes {
		if known.attempt != "" {
			used[known.attempt] = cloudID
		}
	}
	for _, one := range list {
		if attempt := one.Metadata[markAttempt]; p.ended[attempt] && used[attempt] == "" {
			used[attempt] = "ended"
		}
	}
	p.mu.Unlock()
	rest := list[:0]
	for _, one := range list {
		cloudID := used[one.Metadata[markAttempt]]
		if cloudID == "" || cloudID == one.ID {
			rest = append(rest, one)
			continue
		}
		p.o.Notice("provider e2b: the cloud has created sandbox " + one.Metadata[markID] + " twice; one is deleted")
		if p.begin() == nil {
			p.discardLater(sandpit.ID(one.Metadata[markID]), one.ID, func() (string, bool) { return one.ID, true })
			p.wg.Done()
		}
	}
	return rest
}
