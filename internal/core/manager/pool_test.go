package manager_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// kind is what the pools of these tests hold.
var kind = sandpit.Spec{Resources: sandpit.Resources{PIDs: 7}}

func withPool(size, most int) manager.Options {
	return manager.Options{Pools: []manager.Pool{{Spec: kind, Size: size, Max: most}}}
}

// filled waits until so many are ready and none is being made.
func (r *rig) filled(tb testing.TB, n int) {
	tb.Helper()
	eventually(tb, "the pool is filled", func() bool {
		p := r.Pools().List()[0]
		return p.Ready == n && p.Making == 0
	})
}

func inside(tb testing.TB, r *rig, id sandpit.ID, command string) string {
	tb.Helper()
	h, err := r.Use(tb.Context(), id)
	if err != nil {
		tb.Fatal(err)
	}
	defer h.Release()
	var out strings.Builder
	process, err := h.Guest().Start(tb.Context(), sandpit.Command{Args: []string{"sh", "-c", command}, Dir: "~", Stdout: &out})
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := process.Wait(tb.Context()); err != nil {
		tb.Fatal(err)
	}
	return strings.TrimSpace(out.String())
}

// TestPoolIsClaimedFrom asks for a sandbox of the pool's kind.
func TestPoolIsClaimedFrom(t *testing.T) {
	t.Parallel()
	o := withPool(2, 0)
	o.Environ = func(s sandpit.Sandbox) map[string]string {
		return map[string]string{"ID": string(s.ID), "OWNER": s.Lease.Owner}
	}
	r := newRig(t, o)
	r.filled(t, 2)
	if list, stats := r.List(manager.Filter{}), r.Stats(); len(list) != 0 || stats.TotalSandboxes != 0 {
		t.Errorf("what waits is shown: %+v, %+v", list, stats)
	}
	spec := kind.Clone()
	spec.Env = map[string]string{"WHOSE": "mine", "OWNER": "another"}
	spec.Labels = map[string]string{"a": "b"}
	deadline := time.Now().Add(time.Hour)
	s := r.create(t, manager.CreateRequest{
		Owner: "me", Spec: spec, Key: "k", Lease: sandpit.Lease{Deadline: deadline},
		Setup: func(ctx context.Context, i sandpit.Instance, _ sandpit.Spec) error {
			return i.Guest().WriteFile(ctx, "", "setup", strings.NewReader("done"), sandpit.WriteOptions{})
		},
	})
	if got := inside(t, r, s.ID, "echo $WHOSE; cat ~/setup; echo; echo $ID $OWNER"); got != "mine\ndone\n"+string(s.ID)+" me" {
		t.Errorf("inside: %q", got)
	}
	if n := r.world.Calls(fake.OpClaim, s.ID); n != 1 {
		t.Errorf("it was claimed %d times", n)
	}
	if s.Lease.Owner != "me" || s.Spec.Labels["a"] != "b" || s.Lease.Deadline.Unix() != deadline.Unix() || s.State != sandpit.StateRunning {
		t.Errorf("sandbox: %+v", s)
	}
	again := r.create(t, manager.CreateRequest{Owner: "me", Spec: spec, Key: "k", Lease: sandpit.Lease{Deadline: deadline}})
	if again.ID != s.ID {
		t.Errorf("the same request made %s, not %s", again.ID, s.ID)
	}
	r.filled(t, 2)
	if list := r.List(manager.Filter{Owner: "me"}); len(list) != 1 {
		t.Errorf("list: %+v", list)
	}
	// It is nothing special any more, for the next manager too.
	r.crash(t)
	r.open(t)
	if got := inside(t, r, s.ID, "echo $WHOSE"); got != "mine" {
		t.Errorf("after a crash: %q", got)
	}
	r.filled(t, 2)
}

// TestPoolKinds asks for what a pool does not have.
func TestPoolKinds(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(1, 0))
	r.filled(t, 1)
	for _, spec := range []sandpit.Spec{{}, {Resources: sandpit.Resources{PIDs: 8}}, {Resources: kind.Resources, Hostname: "other"}} {
		if s := r.create(t, manager.CreateRequest{Spec: spec}); r.world.Calls(fake.OpClaim, s.ID) != 0 {
			t.Errorf("%+v was claimed from a pool of another kind", spec)
		}
	}
}

// TestPoolOneForEach claims from many sides at once: no caller gets what another caller
// has.
func TestPoolOneForEach(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(5, 0))
	r.filled(t, 5)
	var mu sync.Mutex
	owners := make(map[sandpit.ID]string)
	var group sync.WaitGroup
	for owner := range strings.SplitSeq("abcdefghijklmnop", "") {
		group.Go(func() {
			s, err := r.Create(t.Context(), manager.CreateRequest{Owner: owner, Spec: kind, Key: "same"})
			mu.Lock()
			defer mu.Unlock()
			if err != nil || owners[s.ID] != "" || s.Lease.Owner != owner {
				t.Errorf("%s got %+v, %v; it is %q's", owner, s, err, owners[s.ID])
			}
			owners[s.ID] = owner
		})
		group.Go(func() { // the same request, at the same time
			if _, err := r.Create(t.Context(), manager.CreateRequest{Owner: owner, Spec: kind, Key: "same"}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := len(r.List(manager.Filter{})); got != 16 {
		t.Errorf("there are %d sandboxes, want 16", got)
	}
}

// TestPoolFaults has each step of a claim fail: the caller gets a sandbox that was
// made for it, and what was spoilt is gone.
func TestPoolFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]fake.Fault{
		"claim":             {Op: fake.OpClaim, Err: errOrdered},
		"answer of a claim": {Op: fake.OpClaim, Err: errOrdered, After: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, withPool(1, 0))
			r.filled(t, 1)
			r.world.Inject(fault)
			s := r.create(t, manager.CreateRequest{Owner: "me", Spec: kind, Key: "k"})
			if n := r.world.Calls(fake.OpClaim, s.ID); n != 0 {
				t.Errorf("the caller got the one whose claim failed")
			}
			r.filled(t, 1)
			eventually(t, "two are there", func() bool { return r.Rooms() == 2 })
		})
	}
}

// TestPoolRespectsQuota claims more than the owner may have.
func TestPoolRespectsQuota(t *testing.T) {
	t.Parallel()
	o := withPool(2, 0)
	o.Quotas.Owner = 1
	o.Quotas.Owners = map[string]int{"": 10} // those that wait have no owner
	r := newRig(t, o)
	r.filled(t, 2)
	r.create(t, manager.CreateRequest{Owner: "me", Spec: kind})
	r.filled(t, 2)
	_, err := r.Create(t.Context(), manager.CreateRequest{Owner: "me", Spec: kind, Key: "k"})
	wantCode(t, err, sandpit.Exhausted)
	r.filled(t, 2)
	r.create(t, manager.CreateRequest{Owner: "other", Spec: kind, Key: "k"})
}

// TestPoolGivesWay asks for more than there is room for beside the pool.
func TestPoolGivesWay(t *testing.T) {
	t.Parallel()
	o := withPool(2, 0)
	o.MaxSandboxes = 3
	r := newRig(t, o)
	r.filled(t, 2)
	for range 3 {
		r.create(t, manager.CreateRequest{})
	}
	_, err := r.Create(t.Context(), manager.CreateRequest{})
	wantCode(t, err, sandpit.Exhausted)
	wantText(t, err, "Maximum number of sandboxes (3) reached")
	if p := r.Pools().List()[0]; p.Ready != 0 {
		t.Errorf("the pool: %+v", p)
	}
}

// TestPoolLearns asks for more at a time than wait.
func TestPoolLearns(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(1, 4))
	r.filled(t, 1)
	for range 3 {
		r.create(t, manager.CreateRequest{Spec: kind})
	}
	eventually(t, "more wait", func() bool { return r.Pools().List()[0].Ready >= 3 })
	for range 5 {
		r.create(t, manager.CreateRequest{Spec: kind})
	}
	r.filled(t, 4)
}

// TestPoolWarms has sandboxes be ready only after what is to be done inside.
func TestPoolWarms(t *testing.T) {
	t.Parallel()
	fails := true
	o := withPool(1, 0)
	o.Pools[0].Warm = func(ctx context.Context, i sandpit.Instance, _ sandpit.Spec) error {
		if fails { // it is called one after the other
			fails = false
			return errOrdered
		}
		return i.Guest().WriteFile(ctx, "", "warm", strings.NewReader("yes"), sandpit.WriteOptions{})
	}
	r := newRig(t, o)
	r.filled(t, 1)
	s := r.create(t, manager.CreateRequest{Spec: kind})
	if got := inside(t, r, s.ID, "cat ~/warm"); got != "yes" {
		t.Errorf("inside: %q", got)
	}
	if !strings.Contains(r.log.String(), "manager: pool not filled") {
		t.Error("the first failure was not reported")
	}
}

// TestWarmUp tells a sandbox that has no program to warm up with from one that is
// broken.
func TestWarmUp(t *testing.T) {
	t.Parallel()
	o := withPool(1, 0)
	o.Pools[0].Warm = func(ctx context.Context, i sandpit.Instance, spec sandpit.Spec) error {
		if err := manager.WarmUp(ctx, i, spec); err != nil {
			return err
		}
		for code, want := range map[sandpit.Code]bool{
			sandpit.NotFound: true, sandpit.PermissionDenied: true, sandpit.Unauthenticated: true, sandpit.Invalid: true,
			sandpit.Gone: false, sandpit.Unavailable: false, sandpit.Exhausted: false,
		} {
			err := manager.WarmUp(ctx, refusing{i, code}, spec)
			if (err == nil) != want || err != nil && sandpit.CodeOf(err) != code {
				t.Errorf("where a program cannot start (%s): %v", code, err)
			}
		}
		return nil
	}
	newRig(t, o).filled(t, 1)
}

// refusing is a sandbox in which no program starts, for the same reason each time.
type refusing struct {
	sandpit.Instance
	code sandpit.Code
}

func (r refusing) Guest() sandpit.Guest { return refusingGuest{r.Instance.Guest(), r.code} }

type refusingGuest struct {
	sandpit.Guest
	code sandpit.Code
}

func (g refusingGuest) Start(context.Context, sandpit.Command) (sandpit.Process, error) {
	return nil, sandpit.Errorf(g.code, "refused")
}

// TestPoolEnds closes and crashes a manager with a pool.
func TestPoolEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(3, 0))
	r.filled(t, 3)
	before, err := r.store.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	if err != nil || len(before) != 3 {
		t.Fatalf("rows: %+v, %v", before, err)
	}
	r.crash(t)
	r.open(t)
	r.filled(t, 3)
	eventually(t, "the old ones are gone", func() bool {
		for _, row := range before {
			if _, there := r.world.Look(row.ID); there {
				return false
			}
		}
		return r.Rooms() == 3
	})
	r.o.Pools = nil
	r.close(t)
	if left := r.world.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
	r.open(t)
	if n := r.Rooms(); n != 0 {
		t.Errorf("%d take up room", n)
	}
}

// TestPoolLosesOne ends a sandbox that waits.
func TestPoolLosesOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, withPool(1, 0))
	r.filled(t, 1)
	rows, err := r.store.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	if err != nil || len(rows) != 1 {
		t.Fatalf("rows: %+v, %v", rows, err)
	}
	if err := r.world.Vanish(rows[0].ID); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its end is seen", func() bool {
		row, err := r.store.Sandboxes().Sandbox(t.Context(), rows[0].ID) // no client can see it
		return err == nil && row.State == sandpit.StateDeleted
	})
	s := r.create(t, manager.CreateRequest{Spec: kind})
	if s.ID == rows[0].ID {
		t.Error("a caller got a sandbox that is gone")
	}
}

// TestPoolsThatCannotBe opens managers with pools that make no sense.
func TestPoolsThatCannotBe(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	for name, pools := range map[string][]manager.Pool{
		"mounts":    {{Spec: sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/", Target: "/mnt"}}}, Size: 1}},
		"size":      {{Size: -1}},
		"provider":  {{Provider: "none"}},
		"the same":  {{Size: 1}, {Size: 2}},
		"the image": {{Size: 1}, {Spec: sandpit.Spec{Image: sandpit.HostImage}, Size: 2}},
	} {
		_, err := manager.Open(t.Context(), testoptions.Manager(manager.Options{
			Store: r.store, Providers: map[string]sandpit.Provider{"fake": r.cable}, Pools: pools,
		}))
		if sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v, want %s", name, err, sandpit.Invalid)
		}
	}
}

// TestPoolIsShared has one owner ask for sandboxes of a pool's kind again and again.
func TestPoolIsShared(t *testing.T) {
	t.Parallel()
	o := withPool(4, 0)
	o.KeyOwners = func(context.Context) (map[string]bool, error) {
		return map[string]bool{"ann": false, "bob": false}, nil
	}
	r := newRig(t, o)
	r.filled(t, 4)
	spares := make(map[sandpit.ID]bool)
	for _, p := range r.placed(t) {
		spares[p.ID] = true
	}
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Delay: 100 * time.Millisecond, Times: -1}) // filling up takes longer than claiming
	claimed := 0
	for range 4 {
		if s := r.create(t, manager.CreateRequest{Owner: "ann", Spec: kind}); spares[s.ID] {
			claimed++
		}
	}
	if claimed == 4 || claimed < 2 {
		t.Errorf("ann has claimed %d of 4, want some that were left", claimed)
	}
	if s := r.create(t, manager.CreateRequest{Owner: "bob", Spec: kind}); !spares[s.ID] {
		t.Error("bob's sandbox was not claimed from the pool")
	}
}
