package manager_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// pair is a manager with two providers, "near" and then "far".
type pair struct {
	*rig

	near, far *fake.World
}

func newPair(t *testing.T, o manager.Options) pair {
	t.Helper()
	p := pair{near: newWorld(t), far: newWorld(t)}
	o.Provider, o.Fallbacks = "near", []string{"far"}
	o.Providers = map[string]sandpit.Provider{"near": p.near.NewProvider(), "far": p.far.NewProvider()}
	p.rig = newRig(t, o)
	return p
}

func newWorld(t *testing.T) *fake.World {
	t.Helper()
	w := fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	return w
}

// TestFailover has a provider fail in every way, and checks where the sandbox is.
func TestFailover(t *testing.T) {
	t.Parallel()
	failing := func(code sandpit.Code) fake.Fault {
		return fake.Fault{Op: fake.OpCreate, Err: sandpit.Errorf(code, "as ordered"), Times: -1}
	}
	for name, tc := range map[string]struct {
		fault fake.Fault
		asks  string // of the request
		want  string // the provider; "" for an error
		code  sandpit.Code
		why   string
	}{
		"works":         {want: "near"},
		"full":          {fault: failing(sandpit.Exhausted), want: "far", why: "created by provider far; near: create sandbox: as ordered"},
		"unreachable":   {fault: failing(sandpit.Unavailable), want: "far", why: "as ordered"},
		"answers 500":   {fault: failing(sandpit.Internal), want: "far", why: "as ordered"},
		"key refused":   {fault: failing(sandpit.Unauthenticated), want: "far", why: "as ordered"},
		"cannot do it":  {fault: failing(sandpit.Unsupported), want: "far", why: "as ordered"},
		"no image":      {fault: failing(sandpit.NotFound), want: "far", why: "as ordered"},
		"no image, one": {fault: failing(sandpit.NotFound), asks: "near", code: sandpit.NotFound},
		"hangs":         {fault: fake.Fault{Op: fake.OpCreate, Delay: time.Hour}, want: "far", why: "near: timed out after 0.3 seconds"},
		"creates and hangs": {
			fault: fake.Fault{Op: fake.OpCreate, Delay: time.Hour, After: true}, want: "far", why: "near: timed out after 0.3 seconds",
		},
		"creates and fails": {
			fault: fake.Fault{Op: fake.OpCreate, After: true, Err: sandpit.Errorf(sandpit.Unavailable, "answer lost")}, want: "far", why: "answer lost",
		},
		"invalid":           {fault: failing(sandpit.Invalid), code: sandpit.Invalid},
		"forbidden":         {fault: failing(sandpit.PermissionDenied), code: sandpit.PermissionDenied},
		"only near":         {fault: failing(sandpit.Exhausted), asks: "near", code: sandpit.Exhausted},
		"far first":         {asks: "far, near", want: "far"},
		"twice the same":    {fault: failing(sandpit.Exhausted), asks: "near,near", code: sandpit.Exhausted},
		"unknown in a list": {asks: "near,mars", code: sandpit.Unsupported},
		"empty in a list":   {asks: "near,,far", code: sandpit.Invalid},
		"unknown":           {asks: "mars", code: sandpit.Unsupported},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPair(t, manager.Options{
				ProviderLimits: map[string]manager.ProviderLimits{"near": {CreateTimeout: 300 * time.Millisecond}},
				Retry:          10 * time.Millisecond,
			})
			if tc.fault.Op != "" {
				p.near.Inject(tc.fault)
			}
			s, err := p.Create(t.Context(), manager.CreateRequest{Provider: tc.asks, Spec: sandpit.Spec{Name: "work"}})
			wantCode(t, err, tc.code)
			if s.Provider != tc.want || !strings.Contains(s.Reason, tc.why) || (tc.why == "") != (s.Reason == "") {
				t.Errorf("created by %q because %q, want %q because %q", s.Provider, s.Reason, tc.want, tc.why)
			}
			want := 1
			if tc.want == "" {
				want = 0
			}
			eventually(t, "one is left", func() bool { return len(p.List(manager.Filter{})) == want })
			eventually(t, "nothing else is left", func() bool {
				p.Reconcile(t.Context())
				n := 0
				for _, w := range []*fake.World{p.near, p.far} {
					list, err := w.NewProvider().List(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					n += len(list)
				}
				return n == want
			})
		})
	}
}

// TestFailoverSurvivesUndo creates a sandbox with the next provider while the first one neither
// creates nor deletes: what it has is deleted when it returns, also by the next server.
func TestFailoverSurvivesUndo(t *testing.T) {
	t.Parallel()
	p := newPair(t, manager.Options{
		ProviderLimits: map[string]manager.ProviderLimits{"near": {CreateTimeout: 300 * time.Millisecond, CallTimeout: 300 * time.Millisecond}},
		Retry:          10 * time.Millisecond,
	})
	p.near.Inject(fake.Fault{Op: fake.OpCreate, Delay: time.Hour, After: true})
	back := []func(){
		p.near.Inject(fake.Fault{Op: fake.OpList, Err: errOrdered, Times: -1}),
		p.near.Inject(fake.Fault{Op: fake.OpDestroy, Err: errOrdered, Times: -1}),
	}
	s := p.create(t, manager.CreateRequest{Spec: sandpit.Spec{Name: "work"}, Key: "k"})
	if s.Provider != "far" || s.Spec.Name != "work" {
		t.Errorf("created by %q with the name %q", s.Provider, s.Spec.Name)
	}
	again := p.create(t, manager.CreateRequest{Spec: sandpit.Spec{Name: "work"}, Key: "k"})
	if again.ID != s.ID {
		t.Error("the same request has two sandboxes")
	}
	list, err := p.store.Queue().List(t.Context(), queueAll)
	if err != nil || len(list) == 0 {
		t.Errorf("no deletion is scheduled: %v, %v", list, err)
	}
	p.close(t)
	for _, remove := range back {
		remove()
	}
	p.o.Providers = map[string]sandpit.Provider{"near": p.near.NewProvider(), "far": p.far.NewProvider()}
	p.open(t)
	eventually(t, "it is deleted", func() bool { return len(p.near.Leftovers()) == 0 })
	p.wantState(t, s.ID, sandpit.StateRunning)
}

// TestFailoverLosesNothing sends many requests, some of them twice at the same time, to a provider
// that fails in changing ways: each has exactly one sandbox.
func TestFailoverLosesNothing(t *testing.T) {
	t.Parallel()
	p := newPair(t, manager.Options{
		ProviderLimits: map[string]manager.ProviderLimits{"near": {MaxSandboxes: 8, CreateTimeout: 2 * time.Second}},
		Retry:          10 * time.Millisecond, MaxSandboxes: 100, Parallel: 8,
	})
	for range 3 {
		p.near.Inject(fake.Fault{Op: fake.OpCreate, Err: sandpit.Errorf(sandpit.Unavailable, "down")})
		p.near.Inject(fake.Fault{Op: fake.OpCreate, Err: sandpit.Errorf(sandpit.Exhausted, "full")})
		p.near.Inject(fake.Fault{Op: fake.OpCreate, Err: sandpit.Errorf(sandpit.Internal, "500"), After: true})
		p.near.Inject(fake.Fault{Op: fake.OpCreate, Delay: time.Hour, After: true})
	}
	const requests = 24
	var group sync.WaitGroup
	ids := make([]map[sandpit.ID]bool, requests)
	var mu sync.Mutex
	for n := range requests {
		ids[n] = make(map[sandpit.ID]bool)
		for range 2 {
			group.Go(func() {
				s, err := p.Create(t.Context(), manager.CreateRequest{Owner: "ann", Key: fmt.Sprint("key ", n)})
				if err != nil {
					t.Errorf("request %d: %v", n, err)
					return
				}
				mu.Lock()
				defer mu.Unlock()
				ids[n][s.ID] = true
			})
		}
	}
	group.Wait()
	for n := range ids {
		if len(ids[n]) != 1 {
			t.Errorf("request %d has %d sandboxes", n, len(ids[n]))
		}
	}
	eventually(t, "each has one sandbox", func() bool {
		p.Reconcile(t.Context())
		total := 0
		for _, w := range []*fake.World{p.near, p.far} {
			list, err := w.NewProvider().List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			total += len(list)
		}
		return total == requests
	})
}

// TestProviderLimit fills one provider: requests go to the next one, which has no limit.
func TestProviderLimit(t *testing.T) {
	t.Parallel()
	p := newPair(t, manager.Options{ProviderLimits: map[string]manager.ProviderLimits{"near": {MaxSandboxes: 1}}})
	first := p.create(t, manager.CreateRequest{})
	second := p.create(t, manager.CreateRequest{})
	if first.Provider != "near" || second.Provider != "far" {
		t.Errorf("created by %q and %q", first.Provider, second.Provider)
	}
	if want := "created by provider far; near: Maximum number of sandboxes (1) of provider near reached"; second.Reason != want {
		t.Errorf("reason %q, want %q", second.Reason, want)
	}
	_, err := p.Create(t.Context(), manager.CreateRequest{Provider: "near"})
	wantCode(t, err, sandpit.Exhausted)
	if err := p.Stop(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	third := p.create(t, manager.CreateRequest{})
	if third.Provider != "near" {
		t.Errorf("after a stop: created by %q", third.Provider)
	}
	wantCode(t, p.Start(t.Context(), first.ID), sandpit.Exhausted)
}

// TestOwnerLimitsAreNotPassedOn refuses what no provider could help with.
func TestOwnerLimitsAreNotPassedOn(t *testing.T) {
	t.Parallel()
	p := newPair(t, manager.Options{Quotas: manager.Quotas{Owner: 1}})
	p.create(t, manager.CreateRequest{Owner: "ann"})
	_, err := p.Create(t.Context(), manager.CreateRequest{Owner: "ann"})
	wantText(t, err, `quota exceeded: owner "ann" has 1 of 1 sandboxes`)
	broken := func(context.Context, sandpit.Instance, sandpit.Spec) error {
		return sandpit.Errorf(sandpit.Unavailable, "no such host")
	}
	_, err = p.Create(t.Context(), manager.CreateRequest{Owner: "bob", Setup: broken})
	wantText(t, err, "no such host")
	if n := p.far.Calls(fake.OpCreate, ""); n != 0 {
		t.Errorf("the next provider was asked %d times", n)
	}
}

// scripted is a stage whose creations fail as a test says.
type scripted struct {
	*stage

	calls atomic.Int32
	fails func(call int) error
}

func (s *scripted) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	if err := s.fails(int(s.calls.Add(1))); err != nil {
		return nil, err
	}
	return s.stage.Create(ctx, id, spec)
}

// onStages opens a manager with two providers of which one is scripted.
func onStages(t *testing.T, fails func(call int) error) (*rig, *scripted) {
	t.Helper()
	near := &scripted{stage: newStage(), fails: fails}
	r := newRig(t, manager.Options{
		Provider: "near", Fallbacks: []string{"far"}, Providers: map[string]sandpit.Provider{"near": near, "far": newStage()},
	})
	return r, near
}

// TestCircuit has a provider fail and come back.
func TestCircuit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		down.Store(true)
		r, near := onStages(t, func(int) error {
			if down.Load() {
				return sandpit.Errorf(sandpit.Unavailable, "connection refused")
			}
			return nil
		})
		status := func() manager.ProviderStatus {
			for _, s := range r.ProviderStatuses() {
				if s.Name == "near" {
					return s
				}
			}
			return manager.ProviderStatus{}
		}
		for n := range 10 {
			if s := r.create(t, manager.CreateRequest{}); s.Provider != "far" {
				t.Errorf("request %d: created by %q", n, s.Provider)
			}
		}
		if n := near.calls.Load(); n != 3 {
			t.Errorf("it was asked %d times, want 3", n)
		}
		if s := status(); s.Circuit != manager.CircuitOpen || s.OpenFor <= 0 || s.Reason == "" {
			t.Errorf("status %+v", s)
		}
		_, err := r.Create(t.Context(), manager.CreateRequest{Provider: "near"}) // it has no other
		wantText(t, err, "connection refused")
		time.Sleep(30 * time.Second)
		if s := status(); s.Circuit != manager.CircuitHalfOpen {
			t.Errorf("after a while: %+v", s)
		}
		if s := r.create(t, manager.CreateRequest{}); s.Provider != "far" {
			t.Errorf("half-open and down: created by %q", s.Provider)
		}
		down.Store(false)
		time.Sleep(time.Minute)
		for range 2 {
			if s := r.create(t, manager.CreateRequest{}); s.Provider != "near" || s.Reason != "" {
				t.Errorf("it is back: created by %q because %q", s.Provider, s.Reason)
			}
		}
		if s := status(); s.Circuit != manager.CircuitClosed || s.Reason != "" {
			t.Errorf("it is back: %+v", s)
		}
	})
}

// TestCircuitOfAll asks a provider whose circuit is open when no other one can help.
func TestCircuitOfAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		near := &scripted{stage: newStage(), fails: func(call int) error {
			if call <= 3 {
				return sandpit.Errorf(sandpit.Internal, "500")
			}
			return nil
		}}
		far := &scripted{stage: newStage(), fails: func(call int) error {
			if call > 3 {
				return sandpit.Errorf(sandpit.Exhausted, "full")
			}
			return nil
		}}
		r := newRig(t, manager.Options{
			Provider: "near", Fallbacks: []string{"far"}, Providers: map[string]sandpit.Provider{"near": near, "far": far},
		})
		for range 3 {
			r.create(t, manager.CreateRequest{})
		}
		if s := r.create(t, manager.CreateRequest{}); s.Provider != "near" {
			t.Errorf("created by %q", s.Provider)
		}
	})
}

// TestRetryAfter honours when providers want requests again.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	full := func(after time.Duration) error {
		return sandpit.WithRetry(sandpit.Errorf(sandpit.Exhausted, "too many requests"), after)
	}
	for name, tc := range map[string]struct {
		after     time.Duration
		asks      string
		want      string // "": an error
		calls     int32  // of near, with a second request
		waits     time.Duration
		retryable bool
	}{
		"passed on":        {time.Minute, "near,far", "far", 1, 0, false},
		"soon":             {2 * time.Second, "near", "near", 3, 2 * time.Second, false},
		"not soon":         {time.Minute, "near", "", 1, 0, true},
		"soon, with other": {2 * time.Second, "near,far", "far", 1, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, near := onStages(t, func(call int) error {
					if call == 1 {
						return full(tc.after)
					}
					return nil
				})
				begin := time.Now()
				s, err := r.Create(t.Context(), manager.CreateRequest{Provider: tc.asks})
				if s.Provider != tc.want || (err == nil) != (tc.want != "") || time.Since(begin) != tc.waits {
					t.Errorf("created by %q, %v, after %v", s.Provider, err, time.Since(begin))
				}
				if sandpit.Retryable(err) != tc.retryable || tc.retryable && sandpit.RetryAfterOf(err) != tc.after {
					t.Errorf("retryable %t after %v", sandpit.Retryable(err), sandpit.RetryAfterOf(err))
				}
				_, err = r.Create(t.Context(), manager.CreateRequest{Provider: tc.asks})
				if tc.retryable == (err == nil) {
					t.Errorf("the second request: %v", err)
				}
				if n := near.calls.Load(); n != tc.calls {
					t.Errorf("it was asked %d times, want %d", n, tc.calls)
				}
			})
		})
	}
}

// TestRetryBudget bounds how often requests are repeated.
func TestRetryBudget(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, near := onStages(t, func(int) error {
			return sandpit.WithRetry(sandpit.Errorf(sandpit.Unavailable, "busy"), time.Millisecond)
		})
		for range 100 {
			_, err := r.Create(t.Context(), manager.CreateRequest{Provider: "near"})
			wantCode(t, err, sandpit.Unavailable)
			time.Sleep(time.Millisecond)
		}
		if n := near.calls.Load(); n < 110 || n > 111 {
			t.Errorf("100 requests were sent %d times, want 110", n)
		}
	})
}

// TestFailoverCanceled passes nothing on for a client that has left.
func TestFailoverCanceled(t *testing.T) {
	t.Parallel()
	p := newPair(t, manager.Options{})
	p.near.Inject(fake.Fault{Op: fake.OpCreate, Delay: time.Hour})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := p.Create(ctx, manager.CreateRequest{})
	if !errors.Is(err, context.DeadlineExceeded) && sandpit.CodeOf(err) != sandpit.Timeout {
		t.Errorf("got %v", err)
	}
	if n := p.far.Calls(fake.OpCreate, ""); n != 0 {
		t.Errorf("the next provider was asked %d times", n)
	}
}

// BenchmarkFailover measures what failover adds to a creation: nothing in the way, a provider that is
// full, and one whose circuit is open.
func BenchmarkFailover(b *testing.B) {
	for name, fails := range map[string]error{
		"first choice": nil,
		"full":         sandpit.Errorf(sandpit.Exhausted, "full"),
		"circuit open": sandpit.Errorf(sandpit.Unavailable, "down"),
	} {
		b.Run(name, func(b *testing.B) {
			near := &scripted{stage: newStage(), fails: func(int) error { return fails }}
			r := newRig(b, manager.Options{
				Provider: "near", Fallbacks: []string{"far"}, Providers: map[string]sandpit.Provider{"near": near, "far": newStage()}, MaxSandboxes: 1 << 20,
			})
			for range 3 {
				r.create(b, manager.CreateRequest{})
			}
			for b.Loop() {
				s := r.create(b, manager.CreateRequest{})
				b.StopTimer()
				if err := r.Delete(b.Context(), s.ID); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// TestFailedAttemptsDoNotCount gives an owner with room for one sandbox this one, although the first
// provider keeps what its failed attempt has created. The provider's own limit still counts it.
func TestFailedAttemptsDoNotCount(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]manager.Options{
		"owner":  {Quotas: manager.Quotas{Owner: 1}},
		"label":  {Quotas: manager.Quotas{Labels: map[string]int{"a=b": 1}}},
		"server": {MaxSandboxes: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o.ProviderLimits = map[string]manager.ProviderLimits{"near": {CreateTimeout: 300 * time.Millisecond, MaxSandboxes: 2}}
			o.Retry, o.MaxRetries = 10*time.Millisecond, 1000
			p := newPair(t, o)
			p.near.Inject(fake.Fault{Op: fake.OpCreate, Err: errOrdered, After: true, Times: -1})
			remove := p.near.Inject(fake.Fault{Op: fake.OpDestroy, Err: errOrdered, Times: -1})
			request := manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Labels: map[string]string{"a": "b"}}}
			s := p.create(t, request)
			if s.Provider != "far" {
				t.Errorf("created by %q", s.Provider)
			}
			_, err := p.Create(t.Context(), request)
			wantCode(t, err, sandpit.Exhausted)
			if err := p.Delete(t.Context(), s.ID); err != nil {
				t.Fatal(err)
			}
			p.create(t, request)
			for _, status := range p.ProviderStatuses() {
				if status.Name == "near" && status.Sandboxes != 2 {
					t.Errorf("provider near counts %d sandboxes, want the 2 that may exist", status.Sandboxes)
				}
			}
			remove()
			eventually(t, "what is left is deleted", func() bool { p.Reconcile(t.Context()); return len(p.near.Leftovers()) == 0 })
			eventually(t, "one sandbox is counted", func() bool { return p.Rooms() == 1 }) // a moment after its deletion
		})
	}
}

// TestDemandStays has a request succeed that began before the provider demanded that none is sent: the
// demand stays.
func TestDemandStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, near := onStages(t, func(call int) error {
			switch call {
			case 1:
				time.Sleep(5 * time.Second)
			case 2:
				return sandpit.WithRetry(sandpit.Errorf(sandpit.Exhausted, "too many requests"), 90*time.Second)
			}
			return nil
		})
		first := make(chan sandpit.Sandbox, 1)
		go func() { first <- r.create(t, manager.CreateRequest{}) }()
		time.Sleep(time.Second)
		if s := r.create(t, manager.CreateRequest{}); s.Provider != "far" {
			t.Errorf("the second one was created by %q", s.Provider)
		}
		if s := <-first; s.Provider != "near" {
			t.Errorf("the first one was created by %q", s.Provider)
		}
		time.Sleep(600 * time.Millisecond)
		if s := r.create(t, manager.CreateRequest{}); s.Provider != "far" || near.calls.Load() != 2 {
			t.Errorf("created by %q after %d calls of the first provider", s.Provider, near.calls.Load())
		}
		_, err := r.Create(t.Context(), manager.CreateRequest{Provider: "near"})
		after := sandpit.RetryAfterOf(err)
		time.Sleep(after)
		if s := r.create(t, manager.CreateRequest{}); s.Provider != "near" || after < 85*time.Second {
			t.Errorf("after %v, as the error said, it was created by %q: %v", after, s.Provider, err)
		}
	})
}

// TestOneTrial sends one request at a time to a provider whose circuit is half-open, also when an earlier
// request to it ends.
func TestOneTrial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, near := onStages(t, func(call int) error {
			switch call {
			case 1, 5: // an early one, and the trial
				time.Sleep(time.Minute)
				return nil
			}
			return sandpit.Errorf(sandpit.Unavailable, "down")
		})
		early, leave := context.WithTimeout(t.Context(), 50*time.Second)
		defer leave()
		left := make(chan error, 1)
		go func() {
			_, err := r.Create(early, manager.CreateRequest{})
			left <- err
		}()
		time.Sleep(time.Second)
		for range 3 {
			r.create(t, manager.CreateRequest{})
		}
		time.Sleep(30 * time.Second)
		trial := make(chan sandpit.Sandbox, 1)
		go func() { trial <- r.create(t, manager.CreateRequest{}) }()
		time.Sleep(time.Second)
		if err := <-left; err == nil {
			t.Error("the early request succeeded")
		}
		if s := r.create(t, manager.CreateRequest{}); s.Provider != "far" || near.calls.Load() != 5 {
			t.Errorf("during the trial: created by %q after %d calls", s.Provider, near.calls.Load())
		}
		if s := <-trial; s.Provider != "near" {
			t.Errorf("the trial: created by %q", s.Provider)
		}
	})
}

// TestRetryKeepsDeadline has a request wait for longer than its sandbox is to live: that time does not
// count.
func TestRetryKeepsDeadline(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, _ := onStages(t, func(call int) error {
			if call == 1 {
				return sandpit.WithRetry(sandpit.Errorf(sandpit.Unavailable, "busy"), 8*time.Second)
			}
			return nil
		})
		s, err := r.Create(t.Context(), manager.CreateRequest{Provider: "near", Lease: sandpit.Lease{Deadline: time.Now().Add(5 * time.Second)}})
		if left := time.Until(s.Lease.Deadline); err != nil || left < 4900*time.Millisecond || left > 5*time.Second {
			t.Errorf("it has %v left, %v", left, err)
		}
	})
}

// TestClientTimeoutOpensNoCircuit has clients allow a provider less time than it needs: that is no
// failure of the provider, for other clients.
func TestClientTimeoutOpensNoCircuit(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		timeout time.Duration
		want    manager.CircuitState
	}{{time.Second, manager.CircuitClosed}, {0, manager.CircuitOpen}} {
		t.Run(string(tc.want), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				near := newStage()
				near.set(time.Hour, nil)
				r := newRig(t, manager.Options{
					Provider: "near", Fallbacks: []string{"far"}, Providers: map[string]sandpit.Provider{"near": near, "far": newStage()},
				})
				for range 4 {
					if s := r.create(t, manager.CreateRequest{Timeout: tc.timeout}); s.Provider != "far" {
						t.Errorf("created by %q", s.Provider)
					}
				}
				for _, status := range r.ProviderStatuses() {
					if status.Name == "near" && status.Circuit != tc.want {
						t.Errorf("the circuit is %s, want %s: %s", status.Circuit, tc.want, status.Reason)
					}
				}
			})
		})
	}
}
