package daytona

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// maxPending is how many sandboxes of an owner may wait for the builds of their images.
	maxPending = 32
	// failureKept is how long clients can ask why such a sandbox was not created.
	failureKept = 15 * time.Minute
)

// pendingSandbox is a sandbox that is created when the build of its image has ended.
type pendingSandbox struct {
	about  sandpit.Sandbox // as it will be
	build  sandpit.BuildID
	cancel context.CancelFunc
	// state is stateBuilding, or stateBuildFailed or stateError; then failure is the reason, and
	// ended the time.
	state   string
	failure string
	ended   time.Time
}

// pendingSet has the sandboxes that wait for a build. It is in memory: when the server ends, they are
// not created. All methods may be called concurrently.
type pendingSet struct {
	mu  sync.Mutex
	all map[sandpit.ID]*pendingSandbox
}

// add adds a sandbox. Exhausted: its owner has too many.
func (s *pendingSet) add(p *pendingSandbox) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id, other := range s.all {
		switch {
		case !other.ended.IsZero() && time.Since(other.ended) > failureKept:
			delete(s.all, id)
		case other.about.Lease.Owner == p.about.Lease.Owner:
			n++
		}
	}
	if n >= maxPending {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d sandboxes wait for builds of their images or have failed, the limit is reached", n),
			"delete those that have failed, or try again later")
	}
	if s.all == nil {
		s.all = make(map[sandpit.ID]*pendingSandbox)
	}
	s.all[p.about.ID] = p
	return nil
}

// remove removes a sandbox that was created or deleted.
func (s *pendingSet) remove(id sandpit.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, id)
}

// fail sets the state of a sandbox that could not be created.
func (s *pendingSet) fail(id sandpit.ID, state string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.all[id]; p != nil {
		p.state, p.failure, p.ended = state, err.Error(), time.Now()
	}
}

// find returns a copy of a client's sandbox by ID or name.
func (s *pendingSet) find(client api.Principal, text string) (pendingSandbox, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, p := range s.all {
		isNamed := p.about.Spec.Name == text && p.about.Lease.Owner == client.Owner
		if client.Owns(p.about.Lease.Owner) && string(id) == text || isNamed {
			return *p, true
		}
	}
	return pendingSandbox{}, false
}

// list returns copies of an owner's sandboxes.
func (s *pendingSet) list(owner string) (all []pendingSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.all {
		if p.about.Lease.Owner == owner && (p.ended.IsZero() || time.Since(p.ended) <= failureKept) {
			all = append(all, *p)
		}
	}
	return all
}

// toPendingItem describes a sandbox that waits for a build as an item of a list.
func (d *describer) toPendingItem(url string, p pendingSandbox) sandboxItem {
	out := d.toItem(url, p.about)
	out.State, out.ErrorReason = p.state, p.failure
	return out
}

// createPending registers a sandbox whose image is being built, and creates it after the build, also
// if the client disconnects.
func (h *sandboxHandlers) createPending(c *call, r manager.CreateRequest, build sandpit.TemplateBuild, optional bool) (int, any, error) {
	r.ID = sandpit.NewID()
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	p := &pendingSandbox{build: build.ID, cancel: cancel, state: stateBuilding, about: sandpit.Sandbox{
		ID: r.ID, Spec: r.Spec, Lease: sandpit.Lease{Owner: r.Owner, Action: r.Lease.Action}, Policy: r.Policy,
		State: sandpit.StateCreating, CreatedAt: time.Now(),
	}}
	err := h.pending.add(p)
	if err == nil {
		err = h.changes.start(ctx, func(ctx context.Context) {
			defer cancel()
			if err := h.images.builder.awaitBuild(ctx, c.client, build); err != nil {
				h.pending.fail(r.ID, stateBuildFailed, err)
				return
			}
			if _, err := h.createArchived(ctx, r, optional); err != nil {
				h.pending.fail(r.ID, stateError, err)
				return
			}
			h.pending.remove(r.ID)
		})
	}
	if err != nil {
		cancel()
		h.pending.remove(r.ID)
		return 0, nil, describeQuota(err)
	}
	out, err := h.describePending(c, *p)
	out.State = statePendingBuild
	return http.StatusOK, out, err
}

// describePending describes a sandbox that waits for a build.
func (h *sandboxHandlers) describePending(c *call, p pendingSandbox) (sandbox, error) {
	out, err := h.describer.toSandbox(c.r.Context(), externalURL(c.r), p.about)
	out.State, out.ErrorReason = p.state, p.failure
	return out, err
}

// deletePending cancels the creation of a sandbox.
func (h *sandboxHandlers) deletePending(c *call, p pendingSandbox) (int, any, error) {
	p.cancel()
	h.pending.remove(p.about.ID)
	out, err := h.describePending(c, p)
	out.State, out.DesiredState = stateDestroying, stateDestroyed
	return http.StatusOK, out, err
}

// refuse returns the error of a change of the sandbox.
func (p pendingSandbox) refuse() error {
	if p.failure != "" {
		return refuse(http.StatusBadRequest, sandpit.Conflict, "Sandbox is in an errored state: %s", p.failure)
	}
	return refuse(http.StatusConflict, sandpit.Conflict, "Sandbox state change in progress: sandbox %s is %s", p.about.ID, p.state)
}
