package envd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// to sends every request to one server, whatever its address says.
type to struct {
	host string
	rt   *http.Transport
}

func (t to) RoundTrip(r *http.Request) (*http.Response, error) {
	r.URL = &url.URL{Scheme: "http", Host: t.host, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	return t.rt.RoundTrip(r)
}

const token = "the key"

// newServer serves a handler and returns a client that shows it key.
func newServer(tb testing.TB, h http.Handler, key string) *envd.Client {
	tb.Helper()
	server := httptest.NewServer(h)
	u, err := url.Parse(server.URL)
	if err != nil {
		tb.Fatal(err)
	}
	rt := to{u.Host, &http.Transport{}}
	tb.Cleanup(func() {
		rt.rt.CloseIdleConnections()
		server.Close()
	})
	return envd.New(rt, key)
}

// newGuest runs a real guest in this process.
func newGuest(tb testing.TB) *envd.Client {
	tb.Helper()
	g := guest.New()
	tb.Cleanup(g.Close)
	c := newServer(tb, g.Handler(), token)
	if err := c.Init(tb.Context(), envd.InitRequest{
		Env:  map[string]string{"GLOBAL": "1", "BOTH": "global"},
		User: self(), WorkDir: tb.TempDir(),
	}); err != nil {
		tb.Fatal(err)
	}
	return c
}

// self returns the user that runs the tests: a guest that is not root can run commands only as
// itself.
func self() string { return fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid()) }

// run runs a command to its end.
func run(t *testing.T, c *envd.Client, cmd sandpit.Command) (stdout, stderr string, status sandpit.ExitStatus, err error) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := c.Start(t.Context(), cmd)
	if err != nil {
		return "", "", status, err
	}
	status, err = p.Wait(t.Context())
	return out.String(), errs.String(), status, err
}

func sh(script string) sandpit.Command { return sandpit.Command{Args: []string{"sh", "-c", script}} }

func TestCommands(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	for name, tc := range map[string]struct {
		cmd            sandpit.Command
		stdout, stderr string
		status         sandpit.ExitStatus
	}{
		"output":         {cmd: sh("echo out; echo err >&2"), stdout: "out\n", stderr: "err\n"},
		"exit code":      {cmd: sh("exit 7"), status: sandpit.ExitStatus{Code: 7}},
		"killed":         {cmd: sh("kill -9 $$"), status: sandpit.ExitStatus{Code: 137, Signaled: true}},
		"terminated":     {cmd: sh("kill $$"), status: sandpit.ExitStatus{Code: 143, Signaled: true}},
		"input":          {cmd: sandpit.Command{Args: []string{"cat"}, Stdin: strings.NewReader("in\x00put")}, stdout: "in\x00put"},
		"no input":       {cmd: sandpit.Command{Args: []string{"cat"}}},
		"environment":    {cmd: sandpit.Command{Args: []string{"sh", "-c", "echo $GLOBAL $BOTH $OWN"}, Env: map[string]string{"OWN": "2", "BOTH": "own"}}, stdout: "1 own 2\n"},
		"directory":      {cmd: sandpit.Command{Args: []string{"pwd"}, Dir: "/usr"}, stdout: "/usr\n"},
		"arguments":      {cmd: sandpit.Command{Args: []string{"printf", "%s|", "a b", "$x", ""}}, stdout: "a b|$x||"},
		"input too long": {cmd: sandpit.Command{Args: []string{"head", "-c", "1"}, Stdin: bytes.NewReader(make([]byte, 1<<20))}, stdout: "\x00"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stdout, stderr, status, err := run(t, c, tc.cmd)
			if err != nil || stdout != tc.stdout || stderr != tc.stderr || status != tc.status {
				t.Errorf("got %q, %q, %+v, %v; want %q, %q, %+v", stdout, stderr, status, err, tc.stdout, tc.stderr, tc.status)
			}
		})
	}
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, []byte("text"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		cmd  sandpit.Command
		code sandpit.Code
		text string
	}{
		"nothing":       {sandpit.Command{}, sandpit.Invalid, "no command"},
		"no program":    {sandpit.Command{Args: []string{"no-such-program"}}, sandpit.NotFound, "no-such-program"},
		"no file":       {sandpit.Command{Args: []string{"/no/such"}}, sandpit.NotFound, "/no/such"},
		"not a program": {sandpit.Command{Args: []string{plain}}, sandpit.PermissionDenied, plain},
		"a directory":   {sandpit.Command{Args: []string{"/usr"}}, sandpit.PermissionDenied, "/usr"},
		"no directory":  {sandpit.Command{Args: []string{"true"}, Dir: "/no/dir"}, sandpit.Invalid, "cwd '/no/dir' does not exist"},
		"no user":       {sandpit.Command{Args: []string{"true"}, User: "nobody-knows"}, sandpit.Invalid, "invalid username: 'nobody-knows'"},
		"bad variable":  {sandpit.Command{Args: []string{"true"}, Env: map[string]string{"A=B": "c"}}, sandpit.Invalid, "A=B"},
		"NUL":           {sandpit.Command{Args: []string{"true", "a\x00b"}}, sandpit.Invalid, "NUL"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := c.Start(t.Context(), tc.cmd)
			if sandpit.CodeOf(err) != tc.code || err == nil || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("got %v (%s), want %q (%s)", err, sandpit.CodeOf(err), tc.text, tc.code)
			}
		})
	}
}

func TestTimeoutKillsTheWholeGroup(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	alive := filepath.Join(t.TempDir(), "alive")
	if err := syscall.Mkfifo(alive, 0o600); err != nil {
		t.Fatal(err)
	}
	// Reading it ends when the child, which alone has it open, has ended.
	child, err := os.OpenFile(alive, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer child.Close()
	for limit := 200 * time.Millisecond; ; limit *= 2 {
		cmd := sh("(exec 3>" + alive + "; echo begun >&3; sleep 1000) & sleep 1000")
		cmd.Timeout = limit
		if _, _, _, err := run(t, c, cmd); sandpit.CodeOf(err) != sandpit.Timeout {
			t.Fatalf("got %v, want a timeout", err)
		}
		_ = child.SetReadDeadline(time.Now().Add(time.Minute))
		text, err := io.ReadAll(child)
		if err != nil {
			t.Fatalf("a child outlived the timeout: %v", err)
		}
		if len(text) > 0 {
			return
		}
		if limit > time.Minute {
			t.Fatal("the child was never there")
		}
	}
}

func TestProcessOutlivesItsClient(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	marker := filepath.Join(t.TempDir(), "marker")
	gone := marker + "-gone"
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p, err := c.Start(ctx, sh("echo begin; until [ -e "+gone+" ]; do sleep 0.05; done; echo end; touch "+marker))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := p.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v, want the context's error", err)
	}
	if err := os.WriteFile(gone, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(marker); err == nil {
			return
		}
	}
	t.Error("the process ended with its client")
}

func TestSignal(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	p, err := c.Start(t.Context(), sandpit.Command{Args: []string{"sleep", "60"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Signal(t.Context(), sandpit.SIGTERM); err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(t.Context())
	if err != nil || status.Code != 143 {
		t.Errorf("got %+v, %v", status, err)
	}
	if err := p.Signal(t.Context(), sandpit.SIGKILL); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("signal after the end: %v, want gone", err)
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	in, keyboard := io.Pipe()
	defer keyboard.Close()
	screen := &screen{changed: make(chan struct{}, 1)}
	p, err := c.Start(t.Context(), sandpit.Command{
		Args: []string{"sh", "-c", "stty -echo; tty; stty size; read line; stty size; echo got $line; exec sleep 60"},
		Env:  map[string]string{"TERM": "xterm"}, Terminal: &sandpit.TerminalSize{Cols: 91, Rows: 17},
		Stdin: in, Stdout: screen,
	})
	if err != nil {
		t.Fatal(err)
	}
	screen.await(t, "17 91")
	if err := p.Resize(t.Context(), sandpit.TerminalSize{Cols: 100, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(keyboard, "a line\r")
	screen.await(t, "30 100")
	screen.await(t, "got a line")
	_, _ = io.WriteString(keyboard, "\x03") // Ctrl-C
	status, err := p.Wait(t.Context())
	if err != nil || status.Code != 130 {
		t.Errorf("after Ctrl-C: %+v, %v", status, err)
	}
	if !strings.Contains(screen.String(), "/dev/") {
		t.Errorf("no terminal: %q", screen)
	}
}

// screen collects output and lets a test wait for some of it.
type screen struct {
	changed chan struct{}

	mu  sync.Mutex
	buf bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, err := s.buf.Write(p)
	select {
	case s.changed <- struct{}{}:
	default:
	}
	return n, err
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *screen) await(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(s.String(), text) {
		select {
		case <-s.changed:
		case <-time.After(10 * time.Second):
			t.Fatalf("no %q on the screen: %q", text, s)
		}
	}
}

// TestBackgroundHoldsNothingUp starts a child that keeps the output open.
func TestBackgroundHoldsNothingUp(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	begin := time.Now()
	stdout, _, _, err := run(t, c, sh("sleep 10 & echo done"))
	if err != nil || stdout != "done\n" {
		t.Errorf("got %q, %v", stdout, err)
	}
	if took := time.Since(begin); took > 8*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestLargeBinaryBothWays(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	data := make([]byte, 20<<20)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	stdout, _, _, err := run(t, c, sandpit.Command{Args: []string{"cat"}, Stdin: bytes.NewReader(data)})
	if err != nil || stdout != string(data) {
		t.Errorf("%d of %d bytes came back right or not at all: %v", len(stdout), len(data), err)
	}
}

func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	errs := make(chan error)
	const n = 50
	for i := range n {
		go func() {
			stdout, _, status, err := run(t, c, sh(fmt.Sprintf("echo %d; exit %d", i, i)))
			if err == nil && (stdout != fmt.Sprintf("%d\n", i) || status.Code != i) {
				err = fmt.Errorf("process %d: %q, %+v", i, stdout, status)
			}
			errs <- err
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	dir := t.TempDir()
	ctx := t.Context()
	path := filepath.Join(dir, "new", "sub dir", "ü.txt")
	if err := c.WriteFile(ctx, "", path, strings.NewReader("content"), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	r, err := c.ReadFile(ctx, "", path)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(r)
	_ = r.Close()
	if err != nil || string(data) != "content" {
		t.Errorf("read %q, %v", data, err)
	}
	f, err := c.Stat(ctx, "", path)
	if err != nil || f.Name != "ü.txt" || f.Path != path || f.Size != 7 || f.Mode != 0o644 || f.ModifiedAt.IsZero() {
		t.Errorf("stat: %+v, %v", f, err)
	}
	if err := c.MakeDir(ctx, "", filepath.Join(dir, "new")); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("make what is there: %v", err)
	}
	if err := c.Move(ctx, "", path, filepath.Join(dir, "other", "moved")); err != nil {
		t.Error(err)
	}
	if err := os.Symlink("moved", filepath.Join(dir, "other", "link")); err != nil {
		t.Fatal(err)
	}
	list, err := c.ListDir(ctx, "", dir, 3)
	var names []string
	for _, f := range list {
		rel, _ := filepath.Rel(dir, f.Path)
		names = append(names, rel+" "+f.Mode.Type().String())
	}
	want := []string{"new d---------", "new/sub dir d---------", "other d---------", "other/link L---------", "other/moved ----------"}
	if err != nil || strings.Join(names, ",") != strings.Join(want, ",") {
		t.Errorf("list: %q, %v", names, err)
	}
	if err := c.Remove(ctx, "", filepath.Join(dir, "other")); err != nil {
		t.Error(err)
	}
	if err := c.Remove(ctx, "", filepath.Join(dir, "other")); err != nil {
		t.Errorf("remove what is not there: %v", err)
	}
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := exec.CommandContext(t.Context(), "mkfifo", pipe).Run(); err != nil {
		t.Fatal(err)
	}
	read := func(p string) error {
		r, err := c.ReadFile(t.Context(), "", p)
		if err == nil {
			_ = r.Close()
		}
		return err
	}
	for name, tc := range map[string]struct {
		err  error
		code sandpit.Code
	}{
		"read nothing":       {read(filepath.Join(dir, "none")), sandpit.NotFound},
		"read a directory":   {read(dir), sandpit.Invalid},
		"read a pipe":        {read(pipe), sandpit.Invalid},
		"read NUL":           {read("a\x00b"), sandpit.Invalid},
		"write a directory":  {c.WriteFile(t.Context(), "", dir, strings.NewReader(""), sandpit.WriteOptions{}), sandpit.Invalid},
		"write below a file": {c.WriteFile(t.Context(), "", "/etc/passwd/x", strings.NewReader(""), sandpit.WriteOptions{}), sandpit.Invalid},
		"write a device":     {c.WriteFile(t.Context(), "", "/dev/null", strings.NewReader(""), sandpit.WriteOptions{}), sandpit.Invalid},
		"write as nobody":    {c.WriteFile(t.Context(), "nobody-knows", filepath.Join(dir, "x"), strings.NewReader(""), sandpit.WriteOptions{}), sandpit.Invalid},
		"move nothing":       {c.Move(t.Context(), "", filepath.Join(dir, "none"), filepath.Join(dir, "x")), sandpit.NotFound},
	} {
		if sandpit.CodeOf(tc.err) != tc.code {
			t.Errorf("%s: %v (%s), want %s", name, tc.err, sandpit.CodeOf(tc.err), tc.code)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".sandpit-*")); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestHalfAnUploadLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	c := newGuest(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	if err := os.WriteFile(path, []byte("old"), 0o640); err != nil {
		t.Fatal(err)
	}
	broken := io.MultiReader(strings.NewReader("new"), errReader{})
	if err := c.WriteFile(t.Context(), "", path, broken, sandpit.WriteOptions{}); err == nil {
		t.Error("a broken upload succeeded")
	}
	if data, err := os.ReadFile(path); err != nil || string(data) != "old" {
		t.Errorf("the file is %q, %v", data, err)
	}
	if err := c.WriteFile(t.Context(), "", path, strings.NewReader("new"), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o640 {
		t.Errorf("permissions changed: %v, %v", info.Mode(), err)
	}
}

type errReader struct{}

func (errReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

func TestKey(t *testing.T) {
	t.Parallel()
	g := guest.New()
	t.Cleanup(g.Close)
	right := newServer(t, g.Handler(), token)
	wrong := newServer(t, g.Handler(), "another")
	ctx := t.Context()
	if _, err := right.Stat(ctx, "", "/"); sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("before there is a key: %v", err)
	}
	if err := right.Init(ctx, envd.InitRequest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := right.Stat(ctx, "", "/"); err != nil {
		t.Errorf("with the key: %v", err)
	}
	if _, err := wrong.Stat(ctx, "", "/"); sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("with another key: %v", err)
	}
	if err := wrong.Init(ctx, envd.InitRequest{}); sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("a second key: %v", err)
	}
	if _, err := right.Stat(ctx, "", "/"); err != nil {
		t.Errorf("the key was changed: %v", err)
	}
}
