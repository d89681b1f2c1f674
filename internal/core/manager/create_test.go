package manager_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

var errOrdered = sandpit.Errorf(sandpit.Unavailable, "as ordered")

// wantNothing expects neither rows nor sandboxes.
func (r *rig) wantNothing(tb testing.TB) {
	tb.Helper()
	rows, err := r.store.Sandboxes().ListSandboxes(tb.Context(), store.Filter{})
	if err != nil || len(rows) > 0 {
		tb.Errorf("rows are left: %+v, %v", rows, err)
	}
	if left := r.world.Leftovers(); len(left) > 0 {
		tb.Errorf("left in the world: %q", left)
	}
	if got := r.Stats().TotalSandboxes; got != 0 {
		tb.Errorf("%d sandboxes are counted", got)
	}
}

// TestRollBack has the making fail at each step.
func TestRollBack(t *testing.T) {
	t.Parallel()
	setupFails := manager.CreateRequest{Setup: func(context.Context, sandpit.Instance, sandpit.Spec) error { return errOrdered }}
	for name, tc := range map[string]struct {
		req   manager.CreateRequest
		fault *fake.Fault
		code  sandpit.Code
		text  string
	}{
		"provider":      {fault: &fake.Fault{Op: fake.OpCreate, Err: errOrdered}, code: sandpit.Unavailable, text: "as ordered"},
		"lost answer":   {fault: &fake.Fault{Op: fake.OpCreate, Err: errOrdered, After: true}, code: sandpit.Unavailable},
		"no image":      {req: manager.CreateRequest{Spec: sandpit.Spec{Image: "none"}}, code: sandpit.NotFound},
		"set-up":        {req: setupFails, code: sandpit.Unavailable, text: "run setup: as ordered"},
		"too slow":      {req: manager.CreateRequest{Timeout: 50 * time.Millisecond}, fault: &fake.Fault{Op: fake.OpCreate, Delay: time.Hour}, code: sandpit.Timeout, text: "timed out after 0.05 seconds"},
		"slow set-up":   {req: manager.CreateRequest{Timeout: 50 * time.Millisecond, Setup: func(ctx context.Context, _ sandpit.Instance, _ sandpit.Spec) error { <-ctx.Done(); return ctx.Err() }}, code: sandpit.Timeout, text: "timed out"},
		"destroy fails": {req: setupFails, fault: &fake.Fault{Op: fake.OpDestroy, Err: errOrdered}, code: sandpit.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{Retry: 10 * time.Millisecond, KeepDeleted: time.Millisecond})
			if tc.fault != nil {
				r.world.Inject(*tc.fault)
			}
			tc.req.Lease.Deadline = time.Now().Add(time.Hour)
			_, err := r.Create(t.Context(), tc.req)
			wantCode(t, err, tc.code)
			wantText(t, err, tc.text)
			if name == "destroy fails" { // the queue does it
				eventually(t, "the rest is removed", func() bool {
					return r.Stats().TotalSandboxes == 0 && len(r.List(manager.Filter{States: []sandpit.State{sandpit.StateDeleted}})) == 0
				})
			}
			r.wantNothing(t)
			if stats, err := r.store.Queue().Stats(t.Context()); err != nil || stats.Pending+stats.Claimed > 0 {
				t.Errorf("messages are left: %+v, %v", stats, err)
			}
			if got := r.create(t, manager.CreateRequest{}); r.state(got.ID) != sandpit.StateRunning {
				t.Error("the next one does not run")
			}
		})
	}
}

// TestCreateIsCancelled gives up, and deletes, what is being made.
func TestCreateIsCancelled(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Delay: time.Hour, Times: -1})
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := r.Create(ctx, manager.CreateRequest{})
	wantCode(t, err, sandpit.Canceled)
	r.wantNothing(t)

	go func() {
		for len(r.List(manager.Filter{})) == 0 {
			time.Sleep(time.Millisecond)
		}
		_ = r.Delete(manager.WithActor(t.Context(), "bob"), r.List(manager.Filter{})[0].ID)
	}()
	_, err = r.Create(t.Context(), manager.CreateRequest{})
	wantCode(t, err, sandpit.Canceled)
	wantText(t, err, "deleted by bob during its creation")
	r.wantNothing(t)
}

func TestMaximum(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{MaxSandboxes: 5})
	var group sync.WaitGroup
	var mu sync.Mutex
	var made []sandpit.ID
	for range 25 {
		group.Go(func() {
			s, err := r.Create(t.Context(), manager.CreateRequest{})
			if err != nil {
				wantCode(t, err, sandpit.Exhausted)
				wantText(t, err, "Maximum number of sandboxes (5) reached")
				return
			}
			mu.Lock()
			defer mu.Unlock()
			made = append(made, s.ID)
		})
	}
	group.Wait()
	if len(made) != 5 || r.world.Calls(fake.OpCreate, "") != 5 {
		t.Fatalf("%d were made by %d calls, want 5", len(made), r.world.Calls(fake.OpCreate, ""))
	}
	ctx := t.Context()
	if err := r.Stop(ctx, made[0]); err != nil { // which makes room
		t.Fatal(err)
	}
	sixth := r.create(t, manager.CreateRequest{})
	wantCode(t, r.Start(ctx, made[0]), sandpit.Exhausted)
	_, err := r.Wake(ctx, made[0])
	wantCode(t, err, sandpit.Exhausted)
	r.wantState(t, made[0], sandpit.StateStopped)
	r.close(t)
	r.open(t) // rooms are counted anew
	_, err = r.Create(ctx, manager.CreateRequest{})
	wantCode(t, err, sandpit.Exhausted)
	if err := r.Delete(ctx, sixth.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(ctx, made[0]); err != nil {
		t.Error(err)
	}
}

func TestQuotas(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Quotas: manager.Quotas{
		Owners: map[string]int{"ann": 2, "nobody": 0}, Owner: 1, Labels: map[string]int{"team=red": 2},
	}})
	red := sandpit.Spec{Labels: map[string]string{"team": "red"}}
	try := func(owner string, spec sandpit.Spec, want sandpit.Code) sandpit.ID {
		t.Helper()
		s, err := r.Create(t.Context(), manager.CreateRequest{Owner: owner, Spec: spec})
		wantCode(t, err, want)
		return s.ID
	}
	try("nobody", sandpit.Spec{}, sandpit.Exhausted)
	first := try("ann", red, "")
	try("ann", sandpit.Spec{}, "")
	try("ann", sandpit.Spec{}, sandpit.Exhausted)
	bob := try("bob", sandpit.Spec{}, "")
	try("bob", sandpit.Spec{}, sandpit.Exhausted)
	try("cid", red, "")
	try("dan", red, sandpit.Exhausted)
	ctx := t.Context()
	wantCode(t, r.SetLabels(ctx, bob, red.Labels), sandpit.Exhausted)
	if err := r.SetLabels(ctx, first, map[string]string{"team": "blue"}); err != nil {
		t.Fatal(err)
	}
	if err := r.SetLabels(ctx, bob, red.Labels); err != nil {
		t.Error(err)
	}
	if got := r.List(manager.Filter{Labels: red.Labels, Owner: "bob"}); len(got) != 1 || got[0].ID != bob {
		t.Errorf("list: %+v", got)
	}
	try("dan", red, sandpit.Exhausted)
	if err := r.Delete(ctx, bob); err != nil {
		t.Fatal(err)
	}
	try("dan", red, "")
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	ctx := t.Context()
	req := manager.CreateRequest{Owner: "ann", Key: "k", Spec: sandpit.Spec{Name: "one"}}
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Delay: 50 * time.Millisecond, Err: errOrdered}) // the first fails
	var group sync.WaitGroup
	ids := make([]sandpit.ID, 10)
	failed := make([]error, len(ids))
	for k := range ids {
		group.Go(func() {
			mine := req
			mine.Lease.Deadline = time.Now().Add(time.Hour + time.Duration(k)*time.Second) // times are no difference
			s, err := r.Create(ctx, mine)
			ids[k], failed[k] = s.ID, err
		})
	}
	group.Wait()
	bad := 0
	var id sandpit.ID
	for k, err := range failed {
		switch {
		case err != nil:
			bad++
			wantCode(t, err, sandpit.Unavailable)
		case id == "":
			id = ids[k]
		case ids[k] != id:
			t.Errorf("got %s and %s for one key", ids[k], id)
		}
	}
	if bad != 1 || r.Stats().TotalSandboxes != 1 {
		t.Errorf("%d failed and %d were made, want 1 and 1", bad, r.Stats().TotalSandboxes)
	}
	r.close(t)
	r.open(t)
	if s := r.create(t, req); s.ID != id {
		t.Errorf("after a restart: %s, want %s", s.ID, id)
	}
	other := req
	other.Spec.Name = "two"
	_, err := r.Create(ctx, other)
	wantCode(t, err, sandpit.Conflict)
	other.Owner = "bob"
	if s := r.create(t, other); s.ID == id {
		t.Error("another owner got the same sandbox")
	}
	if err := r.Delete(ctx, id); err != nil {
		t.Fatal(err)
	}
	if s := r.create(t, req); s.ID == id {
		t.Error("the key is bound to a sandbox that is gone")
	}
}

// TestParallel creates many at the same time: not more at once than are allowed for an
// owner, or for all, and a caller that waits may give up.
func TestParallel(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{Parallel: 3})
	r.cable.hang(fake.OpCreate)
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() { r.create(t, manager.CreateRequest{Owner: "ann"}) })
	}
	eventually(t, "two of ann's are created", func() bool { return r.cable.holding() == 2 })
	for range 5 {
		group.Go(func() { r.create(t, manager.CreateRequest{Owner: "bob"}) })
	}
	eventually(t, "three are created", func() bool { return r.cable.holding() == 3 })
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err := r.Create(ctx, manager.CreateRequest{Owner: "cid"})
	wantCode(t, err, sandpit.Timeout)
	if n := r.cable.holding(); n != 3 {
		t.Errorf("%d are created at the same time, want 3", n)
	}
	r.cable.release()
	group.Wait()
	if got := r.Stats().TotalSandboxes; got != 10 {
		t.Errorf("%d sandboxes, want 10", got)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	soon := time.Now().Add(time.Hour)
	long := strings.Repeat("x", 2000)
	for name, tc := range map[string]struct {
		req  manager.CreateRequest
		code sandpit.Code
	}{
		"provider":    {manager.CreateRequest{Provider: "docker"}, sandpit.Unsupported},
		"own label":   {manager.CreateRequest{Spec: sandpit.Spec{Labels: map[string]string{manager.Label: "x"}}}, sandpit.Invalid},
		"long label":  {manager.CreateRequest{Spec: sandpit.Spec{Labels: map[string]string{"a": long}}}, sandpit.Invalid},
		"empty label": {manager.CreateRequest{Spec: sandpit.Spec{Labels: map[string]string{"": "x"}}}, sandpit.Invalid},
		"owner":       {manager.CreateRequest{Owner: long}, sandpit.Invalid},
		"key":         {manager.CreateRequest{Key: long}, sandpit.Invalid},
		"deadline":    {manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Now()}}, sandpit.Invalid},
		"far":         {manager.CreateRequest{Lease: sandpit.Lease{Deadline: time.Date(12000, 1, 1, 0, 0, 0, 0, time.UTC)}}, sandpit.Invalid},
		"action":      {manager.CreateRequest{Lease: sandpit.Lease{Deadline: soon, Action: "explode"}}, sandpit.Invalid},
		"idle action": {manager.CreateRequest{Policy: store.Policy{IdleAction: "explode"}}, sandpit.Invalid},
		"auto stop":   {manager.CreateRequest{Policy: store.Policy{AutoStop: -1}}, sandpit.Invalid},
		"recreate":    {manager.CreateRequest{Policy: store.Policy{Recreate: 1000}}, sandpit.Invalid},
		"timeout":     {manager.CreateRequest{Timeout: -1}, sandpit.Invalid},
		"spec":        {manager.CreateRequest{Spec: sandpit.Spec{Hostname: "-"}}, sandpit.Invalid},
	} {
		_, err := r.Create(t.Context(), tc.req)
		if sandpit.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
	}
	r.wantNothing(t)
}

// TestUnable asks for what a provider cannot do later: it is refused now.
func TestUnable(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	r.cable.plain = true
	soon := time.Now().Add(time.Hour)
	for name, req := range map[string]manager.CreateRequest{
		"pause":      {Lease: sandpit.Lease{Deadline: soon, Action: sandpit.ActionPause}},
		"stop":       {Lease: sandpit.Lease{Deadline: soon, Action: sandpit.ActionStop}},
		"idle stop":  {Policy: store.Policy{IdleAction: sandpit.ActionStop}},
		"idle pause": {Policy: store.Policy{IdleAction: sandpit.ActionPause}},
		"auto stop":  {Policy: store.Policy{AutoStop: time.Hour}},
		"archive":    {Policy: store.Policy{AutoArchive: time.Hour}},
	} {
		if _, err := r.Create(t.Context(), req); !errors.Is(err, sandpit.Unsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.wantNothing(t)
	s := r.create(t, manager.CreateRequest{})
	for name, do := range map[string]func(context.Context, sandpit.ID) error{"pause": r.Pause, "stop": r.Stop} {
		if err := do(t.Context(), s.ID); !errors.Is(err, sandpit.Unsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
	wantCode(t, r.SetDeadline(t.Context(), s.ID, sandpit.Lease{Deadline: soon, Action: sandpit.ActionPause}), sandpit.Unsupported)
	r.wantState(t, s.ID, sandpit.StateRunning)
}

// TestEvents looks at the trail of one sandbox.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Owner: "ann", Spec: sandpit.Spec{Name: "n", Env: map[string]string{"TOKEN": "hunter2"}}})
	ctx := manager.WithActor(t.Context(), "bob")
	if err := r.Stop(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	wantCode(t, r.Pause(ctx, s.ID), sandpit.Conflict)
	if err := r.Delete(ctx, s.ID); err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(ctx, s.ID); err != nil { // nothing is done
		t.Fatal(err)
	}
	r.Events().Record(manager.Report{Actor: "ann", Action: "run command", Sandbox: s.ID, Took: time.Second})
	want := []string{"ann: create ok", "bob: stop ok", "bob: pause conflict", "bob: delete ok", "ann: run command ok"}
	if got := r.events(t, s.ID); !slices.Equal(got, want) {
		t.Errorf("events: %q\nwant %q", got, want)
	}
	list, err := r.store.Events().ListEvents(t.Context(), store.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprint(list); strings.Contains(text, "hunter2") || !strings.Contains(text, "TOKEN") {
		t.Errorf("want the names of the environment and not its values: %s", text)
	}
	if err := r.store.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestOwnerLeavesRoom has one owner create as many sandboxes as it can, alone and beside
// others.
func TestOwnerLeavesRoom(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		keys   map[string]bool
		others []string // have a sandbox each
		quotas manager.Quotas
		want   int
	}{
		"alone":                           {nil, nil, manager.Quotas{Share: true}, 7},
		"alone with a key":                {map[string]bool{"ann": false, "local": true}, nil, manager.Quotas{Share: true}, 7},
		"another has a key":               {map[string]bool{"ann": false, "bob": false}, nil, manager.Quotas{Share: true}, 4},
		"another has a sandbox":           {nil, []string{"bob"}, manager.Quotas{Share: true}, 4},
		"an administrator has a sandbox":  {map[string]bool{"bob": true}, []string{"bob"}, manager.Quotas{Share: true}, 4},
		"an administrator beside another": {map[string]bool{"ann": true, "bob": false}, []string{"bob"}, manager.Quotas{Share: true}, 6},
		"no quota by the configuration":   {map[string]bool{"bob": false}, []string{"bob"}, manager.Quotas{}, 6},
		"a quota by the configuration":    {map[string]bool{"bob": false}, []string{"bob"}, manager.Quotas{Owner: 5}, 5},
		"a quota of its own":              {map[string]bool{"bob": false}, []string{"bob"}, manager.Quotas{Owners: map[string]int{"ann": 6}}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, manager.Options{
				MaxSandboxes: 7, Quotas: tc.quotas,
				KeyOwners: func(context.Context) (map[string]bool, error) { return tc.keys, nil },
			})
			for _, other := range tc.others {
				r.create(t, manager.CreateRequest{Owner: other})
			}
			var group sync.WaitGroup
			var made atomic.Int32
			for range 10 {
				group.Go(func() {
					_, err := r.Create(t.Context(), manager.CreateRequest{Owner: "ann"})
					if err == nil {
						made.Add(1)
						return
					}
					wantCode(t, err, sandpit.Exhausted)
					if tc.want == 4 {
						wantText(t, err, `quota exceeded: owner "ann" has 4 of 4 sandboxes`)
					}
				})
			}
			group.Wait()
			if n := int(made.Load()); n != tc.want {
				t.Fatalf("%d sandboxes were created, want %d", n, tc.want)
			}
			first := r.List(manager.Filter{Owner: "ann"})[0].ID
			if err := r.SetLabels(t.Context(), first, map[string]string{"a": "b"}); err != nil {
				t.Errorf("label one of them: %v", err)
			}
		})
	}
}

// TestUnknownNeighbors cannot find out whether there are other owners, and supposes so.
func TestUnknownNeighbors(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{
		MaxSandboxes: 2, Quotas: manager.Quotas{Share: true}, KeyOwners: func(context.Context) (map[string]bool, error) { return nil, errOrdered },
	})
	r.create(t, manager.CreateRequest{Owner: "ann"})
	_, err := r.Create(t.Context(), manager.CreateRequest{Owner: "ann"})
	wantCode(t, err, sandpit.Exhausted)
	r.create(t, manager.CreateRequest{Owner: "bob"})
}
