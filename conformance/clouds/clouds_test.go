package clouds_test

import (
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// long is how long an operation may take that is not under test.
const long = testserver.Timeout

// host is a server with the command line of its machine.
type host struct{ *testserver.Installation }

// newHost starts a server, which ends with the test.
func newHost(t *testing.T, settings ...string) *host {
	t.Helper()
	return newHostBy(t, nil, settings...)
}

// newHostBy starts a server by a launcher; see testserver.Options.
func newHostBy(t *testing.T, launcher []string, settings ...string) *host {
	t.Helper()
	return &host{testserver.Install(t, testserver.Options{Settings: settings, Launcher: launcher})}
}

// want runs a command that must succeed and print a text, and returns its output.
func (h *host) want(t *testing.T, text string, args ...string) string {
	t.Helper()
	out, status := h.Run(t, "", args...)
	if status != 0 || !strings.Contains(out, text) {
		t.Errorf("sandpit %q: exit status %d, output %q; want the output %q", args, status, out, text)
	}
	return out
}

// newKey creates a key of an ordinary owner.
func (h *host) newKey(t *testing.T) string { t.Helper(); return h.NewKey(t, "cloud") }

// TestE2B uses sandboxes in a cloud with E2B's API.
func TestE2B(t *testing.T) {
	t.Parallel()
	cloud := newHost(t, "SANDPIT_E2B_TEMPLATES=base=host")
	h := newHost(t, "SANDBOX_PROVIDER=e2b", "E2B_TIMEOUT=600", "E2B_API_KEY="+cloud.newKey(t), "E2B_API_URL="+cloud.URL, "E2B_SANDBOX_URL="+cloud.URL)
	useTools(t, h)
	resumeStopped(t, h, cloud, "pause")
}

// TestE2BPlainGuest uses sandboxes that have E2B's guest only: what that guest lacks is refused, and nothing happens.
func TestE2BPlainGuest(t *testing.T) {
	t.Parallel()
	cloud := newHost(t, "SANDPIT_E2B_TEMPLATES=base=host")
	genuine := envdtest.StartGenuine(t, cloud.URL)
	h := newHost(t, "SANDBOX_PROVIDER=e2b", "SANDPIT_E2B_CLOUD_GUEST=cloud",
		"E2B_API_KEY="+cloud.newKey(t), "E2B_API_URL="+genuine, "E2B_SANDBOX_URL="+genuine)
	h.want(t, "", "create", "--name", "work")
	h.want(t, "root /workspace\n", "exec", "work", "--", "sh", "-c", "echo $(id -un) $PWD; mkdir d; echo text >d/f")
	h.want(t, "terminal", "exec", "-t", "work", "--", "sh", "-c", "test -t 0 && echo terminal")
	h.want(t, "text", "cp", "work:d/f", "-")
	h.want(t, "", "cp", "/usr/share/common-licenses", "work:licenses")
	h.want(t, "GPL", "exec", "work", "--", "ls", "licenses")
	h.want(t, "42", "tool", "call", "work", "python_exec", `{"code": "print(6 * 7)"}`)
	h.want(t, "text", "tool", "call", "work", "file_read", `{"file": "d/f"}`)
	if out, status := h.Run(t, "", "exec", "work", "--", "sh", "-c", "echo once >>count; cat count; exit 7"); status != 7 || out != "once\n" {
		t.Errorf("exit status %d, output %q", status, out)
	}
	testPreview(t, h)
	h.want(t, "", "create", "--name", "other", "--user", "nobody", "--workdir", "/tmp")
	h.want(t, "nobody /tmp\n", "exec", "other", "--", "sh", "-c", "echo $(id -un) $PWD")
	for text, args := range map[string][]string{
		"E2B's guest has no command log":     {"exec", "--detach", "work", "--", "touch", "/workspace/ran"},
		"list commands: E2B's guest has no ": {"logs", "work"},
		"its guest does not support secrets": {"create", "--name", "third", "--secret", "TOKEN=hidden"},
		"its provider cannot list changes":   {"diff", "work"},
	} {
		if out, status := h.Run(t, "", args...); status == 0 || !strings.Contains(out, text) {
			t.Errorf("sandpit %q: exit status %d, output %q; want the error %q", args, status, out, text)
		}
	}
	h.want(t, "count\nd\nlicenses\n", "exec", "work", "--", "ls")
	if out := h.want(t, "work", "ls"); strings.Contains(out, "third") {
		t.Errorf("what was refused exists: %s", out)
	}
}

// testPreview reaches a program in sandbox "work" by the URL of its port.
func testPreview(t *testing.T, h *host) {
	t.Helper()
	h.want(t, "", "exec", "work", "--", "sh", "-c", "cd d && nohup python3 -m http.server 8123 >/dev/null 2>&1 &")
	address := strings.TrimSpace(h.want(t, "http://8123-", "url", "work", "8123"))
	target, err := url.Parse(strings.Replace(address, "/?", "/f?", 1))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, h.URL+target.RequestURI(), http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = target.Host // not every machine knows names below localhost
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(res.Body)
		_ = res.Body.Close() // was read
		if err == nil && string(text) == "text\n" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("status %d: %.500s, %v", res.StatusCode, text, err)
		}
	}
}

// TestDaytona uses sandboxes in a cloud with Daytona's API.
func TestDaytona(t *testing.T) {
	t.Parallel()
	cloud := newHost(t)
	h := newHost(t, "SANDBOX_PROVIDER=daytona", "DAYTONA_API_KEY="+cloud.newKey(t), "DAYTONA_SERVER_URL="+cloud.URL+"/api", "DAYTONA_TARGET=us",
		"SANDPIT_DAYTONA_SANDBOX_IMAGE_NAME=daytona-snapshot:daytonaio/sandbox")
	useTools(t, h)
	resumeStopped(t, h, cloud, "stop")
}

// useTools drives the tools of agents, the interpreters, the command log, a fork and a pause in a sandbox in a cloud.
func useTools(t *testing.T, h *host) {
	t.Helper()
	h.want(t, "", "create", "--name", "work")
	tool := func(text, name, input string) {
		t.Helper()
		h.want(t, text, "tool", "call", "work", name, input)
	}
	tool("hello from 1", "shell_exec", `{"command": "echo hello from $((3-2))"}`)
	tool("Successfully wrote 5 bytes", "file_write", `{"file": "a.txt", "content": "text\n"}`)
	tool("text", "file_read", `{"file": "a.txt"}`)
	tool("a.txt", "grep", `{"pattern": "te.t"}`)
	tool("42", "python_exec", `{"code": "print(6 * 7)"}`)
	tool("a.txt", "bash", `{"command": "ls"}`)

	id := strings.TrimSpace(h.want(t, "", "exec", "--detach", "work", "--", "sh", "-c", "echo logged; exit 3"))
	for end := time.Now().Add(long); ; time.Sleep(50 * time.Millisecond) {
		out, status := h.Run(t, "", "logs", "work", id)
		if strings.Contains(out, "logged") {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("logs of %q: exit status %d, output %q", id, status, out)
		}
	}
	fork := strings.TrimSpace(h.want(t, "", "fork", "work"))
	h.want(t, "text", "exec", fork, "--", "cat", "a.txt")
	h.want(t, "", "rm", "-f", fork)
	h.want(t, "", "pause", "work")
	h.want(t, "", "resume", "work")
	tool("text", "file_read", `{"file": "a.txt"}`)
}

// resumeStopped has a cloud stop its sandbox by itself right after it was used. The call that meets this may fail, which
// says so. The next one starts the sandbox again, with its files.
func resumeStopped(t *testing.T, h, cloud *host, action ...string) {
	t.Helper()
	id := strings.TrimSpace(cloud.want(t, "", "ls", "-q"))
	for _, call := range [][]string{
		{"tool", "call", "work", "file_read", `{"file": "a.txt"}`},
		{"exec", "work", "--", "cat", "a.txt"},
		{"exec", "-t", "work", "--", "cat", "a.txt"},
		{"cp", "work:/workspace/a.txt", "-"},
	} {
		cloud.want(t, "", append(action, id)...)
		if out, status := h.Run(t, "", call...); status != 0 {
			if !strings.Contains(out, "is stopped") && !strings.Contains(out, "is paused") {
				t.Errorf("sandpit %q: exit status %d, output %q; want the state of the sandbox", call, status, out)
			}
			h.want(t, "text", call...)
		}
	}
}
