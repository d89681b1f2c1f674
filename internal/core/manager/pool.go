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

// Pools are the spare sandboxes of a manager. All methods may be called concurrently.
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

// Pool is a stock of sandboxes that are made ahead, so that whoever asks for one
// of the same kind gets it at once. Those that wait count as sandboxes, but give
// way when there is no more room. A pool does not outlive its manager: nobody could
// tell whether one of its sandboxes was just being given away.
type Pool struct {
	// Provider makes the sandboxes, which it must let be claimed (sandpit.Claimer).
	// Default: Options.Provider.
	Provider string
	// Spec is their kind, also as a template that everybody may use: what is fixed when a sandbox is made, which is its image,
	// limits, host name and whether it has a network. Everything else in it is not looked at; mounts are Invalid.
	Spec sandpit.Spec
	// Size is how many wait at least. Default: none.
	Size int
	// Max, if above Size, has the pool learn from demand: there wait as many as were
	// asked for in the busiest ten seconds of the last five minutes, at most Max.
	Max int
	// Warm is done inside before a sandbox counts as ready, such as WarmUp. Default:
	// nothing.
	Warm func(ctx context.Context, i sandpit.Instance) error
}

// How pools learn, and try again.
const (
	demandPeriod   = 10 * time.Second
	demandPeriods  = 30
	refillDelay    = 100 * time.Millisecond // before a stock that is not empty is filled up
	poolFirstPause = time.Second            // after a failure; doubles
	poolLastPause  = time.Minute
)

// pool is a Pool at work.
type pool struct {
	Pool
	key         string
	fillRequest chan struct{} // holds one: the loop looks again

	mu         sync.Mutex
	currentKey string // key of the sandboxes that it has now
	stale      bool   // a request found another image by the same name
	ready      []*sandboxRecord
	creating   int
	claims     map[string]time.Time // when each owner claimed one last
	demand     [demandPeriods]int
	period     int64 // that of the newest count in asked
}

// poolKey is the same for sandboxes that could be one another.
func poolKey(provider string, s sandpit.Spec) string {
	text, err := json.Marshal(struct {
		Provider  string
		Image     sandpit.Image
		Resources sandpit.Resources
		Hostname  string
		Online    bool
	}{provider, cmp.Or(s.Image, sandpit.HostImage), s.Resources, s.Hostname, s.Network.Online})
	if err != nil { // a limit that is no number: there is no such sandbox
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
		if _, ok := p.Spec.Image.Template(); !ok { // else the template says first what it is like
			o.Fill(p.Provider, &p.Spec)
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
			return nil, sandpit.Errorf(sandpit.Invalid, "pool %d: its kind cannot be told from others", i)
		}
		p.Spec = sandpit.Spec{
			Image: p.Spec.Image, Resources: p.Spec.Resources, Hostname: p.Spec.Hostname,
			Network: sandpit.NetworkPolicy{Online: p.Spec.Network.Online},
		}
		pools[key] = &pool{Pool: p, key: key, currentKey: key, fillRequest: make(chan struct{}, 1), claims: make(map[string]time.Time)}
	}
	return pools, nil
}

// countRequest notes that one was asked for.
func (p *pool) countRequest(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.advancePeriod(now)
	p.demand[p.period%demandPeriods]++
}

// advancePeriod forgets what is too long ago.
func (p *pool) advancePeriod(now time.Time) {
	period := now.UnixNano() / int64(demandPeriod)
	if period < p.period || period-p.period >= demandPeriods { // a clock that was set, or a long quiet
		p.demand, p.period = [demandPeriods]int{}, period
	}
	for p.period < period {
		p.period++
		p.demand[p.period%demandPeriods] = 0
	}
}

// countMissing returns how many more are to be made, or, below zero, are too many.
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

// takeAny takes one that is ready, and its turn; nil if there is none.
func (p *pool) takeAny() *sandboxRecord { return p.takeIf(func(*sandboxRecord) bool { return true }) }

// takeImage is pop of a sandbox of an image. The same name may mean another image to another
// owner, or may have changed its meaning.
func (p *pool) takeImage(prepared sandpit.Image) *sandboxRecord {
	return p.takeIf(func(rec *sandboxRecord) bool { return rec.currentRow().Prepared == prepared })
}

// noteImage notes if a request found another image by the name than the pool has.
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
			continue // it has just ended
		}
		if row := rec.currentRow(); row.State == sandpit.StateRunning && row.Pool == p.key && rec.currentInstance() != nil {
			return rec
		}
		rec.unlock()
	}
	return nil
}

// takeFor is takeImage for an owner. One that has claimed a sandbox a moment ago leaves the last
// ones to others who need some: taking those as fast as they are made would keep them from
// everybody else.
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

// isGreedy reports whether an owner who has claimed a sandbox a moment ago would take one of
// the last. Claims that are longer ago are forgotten.
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

// newLoop keeps a pool at its size.
func (ps *Pools) newLoop(p *pool) func(ctx context.Context) {
	return func(ctx context.Context) {
		pause := poolFirstPause
		for ctx.Err() == nil {
			rest := demandPeriod
			if err := ps.fillPool(ctx, p); err != nil && ctx.Err() == nil {
				ps.log.WarnContext(ctx, "a pool cannot be filled", slog.Any("error", err), slog.Duration("again in", pause))
				rest, pause = pause, min(2*pause, poolLastPause)
				_ = sleep(ctx, rest) // not even for who asks: all would fail alike
				continue
			}
			pause = poolFirstPause
			timer := time.NewTimer(rest)
			select {
			case <-timer.C:
			case <-p.fillRequest:
				if p.hasReady() { // who has just claimed one goes first
					_ = sleep(ctx, refillDelay)
				}
			case <-ctx.Done():
			}
			timer.Stop()
		}
	}
}

// fillPool makes what is missing, or removes what is too much. It takes at most half of
// the places of those who make.
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
			ps.discardSpare(rec, "there are more than are asked for")
		}
	}
	var mu sync.Mutex
	var failed error
	todo := make([]struct{}, missing)
	forEach(max(1, ps.o.Parallel/2), todo, func(struct{}) {
		if ctx.Err() != nil || ps.core.closing.Load() || ps.quota.isFull() {
			return
		}
		if err := ps.createSpare(ctx, p); err != nil {
			mu.Lock()
			defer mu.Unlock()
			failed = err
		}
	})
	if errors.Is(failed, sandpit.Exhausted) {
		return nil // when there is room again
	}
	return failed
}

// newSpareRequest is the request for one sandbox of a pool.
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

// discardOutdated removes what a pool has of an image when the name of that means something else by
// now. What a template means is looked up each time, what a registry has only if a request
// found another image.
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

// findPool returns the pool that has sandboxes of a kind, nil if there is none.
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

// createSpare makes one sandbox for a pool.
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
		return sandpit.Errorf(sandpit.Unsupported, "sandboxes of provider %q cannot be made ahead", p.Provider)
	}
	p.addReady(rec)
	if ps.core.closing.Load() {
		ps.emptyPool(p)
	}
	return nil
}

// hasSpare reports whether a sandbox waits in a pool of this manager, or is being made
// for one.
func (ps *Pools) hasSpare(row store.Row, rec *sandboxRecord) bool {
	p := ps.byKey[row.Pool]
	return p != nil && p.hasRecord(rec) || row.Pool == poolBuilds && ps.registry.isBuildSandbox(rec.id)
}

// PoolStatus is how a pool is doing.
type PoolStatus struct {
	Provider string       `json:"provider"`
	Spec     sandpit.Spec `json:"spec"`
	Size     int          `json:"size"`
	Max      int          `json:"max"`
	Ready    int          `json:"ready"`
	Making   int          `json:"making"`
}

// List tells how the pools are doing, in the order of the options.
func (ps *Pools) List() []PoolStatus {
	list := make([]PoolStatus, 0, len(ps.o.Pools))
	for _, o := range ps.o.Pools {
		spec := o.Spec.Clone()
		provider := cmp.Or(o.Provider, ps.o.Provider)
		if _, ok := spec.Image.Template(); !ok {
			ps.o.Fill(provider, &spec)
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
