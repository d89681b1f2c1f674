package fairshare_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newPool(total, perOwner int64) *fairshare.Pool {
	return fairshare.NewPool(fairshare.Options{Name: "slots", Total: total, PerOwner: perOwner, MaxWaiting: 10})
}

func acquire(t *testing.T, p *fairshare.Pool, owner string, units int64) *fairshare.Grant {
	t.Helper()
	g, err := p.TryAcquire(owner, units)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestOwnerTakesOnlyItsShare(t *testing.T) {
	t.Parallel()
	p := newPool(4, 2)
	first := acquire(t, p, "alice", 2)
	_, err := p.TryAcquire("alice", 1)
	if !errors.Is(err, sandpit.Exhausted) || err.Error() != `owner "alice" uses 2 of its 2 slots, 0 requests wait, and 1 more were asked for` {
		t.Errorf("a third unit for alice: %v", err)
	}
	acquire(t, p, "bob", 2)
	_, err = p.TryAcquire("carol", 1)
	if !errors.Is(err, sandpit.Exhausted) || err.Error() != "all 4 slots are in use" {
		t.Errorf("a unit for carol: %v", err)
	}
	first.Release()
	first.Release()
	acquire(t, p, "carol", 2)
	if own, all := p.Used("carol"); own != 2 || all != 4 {
		t.Errorf("carol holds %d, all %d; want 2, 4", own, all)
	}
}

func TestFreeUnitsGoToTheOwnerWithTheFewest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2, 2)
		held := acquire(t, p, "alice", 1)
		other := acquire(t, p, "alice", 1)
		var mu sync.Mutex
		var order []string
		wait := func(owner string) {
			go func() {
				g, err := p.Acquire(t.Context(), owner, 1)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, owner)
				mu.Unlock()
				_ = g // kept
			}()
			synctest.Wait()
		}
		wait("alice")
		wait("bob")
		held.Release()
		synctest.Wait()
		other.Release()
		synctest.Wait()
		if fmt.Sprint(order) != "[bob alice]" {
			t.Errorf("order %v, want bob first, because he holds nothing", order)
		}
	})
}

func TestLargeRequestIsNotOvertaken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(4, 4)
		a, b := acquire(t, p, "x", 2), acquire(t, p, "x", 2)
		large, small := make(chan *fairshare.Grant, 1), make(chan *fairshare.Grant, 1)
		go func() { g, _ := p.Acquire(t.Context(), "alice", 4); large <- g }()
		synctest.Wait()
		go func() { g, _ := p.Acquire(t.Context(), "bob", 1); small <- g }()
		synctest.Wait()
		a.Release()
		synctest.Wait()
		if _, err := p.TryAcquire("carol", 1); !errors.Is(err, sandpit.Exhausted) {
			t.Errorf("a request that does not wait overtakes the large one: %v", err)
		}
		if len(small) > 0 {
			t.Error("the small request overtook the large one")
		}
		b.Release()
		synctest.Wait()
		if len(large) != 1 || len(small) != 0 {
			t.Fatalf("%d large and %d small ones were granted, want the large one", len(large), len(small))
		}
		(<-large).Release()
		synctest.Wait()
		if len(small) != 1 {
			t.Error("the small request was not granted")
		}
	})
}

func TestStatusTellsHowAPoolIsUsed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(2, 1)
		held := acquire(t, p, "alice", 1)
		if _, err := p.TryAcquire("alice", 1); err == nil {
			t.Error("alice has more than her share")
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		for range 2 {
			go func() {
				_, err := p.Acquire(ctx, "alice", 1)
				done <- err
			}()
		}
		synctest.Wait()
		if got, want := p.Status(), (fairshare.Status{Name: "slots", Total: 2, Used: 1, Waiting: 2, Refused: 1}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
		held.Release()
		if err := <-done; err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; err == nil {
			t.Error("two of alice's requests were granted")
		}
		if got, want := p.Status(), (fairshare.Status{Name: "slots", Total: 2, Used: 1, Refused: 1}); got != want {
			t.Errorf("status %+v, want %+v", got, want)
		}
	})
}

func TestAbandonedRequestLeavesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPool(1, 1)
		held := acquire(t, p, "alice", 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		cause := errors.New("gone away")
		ended := make(chan error, 1)
		go func() { _, err := p.Acquire(ctx, "bob", 1); ended <- err }()
		synctest.Wait()
		cancel(cause)
		if err := <-ended; !errors.Is(err, cause) {
			t.Errorf("got %v, want the cause", err)
		}
		held.Release()
		acquire(t, p, "carol", 1)
	})
}

func TestTooManyRequestsWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := fairshare.NewPool(fairshare.Options{Name: "slots", Total: 1, PerOwner: 1, MaxWaiting: 1, Hint: "delete something"})
		held := acquire(t, p, "alice", 1)
		go func() {
			if g, err := p.Acquire(t.Context(), "alice", 1); err == nil {
				g.Release()
			}
		}()
		synctest.Wait()
		_, err := p.Acquire(t.Context(), "alice", 1)
		if !errors.Is(err, sandpit.Exhausted) || sandpit.HintOf(err) != "delete something" {
			t.Errorf("got %v (hint %q), want Exhausted at once", err, sandpit.HintOf(err))
		}
		if _, err := p.Acquire(t.Context(), "bob", 2); !errors.Is(err, sandpit.Exhausted) {
			t.Errorf("more units than there are: %v, want Exhausted", err)
		}
		held.Release()
	})
}

func TestGrantGrowsAndShrinks(t *testing.T) {
	t.Parallel()
	p := newPool(10, 6)
	g := acquire(t, p, "alice", 1)
	if err := g.Grow(5); err != nil {
		t.Fatal(err)
	}
	if err := g.Grow(1); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("grow beyond the share: %v, want Exhausted", err)
	}
	g.Shrink(4)
	if own, all := p.Used("alice"); own != 2 || all != 2 || g.Units() != 2 {
		t.Errorf("alice holds %d of %d, the grant %d; want 2", own, all, g.Units())
	}
	g.Release()
	g.Shrink(1)
	if err := g.Grow(1); !errors.Is(err, sandpit.Canceled) {
		t.Errorf("grow a released grant: %v, want Canceled", err)
	}
	if own, all := p.Used("alice"); own != 0 || all != 0 {
		t.Errorf("alice holds %d of %d; want nothing", own, all)
	}
}

func TestEmptyGrantIsReleased(t *testing.T) {
	t.Parallel()
	p := newPool(10, 6)
	g := acquire(t, p, "alice", 3)
	g.Shrink(3)
	g.Release()
	if own, all := p.Used("alice"); own != 0 || all != 0 {
		t.Errorf("alice holds %d of %d; want nothing", own, all)
	}
}

// TestNothingIsLost has many owners take, abandon and give back units at random.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	p := fairshare.NewPool(fairshare.Options{Name: "slots", Total: 7, PerOwner: 3, MaxWaiting: 100})
	var workers sync.WaitGroup
	var used atomic.Int64
	for i := range 16 {
		owner := fmt.Sprint("owner", i%5)
		workers.Go(func() {
			for range 300 {
				ctx, cancel := context.WithCancel(t.Context())
				if rand.IntN(3) == 0 {
					cancel()
				}
				g, err := p.Acquire(ctx, owner, 1+rand.Int64N(3))
				cancel()
				if err != nil {
					continue
				}
				if n := used.Add(g.Units()); n > 7 {
					t.Errorf("%d units are held, and there are 7", n)
				}
				used.Add(-g.Units())
				g.Release()
			}
		})
	}
	workers.Wait()
	if own, all := p.Used("owner1"); own != 0 || all != 0 {
		t.Errorf("%d of %d units are held at the end", own, all)
	}
	acquire(t, p, "last", 3)
}
