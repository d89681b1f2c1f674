package workspace_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// to sends every request to one server, whatever its address says.
type to struct {
	host string
	rt   *http.Transport
}

func (t to) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Host = t.host
	return t.rt.RoundTrip(r)
}

// open returns a workspace with a real guest, whose directory inside is dir.
func open(t *testing.T, o workspace.Options) (w *workspace.Workspace, dir string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if o.Dir == "" {
		o.Dir = dir
	}
	if w, err = workspace.New(newGuest(t, dir), o); err != nil {
		t.Fatal(err)
	}
	return w, dir
}

// newGuest returns a real guest whose programs start in dir.
func newGuest(t *testing.T, dir string) sandpit.Guest {
	t.Helper()
	g := guest.New()
	server := httptest.NewServer(g.Handler())
	rt := &http.Transport{DisableCompression: true}
	t.Cleanup(func() {
		rt.CloseIdleConnections()
		server.Close()
		g.Close()
	})
	client := envd.New(to{server.Listener.Addr().String(), rt}, "key")
	self := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	if err := client.Init(t.Context(), envd.InitRequest{User: self, WorkDir: dir}); err != nil {
		t.Fatal(err)
	}
	return client
}

func TestRun(t *testing.T) {
	t.Parallel()
	w, dir := open(t, workspace.Options{})
	got, err := w.Shell(t.Context(), `echo out; echo err >&2; pwd; exit 3`)
	if err != nil || got.Stdout != "out\n"+dir+"\n" || got.Stderr != "err\n" || got.ExitCode != 3 || got.Duration <= 0 || got.Truncated || got.TimedOut {
		t.Errorf("got %+v, %v", got, err)
	}
	text, err := w.Output(t.Context(), "echo one; echo two >&2")
	if err != nil || text != "one\ntwo\n" && text != "two\none\n" {
		t.Errorf("got %q, %v", text, err)
	}
	_, err = w.Output(t.Context(), "echo why >&2; exit 4")
	if exit, ok := errors.AsType[*workspace.ExitError](err); !ok || exit.ExitCode != 4 || !strings.Contains(err.Error(), "why") {
		t.Errorf("got %v", err)
	}
	if _, err := w.Run(t.Context(), sandpit.Command{Args: []string{"no-such-program"}}); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("got %v", err)
	}
	var also bytes.Buffer
	got, err = w.Run(t.Context(), sandpit.Command{Args: []string{"cat"}, Stdin: strings.NewReader("through"), Stdout: &also})
	if err != nil || got.Stdout != "through" || also.String() != "through" {
		t.Errorf("got %+v, %q, %v", got, &also, err)
	}
}

func TestTimeoutTellsAndKills(t *testing.T) {
	t.Parallel()
	w, dir := open(t, workspace.Options{Timeout: time.Second})
	got, err := w.Shell(t.Context(), "echo before; sleep 10; touch after")
	if sandpit.CodeOf(err) != sandpit.Timeout || !strings.Contains(err.Error(), "1s") || sandpit.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
	if !got.TimedOut || got.Stdout != "before\n" || got.ExitCode != 137 || got.Duration > 5*time.Second {
		t.Errorf("got %+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "after")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it went on: %v", err)
	}
}

func TestCancelKills(t *testing.T) {
	t.Parallel()
	w, dir := open(t, workspace.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for {
			if _, err := os.Stat(filepath.Join(dir, "started")); err == nil || t.Context().Err() != nil {
				cancel()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
	got, err := w.Shell(ctx, "echo before; touch started; sleep 1; touch after")
	if !errors.Is(err, context.Canceled) || got.TimedOut {
		t.Errorf("got %+v, %v", got, err)
	}
	time.Sleep(1500 * time.Millisecond)
	if _, err := os.Stat(filepath.Join(dir, "after")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it went on: %v", err)
	}
}

func TestOutputIsBounded(t *testing.T) {
	t.Parallel()
	w, _ := open(t, workspace.Options{MaxOutput: 1000})
	got, err := w.Shell(t.Context(), `echo begin; head -c 5000000 /dev/zero | tr '\0' x; printf '\377end'`)
	if err != nil || !got.Truncated || len(got.Stdout) > 1100 ||
		!strings.HasPrefix(got.Stdout, "begin\nxxx") || !strings.HasSuffix(got.Stdout, "xxx\xffend") || !strings.Contains(got.Stdout, "\n[4999010 bytes left out]\n") {
		t.Errorf("got %v, %v, %d bytes: %.60q...", got.Truncated, err, len(got.Stdout), got.Stdout)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	w, dir := open(t, workspace.Options{MaxFile: 10})
	ctx := t.Context()
	if err := w.WriteFile(ctx, "nested/with space", strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	if text, err := w.ReadText(ctx, filepath.Join(dir, "nested/with space")); err != nil || text != "content" {
		t.Errorf("%q, %v", text, err)
	}
	if part, err := w.ReadRange(ctx, "nested/with space", 3, 2); err != nil || string(part) != "te" {
		t.Errorf("%q, %v", part, err)
	}
	if part, err := w.ReadRange(ctx, "nested/with space", 100, 2); err != nil || len(part) != 0 {
		t.Errorf("beyond the end: %q, %v", part, err)
	}
	if _, err := w.ReadFile(ctx, "/nonexistent.txt"); sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(err.Error(), "not found") {
		t.Errorf("got %v", err)
	}
	if _, err := w.ReadFile(ctx, "nested"); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a directory: %v", err)
	}
	if err := w.WriteFile(ctx, "large", strings.NewReader("12345678901")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReadFile(ctx, "large"); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("too large: %v", err)
	}
	if err := w.WriteFile(ctx, "binary", strings.NewReader("\xff\x00")); err != nil {
		t.Fatal(err)
	}
	if _, err := w.ReadText(ctx, "binary"); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("binary as text: %v", err)
	}
	for p, want := range map[string][2]bool{"nested": {true, true}, "large": {true, false}, "no": {false, false}} {
		exists, err := w.Exists(ctx, p)
		isDir, err2 := w.IsDir(ctx, p)
		if err != nil || err2 != nil || exists != want[0] || isDir != want[1] {
			t.Errorf("%s: exists %v, directory %v; %v, %v", p, exists, isDir, err, err2)
		}
	}
}

func TestWithin(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	inside, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, _ := open(t, workspace.Options{Dir: inside, Within: []string{inside}})
	if err := os.Symlink(outside, filepath.Join(inside, "link")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"../x", "/etc/passwd", "link/x", filepath.Join(outside, "x")} {
		if err := w.WriteFile(t.Context(), p, strings.NewReader("")); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("%s: %v", p, err)
		}
		if err := w.CopyTo(t.Context(), inside, p); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("copy to %s: %v", p, err)
		}
		if _, err := w.CopyFrom(t.Context(), p, t.TempDir()); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("copy from %s: %v", p, err)
		}
	}
	if err := w.WriteFile(t.Context(), "x", strings.NewReader("")); err != nil {
		t.Error(err)
	}
	if _, err := workspace.New(nil, workspace.Options{Dir: "here"}); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("got %v", err)
	}
}

func TestCopy(t *testing.T) {
	t.Parallel()
	w, dir := open(t, workspace.Options{})
	ctx := t.Context()
	source := t.TempDir()
	for name, content := range map[string]string{"a.txt": "a", "sub/b.sh": "b"} {
		name = filepath.Join(source, "tree", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(content), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{"in": "sub/b.sh", "out": "/etc/passwd"} {
		if err := os.Symlink(target, filepath.Join(source, "tree", link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(source, "tree", "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.CopyTo(ctx, filepath.Join(source, "tree"), "copied"); err != nil {
		t.Fatal(err)
	}
	if err := w.CopyTo(ctx, filepath.Join(source, "tree", "a.txt"), "copied/empty/"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "copied/empty/a.txt"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if err := w.CopyTo(ctx, filepath.Join(source, "missing"), "x"); sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(err.Error(), "not found") {
		t.Errorf("got %v", err)
	}

	target := filepath.Join(t.TempDir(), "new", "back")
	skipped, err := w.CopyFrom(ctx, "copied", target)
	if err != nil || len(skipped) != 1 || !strings.Contains(skipped[0], "out") {
		t.Errorf("skipped %q, %v", skipped, err)
	}
	for name, want := range map[string]string{"a.txt": "a", "sub/b.sh": "b", "in": "b", "empty/a.txt": "a"} {
		if data, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(data) != want {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
	if _, err := w.CopyFrom(ctx, "copied/a.txt", target); err != nil { // into the directory
		t.Error(err)
	}
	if _, err := w.CopyFrom(ctx, "copied", filepath.Join(target, "a.txt")); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("a directory over a file: %v", err)
	}
	if _, err := w.CopyFrom(ctx, "missing", target); sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(err.Error(), "not found") {
		t.Errorf("got %v", err)
	}
}
