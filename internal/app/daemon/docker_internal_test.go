package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
	"github.com/sandpit-dev/sandpit/provider/docker/register"
)

// busybox is an image with a shell.
const busybox = "sandpit-test/daemon-busybox:1"

var importBusybox sync.Once

// withDocker is a configuration whose sandboxes are containers.
func withDocker(t *testing.T, lines ...string) config.Config {
	t.Helper()
	host := testdocker.Host(t)
	importBusybox.Do(func() { testdocker.Import(t, busybox, testdocker.BusyboxFiles(t)) })
	cfg := configured(t, append([]string{"[docker]", "host = '" + host + "'", "image = '" + busybox + "'"}, lines...)...)
	cfg.Provider = "docker"
	return cfg
}

// dockers is the table of providers with a guest that is made of the sources as they
// are.
func dockers(t *testing.T) []registration.Provider {
	t.Helper()
	guest := testdocker.Guest(t)
	list := registrations()
	for i, p := range list {
		if p.Name == "docker" {
			list[i].Open = func(ctx context.Context, s registration.Surroundings) (sandpit.Provider, error) {
				o, err := register.Options(ctx, s)
				if err != nil {
					return nil, err
				}
				o.Guest = guest
				return register.OpenAnswering(ctx, o)
			}
		}
	}
	return list
}

func (r *running) dial() *client.Client {
	r.t.Helper()
	c, err := client.New(client.Options{URL: "unix://" + r.Socket})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(c.Close)
	return c
}

// mark is the label of a server's containers.
func mark(identity string) string { return "dev.sandpit.manager=" + identity }

func identityOf(t *testing.T, cfg config.Config) string {
	t.Helper()
	s, err := store.Open(t.Context(), cfg.StateDir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	return s.Identity()
}

func run(t *testing.T, s *client.Sandbox, command string) string {
	t.Helper()
	res, err := s.Run(t.Context(), command)
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("%s: %+v, %v", command, res, err)
	}
	return res.Stdout
}

// TestDocker uses a server whose sandboxes are containers, starts it again, and finds
// nothing left at the end.
func TestDocker(t *testing.T) {
	t.Parallel()
	cfg := withDocker(t)
	list := dockers(t)
	r := start(t, cfg, list)
	c := r.dial()
	s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Name: "kept"}})
	if err != nil {
		t.Fatalf("%v\n%s", err, r.log)
	}
	if s.Provider != "docker" || s.Spec.Image != busybox {
		t.Errorf("sandbox: %+v", s.Sandbox)
	}
	if got := run(t, s, "echo text > /workspace/file; pwd; echo $LANG"); got != "/workspace\nC.UTF-8\n" {
		t.Errorf("got %q", got)
	}
	r.stop()
	identity := identityOf(t, cfg)
	stranger := makeStranger(t, cfg, identity)
	r = start(t, cfg, list)
	c = r.dial()
	kept, err := c.Sandboxes.Get(t.Context(), s.ID)
	if err != nil {
		t.Fatal(err)
	}
	if got := run(t, kept, "cat file"); got != "text\n" {
		t.Errorf("after the restart: %q", got)
	}
	if left := testdocker.Containers(t, mark(identity)); len(left) != 1 || strings.Contains(left[0], string(stranger)) {
		t.Errorf("containers: %q, want that of sandbox %s only", left, s.ID)
	}
	if err := kept.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	if left := testdocker.Containers(t, mark(identity)); len(left) != 0 {
		t.Errorf("left: %q", left)
	}
	if files, err := os.ReadDir(filepath.Join(filepath.Join(cfg.StateDir, "docker"), "sandboxes")); err != nil || len(files) != 0 {
		t.Errorf("records: %v, %v", files, err)
	}
}

// makeStranger makes a container that is marked as a server's and of which the server
// knows nothing, as a crash at the wrong moment leaves it.
func makeStranger(t *testing.T, cfg config.Config, identity string) sandpit.ID {
	t.Helper()
	p, err := docker.New(testoptions.Docker(docker.Options{
		Endpoint: docker.Endpoint{Host: testdocker.Host(t)}, StateDir: filepath.Join(cfg.StateDir, "docker"), Manager: identity, Guest: testdocker.Guest(t),
	}))
	if err != nil {
		t.Fatal(err)
	}
	id := sandpit.NewID()
	_, err = p.Create(t.Context(), id, sandpit.Spec{Image: busybox, Labels: map[string]string{manager.Label: identity}})
	if err := errors.Join(err, p.Close()); err != nil {
		t.Fatal(err)
	}
	return id
}

// told is what the server says of provider docker.
func (r *running) told() wire.Provider {
	r.t.Helper()
	var page wire.Page[wire.Provider]
	if err := json.Unmarshal([]byte(r.ask("GET", "/v1/providers", "", http.StatusOK)), &page); err != nil {
		r.t.Fatal(err)
	}
	for _, p := range page.Items {
		if p.Name == "docker" {
			return p
		}
	}
	r.t.Fatalf("docker is not in %+v", page.Items)
	return wire.Provider{}
}

// TestDockerComesLater starts a server before there is an engine.
func TestDockerComesLater(t *testing.T) {
	t.Parallel()
	cfg := withDocker(t)
	socket, ok := strings.CutPrefix(cfg.Docker.Host, "unix://")
	if !ok {
		t.Skip("the engine is not on a socket of this machine")
	}
	later := filepath.Join(filepath.Dir(cfg.File), "later.sock")
	cfg.Docker.Host = "unix://" + later
	r := start(t, cfg, dockers(t))
	c := r.dial()
	before := r.told()
	if before.Available || !before.Default || before.Endpoint != cfg.Docker.Host || !strings.Contains(before.Reason, "no such socket") ||
		!strings.Contains(before.Hint, "systemctl start docker") || !strings.Contains(strings.Join(before.Abilities, " "), "stop") {
		t.Errorf("before: %+v", before)
	}
	if err := c.Ready(t.Context()); !errors.Is(err, sandpit.Unavailable) {
		t.Errorf("ready: %v, want unavailable", err)
	}
	_, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{})
	if !errors.Is(err, sandpit.Unavailable) || !strings.Contains(err.Error(), later) || sandpit.HintOf(err) == "" {
		t.Errorf("create: %v (hint %q)", err, sandpit.HintOf(err))
	}
	if _, err := os.Stat(filepath.Join(cfg.StateDir, "docker")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an engine that never was has left %s: %v", filepath.Join(cfg.StateDir, "docker"), err)
	}
	if err := os.Symlink(socket, later); err != nil {
		t.Fatal(err)
	}
	if after := r.told(); !after.Available || after.Reason != "" {
		t.Errorf("after: %+v", after)
	}
	for end := time.Now().Add(patience); c.Ready(t.Context()) != nil; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("ready: %v", c.Ready(t.Context()))
		}
	}
	s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = c.Sandboxes.Create(t.Context(), client.CreateRequest{Provider: "nobody"})
	if !errors.Is(err, sandpit.Unsupported) || !strings.Contains(err.Error(), `Unsupported provider type: "nobody". Available providers: daytona, docker, e2b, gvisor`) {
		t.Errorf("an unknown provider: %v", err)
	}
}

// until waits for a sandbox to be as it should.
func until(t *testing.T, c *client.Client, id sandpit.ID, is func(sandpit.Sandbox) bool) sandpit.Sandbox {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		s, err := c.Sandboxes.Get(t.Context(), id)
		if err == nil && is(s.Sandbox) {
			return s.Sandbox
		}
		if time.Now().After(end) {
			t.Fatalf("sandbox: %+v, %v", s, err)
		}
	}
}

// TestDockerRecovers ends containers behind the server's back.
func TestDockerRecovers(t *testing.T) {
	t.Parallel()
	r := start(t, withDocker(t), dockers(t))
	c := r.dial()
	kill := func(id sandpit.ID, signal string) { testdocker.Kill(t, "sandpit-"+string(id), signal) }
	remove := func(id sandpit.ID) { testdocker.Remove(t, "sandpit-"+string(id)) }
	t.Run("nothing is done unasked", func(t *testing.T) {
		for what, end := range map[string]func(sandpit.ID){
			"killed by another program":                    func(id sandpit.ID) { kill(id, "KILL") },
			"stopped by another program":                   func(id sandpit.ID) { kill(id, "TERM") },
			"its container was removed by another program": remove,
		} {
			s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{})
			if err != nil {
				t.Fatal(err)
			}
			end(s.ID)
			gone := until(t, c, s.ID, func(s sandpit.Sandbox) bool { return s.State == sandpit.StateDeleted })
			// An engine that removes a container kills it first, and may be asked in between.
			if got := gone.Reason; !strings.Contains(got, what) && !strings.Contains(got, "killed by another program") {
				t.Errorf("reason %q, want %q", gone.Reason, what)
			}
			if _, err := s.Run(t.Context(), "true"); !errors.Is(err, sandpit.Gone) {
				t.Errorf("run: %v, want gone", err)
			}
		}
	})
	t.Run("made again when asked", func(t *testing.T) {
		s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{Policy: sandpit.Policy{Recreate: 2}})
		if err != nil {
			t.Fatal(err)
		}
		run(t, s, "echo kept > /workspace/file; echo kept > /root/file")
		kill(s.ID, "KILL")
		awaitAnswer(t, s, "cat /workspace/file /root/file", "kept\nkept\n")
		remove(s.ID)
		awaitAnswer(t, s, "ls /workspace", "")
		kill(s.ID, "KILL")
		until(t, c, s.ID, func(s sandpit.Sandbox) bool { return s.State == sandpit.StateDeleted })
	})
}

// awaitAnswer runs a command until it says something.
func awaitAnswer(t *testing.T, s *client.Sandbox, command, want string) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		res, err := s.Run(t.Context(), command)
		if err == nil && res.ExitCode == 0 && res.Stdout == want {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %+v, %v; want %q", command, res, err, want)
		}
	}
}

// TestDockerImages fetches an image through the server, for two at once.
func TestDockerImages(t *testing.T) {
	t.Parallel()
	registry := testdocker.NewRegistry(t)
	registry.Hold = make(chan struct{})
	files := append(testdocker.BusyboxFiles(t), testdocker.File{Name: "etc/unique", Mode: 0o644, Content: []byte(sandpit.NewID())})
	tagged, _ := registry.Push(t, "team/box", "1", files, nil)
	r := start(t, withDocker(t), dockers(t))
	c := r.dial()
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			i, err := c.Images.Pull(t.Context(), api.Pull{Name: tagged}, nil)
			if err != nil || i.Kind != "docker" || i.Size == 0 {
				t.Errorf("pull: %+v, %v", i, err)
			}
		})
	}
	select {
	case <-registry.Reached():
	case <-time.After(patience):
		t.Error("the registry is not asked")
	}
	close(registry.Hold)
	group.Wait()
	images, err := c.Images.List(t.Context(), "")
	if err != nil || !strings.Contains(names(images), tagged) || !strings.Contains(names(images), busybox) {
		t.Errorf("images: %s, %v", names(images), err)
	}
	if err := c.Images.Remove(t.Context(), "", busybox); !errors.Is(err, sandpit.Unsupported) {
		t.Errorf("delete: %v, want unsupported", err)
	}
	s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Image: sandpit.Image(tagged)}})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

func names(list []api.Image) string {
	var all []string
	for _, i := range list {
		all = append(all, i.Name)
	}
	return strings.Join(all, " ")
}

// TestDoctorOnDocker notes that there is no engine, which is no reason to worry where
// another provider makes the sandboxes.
func TestDoctorOnDocker(t *testing.T) {
	t.Parallel()
	for _, provider := range []string{"gvisor", "docker", "nonsense"} {
		cfg := configured(t, "[docker]", "host = 'unix:///nowhere/sock'")
		cfg.Provider = provider
		list := examineProvider(t.Context(), cfg, register.Provider())
		if len(list) != 1 {
			t.Fatalf("%s: %+v, want one finding", provider, list)
		}
		got := list[0]
		if got.Failed || !strings.Contains(got.Text, "cannot be used") || got.Hint == "" || strings.Contains(got.Hint, "does not need it") != (provider == "gvisor") {
			t.Errorf("%s: %+v", provider, got)
		}
	}
}
