package owners_test

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// onSmallDisk has all directories of a lab be on a small file system.
func onSmallDisk(t *testing.T) func(dir string) {
	t.Helper()
	return func(dir string) {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=192m"); err != nil {
			testengine.Skip(t, "no file system can be mounted: %v", err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
}

// takeRest takes the last bytes of a file system.
func takeRest(t *testing.T, dir string) (file string) {
	t.Helper()
	file = filepath.Join(dir, "rest")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Fatal(err)
			}
			return file
		}
	}
}

// TestOneOwnerFillsTheDisk has one owner write until the server's disk is full: every owner
// can read, use and delete, nothing is created, and the server says that it is not ready.
func TestOneOwnerFillsTheDisk(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{setUp: onSmallDisk(t)})
	running, stopped := l.bob.create(t, l.image), l.bob.create(t, l.image)
	l.bob.run(t, running, "echo kept > /file")
	l.bob.must(t, http.MethodPost, "/v1/snapshots", map[string]any{"sandbox": running, "name": "saved"})
	l.bob.must(t, http.MethodPost, "/v1/sandboxes/"+stopped+"/stop", nil)
	l.bob.build(t, "mine", map[string]any{"from": l.image, "steps": []any{map[string]any{"run": []string{"touch", "/built"}}}})
	var key struct {
		ID string `json:"id"`
	}
	l.admin.must(t, http.MethodPost, "/v1/keys", map[string]any{"owner": "carol"}).decode(t, &key)
	var images struct {
		Items []struct {
			ID   string `json:"id"`
			Name string `json:"name"`
		} `json:"items"`
	}
	l.command(t, "image", "import", busyboxTar(t), "--name", "busybox:spare")
	l.admin.must(t, http.MethodGet, "/v1/images", nil).decode(t, &images)
	if r := l.socket.call(t, http.MethodGet, "/readyz", nil); r.status != http.StatusOK {
		t.Fatalf("the server is not ready before: %d\n%s", r.status, r.body)
	}

	hog := l.alice.createWith(t, map[string]any{"image": l.image, "resources": map[string]any{"disk": 1 << 30}})
	l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+hog+"/run", map[string]any{"command": "dd if=/dev/zero of=/fill bs=64k"}) // ends somehow
	rest := takeRest(t, l.dir)

	l.wantNotReady(t)
	for what, create := range map[string]response{
		"sandbox":  l.bob.call(t, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": map[string]any{"image": l.image}}),
		"template": l.bob.call(t, http.MethodPost, "/v1/templates", map[string]any{"name": "more"}),
		"snapshot": l.bob.call(t, http.MethodPost, "/v1/snapshots", map[string]any{"sandbox": running}),
		"key":      l.admin.call(t, http.MethodPost, "/v1/keys", map[string]any{"owner": "dave"}),
	} {
		if create.status != http.StatusTooManyRequests || !strings.Contains(string(create.body), `"hint"`) {
			t.Errorf("create a %s on a full disk: %d, want 429 with a hint\n%s", what, create.status, create.body)
		}
		if strings.Contains(string(create.body), l.dir) {
			t.Errorf("a %s: the error names a path of the server: %s", what, create.body)
		}
	}
	if out, code := l.bob.run(t, running, "cat /file"); code != 0 || out != "kept\n" {
		t.Errorf("bob's sandbox: %q, exit status %d", out, code)
	}
	for _, path := range []string{
		"/v1/sandboxes", "/v1/sandboxes/" + stopped, "/v1/snapshots", "/v1/templates", "/v1/events",
	} {
		l.bob.must(t, http.MethodGet, path, nil)
	}
	l.bob.must(t, http.MethodDelete, "/v1/sandboxes/"+stopped, nil)
	l.bob.must(t, http.MethodDelete, "/v1/snapshots/saved", nil)
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	rest = takeRest(t, l.dir)
	l.restart(t)
	l.bob.must(t, http.MethodDelete, "/v1/templates/mine", nil)
	l.bob.must(t, http.MethodDelete, "/v1/sandboxes/"+running, nil)
	removed := 0
	for _, image := range images.Items {
		if image.Name == "busybox:spare" {
			l.admin.must(t, http.MethodDelete, "/v1/images/"+image.ID, nil)
			removed++
		}
	}
	if removed != 1 {
		t.Errorf("%d images were removed, want one: %+v", removed, images.Items)
	}
	l.admin.must(t, http.MethodDelete, "/v1/keys/"+key.ID, nil)
	l.alice.must(t, http.MethodDelete, "/v1/sandboxes/"+hog, nil)
	if err := os.Remove(rest); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(callTimeout); ; time.Sleep(100 * time.Millisecond) {
		r := l.socket.call(t, http.MethodGet, "/readyz", nil)
		if r.status == http.StatusOK {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("with room again: %d\n%s", r.status, r.body)
		}
	}
	l.command(t, "image", "import", busyboxTar(t), "--name", l.image)
	l.bob.create(t, l.image)
}

// restart kills the server of a lab and starts it again.
func (l *lab) restart(t *testing.T) {
	t.Helper()
	l.process.End(t, syscall.SIGKILL)
	l.process = testserver.Start(t, l.environ)
	l.url = l.process.URL
	for _, p := range []*party{&l.alice, &l.bob, &l.admin} {
		p.url = l.url
	}
}

// wantNotReady expects that the server says that its disk is full, and why to
// administrators only.
func (l *lab) wantNotReady(t *testing.T) {
	t.Helper()
	time.Sleep(1100 * time.Millisecond) // an answer is given for a second
	for _, p := range []party{l.bob, l.socket} {
		r := p.call(t, http.MethodGet, "/readyz", nil)
		if r.status != http.StatusServiceUnavailable || !strings.Contains(string(r.body), "disk") {
			t.Errorf("%s: /readyz on a full disk: %d\n%s", p.name, r.status, r.body)
		}
		if told := strings.Contains(string(r.body), "state_dir"); told != (p.name == "socket") {
			t.Errorf("%s hears why: %t\n%s", p.name, told, r.body)
		}
	}
}
