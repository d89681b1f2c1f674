package daemon

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// busyboxRoot is a directory with BusyBox, whose programs are all there.
func busyboxRoot(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(t, "no busybox on this machine")
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, sub := range []string{"bin", "etc", "tmp", "www"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, data := range map[string][]byte{
		"bin/busybox": content, "etc/passwd": []byte("root:x:0:0::/:/bin/sh\n"), "www/index.html": []byte("served\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "cat", "httpd", "wget", "sleep", "env", "grep", "ps", "true"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// templateServer is a server with real sandboxes, and a client of it.
func templateServer(t *testing.T, lines ...string) (config.Config, *running, *client.Client) {
	t.Helper()
	cfg := configured(t, lines...)
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	r := start(t, cfg, registrations())
	c, err := client.New(client.Options{URL: "unix://" + r.Socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return cfg, r, c
}

// build builds a template and returns how it has ended, and its log.
func buildTemplate(t *testing.T, c *client.Client, r client.TemplateRequest) (sandpit.TemplateBuild, string) {
	t.Helper()
	_, b, err := c.Templates.Build(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	b, err = c.Builds.Wait(t.Context(), b.ID, func(l sandpit.BuildLog) { log.WriteString(l.Text + "\n") })
	if err != nil {
		t.Fatal(err)
	}
	return b, log.String()
}

// made makes a sandbox that is deleted when the test ends.
func made(t *testing.T, c *client.Client, spec sandpit.Spec) *client.Sandbox {
	t.Helper()
	s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func shell(t *testing.T, s *client.Sandbox, script string) string {
	t.Helper()
	res, err := s.Run(t.Context(), script)
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%s: %+v, %v", script, res, err)
	}
	return strings.TrimSpace(res.Stdout)
}

const (
	started = `echo "$$ $RANDOM" > /tmp/started; exec httpd -f -p 8000 -h /www`
	asks    = `wget -qO- http://127.0.0.1:8000/`
)

// TestServerTemplates builds a template with a web server in it, and asks sandboxes of it
// as soon as they are there.
func TestServerTemplates(t *testing.T) {
	t.Parallel()
	cfg, _, c := templateServer(t)
	recipe := sandpit.Recipe{
		From: sandpit.Image(busyboxRoot(t)), Resources: sandpit.Resources{Memory: 128 << 20},
		Steps: []sandpit.RecipeStep{{Run: sandpit.ShellArgs(`echo "the secret is $TOKEN"; echo made > /www/made`), Secrets: []string{"TOKEN"}}},
		Start: started, Ready: sandpit.Ready{URL: "http://localhost:8000/made"},
	}
	b, log := buildTemplate(t, c, client.TemplateRequest{Name: "web", Recipe: recipe, Secrets: map[string]string{"TOKEN": "plugh-xyzzy-01"}})
	if b.Status != sandpit.BuildReady || b.Snapshot == "" || !strings.Contains(log, "the secret is ***") {
		t.Fatalf("built: %+v\n%s", b, log)
	}
	const given = "xyzzy-at-create-02"
	var first string
	for range 3 {
		begin := time.Now()
		s := made(t, c, sandpit.Spec{Image: "template:web", Env: map[string]string{"GIVEN": given}})
		got := shell(t, s, asks)
		t.Logf("asked %v after the request for a sandbox", time.Since(begin))
		if got != "served" {
			t.Errorf("the web server says %q", got)
		}
		if s.Spec.Template.Build != b.ID || s.Spec.Resources.Memory != 128<<20 {
			t.Errorf("made of it: %+v", s.Spec)
		}
		mark := shell(t, s, "cat /tmp/started")
		if first == "" {
			first = mark
		}
		if mark != first {
			t.Errorf("the command was started again: %q after %q", mark, first)
		}
		if got := shell(t, s, "echo $GIVEN"); got != given {
			t.Errorf("the variable is %q inside", got)
		}
		if err := s.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	// What else is asked for than the snapshot has: the command is started then.
	s := made(t, c, sandpit.Spec{Image: "template:web", Resources: sandpit.Resources{Memory: 192 << 20}})
	if got := shell(t, s, asks); got != "served" || s.Spec.Resources.Memory != 192<<20 || shell(t, s, "cat /tmp/started") == first {
		t.Errorf("with more memory: %q, %+v", got, s.Spec.Resources)
	}
	if err := s.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"images", "snapshots"} {
		for _, secret := range []string{given, "plugh-xyzzy-01"} {
			nowhere(t, filepath.Join(cfg.CacheDir, dir), secret)
			nowhere(t, filepath.Join(cfg.StateDir, dir), secret)
		}
	}
	nowhere(t, cfg.StateDir, "plugh-xyzzy-01")
	if err := c.Templates.Delete(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(cfg.StateDir, "snapshots", "snap*")); err != nil || len(left) > 0 {
		t.Errorf("snapshots left: %v, %v", left, err)
	}
}

// TestTemplatePool hands out sandboxes of a template that were made ahead, and those of
// another build when there is one.
func TestTemplatePool(t *testing.T) {
	t.Parallel()
	_, _, c := templateServer(t, "[[pool]]", "image = 'template:web'", "size = 1")
	from := sandpit.Image(busyboxRoot(t))
	for _, text := range []string{"one", "two"} {
		b, log := buildTemplate(t, c, client.TemplateRequest{Name: "web", Recipe: sandpit.Recipe{
			From: from, Start: "echo " + text + " > /www/index.html; exec httpd -f -p 8000 -h /www", Ready: sandpit.Ready{Port: 8000},
		}})
		if b.Status != sandpit.BuildReady {
			t.Fatalf("%+v\n%s", b, log)
		}
		if err := c.Templates.SetPublic(t.Context(), "web", true); err != nil {
			t.Fatal(err)
		}
		ask := func(what string) {
			t.Helper()
			begin := time.Now()
			s := made(t, c, sandpit.Spec{Image: "template:web"})
			took := time.Since(begin)
			if list, err := c.Pools(t.Context()); err != nil || what == "of the pool" && list[0].Ready > 0 {
				t.Errorf("%s: %+v, %v; want one to be missing", what, list, err)
			}
			if got := shell(t, s, asks); got != text {
				t.Errorf("%s the web server says %q, want %q", what, got, text)
			}
			t.Logf("%s made after %v, answered after %v", what, took, time.Since(begin))
			if err := s.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		ask("at once")     // also while sandboxes of the build before wait
		if text == "one" { // that of the next build comes within a while
			waits(t, c)
			ask("of the pool")
		}
	}
}

// waits returns when a sandbox waits in the only pool.
func waits(t *testing.T, c *client.Client) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		list, err := c.Pools(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if list[0].Ready == 1 {
			return
		}
	}
	t.Fatal("nothing waits in the pool")
}

// nowhere expects that no file below a directory has a text.
func nowhere(t *testing.T, dir, text string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil //nolint:nilerr // it is gone, or nothing that could have it
		}
		data, err := os.ReadFile(path)
		if err == nil && bytes.Contains(data, []byte(text)) {
			t.Errorf("%s has %q", path, text)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestTemplateNeverReady tells what a command said last that was not ready, or failed.
func TestTemplateNeverReady(t *testing.T) {
	t.Parallel()
	_, _, c := templateServer(t)
	from := sandpit.Image(busyboxRoot(t))
	for name, tc := range map[string]struct {
		start string
		ready sandpit.Ready
		want  string
	}{
		"late":  {"echo not yet; sleep 60", sandpit.Ready{Port: 8000, Timeout: 1}, "the start command was not ready after 1s; last output: not yet"},
		"fails": {"echo broken >&2; exit 3", sandpit.Ready{Command: "false"}, "the start command ended with exit status 3; last output: broken"},
	} {
		b, log := buildTemplate(t, c, client.TemplateRequest{Name: name, Recipe: sandpit.Recipe{From: from, Start: tc.start, Ready: tc.ready}})
		if b.Status != sandpit.BuildFailed || b.Reason.Message != tc.want || b.Reason.Step != "start "+tc.start {
			t.Errorf("%s: %+v\n%s", name, b, log)
		}
	}
}
