package gvisor_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newProvider returns a provider whose files are all in dir.
func newProvider(tb testing.TB, dir string) *gvisor.Provider {
	tb.Helper()
	return newProviderWith(tb, dir, func(*gvisor.Config) {})
}

func newProviderWith(tb testing.TB, dir string, change func(*gvisor.Config)) *gvisor.Provider {
	tb.Helper()
	for _, sub := range []string{"run", "scratch", "images", "stopped"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	cfg := gvisor.Config{
		RuntimeDir:  filepath.Join(dir, "run"),
		ScratchDir:  filepath.Join(dir, "scratch"),
		VolumeDir:   filepath.Join(dir, "volumes"),
		KeepDir:     filepath.Join(dir, "stopped"),
		SnapshotDir: filepath.Join(dir, "snapshots"),
		SuspendDir:  filepath.Join(dir, "suspended"),
		Archive:     openArchive(tb, dir),
		Images:      images,
		Engine:      testengine.Path(tb),
		Defaults:    testengine.Limits(),
	}
	change(&cfg)
	p, err := gvisor.New(cfg)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
		expectEmpty(tb, filepath.Join(dir, "run", "engines"))
		expectEmpty(tb, filepath.Join(dir, "scratch"))
		expectNothingKept(tb, dir)
		expectEmpty(tb, cfg.SuspendDir)
	})
	return p
}

func openArchive(tb testing.TB, dir string) archive.Store {
	tb.Helper()
	store, err := archive.OpenDir(filepath.Join(dir, "archive"))
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

func expectEmpty(tb testing.TB, dir string) {
	tb.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) > 0 {
		tb.Errorf("left in %s: %v, %v", dir, entries, err)
	}
}

// expectNothingKept looks for what is left of stopped sandboxes.
func expectNothingKept(tb testing.TB, dir string) {
	tb.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "stopped"))
	if err != nil {
		tb.Error(err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "lock":
		case "checkpoints", "archived":
			expectEmpty(tb, filepath.Join(dir, "stopped", e.Name()))
		default:
			tb.Errorf("left of what was stopped: %s", e.Name())
		}
	}
	if objects, err := openArchive(tb, dir).List(tb.Context()); err != nil || len(objects) > 0 {
		tb.Errorf("left in the archive: %v, %v", objects, err)
	}
}

func create(tb testing.TB, p *gvisor.Provider, spec sandpit.Spec) sandpit.Instance {
	tb.Helper()
	box, err := p.Create(tb.Context(), sandpit.NewID(), spec)
	if err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	return box
}

// output runs a shell script in a sandbox and returns what it prints.
func output(tb testing.TB, box sandpit.Instance, script string) string {
	tb.Helper()
	var out bytes.Buffer
	p, err := box.Guest().Start(tb.Context(), sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		tb.Fatal(err)
	}
	status, err := p.Wait(tb.Context())
	if err != nil || status.Code != 0 {
		tb.Fatalf("%s: %v, %v\n%s", script, status, err, &out)
	}
	return strings.TrimSpace(out.String())
}

func TestLife(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	spec := sandpit.Spec{Name: "one", Labels: map[string]string{"a": "b"}, Env: map[string]string{"SECRET": "x"}, Hostname: "here"}
	box := create(t, p, spec)
	if got := output(t, box, "hostname; pwd; echo $SECRET"); got != "here\n/workspace\nx" {
		t.Errorf("got %q", got)
	}

	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != box.ID() || list[0].Spec.Labels["a"] != "b" || list[0].Spec.Name != "one" {
		t.Errorf("list: %+v, %v", list, err)
	}
	if len(list) == 1 && list[0].Spec.Env != nil {
		t.Error("the environment was written down")
	}
	if _, err := p.Create(t.Context(), box.ID(), sandpit.Spec{}); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("the same id again: %v", err)
	}

	waited := make(chan sandpit.Exit, 1)
	go func() {
		exit, err := box.Wait(context.WithoutCancel(t.Context()))
		if err != nil {
			t.Error(err)
		}
		waited <- exit
	}()
	for range 2 {
		if err := box.Destroy(t.Context()); err != nil {
			t.Errorf("destroy: %v", err)
		}
	}
	if exit := <-waited; exit.Reason == "" {
		t.Errorf("the exit has no reason: %+v", exit)
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list after destroy: %+v, %v", list, err)
	}
	if _, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"true"}}); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("start after destroy: %v, want gone", err)
	}
	if _, err := p.Attach(t.Context(), box.Handle()); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("attach after destroy: %v, want not found", err)
	}
}

// TestSandboxesAreApart looks from one sandbox for another.
func TestSandboxesAreApart(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	a, b := create(t, p, sandpit.Spec{}), create(t, p, sandpit.Spec{})
	output(t, a, "echo mine > /tmp/file; sleep 100 >/dev/null 2>&1 & echo started")
	if got := output(t, b, "ls /tmp; ps -e -o args 2>/dev/null | grep -c '[s]leep 100'; true"); got != "0" && got != "" {
		t.Errorf("one sandbox sees the other: %q", got)
	}
	if err := a.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := output(t, b, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
}

// needPython skips the test where sandboxes have no Python from this machine.
func needPython(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/python3"); err != nil {
		testengine.Skip(t, "this machine has no /usr/bin/python3 for sandboxes")
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	needPython(t)
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	client := &http.Client{Transport: box.HTTP(8000)}
	if _, err := client.Get("http://sandbox/"); sandpit.CodeOf(err) != sandpit.Unavailable { //nolint:noctx,bodyclose // there is no answer
		t.Errorf("a closed port: %v (%s), want unavailable", err, sandpit.CodeOf(err))
	}
	server, err := box.Guest().Start(t.Context(), sandpit.Command{
		Args: []string{"python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", "/usr/share", "8000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var res *http.Response
	for range 200 {
		if res, err = client.Get("http://sandbox/doc/"); err == nil { //nolint:noctx // bounded by the loop
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || !bytes.Contains(body, []byte("Directory listing for /doc/")) {
		t.Errorf("got %q, %v", body, err)
	}
	dialer, ok := box.(sandpit.Dialer)
	if !ok {
		t.Fatal("no raw connections")
	}
	conn, err := dialer.Dial(t.Context(), 8000)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(conn, "GET /nothing HTTP/1.0\r\n\r\n")
	answer, _ := io.ReadAll(conn)
	_ = conn.Close()
	if !bytes.HasPrefix(answer, []byte("HTTP/1.0 404")) {
		t.Errorf("got %q", answer)
	}
	if err := server.Signal(t.Context(), sandpit.SIGKILL); err != nil {
		t.Error(err)
	}
	if _, err := server.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestAttachFromAnotherProcess finds a sandbox by its handle in a new process,
// which then ends without harm to the sandbox.
func TestAttachFromAnotherProcess(t *testing.T) {
	const variable = "SANDPIT_TEST_ATTACH"
	if dir, handle, ok := strings.Cut(os.Getenv(variable), "|"); ok {
		p := newProvider2(t, dir)
		box, err := p.Attach(t.Context(), []byte(handle))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Println("found:", output(t, box, "cat /tmp/left"))
		// An unused connection to a sandbox that lives on is kept for a minute.
		(&http.Client{Transport: box.HTTP(guest.Port)}).CloseIdleConnections()
		return
	}
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{})
	output(t, box, "echo by the first > /tmp/left")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAttachFromAnotherProcess$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"="+dir+"|"+string(box.Handle()))
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("found: by the first")) {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := output(t, box, "cat /tmp/left"); got != "by the first" {
		t.Errorf("after the other process: %q", got)
	}
}

// newProvider2 is a second provider beside one that lives.
func newProvider2(t *testing.T, dir string) *gvisor.Provider {
	t.Helper()
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), KeepDir: filepath.Join(dir, "stopped"),
		SnapshotDir: filepath.Join(dir, "snapshots"), SuspendDir: filepath.Join(dir, "suspended"),
		VolumeDir: filepath.Join(dir, "volumes"), Images: images, Engine: testengine.Path(t), Defaults: testengine.Limits(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// TestOthersAreLeftAlone opens a second provider on the same directory: it must
// neither reap nor end the first one's sandboxes, and see them.
func TestOthersAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := newProvider(t, dir)
	a := create(t, first, sandpit.Spec{})
	second := newProvider2(t, dir)
	b := create(t, second, sandpit.Spec{})
	list, err := second.List(t.Context())
	if err != nil || len(list) != 2 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if _, err := second.Create(t.Context(), a.ID(), sandpit.Spec{}); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("the first one's id: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if got := output(t, a, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
	exit, err := b.Wait(t.Context())
	if err != nil || exit.Known || exit.Reason == "" {
		t.Errorf("the second one's sandbox: %+v, %v", exit, err)
	}
}

// TestDeadEnginesAreSwept leaves what a crash of everything at once leaves.
func TestDeadEnginesAreSwept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, f := range []string{"edead/lock", "edead/boxes/saaaaaaaaaaaaaaaaaaa.json", "ehalf/x"} {
		path := filepath.Join(dir, "run", "engines", f)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`{"id":"saaaaaaaaaaaaaaaaaaa"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	p := newProvider(t, dir)
	expectEmpty(t, filepath.Join(dir, "run", "engines"))
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
}

func TestFailedCreateLeavesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	for name, tc := range map[string]struct {
		spec sandpit.Spec
		code sandpit.Code
	}{
		"no image":         {sandpit.Spec{Image: "/no/such/root"}, sandpit.NotFound},
		"unknown image":    {sandpit.Spec{Image: "127.0.0.1:1/no/such:registry"}, sandpit.Unavailable},
		"no source":        {sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/no/such", Target: "/x"}}}, sandpit.NotFound},
		"no user":          {sandpit.Spec{User: "nobody-knows"}, sandpit.Invalid},
		"work dir a file":  {sandpit.Spec{WorkDir: "/etc/passwd"}, sandpit.Invalid},
		"huge description": {sandpit.Spec{Mounts: manyMounts(5000)}, sandpit.Invalid},
	} {
		if _, err := p.Create(t.Context(), sandpit.NewID(), tc.spec); sandpit.CodeOf(err) != tc.code {
			t.Errorf("%s: %v (%s), want %s", name, err, sandpit.CodeOf(err), tc.code)
		}
	}
	for range 10 {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		if _, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{}); err == nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("given up: %v", err)
		}
		cancel()
	}
	if list, err := p.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	if got := output(t, create(t, p, sandpit.Spec{}), "echo works"); got != "works" {
		t.Errorf("got %q", got)
	}
}

func manyMounts(n int) []sandpit.Mount {
	mounts := make([]sandpit.Mount, n)
	for i := range mounts {
		mounts[i] = sandpit.Mount{Source: "/usr", Target: fmt.Sprintf("/very/long/name/of/a/mount/%d", i), ReadOnly: true}
	}
	return mounts
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			box, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Hostname: fmt.Sprintf("box%d", i)})
			if err != nil {
				t.Error(err)
				return
			}
			var out bytes.Buffer
			process, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"hostname"}, Stdout: &out})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := process.Wait(t.Context()); err != nil || out.String() != fmt.Sprintf("box%d\n", i) {
				t.Errorf("box%d: %q, %v", i, &out, err)
			}
			if err := box.Destroy(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// TestCallsWhileDestroyed has many use a sandbox while it is destroyed: what fails says
// that it is gone, and nothing else.
func TestCallsWhileDestroyed(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	var group sync.WaitGroup
	for range 8 {
		called := make(chan struct{})
		group.Go(func() {
			for first := true; ; first = false {
				_, err := box.Guest().ListProcesses(t.Context())
				if first {
					close(called)
				}
				if err != nil {
					if sandpit.CodeOf(err) != sandpit.Gone {
						t.Errorf("a call while the sandbox was destroyed: %v (%s)", err, sandpit.CodeOf(err))
					}
					return
				}
			}
		})
		<-called
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Error(err)
	}
	group.Wait()
}

// TestOrphansAreReaped leaves orphans inside: as pid 1 the guest must collect
// them, and still know its own children's exits.
func TestOrphansAreReaped(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	output(t, box, "for i in 1 2 3 4 5 6 7 8 9 10; do (sh -c 'exit 3' & ) ; done; sleep 0.3")
	if got := output(t, box, "grep -l 'State:.*Z' /proc/[0-9]*/status | wc -l"); got != "0" {
		t.Errorf("%s zombies", got)
	}
}

// TestDiskIsLimited fills a sandbox's disk.
func TestDiskIsLimited(t *testing.T) {
	t.Parallel()
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) { c.Defaults.Disk = 32 << 20 })
	box := create(t, p, sandpit.Spec{})
	got := output(t, box, "dd if=/dev/zero of=/big bs=1M count=64 2>&1; rm /big; echo again > /small; cat /small")
	if !strings.Contains(got, "No space left on device") || !strings.HasSuffix(got, "again") {
		t.Errorf("got %q", got)
	}
}

// TestNothingListensForTheGuest looks from inside for a way to the guest.
func TestNothingListensForTheGuest(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	if got := output(t, box, "cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | grep -c ':C33F'; true"); got != "0" {
		t.Errorf("something listens on port 49983: %q", got)
	}
	if got := output(t, box, "tr '\\0' '\\n' < /proc/1/environ; tr '\\0' ' ' < /proc/1/cmdline"); strings.Contains(strings.ToLower(got), "token") {
		t.Errorf("the guest's key is to be seen: %q", got)
	}
}

func TestAttachRefusesNonsense(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	for _, handle := range []string{
		"", "x", "{}", `{"engine":"../../etc","id":"saaaaaaaaaaaaaaaaaaa"}`, `{"engine":".","id":"saaaaaaaaaaaaaaaaaaa"}`,
		`{"engine":"e","id":"../../../../etc/passwd"}`, `{"engine":"e","id":""}`,
	} {
		if _, err := p.Attach(t.Context(), []byte(handle)); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v, want invalid", handle, err)
		}
	}
	if _, err := p.Attach(t.Context(), []byte(`{"engine":"enone","id":"saaaaaaaaaaaaaaaaaaa"}`)); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("a sandbox that is not there: %v", err)
	}
}

// TestFirstProcessOutlivesSignals: gVisor does not shield the first process from
// signals as Linux does, so the guest does.
func TestFirstProcessOutlivesSignals(t *testing.T) {
	t.Parallel()
	box := create(t, newProvider(t, t.TempDir()), sandpit.Spec{})
	output(t, box, "for s in HUP INT QUIT USR1 USR2 ALRM PIPE WINCH; do kill -$s 1; done")
	if got := output(t, box, "echo alive"); got != "alive" {
		t.Errorf("got %q", got)
	}
}
