package manager_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// gallery prepares images: what means what is in means, by the owner and the name, with
// the owner "" for callers that may use everything.
type gallery struct {
	mu       sync.Mutex
	means    map[string]string
	requests []manager.ImageRequest
	held     int
	wait     func(ctx context.Context, r manager.ImageRequest) error
}

func newGallery(means map[string]string) *gallery {
	return &gallery{means: means}
}

// readyMade is an image that the fake provider knows, by a short name.
func readyMade(name string) sandpit.Image {
	name = strings.NewReplacer("1", "x", "2", "y", "-", "").Replace(name)
	return sandpit.Image("template:bld" + (name + strings.Repeat("a", 16))[:16])
}

func (g *gallery) PrepareImage(ctx context.Context, r manager.ImageRequest) (manager.PreparedImage, error) {
	if g.wait != nil {
		if err := g.wait(ctx, r); err != nil {
			return manager.PreparedImage{}, err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.requests = append(g.requests, r)
	owner := r.Owner
	if r.Admin {
		owner = ""
	}
	name, ok := g.means[owner+" "+string(r.Image)]
	prepared := readyMade(name)
	if r.Again && r.Prepared != "" {
		prepared, ok = r.Prepared, true
	}
	if !ok {
		return manager.PreparedImage{}, sandpit.Errorf(sandpit.NotFound, "image %s: not found", r.Image)
	}
	g.held++
	return manager.PreparedImage{Image: prepared, Release: func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.held--
	}}, nil
}

func (g *gallery) set(name, means string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.means[name] = means
}

// last returns the last request for an image.
func (g *gallery) last() manager.ImageRequest {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.requests[len(g.requests)-1]
}

// given is what the provider was given for an image.
func (r *rig) given(tb testing.TB, id sandpit.ID) sandpit.Image {
	tb.Helper()
	view, ok := r.world.Look(id)
	if !ok {
		tb.Fatalf("there is no sandbox %s", id)
	}
	return view.Image
}

func of(owner string, image sandpit.Image) manager.CreateRequest {
	return manager.CreateRequest{Owner: owner, Spec: sandpit.Spec{Image: image}}
}

// TestProvidersAreGivenWhatWasPrepared creates sandboxes of images that mean something to
// their owners, and has one made again after the name means something else.
func TestProvidersAreGivenWhatWasPrepared(t *testing.T) {
	t.Parallel()
	g := newGallery(map[string]string{"ann tool:1": "ann-1", "bob tool:1": "bob-1", " tool:1": "shared-1", " ": "default-1"})
	r := newRig(t, manager.Options{Images: g, Retry: 10 * time.Millisecond})
	for _, tc := range []struct {
		request manager.CreateRequest
		want    string
		admin   bool
	}{
		{of("ann", "tool:1"), "ann-1", false},
		{of("bob", "tool:1"), "bob-1", false},
		{manager.CreateRequest{Owner: "ann", Admin: true, Spec: sandpit.Spec{Image: "tool:1"}}, "shared-1", true},
		{manager.CreateRequest{Owner: "ann", Configured: true, Spec: sandpit.Spec{Image: "tool:1"}}, "shared-1", true},
		{of("ann", ""), "default-1", true},
	} {
		s := r.create(t, tc.request)
		if got := r.given(t, s.ID); got != readyMade(tc.want) || g.last().Admin != tc.admin {
			t.Errorf("%+v: the provider was given %q (as an administrator: %v), want %q", tc.request.Spec, got, g.last().Admin, tc.want)
		}
		if s.Spec.Image != tc.request.Spec.Image {
			t.Errorf("the sandbox tells of image %q, want %q", s.Spec.Image, tc.request.Spec.Image)
		}
		row, err := r.store.Sandboxes().Sandbox(t.Context(), s.ID)
		if err != nil || row.Prepared != readyMade(tc.want) || row.Admin != tc.admin {
			t.Errorf("the row has %q, %v (%v)", row.Prepared, row.Admin, err)
		}
	}
	_, err := r.Create(t.Context(), of("eve", "tool:1"))
	wantCode(t, err, sandpit.NotFound)
	if n := len(r.List(manager.Filter{Owner: "eve"})); n > 0 {
		t.Errorf("%d sandboxes of an image that is not there", n)
	}

	again := of("ann", "tool:1")
	again.Policy = store.Policy{Recreate: 1}
	s := r.create(t, again)
	g.set("ann tool:1", "ann-2")
	r.crash(t)
	if err := r.world.Vanish(s.ID); err != nil {
		t.Fatal(err)
	}
	r.open(t)
	eventually(t, "it is made again", func() bool { return r.state(s.ID) == sandpit.StateRunning })
	if got := r.given(t, s.ID); got != readyMade("ann-1") || !g.last().Again {
		t.Errorf("made again it has %q, asked for by %+v", got, g.last())
	}
	forks, err := r.Snapshots().Fork(t.Context(), manager.ForkRequest{Sandbox: s.ID})
	if err != nil {
		t.Fatal(err)
	}
	row, err := r.store.Sandboxes().Sandbox(t.Context(), forks[0].ID)
	if err != nil || row.Prepared != readyMade("ann-1") || row.Spec.Image != "tool:1" {
		t.Errorf("the copy's row has %q, prepared as %q (%v)", row.Spec.Image, row.Prepared, err)
	}
	if g.held != 0 {
		t.Errorf("%d images are held at the end", g.held)
	}
}

// TestWaitingForImagesTakesNoPlace has one owner wait for images that never come.
func TestWaitingForImagesTakesNoPlace(t *testing.T) {
	t.Parallel()
	waiting := make(chan struct{}, 10)
	g := newGallery(map[string]string{"bob tool:1": "bob-1"})
	g.wait = func(ctx context.Context, r manager.ImageRequest) error {
		if r.Owner != "ann" {
			return nil
		}
		waiting <- struct{}{}
		<-ctx.Done()
		return context.Cause(ctx)
	}
	r := newRig(t, manager.Options{Images: g, Parallel: 1, MaxSandboxes: 1})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			_, err := r.Create(ctx, of("ann", "slow:1"))
			ended <- err
		}()
		<-waiting
	}
	r.create(t, of("bob", "tool:1"))
	cancel()
	for range cap(ended) {
		wantCode(t, <-ended, sandpit.Canceled)
	}
}

// TestWaitingForAnImageIsNotLife has an image take longer than a sandbox may exist.
func TestWaitingForAnImageIsNotLife(t *testing.T) {
	t.Parallel()
	g := newGallery(map[string]string{"ann tool:1": "ann-1"})
	g.wait = func(context.Context, manager.ImageRequest) error {
		time.Sleep(1200 * time.Millisecond)
		return nil
	}
	r := newRig(t, manager.Options{Images: g})
	begin := time.Now()
	request := of("ann", "tool:1")
	request.Lease.Deadline = begin.Add(time.Second)
	s := r.create(t, request)
	if got := s.Lease.Deadline.Sub(begin); got < 2*time.Second || got > 20*time.Second {
		t.Errorf("its deadline is %s after the request", got)
	}
	r.wantState(t, s.ID, sandpit.StateRunning)
}

// TestPoolsGiveTheirOwnImageOnly asks for a sandbox of a pool by a name that means
// something else for the caller, or by now.
func TestPoolsGiveTheirOwnImageOnly(t *testing.T) {
	t.Parallel()
	g := newGallery(map[string]string{" tool:1": "shared-1", "ann tool:1": "ann-1", "bob tool:1": "shared-1"})
	spec := sandpit.Spec{Image: "tool:1", Resources: kind.Resources}
	r := newRig(t, manager.Options{Images: g, Pools: []manager.Pool{{Spec: spec, Size: 1}}})
	r.filled(t, 1)
	if got := g.last(); !got.Admin {
		t.Errorf("the pool's image was asked for by %+v", got)
	}
	waiting := r.waiting(t)
	s := r.create(t, manager.CreateRequest{Owner: "ann", Spec: spec})
	if s.ID == waiting || r.given(t, s.ID) != readyMade("ann-1") {
		t.Errorf("ann has got %s of %q", s.ID, r.given(t, s.ID))
	}
	if s := r.create(t, manager.CreateRequest{Owner: "bob", Spec: spec}); s.ID != waiting {
		t.Errorf("bob has got %s, want %s, which was waiting", s.ID, waiting)
	}
	r.filled(t, 1)
	// What waits is replaced when the name means something else to all.
	g.set(" tool:1", "shared-2")
	g.set("bob tool:1", "shared-2")
	if s := r.create(t, manager.CreateRequest{Owner: "bob", Spec: spec}); r.given(t, s.ID) != readyMade("shared-2") {
		t.Errorf("bob has got an image of before: %q", r.given(t, s.ID))
	}
	eventually(t, "the pool has the new image", func() bool {
		list, err := r.world.NewProvider().List(t.Context())
		return err == nil && slices.ContainsFunc(list, func(p sandpit.Placement) bool {
			_, err := r.Get(p.ID)
			view, ok := r.world.Look(p.ID)
			return err != nil && ok && view.Image == readyMade("shared-2")
		})
	})
}

// TestTemplateNames has several owners call templates the same.
func TestTemplateNames(t *testing.T) {
	t.Parallel()
	s := &shop{}
	r := templateRig(t, s, manager.Options{})
	ctx := t.Context()
	recipe := sandpit.Recipe{From: "host"}
	ids := map[sandpit.TemplateID]string{}
	for _, owner := range []string{"ann", "ops", "eve"} {
		made, _ := r.built(t, owner, "tools", recipe)
		ids[made.ID] = owner
	}
	found := func(owner, ref string) string {
		t.Helper()
		got, err := r.Templates().Get(ctx, owner, ref)
		if err != nil {
			return string(sandpit.CodeOf(err))
		}
		return ids[got.ID]
	}
	expect := func(owner, ref, want string) {
		t.Helper()
		if got := found(owner, ref); got != want {
			t.Errorf("%q of %s is %q, want %q", ref, owner, got, want)
		}
	}
	publish := func(owner string, public, share bool) {
		t.Helper()
		if _, err := r.Templates().SetPublic(ctx, owner, "tools", public, share); err != nil {
			t.Fatal(err)
		}
	}
	publish("eve", true, false)
	for _, owner := range []string{"bob", ""} {
		expect(owner, "tools", "not_found")
		expect(owner, "ann/tools", "not_found")
		expect(owner, "eve/tools", "eve")
		expect(owner, "eve/tools:v1", "eve")
		expect(owner, "eve/other", "not_found")
		expect(owner, "/tools", "not_found")
		expect(owner, "eve//tools", "not_found")
	}
	expect("ann", "ann/tools", "ann")
	publish("ops", true, true)
	expect("bob", "tools", "ops")
	expect("", "tools", "ops")
	expect("ann", "tools", "ann")
	expect("eve", "tools", "eve")
	publish("ops", true, false) // by another key of the same owner
	expect("bob", "tools", "ops")
	publish("ops", false, true)
	expect("bob", "tools", "not_found")
	publish("ops", true, false)
	expect("bob", "tools", "not_found")

	// The configuration's names are the administrator's, also for an owner with one of that name.
	publish("ops", true, true)
	request := of("ann", "template:tools")
	for configured, want := range map[bool]string{false: "ann", true: "ops"} {
		request.Configured = configured
		if got := r.create(t, request); ids[got.Spec.Template.Template] != want {
			t.Errorf("configured %v: a sandbox of %s", configured, ids[got.Spec.Template.Template])
		}
	}
	_, err := r.Templates().Get(ctx, "bob", "ann/tools")
	wantText(t, err, "template ann/tools not found")
}

// TestBuildsWaitForTheirBaseWithoutAPlace has a build wait for what it starts from, and
// another one fail for want of that.
func TestBuildsWaitForTheirBaseWithoutAPlace(t *testing.T) {
	t.Parallel()
	s := &shop{missing: sandpit.Errorf(sandpit.NotFound, "image x: not found")}
	r := templateRig(t, s, manager.Options{})
	_, id := r.begin(t, "ann", "tools", sandpit.Recipe{From: "x"})
	if b := r.ended(t, "ann", id); b.Status != sandpit.BuildFailed || b.Reason.Message != "image x: not found" {
		t.Errorf("the build is %+v", b)
	}
	if n := len(s.jobs); n > 0 {
		t.Errorf("%d builds were carried out", n)
	}
}
