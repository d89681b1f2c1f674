package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
)

// theSecret is what must be found nowhere but where programs look for it.
const theSecret = "opensesame-Zq7-xyzzy-9Lk2"

// tellsSecret says what there is of it, and not what it is.
const tellsSecret = `echo "${#TOKEN} ${TOKEN%%-*}"`

const secretTold = "25 opensesame"

// hidden expects the secret in no file of a server but the one that is for it, in none of
// its answers, and in no process's arguments or environment.
func hidden(t *testing.T, cfg config.Config, r *running, when string) {
	t.Helper()
	hides(t, cfg, r, theSecret, when)
}

// hides is hidden for any secret.
func hides(t *testing.T, cfg config.Config, r *running, secret, when string) {
	t.Helper()
	for _, dir := range []string{cfg.StateDir, cfg.CacheDir, cfg.RuntimeDir} {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "secrets" {
				nowhere(t, filepath.Join(dir, e.Name()), secret)
			}
		}
	}
	for _, path := range []string{"/v1/sandboxes", "/v1/events?limit=999", "/v1/snapshots"} {
		if strings.Contains(r.ask("GET", path, "", 200), secret) {
			t.Errorf("%s: %s tells it", when, path)
		}
	}
	if strings.Contains(r.log.String(), secret) {
		t.Errorf("%s: it is in the log", when)
	}
	for _, pattern := range []string{"/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"} {
		list, err := filepath.Glob(pattern)
		if err != nil || len(list) == 0 {
			t.Fatalf("%s: %v, %v", pattern, list, err)
		}
		for _, path := range list {
			if data, err := os.ReadFile(path); err == nil && bytes.Contains(data, []byte(secret)) {
				t.Errorf("%s: it is in %s", when, path)
			}
		}
	}
}

// TestSecrets gives a sandbox a secret and looks for it everywhere, whatever becomes of
// the sandbox.
func TestSecrets(t *testing.T) {
	t.Parallel()
	cfg, r, c := templateServer(t)
	box, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{
		Spec: sandpit.Spec{Image: sandpit.Image(busyboxRoot(t)), Resources: sandpit.Resources{Memory: 128 << 20}}, Secrets: map[string]string{"TOKEN": theSecret},
	})
	if err != nil {
		t.Fatal(err)
	}
	has := func(s *client.Sandbox, want string) {
		t.Helper()
		if got := shell(t, s, tellsSecret); got != want {
			t.Errorf("sandbox %s: %q, want %q", s.ID, got, want)
		}
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (%s)", err, sandpit.HintOf(err))
		}
	}
	has(box, secretTold)
	shell(t, box, "sleep 1000 >/dev/null 2>&1 & echo kept > /tmp/file")
	if got := strings.Join(box.Spec.Secrets, " "); got != "TOKEN" {
		t.Errorf("names: %q", got)
	}
	kept := filepath.Join(cfg.StateDir, "secrets", string(box.ID))
	if info, err := os.Stat(kept); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its file: %v, %v", info, err)
	}
	hidden(t, cfg, r, "running")
	do(c.Sandboxes.Checkpoint(t.Context(), box.ID))
	hidden(t, cfg, r, "after a checkpoint")
	do(c.Sandboxes.Suspend(t.Context(), box.ID))
	do(c.Sandboxes.Resume(t.Context(), box.ID))
	has(box, secretTold)
	hidden(t, cfg, r, "after a pause on disk")

	copies(t, cfg, r, c, box)

	do(c.Sandboxes.Stop(t.Context(), box.ID))
	hidden(t, cfg, r, "stopped")
	r.stop()
	r = start(t, cfg, registrations())
	do(c.Sandboxes.Start(t.Context(), box.ID))
	has(box, secretTold)
	hidden(t, cfg, r, "after another server has started it")
	do(c.Sandboxes.Stop(t.Context(), box.ID))
	do(c.Sandboxes.Archive(t.Context(), box.ID))
	hidden(t, cfg, r, "archived")
	do(c.Sandboxes.Restore(t.Context(), box.ID))
	do(c.Sandboxes.Start(t.Context(), box.ID))
	has(box, secretTold)
	do(box.Delete(t.Context()))
	if left, err := os.ReadDir(filepath.Dir(kept)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestSecretsOfThePool gives secrets to sandboxes that were made ahead: to them alone, and
// with the same care.
func TestSecretsOfThePool(t *testing.T) {
	t.Parallel()
	const secret = "opensesame-of-the-pool-4Rt7" // other tests look for theirs at the same time
	cfg, r, c := templateServer(t, "[[pool]]", "image = '"+busyboxRoot(t)+"'", "size = 1")
	spec := sandpit.Spec{Image: cfg.Pools[0].Image}
	given := claimed(t, c, client.CreateRequest{Spec: spec, Secrets: map[string]string{"TOKEN": secret}})
	if got := shell(t, given, tellsSecret); got != "27 opensesame" {
		t.Errorf("what was claimed has %q", got)
	}
	hides(t, cfg, r, secret, "claimed")
	other := claimed(t, c, client.CreateRequest{Spec: spec})
	if got := shell(t, other, tellsSecret); got != "0" {
		t.Errorf("the next of the pool has %q", got)
	}
	saved, err := c.Snapshots.Create(t.Context(), given.ID, "claimed")
	if err != nil || saved.Memory || len(saved.Spec.Secrets) > 0 {
		t.Errorf("its snapshot: %+v, %v", saved, err)
	}
	hides(t, cfg, r, secret, "with a snapshot")
	if err := errors.Join(c.Sandboxes.Suspend(t.Context(), given.ID), c.Sandboxes.Resume(t.Context(), given.ID)); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, given, tellsSecret); got != "27 opensesame" {
		t.Errorf("after a pause on disk: %q", got)
	}
	for _, s := range []*client.Sandbox{given, other} {
		if err := s.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(cfg.StateDir, "secrets")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// claimed returns a sandbox that was made ahead in the only pool.
func claimed(t *testing.T, c *client.Client, r client.CreateRequest) *client.Sandbox {
	t.Helper()
	waits(t, c)
	s, err := c.Sandboxes.Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Pools(t.Context())
	if err != nil || list[0].Ready > 0 {
		t.Fatalf("%+v, %v: sandbox %s is not from the pool", list, err, s.ID)
	}
	return s
}

// TestSecretsInDocker looks for a secret in all that the engine tells and keeps of a
// container, one of the pool, and of a snapshot of it.
func TestSecretsInDocker(t *testing.T) {
	t.Parallel()
	const secret = "opensesame-of-docker-8Kw3" // as above
	cfg := withDocker(t, "[[pool]]", "size = 1")
	r := start(t, cfg, dockers(t))
	c := r.dial()
	box := claimed(t, c, client.CreateRequest{Secrets: map[string]string{"TOKEN": secret}})
	told := func(s *client.Sandbox, want, when string) {
		t.Helper()
		if got := strings.TrimSpace(run(t, s, tellsSecret)); got != want {
			t.Errorf("%s: %q, want %q", when, got, want)
		}
		hides(t, cfg, r, secret, when)
		hiddenInDocker(t, secret, when)
	}
	told(box, "25 opensesame", "claimed")
	if _, err := c.Snapshots.Create(t.Context(), box.ID, "with-a-secret"); err != nil {
		t.Fatal(err)
	}
	fork, err := c.Sandboxes.Fork(t.Context(), box.ID, client.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	told(fork[0], "0", "a fork")
	if err := errors.Join(c.Sandboxes.Stop(t.Context(), box.ID), c.Sandboxes.Start(t.Context(), box.ID)); err != nil {
		t.Fatal(err)
	}
	told(box, "25 opensesame", "stopped and started")
	if err := errors.Join(box.Delete(t.Context()), fork[0].Delete(t.Context()), c.Snapshots.Delete(t.Context(), "", "with-a-secret")); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(cfg.StateDir, "secrets")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// hiddenInDocker expects a secret in nothing that the engine tells of containers and
// images, and in none of its files about containers.
func hiddenInDocker(t *testing.T, secret, when string) {
	t.Helper()
	if text := testdocker.Describe(t); strings.Contains(text, secret) || !strings.Contains(text, `"Env":`) {
		t.Errorf("%s: the engine tells it: %s", when, text)
	}
	if dir, private := testdocker.DataDir(t); private {
		nowhere(t, dir, secret)
	}
}

// copies expects the secret in no copy of a sandbox that was not given it.
func copies(t *testing.T, cfg config.Config, r *running, c *client.Client, box *client.Sandbox) {
	t.Helper()
	saved, err := c.Snapshots.Create(t.Context(), box.ID, "with-a-secret")
	if err != nil || saved.Memory || len(saved.Spec.Secrets) > 0 {
		t.Fatalf("snapshot: %+v, %v", saved, err)
	}
	hidden(t, cfg, r, "with a snapshot")
	var exported bytes.Buffer
	if err := c.Snapshots.Export(t.Context(), "", "with-a-secret", &exported); err != nil || !bytes.Contains(exported.Bytes(), []byte("kept")) {
		t.Errorf("exported: %d bytes, %v; want all files in them", exported.Len(), err)
	}
	if bytes.Contains(exported.Bytes(), []byte(theSecret)) {
		t.Error("it is exported")
	}
	if err := c.Sandboxes.Rollback(t.Context(), box.ID, "with-a-secret"); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("rolled back: %v", err)
	}
	spec := sandpit.Spec{Image: sandpit.SnapshotImage(saved.ID)}
	for name, tc := range map[string]struct {
		secrets map[string]string
		want    string
	}{
		"given nothing": {nil, "0"},
		"given another": {map[string]string{"TOKEN": "another-one"}, "11 another"},
	} {
		s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: spec, Secrets: tc.secrets})
		if err != nil {
			t.Fatal(err)
		}
		if got := shell(t, s, tellsSecret+"; cat /tmp/file"); got != tc.want+"\nkept" && got != tc.want+" \nkept" {
			t.Errorf("%s: %q", name, got)
		}
		if err := s.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	forks, err := c.Sandboxes.Fork(t.Context(), box.ID, client.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, forks[0], tellsSecret+"; cat /tmp/file; ps | grep -c '[s]leep 1000' || true"); got != "0 \nkept\n0" {
		t.Errorf("a fork: %q", got)
	}
	if err := forks[0].Delete(t.Context()); err != nil {
		t.Error(err)
	}
	hidden(t, cfg, r, "with copies")
}

// TestSecretsRefused refuses what no program can be given, without telling it.
func TestSecretsRefused(t *testing.T) {
	t.Parallel()
	r := start(t, configured(t), fakes(newWorld(t)))
	many := make(map[string]string)
	for len(many) < 65 {
		many[strings.Repeat("N", len(many)+1)] = theSecret
	}
	for name, secrets := range map[string]any{
		"no name":        map[string]string{"": theSecret},
		"a bad name":     map[string]string{"A-B": theSecret},
		"a zero":         map[string]string{"A": theSecret + "\x00"},
		"nothing":        map[string]string{"A": ""},
		"too long":       map[string]string{"A": strings.Repeat(theSecret, 4000)},
		"too many":       many,
		"not a text":     map[string]any{"A": []string{theSecret}},
		"not a map":      theSecret,
		"unknown beside": map[string]any{"A": map[string]string{theSecret: theSecret}},
	} {
		body, err := json.Marshal(map[string]any{"secrets": secrets})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.ask("POST", "/v1/sandboxes", string(body), 400); strings.Contains(got, theSecret) {
			t.Errorf("%s: %s", name, got)
		}
	}
	if strings.Contains(r.log.String(), theSecret) {
		t.Error("it is in the log")
	}
}
