package manager

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Pools are the spares of a manager. All methods may be called concurrently.
type Pools struct {
	byKey     map[string]*pool // never changed
	clock     clock.Clock
	core      *core
	creator   *creator
	expander  *expander
	log       *slog.Logger
	messages  *Messages
	o         *Options
	ports     *portPublisher
	quota     *sandboxQuota
	records   *recordStore
	registry  *buildRegistry
	sandboxes *recordIndex
	secrets   *secretFiles
	wall      *wallClock
}

// Pool is a number of sandboxes that are created in advance, so that a request for a sandbox of
// that kind gets one at once. Spares count as sandboxes, but are deleted when their room is needed.
// A pool ends with its manager, because a later one could not know whether a spare was being
// claimed.
type Pool struct {
	// Provider is the provider of the sandboxes, each of which must be a sandpit.Claimer. Default:
	// Options.Provider.
	Provider string
	// Spec is their kind: what cannot be changed by a claim, which is the image (also a template
	// that every owner may use), limits, host name and whether there is a network. The rest of it is
	// ignored; mounts are Invalid.
	Spec sandpit.Spec
	// Size is the minimum number of spares. Default: none.
	Size int
	// Max, if above Size, adapts the pool to demand: it has as many spares as were requested in the
	// busiest ten seconds of the last five minutes, at most Max.
	Max int
	// Warm runs in a sandbox before it counts as ready, such as WarmUp. Default: none.
	Warm Setup
}

// The periods of demand, and the delays of pools.
const (
	demandPeriod   = 10 * time.Second
	demandPeriods  = 30
	refillDelay    = 100 * time.Millisecond // before a pool that is not empty is filled
	poolFirstPause = time.Second            // after a failure; doubles
	poolLastPause  = time.Minute
)

// pool is the state of a Pool.
type pool struct {
	Pool
	key         string
	fillRequest chan struct{} // holds one request to fill the pool

	mu         sync.Mutex
	currentKey string // key of the current spares
	stale      bool   // the image name means another image by now
	ready      []*sandboxRecord
	creating   int
	claims     map[string]time.Time // time of each owner's last claim
	demand     [demandPeriods]int
	period     int64 // the period of the newest count in demand
}

// poolKey is equal for sandboxes that can replace each other.
func poolKey(provider string, s sandpit.Spec) string {
	text, err := json.Marshal(struct {
		Provider  string
		Image     sandpit.Image
		Resources sandpit.Resources
		Hostname  string
		Online    bool
	}{provider, cmp.Or(s.Image, sandpit.HostImage), s.Resources, s.Hostname, s.Network.Online})
	if err != nil { // a limit that is not a number
		return ""
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16])
}

// newPools checks the pools of the options.
func newPools(o Options) (map[string]*pool, error) {
	pools := make(map[string]*pool, len(o.Pools))
	for i, p := range o.Pools {
		p.Provider, p.Spec = cmp.Or(p.Provider, o.Provider), p.Spec.Clone()
		if _, ok := p.Spec.Image.Template(); !ok { // a template completes its spec itself
			o.CompleteSpec(p.Provider, &p.Spec)
		}
		key := poolKey(p.Provider, p.Spec)
		switch {
		case o.Providers[p.Provider] == nil:
			return nil, sandpit.Errorf(sandpit.Invalid, "pool %d: there is no provider %.100q", i, p.Provider)
		case len(p.Spec.Mounts) > 0:
			return nil, sandpit.Errorf(sandpit.Invalid, "pool %d: its sandboxes cannot have mounts", i)
		case p.Size < 0 || p.Max < 0:
			return nil, sandpit.Errorf(sandpit.Invalid, "pool %d: sizes %d and %d, want none below zero", i, p.Size, p.Max)
		case key == "" || pools[key] != nil:
			return nil, sandpit.Errorf(sandpit.Invalid, "pool %d: another pool has the same kind", i)
		}
		p.Spec = sandpit.Spec{
			Image: p.Spec.Image, Resources: p.Spec.Resources, Hostname: p.Spec.Hostname,
			Network: sandpit.NetworkPolicy{Online: p.Spec.Network.Online},
		}
		pools[key] = &pool{Pool: p, key: key, currentKey: key, fillRequest: make(chan struct{}, 1), claims: make(map[string]time.Time)}
	}
	return pools, nil
}

// countRequest counts a request for a sandbox of the pool's kind.
func (p *pool) countRequest(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advancePeriod(now)
	p.demand[p.period%demandPeriods]++
}

// advancePeriod removes the counts of periods that are too long ago. The lock is held.
func (p *pool) advancePeriod(now time.Time) {
	period := now.UnixNano() / int64(demandPeriod)
	if period < p.period || period-p.period >= demandPeriods { // the clock was set, or there was no request for long
		p.demand, p.period = [demandPeriods]int{}, period
	}
	for p.period < period {
		p.period++
		p.demand[p.period%demandPeriods] = 0
	}
}

// countMissing returns how many spares are missing, or, below zero, too many.
func (p *pool) countMissing(now time.Time) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = slices.DeleteFunc(p.ready, func(rec *sandboxRecord) bool { return rec.state() != sandpit.StateRunning })
	want := p.Size
	if p.Max > p.Size {
		p.advancePeriod(now)
		want = min(max(p.Size, slices.Max(p.demand[:])), p.Max)
	}
	return want - len(p.ready) - p.creating
}

// takeAny removes a spare from the pool and returns it locked, or nil.
func (p *pool) takeAny() *sandboxRecord { return p.takeIf(func(*sandboxRecord) bool { return true }) }

// takeImage is takeAny for a prepared image. The same image name may mean another image to another
// owner, or may have changed its meaning.
func (p *pool) takeImage(prepared sandpit.Image) *sandboxRecord {
	return p.takeIf(func(rec *sandboxRecord) bool { return rec.currentRow().Prepared == prepared })
}

// noteImage records whether a request's image differs from that of all spares.
func (p *pool) noteImage(prepared sandpit.Image) {
	p.mu.Lock()
	defer p.mu.Unlock()
	hasImage := func(rec *sandboxRecord) bool { return rec.currentRow().Prepared == prepared }
	if len(p.ready) > 0 && !slices.ContainsFunc(p.ready, hasImage) {
		p.stale = true
	}
}

func (p *pool) takeIf(suits func(*sandboxRecord) bool) *sandboxRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < len(p.ready); {
		rec := p.ready[i]
		if !suits(rec) {
			i++
			continue
		}
		p.ready = slices.Delete(p.ready, i, i+1)
		if !rec.tryLock() {
			continue // it is ending
		}
		if row := rec.currentRow(); row.State == sandpit.StateRunning && row.Pool == p.key && rec.currentInstance() != nil {
			return rec
		}
		rec.unlock()
	}
	return nil
}

// takeFor is takeImage for an owner. An owner that has claimed a spare a moment ago leaves the last
// ones to other owners: otherwise it could take all spares as fast as they are created.
func (p *pool) takeFor(owner string, prepared sandpit.Image, now time.Time, mustShare func(owner string) bool) *sandboxRecord {
	if p.isGreedy(owner, now) && mustShare(owner) {
		return nil
	}
	rec := p.takeImage(prepared)
	if rec != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.claims[owner] = now
	}
	return rec
}

// isGreedy reports whether an owner that has claimed a spare a moment ago would take one of the
// last. It removes older claims.
func (p *pool) isGreedy(owner string, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	maps.DeleteFunc(p.claims, func(_ string, at time.Time) bool { return now.Sub(at).Abs() > demandPeriod })
	_, again := p.claims[owner]
	return again && int64(len(p.ready)) <= fairshare.Half(int64(max(p.Size, 1)))
}

func (p *pool) addReady(rec *sandboxRecord) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append(p.ready, rec)
}

func (p *pool) hasRecord(rec *sandboxRecord) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.creating > 0 || slices.Contains(p.ready, rec)
}

func (p *pool) hasReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) > 0
}

func (p *pool) triggerFill() {
	select {
	case p.fillRequest <- struct{}{}:
	default:
	}
}

// newLoop returns the loop that keeps a pool at its size.
func (ps *Pools) newLoop(p *pool) func(ctx context.Context) {
	return func(ctx context.Context) {
		pause := poolFirstPause
		for ctx.Err() == nil {
			rest := demandPeriod
			if err := ps.fillPool(ctx, p); err != nil && ctx.Err() == nil {
				ps.log.WarnContext(ctx, "manager: pool not filled", slog.Any("error", err), slog.Duration("retry_in", pause))
				rest, pause = pause, min(2*pause, poolLastPause)
				_ = sleep(ctx, rest) // also if spares are requested: the next attempt would fail as well
				continue
			}
			pause = poolFirstPause
			timer := time.NewTimer(rest)
			select {
			case <-timer.C:
			case <-p.fillRequest:
				if p.hasReady() { // requests have priority over the pool
					_ = sleep(ctx, refillDelay)
				}
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}
}

// fillPool creates missing spares, or removes those that are too many. It uses at most half of the
// slots for creation.
func (ps *Pools) fillPool(ctx context.Context, p *pool) error {
	if !ps.core.ops.begin() {
		return errClosed
	}
	defer ps.core.ops.end()
	if err := ps.discardOutdated(ctx, p); err != nil {
		return err
	}
	missing := p.countMissing(ps.clock.Now())
	for ; missing < 0; missing++ {
		if rec := p.takeAny(); rec != nil {
			ps.discardSpare(rec, "the pool has too many")
		}
	}
	var mu sync.Mutex
	var failed error
	todo := make([]struct{}, missing)
	forEach(max(1, ps.o.Parallel/2), todo, func(struct{}) {
		if ctx.Err() != nil || ps.core.closing.Load() || ps.quota.isFull(nil) {
			return
		}
		if err := ps.createSpare(ctx, p); err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = err
		}
	})
	if errors.Is(failed, sandpit.Exhausted) {
		return nil // filled when there is room again
	}
	return failed
}

// newSpareRequest returns the request for a spare.
func (ps *Pools) newSpareRequest(ctx context.Context, p *pool) (CreateRequest, error) {
	now, err := ps.wall.now(ctx)
	if err != nil {
		return CreateRequest{}, err
	}
	r, err := ps.expander.expandRequest(ctx, CreateRequest{
		Provider: p.Provider, Spec: p.Spec, Policy: store.Policy{IdleTimeout: -1}, Setup: p.Warm, Configured: true,
	})
	if err != nil {
		return r, err
	}
	return ps.creator.prepareRequest(ctx, r, now)
}

// discardOutdated removes spares whose image name now means another image. Names of templates are
// resolved each time, names in registries only after a request has found another image.
func (ps *Pools) discardOutdated(ctx context.Context, p *pool) error {
	p.mu.Lock()
	stale := p.stale
	p.stale = false
	p.mu.Unlock()
	if _, ok := p.Spec.Image.Template(); !ok && !stale {
		return nil
	}
	r, err := ps.newSpareRequest(ctx, p)
	if err != nil {
		return err
	}
	r, _, release, err := ps.creator.prepareImage(ctx, r, ps.clock.Now())
	if err != nil {
		return err
	}
	defer release()
	kind := poolKey(r.Provider, r.Spec)
	p.mu.Lock()
	p.currentKey = kind
	p.mu.Unlock()
	isOld := func(rec *sandboxRecord) bool {
		row := rec.currentRow()
		return row.Prepared != r.prepared || poolKey(row.Provider, row.Spec) != kind
	}
	for rec := p.takeIf(isOld); rec != nil; rec = p.takeIf(isOld) {
		ps.discardSpare(rec, "its image name now means another image")
	}
	return nil
}

// findPool returns the pool of a kind, or nil.
func (ps *Pools) findPool(kind string) *pool {
	if p := ps.byKey[kind]; p != nil {
		return p
	}
	for _, p := range ps.byKey {
		p.mu.Lock()
		same := p.currentKey == kind
		p.mu.Unlock()
		if same {
			return p
		}
	}
	return nil
}

// createSpare creates one spare.
func (ps *Pools) createSpare(ctx context.Context, p *pool) error {
	r, err := ps.newSpareRequest(ctx, p)
	if err != nil {
		return err
	}
	r.pool = p.key
	p.mu.Lock()
	p.creating++
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.creating--
	}()
	r, now, release, err := ps.creator.prepareImage(ctx, r, ps.clock.Now())
	if err != nil {
		return err
	}
	defer release()
	rec, _, err := ps.creator.reserveSandbox(ctx, r, now)
	if err != nil {
		return err
	}
	if _, err := ps.creator.createReserved(ctx, rec, r); err != nil {
		return err
	}
	if _, ok := as[sandpit.Claimer](rec.currentInstance()); !ok {
		if rec.lock(ctx) == nil {
			ps.discardSpare(rec, "it cannot be claimed")
		}
		return sandpit.Errorf(sandpit.Unsupported, "spares of provider %q cannot be claimed", p.Provider)
	}
	p.addReady(rec)
	if ps.core.closing.Load() {
		ps.emptyPool(p)
	}
	return nil
}

// hasSpare reports whether a sandbox is a spare of this manager, or is being created as one.
func (ps *Pools) hasSpare(row store.Row, rec *sandboxRecord) bool {
	p := ps.byKey[row.Pool]
	return p != nil && p.hasRecord(rec) || row.Pool == poolBuilds && ps.registry.isBuildSandbox(rec.id)
}

// PoolStatus is the state of a pool.
type PoolStatus struct {
	Provider string       `json:"provider"`
	Spec     sandpit.Spec `json:"spec"`
	Size     int          `json:"size"`
	Max      int          `json:"max"`
	Ready    int          `json:"ready"`
	Making   int          `json:"making"`
}

// List returns the state of the pools, in the order of the options.
func (ps *Pools) List() []PoolStatus {
	list := make([]PoolStatus, 0, len(ps.o.Pools))
	for _, o := range ps.o.Pools {
		spec := o.Spec.Clone()
		provider := cmp.Or(o.Provider, ps.o.Provider)
		if _, ok := spec.Image.Template(); !ok {
			ps.o.CompleteSpec(provider, &spec)
		}
		p := ps.byKey[poolKey(provider, spec)]
		p.mu.Lock()
		list = append(list, PoolStatus{
			Provider: p.Provider, Spec: p.Spec.Clone(), Size: p.Size, Max: max(p.Size, p.Max), Ready: len(p.ready), Making: p.creating,
		})
		p.mu.Unlock()
	}
	return list
}
