package daytona

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// maxPending is how many sandboxes of an owner may wait for the builds of their images.
	maxPending = 32
	// maxPendingBytes bounds their requests together, in bytes.
	maxPendingBytes = store.MaxPendingRequest
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

	row store.PendingSandbox
}

// pendingSet has the sandboxes that wait for a build, in memory and in the store, so that they are
// created also if the server ends meanwhile. All methods may be called concurrently.
type pendingSet struct {
	store *store.PendingSandboxes // nil: only in memory
	log   *slog.Logger

	mu  sync.Mutex
	all map[sandpit.ID]*pendingSandbox
}

// add adds and stores a sandbox. Exhausted: its owner has too many.
func (s *pendingSet) add(ctx context.Context, p *pendingSandbox) error {
	expired, err := s.addInMemory(p)
	for _, id := range expired {
		s.deleteRow(ctx, id)
	}
	if err == nil && s.store != nil {
		err = s.store.Save(ctx, p.row)
	}
	return err
}

// addInMemory also removes sandboxes whose failure clients have had the time to see.
func (s *pendingSet) addInMemory(p *pendingSandbox) (expired []sandpit.ID, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, len(p.row.Request)
	for id, other := range s.all {
		switch {
		case !other.ended.IsZero() && time.Since(other.ended) > failureKept:
			delete(s.all, id)
			expired = append(expired, id)
		case other.about.Lease.Owner == p.about.Lease.Owner:
			n++
			size += len(other.row.Request)
		}
	}
	const hint = "delete those that have failed, or try again later"
	switch {
	case n >= maxPending:
		return expired, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d sandboxes wait for builds of their images or have failed, the limit is reached", n), hint)
	case n > 0 && size > maxPendingBytes:
		return expired, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted,
			"the requests of sandboxes that wait for builds of their images, or have failed, would have %d bytes, the limit is %d", size, maxPendingBytes), hint)
	}
	s.insert(p)
	return expired, nil
}

// insert adds a sandbox. The caller holds mu.
func (s *pendingSet) insert(p *pendingSandbox) {
	if s.all == nil {
		s.all = make(map[sandpit.ID]*pendingSandbox)
	}
	s.all[p.about.ID] = p
}

// restore adds a sandbox of the store.
func (s *pendingSet) restore(p *pendingSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.insert(p)
}

// remove removes a sandbox that was created or deleted.
func (s *pendingSet) remove(ctx context.Context, id sandpit.ID) {
	s.mu.Lock()
	delete(s.all, id)
	s.mu.Unlock()
	s.deleteRow(ctx, id)
}

// rowTimeout bounds a write to the store that no client waits for.
const rowTimeout = 10 * time.Second

func (s *pendingSet) deleteRow(ctx context.Context, id sandpit.ID) {
	if s.store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rowTimeout)
	defer cancel()
	if err := s.store.Delete(ctx, id); err != nil {
		s.log.WarnContext(ctx, "daytona: pending sandbox not removed", slog.String("sandbox", string(id)), slog.Any("error", err))
	}
}

// fail sets the state of a sandbox that could not be created.
func (s *pendingSet) fail(ctx context.Context, id sandpit.ID, state string, err error) {
	s.mu.Lock()
	p := s.all[id]
	if p == nil { // deleted
		s.mu.Unlock()
		return
	}
	p.state, p.failure, p.ended = state, err.Error(), time.Now()
	p.row.State, p.row.Reason, p.row.EndedAt = state, p.failure, p.ended
	row := p.row
	s.mu.Unlock()
	if s.store == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rowTimeout)
	defer cancel()
	if err := s.store.Save(ctx, row); err != nil {
		s.log.WarnContext(ctx, "daytona: failure of a pending sandbox not stored", slog.String("sandbox", string(id)), slog.Any("error", err))
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
	out.State, out.ErrorReason, out.Recoverable = p.state, p.failure, p.isRecoverable()
	return out
}

// pendingRequest is the stored form of a request.
type pendingRequest struct {
	About   sandpit.Sandbox `json:"about"`
	Build   sandpit.BuildID `json:"build"`
	Request createRequest   `json:"request"`
}

// newPending describes a sandbox whose image is being built.
func newPending(client api.Principal, in createRequest, r manager.CreateRequest, build sandpit.BuildID, createdAt time.Time) (*pendingSandbox, error) {
	about := sandpit.Sandbox{
		ID: r.ID, Spec: r.Spec, Lease: sandpit.Lease{Owner: r.Owner, Action: r.Lease.Action}, Policy: r.Policy,
		State: sandpit.StateCreating, CreatedAt: createdAt,
	}
	text, err := json.Marshal(pendingRequest{about, build, in})
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "encode a request: %w", err)
	}
	return &pendingSandbox{about: about, build: build, cancel: func() {}, state: stateBuilding, row: store.PendingSandbox{
		ID: r.ID, Owner: client.Owner, Admin: client.Admin, Request: text, CreatedAt: createdAt,
	}}, nil
}

// createPending registers a sandbox whose image is being built, and creates it after the build, also
// if the client disconnects or the server is restarted.
func (h *sandboxHandlers) createPending(c *call, in createRequest, r manager.CreateRequest, build sandpit.BuildID) (int, any, error) {
	r.ID = sandpit.NewID()
	p, err := newPending(c.client, in, r, build, time.Now())
	if err != nil {
		return 0, nil, err
	}
	begun := *p // which changes in the background
	if err = h.pending.add(c.r.Context(), p); err == nil {
		err = h.startPending(context.WithoutCancel(c.r.Context()), c.client, p, r, in.AutoArchive == nil)
	}
	if err != nil {
		h.pending.remove(c.r.Context(), r.ID)
		return 0, nil, describeQuota(err)
	}
	out, err := h.describePending(c, begun)
	out.State = statePendingBuild
	return http.StatusOK, out, err
}

// startPending waits for the build of a sandbox in the background and then creates it. A sandbox
// that waits when the server ends stays in the store.
func (h *sandboxHandlers) startPending(ctx context.Context, client api.Principal, p *pendingSandbox, r manager.CreateRequest, optional bool) error {
	ctx, cancel := context.WithCancel(ctx)
	h.pending.setCancel(p, cancel)
	err := h.changes.start(ctx, func(ctx context.Context) {
		defer cancel()
		state := stateBuildFailed
		err := h.images.builder.awaitBuild(ctx, client, p.build)
		if err == nil {
			state = stateError
			err = h.awaitForgotten(ctx, r.ID)
		}
		if err == nil {
			_, err = h.createArchived(ctx, r, optional)
		}
		switch {
		case err == nil:
			h.pending.remove(ctx, r.ID)
		case h.changes.life.Err() == nil:
			h.pending.fail(ctx, r.ID, state, err)
		}
	})
	if err != nil {
		cancel()
	}
	return err
}

// awaitForgotten waits until no part is left of a sandbox that an earlier server has begun to create
// with an ID. Conflict: that takes too long.
func (h *sandboxHandlers) awaitForgotten(ctx context.Context, id sandpit.ID) error {
	ticker := time.NewTicker(buildPoll)
	defer ticker.Stop()
	for end := time.Now().Add(undoTimeout); ; {
		err := h.manager.ForgetUnfinished(ctx, id)
		if sandpit.CodeOf(err) != sandpit.Conflict || time.Now().After(end) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// setCancel sets the function that ends the wait of a sandbox, and calls it if the sandbox was deleted
// meanwhile.
func (s *pendingSet) setCancel(p *pendingSandbox, cancel context.CancelFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p.about.ID] != p {
		cancel()
	}
	p.cancel = cancel
}

// resume continues what an earlier server has left: sandboxes that wait for a build. Builds end with
// a server, so they begin again. Those that could not be created stay visible for a while.
func (h *sandboxHandlers) resume(ctx context.Context) error {
	if h.pending.store == nil {
		return nil
	}
	rows, err := h.pending.store.List(ctx)
	for _, row := range rows {
		h.resumePending(ctx, row)
	}
	return err
}

func (h *sandboxHandlers) resumePending(ctx context.Context, row store.PendingSandbox) {
	_, missing := h.manager.Get(row.ID)
	isExpired := !row.EndedAt.IsZero() && time.Since(row.EndedAt) > failureKept
	wasCreated := missing == nil && !h.manager.IsUnfinished(row.ID) // before the end of the server
	if wasCreated || isExpired {
		h.pending.deleteRow(ctx, row.ID)
		return
	}
	var stored pendingRequest
	p := &pendingSandbox{row: row, cancel: func() {}, state: row.State, failure: row.Reason, ended: row.EndedAt}
	err := json.Unmarshal(row.Request, &stored)
	p.about, p.build = stored.About, stored.Build
	p.about.ID, p.about.Lease.Owner = row.ID, row.Owner // whatever could be decoded
	if row.State != "" {
		h.pending.restore(p)
		return
	}
	p.state = stateBuilding
	h.pending.restore(p)
	if err == nil {
		err = h.repeatRequest(ctx, p, stored.Request)
	}
	if err != nil {
		h.pending.fail(ctx, row.ID, stateBuildFailed, fmt.Errorf("the server was restarted during the build: %w", err))
	}
}

// repeatRequest begins the build of a sandbox again, with the rights that its client had.
func (h *sandboxHandlers) repeatRequest(ctx context.Context, p *pendingSandbox, in createRequest) error {
	client := api.Principal{Owner: p.row.Owner, Admin: p.row.Admin}
	ctx = api.WithPrincipal(ctx, client)
	r, from, err := h.newRequest(ctx, client, in)
	if err != nil {
		return err
	}
	if r.Lease.Deadline, err = ttlDeadline(in.TTL, p.row.CreatedAt); err != nil {
		return err
	}
	r.ID = p.row.ID
	h.pending.setBuild(p, from.build)
	return h.startPending(context.WithoutCancel(ctx), client, p, r, in.AutoArchive == nil)
}

// setBuild sets the build that a sandbox waits for.
func (s *pendingSet) setBuild(p *pendingSandbox, build sandpit.BuildID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.build = build
}

// describePending describes a sandbox that waits for a build.
func (h *sandboxHandlers) describePending(c *call, p pendingSandbox) (sandbox, error) {
	out, err := h.describer.toSandbox(c.r.Context(), externalURL(c.r), p.about)
	out.State, out.ErrorReason, out.Recoverable = p.state, p.failure, p.isRecoverable()
	return out, err
}

// deletePending cancels the creation of a sandbox.
func (h *sandboxHandlers) deletePending(c *call, p pendingSandbox) (int, any, error) {
	p.cancel()
	h.pending.remove(c.r.Context(), p.about.ID)
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
