package fake_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

func create(t *testing.T, p sandpit.Provider) *fake.Instance {
	t.Helper()
	i, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	own, ok := i.(*fake.Instance)
	if !ok {
		t.Fatalf("an instance of another kind: %T", i)
	}
	return own
}

// output runs a script in a sandbox.
func output(t *testing.T, i sandpit.Instance, script string) string {
	t.Helper()
	var out bytes.Buffer
	p, err := i.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 0 {
		t.Fatalf("%s: %v, %v\n%s", script, status, err, &out)
	}
	return out.String()
}

func wantCode(t *testing.T, err error, want sandpit.Code) {
	t.Helper()
	if got := sandpit.CodeOf(err); got != want {
		t.Errorf("got the error %v (%s), want %s", err, got, want)
	}
}

func TestKill(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := open(t, w)
	for _, want := range []sandpit.Exit{
		{Known: true, Code: 3, Reason: "it ended by itself"},
		{Reason: "unknown"},
	} {
		i := create(t, p)
		if err := w.Kill(i.ID(), want); err != nil {
			t.Fatal(err)
		}
		if exit, err := i.Wait(t.Context()); err != nil || exit != want {
			t.Errorf("got %+v, %v; want %+v", exit, err, want)
		}
		wantCode(t, w.Kill(i.ID(), want), sandpit.Gone)
		if view, ok := w.Look(i.ID()); !ok || view.State != fake.Ended {
			t.Errorf("after its end: %+v, %t", view, ok)
		}
		if list, err := p.List(t.Context()); err != nil || len(list) != 1 {
			t.Errorf("it is not listed until it is destroyed: %+v, %v", list, err)
		}
		if _, err := p.Create(t.Context(), i.ID(), sandpit.Spec{}); sandpit.CodeOf(err) != sandpit.AlreadyExists {
			t.Errorf("its id: %v, want already exists", err)
		}
		if err := i.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
		if exit, err := i.Wait(t.Context()); err != nil || exit != want {
			t.Errorf("after destroy: %+v, %v; want %+v", exit, err, want)
		}
	}
	wantCode(t, w.Kill(sandpit.NewID(), sandpit.Exit{Reason: "x"}), sandpit.NotFound)
	wantCode(t, w.Kill(create(t, p).ID(), sandpit.Exit{}), sandpit.Invalid)
}

func TestVanish(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := open(t, w)
	i := create(t, p)
	if err := w.Vanish(i.ID()); err != nil {
		t.Fatal(err)
	}
	if exit, err := i.Wait(t.Context()); err != nil || exit.Known || exit.Reason == "" {
		t.Errorf("exit: %+v, %v", exit, err)
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	_, err := p.Attach(t.Context(), i.Handle())
	wantCode(t, err, sandpit.NotFound)
	wantCode(t, w.Vanish(i.ID()), sandpit.NotFound)
	if err := i.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestLook(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := create(t, open(t, w))
	expect := func(want fake.State) {
		t.Helper()
		if view, ok := w.Look(i.ID()); !ok || view.State != want {
			t.Errorf("state %q, %t; want %q", view.State, ok, want)
		}
	}
	ctx := t.Context()
	expect(fake.Running)
	resources, policy := sandpit.Resources{Memory: 1 << 30}, sandpit.NetworkPolicy{Deny: []string{"10.0.0.0/8"}}
	if err := errors.Join(i.Resize(ctx, resources), i.SetNetworkPolicy(ctx, policy), i.Pause(ctx)); err != nil {
		t.Fatal(err)
	}
	expect(fake.Paused)
	if err := errors.Join(i.Resume(ctx), i.Stop(ctx)); err != nil {
		t.Fatal(err)
	}
	expect(fake.Stopped)
	if err := i.Archive(ctx); err != nil {
		t.Fatal(err)
	}
	expect(fake.Archived)
	wantCode(t, i.Start(ctx), sandpit.Conflict)
	wantCode(t, i.Archive(ctx), sandpit.Conflict)
	if err := i.Restore(ctx); err != nil {
		t.Fatal(err)
	}
	expect(fake.Stopped)
	wantCode(t, i.Restore(ctx), sandpit.Conflict)
	view, _ := w.Look(i.ID())
	if view.Resources != resources || !slices.Equal(view.Network.Deny, policy.Deny) {
		t.Errorf("view: %+v", view)
	}
	if _, err := os.Stat(filepath.Join(view.Dir, "workspace")); err != nil {
		t.Error(err)
	}
	if _, ok := w.Look(sandpit.NewID()); ok {
		t.Error("there is a sandbox that was never made")
	}
}

// TestDetached starts what no group or session of the guest's holds.
func TestDetached(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("setsid"); err != nil {
		testengine.Skip(t, "there is no setsid; install util-linux")
	}
	w := newWorld(t)
	i := create(t, open(t, w))
	output(t, i, "setsid sh -c 'sleep 1000 & sleep 1001' >/dev/null 2>&1 & sleep 0.2")
	ours := func() (n int) {
		for _, left := range w.Leftovers() {
			if strings.HasPrefix(left, "process ") {
				n++
			}
		}
		return n
	}
	if n := ours(); n != 3 {
		t.Errorf("%d processes, want the shell and two others", n)
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.Leftovers(); len(left) > 0 {
		t.Errorf("left after destroy: %q", left)
	}
}

// TestStubbornFiles has the sandbox close its directories to its own user.
func TestStubbornFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := create(t, open(t, w))
	output(t, i, "mkdir -p a/b; touch a/b/c; chmod 0 a/b a")
	if err := i.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.Leftovers(); len(left) > 0 {
		t.Errorf("left after destroy: %q", left)
	}
}

// TestGuestPort speaks to the guest as a proxy would.
func TestGuestPort(t *testing.T) {
	t.Parallel()
	i := create(t, open(t, newWorld(t)))
	for path, want := range map[string]int{"/health": http.StatusNoContent, "/envs": http.StatusUnauthorized} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := i.HTTP(guest.Port).RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("%s: status %d, want %d", path, res.StatusCode, want)
		}
	}
	conn, err := i.Dial(t.Context(), guest.Port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "GET /health HTTP/1.0\r\n\r\n")
	if answer, err := io.ReadAll(conn); err != nil || !bytes.HasPrefix(answer, []byte("HTTP/1.0 204")) {
		t.Errorf("got %q, %v", answer, err)
	}
}

// TestNothingOutside looks for files that a sandbox has made elsewhere.
func TestNothingOutside(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := create(t, open(t, w))
	view, _ := w.Look(i.ID())
	output(t, i, `echo 1 > ~/by-home; echo 2 > "$(mktemp)"; echo 3 > here`)
	for _, name := range []string{"relative", "~/tilde"} {
		if err := i.Guest().WriteFile(t.Context(), "", name, strings.NewReader("x"), sandpit.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"home/by-home", "home/relative", "home/tilde", "workspace/here"} {
		if _, err := os.Stat(filepath.Join(view.Dir, name)); err != nil {
			t.Error(err)
		}
	}
	if entries, err := os.ReadDir(filepath.Join(view.Dir, "tmp")); err != nil || len(entries) != 1 {
		t.Errorf("temporary files: %v, %v", entries, err)
	}
}

func TestUnsupported(t *testing.T) {
	t.Parallel()
	p := open(t, newWorld(t))
	for name, tc := range map[string]struct {
		spec sandpit.Spec
		code sandpit.Code
	}{
		"mounts":           {sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/usr", Target: "/x"}}}, sandpit.Unsupported},
		"image":            {sandpit.Spec{Image: "python:3"}, sandpit.NotFound},
		"unknown snapshot": {sandpit.Spec{Image: sandpit.SnapshotImage("none")}, sandpit.NotFound},
		"path as snapshot": {sandpit.Spec{Image: sandpit.SnapshotImage("../boxes")}, sandpit.NotFound},
	} {
		if _, err := p.Create(t.Context(), sandpit.NewID(), tc.spec); sandpit.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
	}
}

// TestWorldOutlivesProviders simulates a crash: the first provider is not closed.
func TestWorldOutlivesProviders(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	lost := create(t, w.NewProvider())
	output(t, lost, "echo kept > file")
	next := open(t, w)
	list, err := next.List(t.Context())
	if err != nil || len(list) != 1 {
		t.Fatalf("list: %+v, %v", list, err)
	}
	found, err := next.Attach(t.Context(), list[0].Handle)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, found, "cat file"); got != "kept\n" {
		t.Errorf("got %q", got)
	}
}

func TestClosed(t *testing.T) {
	t.Parallel()
	w := fake.NewWorld(t.TempDir())
	p := w.NewProvider()
	i := create(t, p)
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := p.List(t.Context())
	wantCode(t, err, sandpit.Unavailable)
	_, err = p.Attach(t.Context(), i.Handle())
	wantCode(t, err, sandpit.Unavailable)
	for range 2 {
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if exit, err := i.Wait(t.Context()); err != nil || exit.Reason == "" {
		t.Errorf("exit: %+v, %v", exit, err)
	}
	_, err = w.NewProvider().Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	wantCode(t, err, sandpit.Unavailable)
	if left := w.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestChanges changes the state from many sides at once: whatever comes out, it
// is one of the states, and the sandbox can be destroyed.
func TestChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	i := create(t, open(t, w))
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	steps := []func(context.Context) error{
		i.Stop, i.Start, i.Pause, i.Resume,
		func(ctx context.Context) error { _, err := i.Stats(ctx); return err },
		func(ctx context.Context) error { _, err := i.Snapshot(ctx, sandpit.NewSnapshotID()); return err },
		func(ctx context.Context) error { _, err := i.Guest().ListProcesses(ctx); return err },
		func(ctx context.Context) error {
			_, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"sleep", strconv.Itoa(1000)}})
			return err
		},
	}
	done := make(chan error, len(steps))
	for _, step := range steps {
		go func() {
			for ctx.Err() == nil {
				err := step(ctx)
				switch sandpit.CodeOf(err) {
				case "", sandpit.Conflict, sandpit.Gone, sandpit.Timeout:
				default:
					done <- err
					return
				}
				time.Sleep(time.Millisecond)
			}
			done <- nil
		}()
	}
	for range steps {
		if err := <-done; err != nil {
			t.Errorf("%v (%s)", err, sandpit.CodeOf(err))
		}
	}
	if err := i.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.Leftovers(); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}
