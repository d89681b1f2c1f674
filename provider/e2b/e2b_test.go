package e2b_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
	"github.com/sandpit-dev/sandpit/internal/testing/faultproxy"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

// soon bounds one step of a test.
func soon(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// create creates a sandbox, and destroys it when the test ends.
func create(t *testing.T, p sandpit.Provider, spec sandpit.Spec) sandpit.Instance {
	t.Helper()
	box, err := p.Create(soon(t), sandpit.NewID(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := box.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return box
}

// shell runs a script and returns its output.
func shell(t *testing.T, box sandpit.Instance, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := box.Guest().Start(soon(t), sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	status, err := p.Wait(soon(t))
	if err != nil || status.Code != 0 {
		t.Fatalf("%s: %s, %v\n%s", script, status, err, &out)
	}
	return out.String()
}

func wantCode(t *testing.T, doing string, err error, want sandpit.Code) {
	t.Helper()
	if sandpit.CodeOf(err) != want {
		t.Errorf("%s: got %v (%s), want the code %s", doing, err, sandpit.CodeOf(err), want)
	}
}

// ability returns an ability that each instance of the provider has.
func ability[T any](t *testing.T, box sandpit.Instance) T {
	t.Helper()
	able, ok := sandpit.As[T](box)
	if !ok {
		t.Fatalf("%T lacks an ability", box)
	}
	return able
}

func TestLife(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	p := newProvider(t, c.options())
	t.Run("pause", func(t *testing.T) { t.Parallel(); testPause(t, p) })
	t.Run("stats", func(t *testing.T) { t.Parallel(); testStats(t, p) })
	t.Run("network policy", func(t *testing.T) { t.Parallel(); testNetworkPolicy(t, p) })
	t.Run("expiry", func(t *testing.T) { t.Parallel(); testExpiry(t, c, p) })
	t.Run("template", func(t *testing.T) { t.Parallel(); testTemplate(t, c, p) })
	t.Run("refused", func(t *testing.T) { t.Parallel(); testRefused(t, p) })
	t.Run("strangers", func(t *testing.T) { t.Parallel(); testStrangers(t, c) })
	t.Run("account", func(t *testing.T) { t.Parallel(); testAccount(t, c) })
	t.Run("snapshot refused", func(t *testing.T) { t.Parallel(); testSnapshotRefused(t, c) })
	t.Run("paused by the cloud", func(t *testing.T) { t.Parallel(); testPausedByCloud(t, c, p) })
}

// testPause checks that programs keep their memory, and that the sandbox cannot be used meanwhile.
func testPause(t *testing.T, p sandpit.Provider) {
	t.Helper()
	box := create(t, p, sandpit.Spec{})
	pauser := ability[sandpit.Pauser](t, box)
	shell(t, box, "mkfifo ask answer; (n=0; while read x <ask; do n=$((n+1)); echo $n >answer; done) >/dev/null 2>&1 & :")
	wantCode(t, "resume what runs", pauser.Resume(soon(t)), sandpit.Conflict)
	if err := pauser.Pause(soon(t)); err != nil {
		t.Fatal(err)
	}
	wantCode(t, "pause what is paused", pauser.Pause(soon(t)), sandpit.Conflict)
	_, err := box.Guest().Stat(soon(t), "", "/")
	wantCode(t, "use it while it is paused", err, sandpit.Conflict)
	if err := pauser.Resume(soon(t)); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, box, "echo >ask; cat answer"); got != "1\n" {
		t.Errorf("the program answers %q", got)
	}
}

func testStats(t *testing.T, p sandpit.Provider) {
	t.Helper()
	box := create(t, p, sandpit.Spec{})
	first, err := ability[sandpit.Statser](t, box).Stats(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if first.Memory <= 0 || first.At.IsZero() || first.CPU < 0 || first.PIDs != 0 {
		t.Errorf("stats: %+v", first)
	}
}

func testNetworkPolicy(t *testing.T, p sandpit.Provider) {
	t.Helper()
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
	policer := ability[sandpit.NetworkPolicer](t, box)
	for _, n := range []sandpit.NetworkPolicy{
		{Online: true, Deny: []string{"10.0.0.0/8"}}, {Online: true, Allow: []string{"*.example.org", "1.1.1.1"}}, {Online: true},
	} {
		if err := policer.SetNetworkPolicy(soon(t), n); err != nil {
			t.Fatalf("%+v: %v", n, err)
		}
		list, err := p.List(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if one.ID == box.ID() && !one.Spec.Network.Equal(n) {
				t.Errorf("listed with %+v, want %+v", one.Spec.Network, n)
			}
		}
	}
	for doing, n := range map[string]sandpit.NetworkPolicy{
		"a port":          {Online: true, Allow: []string{"example.org:443"}},
		"a denied name":   {Online: true, Deny: []string{"example.org"}},
		"both kinds":      {Online: true, Allow: []string{"192.0.2.0/24"}, Deny: []string{"192.0.2.1"}},
		"limits":          {Online: true, Limits: sandpit.NetworkLimits{Send: 1 << 20}},
		"header":          {Online: true, Headers: []sandpit.NetworkHeader{{Host: "example.org", Name: "X-Key", Value: "${KEY}"}}},
		"inside networks": {Online: true, Allow: []string{"192.168.1.1"}, Inside: []string{"192.168.0.0/16"}},
	} {
		wantCode(t, doing, policer.SetNetworkPolicy(soon(t), n), sandpit.Unsupported)
	}
}

// testExpiry checks when and how the cloud ends sandboxes.
func testExpiry(t *testing.T, c *cloud, p sandpit.Provider) {
	t.Helper()
	box := create(t, p, sandpit.Spec{Expiry: sandpit.Expiry{Deadline: time.Now().Add(20 * time.Minute), Action: sandpit.ActionPause}})
	wantEnd(t, c, box, 20*time.Minute, "pause")
	renewer := ability[sandpit.Renewer](t, box)
	if err := renewer.Renew(soon(t), sandpit.Expiry{Deadline: time.Now().Add(40 * time.Minute), Action: sandpit.ActionSuspend}); err != nil {
		t.Error(err)
	}
	wantEnd(t, c, box, 40*time.Minute, "pause")
	if err := renewer.Renew(soon(t), sandpit.Expiry{Deadline: time.Now().Add(10 * time.Minute), Action: sandpit.ActionSuspend}); err != nil {
		t.Error(err)
	}
	wantEnd(t, c, box, 10*time.Minute, "pause")
	wantCode(t, "another action", renewer.Renew(soon(t), sandpit.Expiry{}), sandpit.Unsupported)
	wantCode(t, "in a century", renewer.Renew(soon(t), sandpit.Expiry{Deadline: time.Now().AddDate(100, 0, 0), Action: sandpit.ActionPause}), sandpit.Invalid)
	pauser := ability[sandpit.Pauser](t, box)
	if err := pauser.Pause(soon(t)); err != nil {
		t.Fatal(err)
	}
	if err := renewer.Renew(soon(t), sandpit.Expiry{Deadline: time.Now().Add(30 * time.Minute), Action: sandpit.ActionSuspend}); err != nil {
		t.Error(err)
	}
	if err := pauser.Resume(soon(t)); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, c, box, 30*time.Minute, "pause")
	wantEnd(t, c, create(t, p, sandpit.Spec{}), time.Hour, "kill")
}

// wantEnd checks what the cloud does to a sandbox on its own, and when.
func wantEnd(t *testing.T, c *cloud, box sandpit.Instance, after time.Duration, action string) {
	t.Helper()
	for _, cloudID := range c.list(t) {
		if c.idOf(t, cloudID) != box.ID() {
			continue
		}
		var one struct {
			EndAt     time.Time `json:"endAt"`
			Lifecycle struct {
				OnTimeout string `json:"onTimeout"`
			} `json:"lifecycle"`
		}
		_, text := c.call(t, http.MethodGet, "/sandboxes/"+cloudID)
		if err := json.Unmarshal(text, &one); err != nil {
			t.Fatal(err)
		}
		if left := time.Until(one.EndAt); left > after+2*time.Second || left < after-long || one.Lifecycle.OnTimeout != action {
			t.Errorf("the cloud takes the action %q in %v, want %q in %v", one.Lifecycle.OnTimeout, left, action, after)
		}
		return
	}
	t.Errorf("the cloud has no sandbox %s", box.ID())
}

// testTemplate creates sandboxes of a template that the request names, with the limits and variables that it has.
func testTemplate(t *testing.T, c *cloud, p sandpit.Provider) {
	t.Helper()
	o := c.options()
	o.Template = "no-such-template"
	other := newProvider(t, o)
	if _, err := other.Create(soon(t), sandpit.NewID(), sandpit.Spec{}); err == nil {
		t.Error("the template of the options is not used")
	}
	box := create(t, other, sandpit.Spec{Image: "base", Env: map[string]string{"MINE": "yes"}})
	if got := shell(t, box, "echo $MINE"); got != "yes\n" {
		t.Errorf("variable %q", got)
	}
	stats, err := ability[sandpit.Statser](t, box).Stats(soon(t))
	if err != nil || stats.Limits.Memory == 0 || stats.Limits.CPUs == 0 {
		t.Fatalf("limits %+v, %v", stats.Limits, err)
	}
	create(t, p, sandpit.Spec{Resources: sandpit.Resources{CPUs: stats.Limits.CPUs, Memory: stats.Limits.Memory}})
}

// testRefused creates sandboxes that E2B cannot have, and checks that none remains.
func testRefused(t *testing.T, p sandpit.Provider) {
	t.Helper()
	for doing, spec := range map[string]sandpit.Spec{
		"mount":     {Mounts: []sandpit.Mount{{Source: "/usr/share", Target: "/mnt"}}},
		"volume":    {Mounts: []sandpit.Mount{{Volume: "data", Target: "/mnt", ReadOnly: true}}},
		"processes": {Resources: sandpit.Resources{PIDs: 100}},
		"memory":    {Resources: sandpit.Resources{Memory: 123 << 20}},
		"template":  {Image: "template:mine"},
		"archive":   {Expiry: sandpit.Expiry{Action: sandpit.ActionArchive}},
	} {
		id := sandpit.NewID()
		_, err := p.Create(soon(t), id, spec)
		wantCode(t, doing, err, sandpit.Unsupported)
		if s := sandpit.SubjectOf(err); s.Provider != "e2b" || s.Sandbox != id || s.Operation != "create" {
			t.Errorf("%s: the error concerns %+v", doing, s)
		}
		list, err := p.List(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range list {
			if one.ID == id {
				t.Errorf("%s: the sandbox is listed", doing)
			}
		}
	}
	_, err := p.Create(soon(t), sandpit.NewID(), sandpit.Spec{Image: "no-such-template"})
	if code := sandpit.CodeOf(err); code != sandpit.NotFound && code != sandpit.Invalid {
		t.Errorf("unknown template: %v (%s)", err, code)
	}
}

// testStrangers checks that a server sees and reaches its own sandboxes only.
func testStrangers(t *testing.T, c *cloud) {
	t.Helper()
	mine, theirs := newProvider(t, c.options()), newProvider(t, c.options())
	box := create(t, mine, sandpit.Spec{})
	list, err := theirs.List(soon(t))
	if err != nil || len(list) != 0 {
		t.Errorf("another server lists %+v, %v", list, err)
	}
	_, err = theirs.Attach(soon(t), box.Handle())
	wantCode(t, "attach by another server", err, sandpit.NotFound)
}

func testAccount(t *testing.T, c *cloud) {
	t.Helper()
	p := newProvider(t, c.options())
	a, err := p.ReadAccount(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if a.Endpoint != c.url || a.Sandboxes != 0 || len(a.Abilities) == 0 || a.Missing["mounts"] == "" {
		t.Errorf("account: %+v", a)
	}
	o := c.options()
	o.Key = "e2b_00000000000000000000000000000000000000ff"
	_, err = newProvider(t, o).ReadAccount(soon(t))
	wantCode(t, "wrong key", err, sandpit.Unauthenticated)
	if err == nil || strings.Contains(err.Error(), o.Key) || !strings.Contains(err.Error(), "provider e2b: list: E2B rejects the API key") || sandpit.HintOf(err) == "" {
		t.Errorf("wrong key: %v; hint %q", err, sandpit.HintOf(err))
	}
	_, err = e2b.New(e2b.Options{})
	wantCode(t, "no key", err, sandpit.Unauthenticated)
}

// testPausedByCloud pauses a sandbox without its provider.
func testPausedByCloud(t *testing.T, c *cloud, p sandpit.Provider) {
	t.Helper()
	box := create(t, p, sandpit.Spec{})
	exits := make(chan sandpit.Exit, 1)
	go func() {
		exit, err := box.Wait(t.Context())
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		exits <- exit
	}()
	time.Sleep(time.Second)
	for _, id := range c.list(t) {
		if c.idOf(t, id) == box.ID() {
			if status, text := c.post(t, "/sandboxes/"+id+"/pause", "{}"); status != http.StatusNoContent {
				t.Fatalf("pause: %d %s", status, text)
			}
		}
	}
	select {
	case exit := <-exits:
		if exit.State != sandpit.StatePaused || exit.Reason == "" {
			t.Errorf("exit: %+v", exit)
		}
	case <-time.After(long):
		t.Fatal("the pause was not noticed")
	}
	if state, err := ability[sandpit.StateReader](t, box).ReadState(soon(t)); err != nil || state != sandpit.StatePaused {
		t.Errorf("state %q, %v", state, err)
	}
	if err := ability[sandpit.Pauser](t, box).Resume(soon(t)); err != nil {
		t.Fatal(err)
	}
	shell(t, box, "true")
}

// TestCloudGuest checks what a sandbox with E2B's guest alone can do, and refuses.
func TestCloudGuest(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options()
	genuine := envdtest.StartGenuine(t, c.url)
	o.Guest, o.APIURL, o.SandboxURL = e2b.GuestCloud, genuine, genuine
	p := newProvider(t, o)
	box := create(t, p, sandpit.Spec{})
	_, err := ability[sandpit.Dialer](t, box).Dial(soon(t), 80)
	wantCode(t, "dial", err, sandpit.Unsupported)
	_, err = box.Guest().Start(soon(t), sandpit.Command{ID: "a", Args: []string{"true"}})
	wantCode(t, "command with an ID", err, sandpit.Unsupported)
	for name, has := range map[string]bool{"Journal": has[sandpit.Journal](box), "Confiner": has[sandpit.Confiner](box), "Secreter": has[sandpit.Secreter](box)} {
		if has {
			t.Errorf("the guest has the ability %s", name)
		}
	}
	observed, ok := sandpit.As[sandpit.ObservedGuest](box.Guest())
	if !ok {
		t.Fatal("the guest cannot be observed")
	}
	observed.Observe(sandpit.GuestObserver{Confine: func(context.Context) []string { return []string{"/workspace"} }}.OrNobody())
	_, err = box.Guest().ReadTree(soon(t), "", "/etc")
	wantCode(t, "read a directory with confinement", err, sandpit.Unsupported)
	wantCode(t, "write a directory with confinement", box.Guest().WriteTree(soon(t), "", "/etc", strings.NewReader("")), sandpit.Unsupported)
	_, err = box.Guest().ReadFile(soon(t), "", "/etc/passwd")
	wantCode(t, "read a file with confinement", err, sandpit.Unsupported)
	observed.Observe(sandpit.GuestObserver{})
	testCloudPort(t, box)
	testGuestProtocol(t, p)
}

// TestBrokenStream breaks the connections of a command: the command log has the output that was lost.
func TestBrokenStream(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options()
	proxy := faultproxy.Start(t, faultproxy.Options{Target: c.url})
	o.SandboxURL = proxy.URL
	box := create(t, newProvider(t, o), sandpit.Spec{})
	var out bytes.Buffer
	p, err := box.Guest().Start(soon(t), sandpit.Command{
		ID: "counts", Args: []string{"sh", "-c", "for i in $(seq 20); do echo $i; sleep 0.1; done; exit 7"}, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(700 * time.Millisecond)
	proxy.CutAll()
	status, err := p.Wait(soon(t))
	if err != nil || status.Code != 7 {
		t.Errorf("%v, %v", status, err)
	}
	if lines := strings.Fields(out.String()); len(lines) != 20 || lines[0] != "1" || lines[19] != "20" {
		t.Errorf("output %q", lines)
	}
}

func has[T any](box sandpit.Instance) bool {
	_, ok := sandpit.As[T](box.Guest())
	return ok
}

// testCloudPort reaches a program inside through the cloud's proxy.
func testCloudPort(t *testing.T, box sandpit.Instance) {
	t.Helper()
	shell(t, box, "mkdir -p /srv/www && echo hello >/srv/www/index.html && cd /srv/www && (python3 -m http.server 8123 >/dev/null 2>&1 &)")
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		r, err := http.NewRequestWithContext(soon(t), http.MethodGet, "http://sandbox/", http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := box.HTTP(8123).RoundTrip(r)
		if err == nil {
			text, readErr := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if readErr != nil || string(text) != "hello\n" {
				t.Errorf("the program answers %q, %v", text, readErr)
			}
			return
		}
		wantCode(t, "before it listens", err, sandpit.Unavailable)
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}
