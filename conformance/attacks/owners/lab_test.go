package owners_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// callTimeout bounds a call that is expected to succeed.
const callTimeout = 2 * time.Minute

// lab is a server with two ordinary owners and an administrator.
type lab struct {
	// dir is the parent of the server's state, cache and runtime directories.
	dir string
	// url is the server's address, as http://127.0.0.1:PORT.
	url string
	// alice attacks, bob is attacked; neither is an administrator. admin has an
	// administrator's key, and socket needs none because it uses the unix socket.
	alice, bob, admin, socket party
	// image is a small root file system with BusyBox, as the name of an image that the
	// administrator imported.
	image string

	program string
	environ []string
	process *testserver.Server
}

// labOptions change how the server of a lab is started.
type labOptions struct {
	// config is the server's configuration file, in TOML, without the [server] table.
	config string
	// server holds further lines of the [server] table.
	server string
	// environ holds further variables of the server's environment.
	environ []string
	// launcher is a command, with arguments, that starts the server. Default: none.
	launcher []string
	// setUp runs before the server starts, with the lab's directory.
	setUp func(dir string)
}

// party is one user of the server.
type party struct {
	name, key string
	url       string
	http      *http.Client
}

// response is what the server answered.
type response struct {
	status int
	header http.Header
	body   []byte
}

// decode parses the body as JSON.
func (r response) decode(t *testing.T, to any) {
	t.Helper()
	if err := json.Unmarshal(r.body, to); err != nil {
		t.Fatalf("decode the response %d: %v\n%s", r.status, err, r.body)
	}
}

// newLab starts a server and creates its keys. Everything is removed when the test ends.
func newLab(t *testing.T, o labOptions) *lab {
	t.Helper()
	l := &lab{dir: t.TempDir(), program: testengine.Path(t)}
	if err := os.Chmod(l.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if o.setUp != nil {
		o.setUp(l.dir)
	}
	config := filepath.Join(l.dir, "config.toml")
	text := "[server]\nlisten = \"127.0.0.1:0\"\nkeyless = false\ndrain = 1\n" + o.server + "\n" + o.config
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l.environ = append(testengine.Environ(l.dir), "SANDPIT_CONFIG="+config)
	l.environ = append(l.environ, o.environ...)
	l.process = testserver.Start(t, l.environ, o.launcher...)
	t.Cleanup(func() { l.close(t) })
	l.url = l.process.URL
	socket := filepath.Join(l.dir, "run", "sandpit.sock")
	dialer := &net.Dialer{}
	l.socket = party{name: "socket", url: "http://localhost", http: &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		},
	}}}
	l.alice, l.bob, l.admin = l.newParty(t, "alice", false), l.newParty(t, "bob", false), l.newParty(t, "root", true)
	l.image = "busybox:owners"
	l.command(t, "image", "import", busyboxTar(t), "--name", l.image)
	return l
}

// newParty creates a key and returns its holder.
func (l *lab) newParty(t *testing.T, owner string, admin bool) party {
	t.Helper()
	args := []string{"key", "create", "-q", "--owner", owner}
	if admin {
		args = append(args, "--admin")
	}
	return party{
		name: owner, key: strings.TrimSpace(l.command(t, args...)), url: l.url,
		http: &http.Client{Transport: &http.Transport{DisableKeepAlives: true}},
	}
}

// command runs the command line as an administrator of the machine.
func (l *lab) command(t *testing.T, args ...string) string {
	t.Helper()
	return l.commandWith(t, nil, args...)
}

// commandWith is command with more environment.
func (l *lab) commandWith(t *testing.T, environ []string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, l.program, args...)
	cmd.Env = slices.Concat(l.environ, environ)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("sandpit %s: %v\n%s", strings.Join(args, " "), err, &errs)
	}
	return out.String()
}

// close deletes all sandboxes, ends the server and waits for its engines.
func (l *lab) close(t *testing.T) {
	t.Helper()
	if l.admin.key != "" {
		l.deleteSandboxes(t)
	}
	l.process.End(t, syscall.SIGTERM)
	if t.Failed() {
		log := l.process.Log.String()
		t.Logf("log of the server:\n%s", log[max(0, len(log)-8000):])
	}
	for end := time.Now().Add(callTimeout); ; time.Sleep(50 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(l.dir, "run", "engines", "*"))
		if err != nil {
			t.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("engines are left: %v", left)
			return
		}
	}
}

func (l *lab) deleteSandboxes(t *testing.T) {
	t.Helper()
	var page struct {
		Items []struct {
			ID string `json:"id"`
		} `json:"items"`
	}
	l.socket.must(t, http.MethodGet, "/v1/sandboxes?limit=1000", nil).decode(t, &page)
	for _, s := range page.Items {
		l.socket.call(t, http.MethodDelete, "/v1/sandboxes/"+s.ID, nil)
	}
}

// call makes a request with the party's key. A body that is neither nil nor an io.Reader
// is sent as JSON.
func (p party) call(t *testing.T, method, path string, body any) response {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callTimeout)
	defer cancel()
	r, err := p.do(ctx, method, path, body, nil)
	if err != nil {
		t.Fatalf("%s: %s %s: %v", p.name, method, path, err)
	}
	return r
}

// must is call for a request that has to succeed.
func (p party) must(t *testing.T, method, path string, body any) response {
	t.Helper()
	r := p.call(t, method, path, body)
	if r.status >= 300 {
		t.Fatalf("%s: %s %s: %d\n%s", p.name, method, path, r.status, r.body)
	}
	return r
}

// do makes a request with the party's key and further headers. It may be called by any
// goroutine.
func (p party) do(ctx context.Context, method, path string, body any, header http.Header) (response, error) {
	var reader io.Reader
	switch b := body.(type) {
	case nil:
	case io.Reader:
		reader = b
	default:
		text, err := json.Marshal(b)
		if err != nil {
			return response{}, err
		}
		reader = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, p.url+path, reader)
	if err != nil {
		return response{}, err
	}
	if reader != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if p.key != "" {
		req.Header.Set("X-Api-Key", p.key)
	}
	maps.Copy(req.Header, header)
	res, err := p.http.Do(req)
	if err != nil {
		return response{}, err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return response{res.StatusCode, res.Header, text}, err
}

// create creates a sandbox of an image and returns its ID.
func (p party) create(t *testing.T, image string) string {
	t.Helper()
	return p.createWith(t, map[string]any{"image": image})
}

// createWith creates a sandbox from a spec and returns its ID.
func (p party) createWith(t *testing.T, spec map[string]any) string {
	t.Helper()
	var s struct {
		ID string `json:"id"`
	}
	p.must(t, http.MethodPost, "/v1/sandboxes", map[string]any{"spec": spec}).decode(t, &s)
	return s.ID
}

// run runs a shell command in a sandbox and returns its output and exit code.
func (p party) run(t *testing.T, id, command string) (string, int) {
	t.Helper()
	var result struct {
		Stdout   string `json:"stdout"`
		Stderr   string `json:"stderr"`
		ExitCode int    `json:"exit_code"`
	}
	p.must(t, http.MethodPost, "/v1/sandboxes/"+id+"/run", map[string]any{"command": command}).decode(t, &result)
	return result.Stdout + result.Stderr, result.ExitCode
}

// busyboxTar returns the archive of a root file system with BusyBox and the account user.
func busyboxTar(t *testing.T) string {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(t, "this machine has no busybox")
	}
	root := t.TempDir()
	for _, dir := range []string{"bin", "etc", "tmp", "root", "home/user"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{
		"bin/busybox": string(content),
		"etc/passwd":  "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
		"etc/group":   "root:x:0:\nuser:x:1000:\n",
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := os.WriteFile(filepath.Join(root, name), []byte(files[name]), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.CommandContext(t.Context(), program, "--list").Output()
	if err != nil {
		t.Fatal(err)
	}
	for applet := range strings.FieldsSeq(string(out)) {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", applet)); err != nil && applet != "busybox" {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("busybox", filepath.Join(root, "bin", "bash")); err != nil && !os.IsExist(err) {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "busybox.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", root, "-cf", path, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	return path
}
