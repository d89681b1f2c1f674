package native_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestKeys makes a key, uses it, and takes it away.
func TestKeys(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	var made wire.MadeKey
	r.want(t, ask{method: "POST", path: "/v1/keys", key: r.admin, body: `{"owner":"eve","name":"laptop","ttl_seconds":3600}`}, http.StatusCreated, &made)
	if !regexp.MustCompile(`^e2b_[0-9a-f]{40}$`).MatchString(made.Secret) || made.Owner != "eve" || made.Admin || made.ExpiresAt.IsZero() {
		t.Errorf("made %+v", made)
	}
	r.make(t, made.Secret, `{}`)
	g := r.want(t, ask{method: "GET", path: "/v1/sandboxes", header: map[string]string{"Authorization": "bearer " + made.Secret}}, http.StatusOK, nil)
	if g.status != http.StatusOK {
		t.Error("it does not work as a token")
	}
	var page wire.Page[wire.Key]
	r.want(t, ask{method: "GET", path: "/v1/keys?limit=1000", key: r.admin}, http.StatusOK, &page)
	found := false
	for _, k := range page.Items {
		found = found || k.ID == made.ID && k.Name == "laptop" && !k.LastUsedAt.IsZero()
	}
	if !found || len(page.Items) != 4 {
		t.Errorf("keys %+v", page.Items)
	}
	r.want(t, ask{method: "GET", path: "/v1/keys?limit=1", key: r.admin}, http.StatusOK, &page)
	if len(page.Items) != 1 || page.Next != page.Items[0].ID {
		t.Errorf("page %+v", page)
	}
	r.want(t, ask{method: "DELETE", path: "/v1/keys/" + made.ID, key: r.admin}, http.StatusNoContent, nil)
	r.fails(t, ask{method: "GET", path: "/v1/sandboxes", key: made.Secret}, http.StatusUnauthorized, sandpit.Unauthenticated, "not valid")
	if text := r.log.String(); regexp.MustCompile(`e2b_[0-9a-f]`).MatchString(text) {
		t.Errorf("a secret is in the log:\n%s", text)
	}
	eventually(t, "the trail tells of the key", func() bool {
		var page wire.Page[wire.Event]
		g := r.want(t, ask{method: "GET", path: "/v1/events?limit=999", key: r.admin}, http.StatusOK, &page)
		if regexp.MustCompile(`e2b_[0-9a-f]`).Match(g.body) {
			t.Fatalf("a secret is in the trail:\n%s", g.body)
		}
		told := map[string]bool{}
		for _, e := range page.Items {
			told[e.Action] = true
		}
		return told["create a key"] && told["delete a key"] && told["log in"]
	})
}

// TestQueue gives something up, tries it again, and forgets it.
func TestQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	s := r.make(t, r.ann, `{"timeout_seconds":3600}`)
	var page wire.Page[wire.Message]
	r.want(t, ask{method: "GET", path: "/v1/queue", key: r.admin}, http.StatusOK, &page)
	if len(page.Items) != 1 || page.Items[0].Sandbox != s.ID || page.Items[0].State != "pending" || page.Items[0].Kind != "deadline" {
		t.Fatalf("queue %+v", page)
	}
	for _, end := range []ask{{method: "POST", path: "/retry"}, {method: "DELETE"}} {
		id := bury(t, r)
		r.want(t, ask{method: "GET", path: "/v1/queue?state=dead", key: r.admin}, http.StatusOK, &page)
		if len(page.Items) != 1 || page.Items[0].ID != id || page.Items[0].State != "dead" || page.Items[0].LastError != "no" {
			t.Fatalf("dead %+v", page)
		}
		r.want(t, ask{method: end.method, path: "/v1/queue/" + id + end.path, key: r.admin}, http.StatusNoContent, nil)
		eventually(t, "it is not dead any more", func() bool {
			r.want(t, ask{method: "GET", path: "/v1/queue?state=dead", key: r.admin}, http.StatusOK, &page)
			return len(page.Items) == 0
		})
	}
	// What belongs to another server that has the same queue is not ours.
	other := buryAs(t, r, "another")
	r.want(t, ask{method: "GET", path: "/v1/queue?state=dead", key: r.admin}, http.StatusOK, &page)
	if len(page.Items) != 0 {
		t.Errorf("it tells of another's: %+v", page)
	}
	r.fails(t, ask{method: "POST", path: "/v1/queue/" + other + "/retry", key: r.admin}, http.StatusNotFound, sandpit.NotFound, "dead letter")
	r.fails(t, ask{method: "DELETE", path: "/v1/queue/" + other, key: r.admin}, http.StatusNotFound, sandpit.NotFound, "dead letter")
}

// bury creates a dead letter for an unknown sandbox.
func bury(t *testing.T, r *rig) string { t.Helper(); return buryAs(t, r, r.store.Identity()) }

func buryAs(t *testing.T, r *rig, topic string) string {
	t.Helper()
	q := r.store.Queue()
	m, err := q.Schedule(t.Context(), queue.Message{Topic: topic, Sandbox: sandpit.NewID(), Kind: "deadline", Due: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := q.Claim(t.Context(), time.Now().Add(2*time.Hour), []string{topic}, 100, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range claims {
		if c.ID == m.ID {
			err = q.Bury(t.Context(), c, "no")
		} else {
			_, err = q.Extend(t.Context(), c, time.Unix(1, 0)) // gives it back
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return m.ID
}

// TestMounts shows directories of the machine to sandboxes: those below the roots,
// wherever links lead.
func TestMounts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"root/in", "root2", "outside/secret"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"root/out": "../outside", "link": "root", "root/etc": "/etc", "root/up": "../outside/secret"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, func(n *native.Options, _ *manager.Options, _ *api.EdgeOptions) {
		n.MountRoots = []string{filepath.Join(dir, "link"), filepath.Join(dir, "missing")}
	})
	body := func(path string) string { return `{"spec":{"mounts":[{"source":"` + path + `","target":"/m"}]}}` }
	for _, bad := range []string{
		dir, dir + "/root2", dir + "/outside", dir + "/root/out", dir + "/root/out/secret", dir + "/root/etc", dir + "/root/etc/passwd",
		dir + "/root/in/../../outside", dir + "/root/up", dir + "/root/missing", dir + "/missing", "/", "/etc", "/proc/self/root",
	} {
		r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body(bad)},
			http.StatusForbidden, sandpit.PermissionDenied, "not in a directory")
	}
	for _, good := range []string{dir + "/root", dir + "/root/in", dir + "/link/in", dir + "/root/in/../in"} {
		g := r.do(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body(good)})
		if g.status == http.StatusForbidden {
			t.Errorf("%s: %s", good, g.body)
		}
	}
}

// TestProtectedMounts refuses a home directory and the server's own files, to administrators
// unless they name them a second time.
func TestProtectedMounts(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"home/project", "home/.ssh", "state/boxes"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := newRig(t, func(n *native.Options, _ *manager.Options, _ *api.EdgeOptions) {
		n.MountRoots, n.Homes, n.OwnPaths = []string{filepath.Join(dir, "home/project"), dir}, []string{dir + "/home"}, []string{dir + "/state"}
	})
	body := func(path, more string) string {
		return `{"spec":{"mounts":[{"source":"` + path + `","target":"/m"}]}` + more + `}`
	}
	for _, bad := range []string{"/home", "/home/.ssh", "/state", "/state/boxes"} {
		path := dir + bad
		p := r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: body(path, "")}, http.StatusForbidden, sandpit.PermissionDenied, path)
		if !strings.Contains(p.Hint, "allow_paths") {
			t.Errorf("%s: hint %q", bad, p.Hint)
		}
		// Also below a root that clients may have shown.
		r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body(path, "")}, http.StatusForbidden, sandpit.PermissionDenied, "not in a directory")
		insist := `,"allow_paths":["` + path + `"]`
		r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body(path, insist)}, http.StatusForbidden, sandpit.PermissionDenied, "administrators")
		if g := r.do(t, ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: body(path, insist)}); g.status == http.StatusForbidden {
			t.Errorf("%s, insisted: %s", bad, g.body)
		}
	}
	for _, key := range []string{r.admin, r.ann} {
		if g := r.do(t, ask{method: "POST", path: "/v1/sandboxes", key: key, body: body(dir+"/home/project", "")}); g.status == http.StatusForbidden {
			t.Errorf("a directory in a home: %s", g.body)
		}
	}
	r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: body(dir, `,"allow_paths":["x"]`)}, http.StatusBadRequest, sandpit.Invalid, "absolute")
}

// TestTemporaryMounts gives temporary directories to administrators, and to others if they
// may have them. No response says where they are.
func TestTemporaryMounts(t *testing.T) {
	t.Parallel()
	for _, allowed := range []bool{false, true} {
		r := newRig(t, func(n *native.Options, m *manager.Options, _ *api.EdgeOptions) {
			n.TemporaryMounts, m.TempDir = allowed, t.TempDir()
		})
		body := func(more string) string { return `{"spec":{"mounts":[{"temporary":true,"target":"/m"` + more + `}]}}` }
		var made sandpit.Sandbox
		r.want(t, ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: body("")}, http.StatusCreated, &made)
		if len(made.Spec.Mounts) != 1 || !strings.Contains(made.Spec.Mounts[0].Source, "/sandbox_m_") {
			t.Errorf("mounts %+v", made.Spec.Mounts)
		}
		if allowed {
			r.want(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body("")}, http.StatusCreated, &made)
		} else {
			r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: body("")},
				http.StatusForbidden, sandpit.PermissionDenied, "for administrators")
		}
		for _, bad := range []string{`,"source":"/etc"`, `,"read_only":true`, `,"volume":"x"`} {
			r.fails(t, ask{method: "POST", path: "/v1/sandboxes", key: r.admin, body: body(bad)}, http.StatusBadRequest, sandpit.Invalid, "temporary")
		}
	}
}

// TestHealth makes the calls that need no key.
func TestHealth(t *testing.T) {
	t.Parallel()
	var broken atomic.Bool
	r := newRig(t, func(n *native.Options, _ *manager.Options, _ *api.EdgeOptions) {
		n.Checks = []native.Check{
			{Name: "store", Do: func(context.Context) error { return nil }},
			{Name: "engine", Do: func(context.Context) error {
				if broken.Load() {
					return sandpit.Errorf(sandpit.Unavailable, "it is in pieces")
				}
				return nil
			}},
		}
	})
	var h wire.Health
	r.want(t, ask{method: "GET", path: "/healthz"}, http.StatusOK, &h)
	r.want(t, ask{method: "GET", path: "/readyz"}, http.StatusOK, &h)
	if !h.OK || len(h.Checks) != 3 || h.Checks[0].Name != "store" || h.Checks[1].Name != "engine" {
		t.Errorf("ready: %+v", h)
	}
	broken.Store(true)
	eventually(t, "it is noticed", func() bool {
		return r.do(t, ask{method: "GET", path: "/readyz"}).status == http.StatusServiceUnavailable
	})
	p := r.fails(t, ask{method: "GET", path: "/readyz"}, http.StatusServiceUnavailable, sandpit.Unavailable, "engine")
	if strings.Contains(p.Detail, "pieces") || strings.Contains(p.Detail, "store") {
		t.Errorf("to a stranger: %+v", p)
	}
	r.fails(t, ask{method: "GET", path: "/readyz", key: r.admin}, http.StatusServiceUnavailable, sandpit.Unavailable, "it is in pieces")
	var v wire.Version
	r.want(t, ask{method: "GET", path: "/version"}, http.StatusOK, &v)
	if v.Sandpit != "0.0.0" {
		t.Errorf("version %+v", v)
	}
	// A wrong key is worse than none only where one is needed.
	r.want(t, ask{method: "GET", path: "/healthz", key: "nonsense"}, http.StatusOK, nil)
}

// TestFacts asks what the server says of itself.
func TestFacts(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(n *native.Options, m *manager.Options, _ *api.EdgeOptions) {
		m.Pools = []manager.Pool{{Size: 1, Spec: sandpit.Spec{Env: map[string]string{"SECRET": "x"}}}}
		n.Providers = func(context.Context) []wire.Provider {
			return []wire.Provider{{Name: "fake", Default: true, Available: true}, {Name: "moon", Reason: "too far", Endpoint: "/run/moon.sock", Hint: "fly"}}
		}
	})
	var stats wire.Stats
	r.want(t, ask{method: "GET", path: "/v1/stats", key: r.ann}, http.StatusOK, &stats)
	if stats.MaxSandboxes != 100 || stats.IdleTimeout != 3600 || stats.CleanupInterval != 300 {
		t.Errorf("stats %+v", stats)
	}
	var pools wire.Page[wire.Pool]
	r.want(t, ask{method: "GET", path: "/v1/pools", key: r.ann}, http.StatusOK, &pools)
	if len(pools.Items) != 1 || pools.Items[0].Size != 1 || len(pools.Items[0].Spec.Env) != 0 {
		t.Errorf("pools %+v", pools)
	}
	var places wire.Page[wire.Provider]
	r.want(t, ask{method: "GET", path: "/v1/providers", key: r.ann}, http.StatusOK, &places)
	if p := places.Items; len(p) != 2 || p[1].Reason == "" || p[1].Reason == "too far" || p[1].Endpoint != "" || p[1].Hint != "" {
		t.Errorf("providers %+v", places)
	}
	r.want(t, ask{method: "GET", path: "/v1/providers", key: r.admin}, http.StatusOK, &places)
	if p := places.Items; len(p) != 2 || p[1].Reason != "too far" || p[1].Endpoint == "" || p[1].Hint == "" {
		t.Errorf("providers for an administrator: %+v", places)
	}
	s := r.make(t, r.ann, `{"spec":{"name":"measured"}}`)
	for key, want := range map[string]int{r.ann: 1, r.bob: 0, r.admin: 1} {
		if r.want(t, ask{method: "GET", path: "/v1/stats", key: key}, http.StatusOK, &stats); stats.TotalSandboxes != want {
			t.Errorf("an owner sees %d sandboxes, want %d", stats.TotalSandboxes, want)
		}
	}
	var measured sandpit.Stats
	r.want(t, ask{method: "GET", path: "/v1/sandboxes/" + string(s.ID) + "/stats", key: r.ann}, http.StatusOK, &measured)
	if measured.At.IsZero() {
		t.Errorf("measured %+v", measured)
	}
}

// TestTooMany runs into limits.
func TestTooMany(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(_ *native.Options, m *manager.Options, e *api.EdgeOptions) {
		m.MaxSandboxes = 1
		e.Rate, e.Burst = 0.01, 20
	})
	r.make(t, r.ann, `{}`)
	g := r.do(t, ask{method: "POST", path: "/v1/sandboxes", key: r.ann, body: "{}"})
	if g.status != http.StatusTooManyRequests || g.header.Get("Retry-After") == "" {
		t.Errorf("%d %s %v", g.status, g.body, g.header)
	}
	for range 18 {
		r.want(t, ask{method: "GET", path: "/v1/stats", key: r.ann}, http.StatusOK, nil)
	}
	g = r.do(t, ask{method: "GET", path: "/v1/stats", key: r.ann})
	if g.status != http.StatusTooManyRequests || len(g.header.Get("Retry-After")) != 2 && len(g.header.Get("Retry-After")) != 3 {
		t.Errorf("%d %s %v", g.status, g.body, g.header)
	}
	r.want(t, ask{method: "GET", path: "/v1/stats", key: r.bob}, http.StatusOK, nil)
}
