package manager_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
)

// Stats implements sandpit.Statser. It heeds no context.
func (p *prop) Stats(context.Context) (sandpit.Stats, error) {
	p.stage.mu.Lock()
	use := p.stage.use
	p.stage.mu.Unlock()
	if use == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unavailable, "unknown")
	}
	s := use(p.id)
	s.At, s.Limits = time.Now(), sandpit.Resources{Memory: 1000, CPUs: 1, PIDs: 10}
	return s, nil
}

func (s *stage) uses(use func(sandpit.ID) sandpit.Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.use = use
}

func (s *stage) usesMemory(bytes int64) {
	s.uses(func(sandpit.ID) sandpit.Stats { return sandpit.Stats{Memory: bytes} })
}

func watching(kill time.Duration) manager.Options {
	return manager.Options{Usage: manager.Usage{
		Every: 10 * time.Second, High: map[usage.Kind]float64{usage.Memory: 0.9}, Kill: kill,
	}}
}

func (r *rig) warnings(t *testing.T, id sandpit.ID) int {
	t.Helper()
	return strings.Count(strings.Join(r.events(t, id), "\n"), "manager: usage warning ok")
}

// TestUsageWarning warns once each time that use comes close to a limit.
func TestUsageWarning(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, watching(0))
		b := r.create(t, manager.CreateRequest{})
		for k, tc := range []struct {
			memory int64
			want   int
		}{{899, 0}, {900, 1}, {999, 1}, {850, 1}, {950, 1}, {700, 1}, {900, 2}} {
			s.usesMemory(tc.memory)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if got := r.warnings(t, b.ID); got != tc.want {
				t.Errorf("measurement %d, %d bytes: %d warnings, want %d", k, tc.memory, got, tc.want)
			}
		}
		if text := r.log.String(); strings.Count(text, "high use: memory at 90 % of the limit") != 2 {
			t.Errorf("the log: %s", text)
		}
		r.wantState(t, b.ID, sandpit.StateRunning) // a warning does no more
	})
}

// TestUsageOfTheStill measures neither what is paused nor what is stopped.
func TestUsageOfTheStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, watching(0))
		b := r.create(t, manager.CreateRequest{})
		var measured atomic.Int64
		s.uses(func(sandpit.ID) sandpit.Stats { measured.Add(1); return sandpit.Stats{Memory: 1000} })
		for _, change := range []func(context.Context, sandpit.ID) error{r.Pause, r.Resume, r.Stop} {
			if err := change(t.Context(), b.ID); err != nil {
				t.Fatal(err)
			}
			synctest.Wait() // for a measurement that began at the time of the change
			before := measured.Load()
			time.Sleep(time.Minute)
			running := r.state(b.ID) == sandpit.StateRunning
			if got := measured.Load() - before; running != (got > 0) {
				t.Errorf("%s: measured %d times", r.state(b.ID), got)
			}
		}
	})
}

// TestUsageKill stops a sandbox whose use stays high, and says so.
func TestUsageKill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, watching(30*time.Second))
		b := r.create(t, manager.CreateRequest{})
		for _, memory := range []int64{950, 950, 950, 890, 950, 950, 950} { // never for so long
			s.usesMemory(memory)
			time.Sleep(10 * time.Second)
			synctest.Wait()
			r.wantState(t, b.ID, sandpit.StateRunning)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		r.wantState(t, b.ID, sandpit.StateStopped)
		const reason = "used too much: memory at 95 % of the limit for 30s"
		if got, _ := r.Get(b.ID); got.Reason != reason {
			t.Errorf("reason %q, want %q", got.Reason, reason)
		}
		_, err := r.Use(t.Context(), b.ID)
		wantCode(t, err, sandpit.Conflict)
		wantText(t, err, reason)
		if events := strings.Join(r.events(t, b.ID), "\n"); !strings.Contains(events, "manager: usage kill ok") {
			t.Errorf("events: %s", events)
		}
	})
}

// measurable is a sandbox that can be measured and nothing else.
type measurable struct {
	sandpit.Instance
	sandpit.Statser
}

type plainStage struct{ *stage }

func (s plainStage) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	i, err := s.stage.Create(ctx, id, spec)
	if err != nil {
		return nil, err
	}
	return measurable{i, i.(*prop)}, nil
}

// TestUsageKillDeletes deletes a sandbox that cannot be stopped.
func TestUsageKillDeletes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newStage()
		o := watching(10 * time.Second)
		o.Providers = map[string]sandpit.Provider{"stage": plainStage{s}}
		r := newRig(t, o)
		b := r.create(t, manager.CreateRequest{})
		s.usesMemory(1000)
		time.Sleep(21 * time.Second)
		synctest.Wait()
		r.wantState(t, b.ID, sandpit.StateDeleted)
		if got, _ := r.Get(b.ID); !strings.HasPrefix(got.Reason, "used too much: memory") {
			t.Errorf("reason %q", got.Reason)
		}
	})
}

// TestUsageHangs has a provider never answer for one sandbox: it is asked once, and the
// others are watched all the same.
func TestUsageHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, s := onStage(t, watching(0))
		deaf, other := r.create(t, manager.CreateRequest{}), r.create(t, manager.CreateRequest{})
		var asked atomic.Int64
		answer := make(chan struct{})
		s.uses(func(id sandpit.ID) sandpit.Stats {
			if id == deaf.ID {
				asked.Add(1)
				<-answer
			}
			return sandpit.Stats{Memory: 1000}
		})
		time.Sleep(5 * time.Minute)
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times while it does not answer", n)
		}
		if got := r.warnings(t, other.ID); got != 1 {
			t.Errorf("%d warnings of the other, want 1", got)
		}
		close(answer)
		time.Sleep(time.Minute)
		if n := asked.Load(); n < 2 {
			t.Errorf("asked %d times after it has answered", n)
		}
		if got := r.warnings(t, deaf.ID); got != 1 {
			t.Errorf("%d warnings, want 1", got)
		}
	})
}
