package daemon

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pkg/sftp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// fileDoor is a way by which a client reads or changes a file. It returns what the client is
// answered.
type fileDoor func(t *testing.T, path string) string

// fileDoors are all ways. What a front end does with files, it does by calls of the guest.
func (w *tenancy) fileDoors(t *testing.T) map[string]fileDoor {
	t.Helper()
	at := "/v1/sandboxes/" + w.ids["sandbox"]
	token := w.guestToken(t)
	guest := func(header http.Header) http.Header {
		h := http.Header{"Sandpit-Confine": {"/"}, "Sandpit-Within": {"/"}, "Content-Type": {"application/json"}, "Connect-Protocol-Version": {"1"}}
		maps.Copy(h, header)
		return h
	}
	e2b := guest(http.Header{"E2b-Sandbox-Id": {w.ids["sandbox"]}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {token}})
	signed := guest(http.Header{"E2b-Sandbox-Id": {w.ids["sandbox"]}, "E2b-Sandbox-Port": {"49983"}})
	own := guest(http.Header{"X-Api-Key": {w.bob}})
	tool := w.openMCP(t)
	tool(t, "shell_exec", map[string]any{"command": "echo " + canaryText + " > canary; ln -s /etc link"})
	byTool := func(name, argument string, more map[string]any) fileDoor {
		return func(t *testing.T, path string) string {
			t.Helper()
			arguments := map[string]any{argument: path}
			maps.Copy(arguments, more)
			return tool(t, name, arguments)
		}
	}
	return map[string]fileDoor{
		"read":              w.fileRequest(http.MethodGet, at+"/files?path=PATH", "", nil),
		"read a tree":       w.fileRequest(http.MethodGet, at+"/tree?path=PATH", "", nil),
		"describe":          w.fileRequest(http.MethodGet, at+"/files/stat?path=PATH", "", nil),
		"list":              w.fileRequest(http.MethodGet, at+"/files/list?path=PATH/..", "", nil),
		"write":             w.fileRequest(http.MethodPut, at+"/files?path=PATH", canaryText, nil),
		"write a tree":      w.fileRequest(http.MethodPut, at+"/tree?path=PATH.tree", strings.Repeat("\x00", 1024), nil),
		"make":              w.fileRequest(http.MethodPost, at+"/files/mkdir", `{"path": "PATH.dir/new"}`, nil),
		"move":              w.fileRequest(http.MethodPost, at+"/files/move", `{"from": "PATH", "to": "PATH"}`, nil),
		"remove":            w.fileRequest(http.MethodDelete, at+"/files?path=PATH.none", "", nil),
		"guest, read":       w.fileRequest(http.MethodGet, at+"/envd/files?path=PATH", "", own),
		"guest, describe":   w.fileRequest(http.MethodPost, at+"/envd/filesystem.Filesystem/Stat", `{"path": "PATH"}`, own),
		"guest, compose":    w.fileRequest(http.MethodPost, at+"/envd/files/compose", `{"source_paths": ["PATH"], "destination": "PATH"}`, own),
		"guest, watch":      w.fileRequest(http.MethodPost, at+"/envd/filesystem.Filesystem/CreateWatcher", `{"path": "PATH/.."}`, own),
		"e2b, read":         w.fileRequest(http.MethodGet, "/files?path=PATH", "", e2b),
		"e2b, list":         w.fileRequest(http.MethodPost, "/filesystem.Filesystem/ListDir", `{"path": "PATH/.."}`, e2b),
		"e2b, remove":       w.fileRequest(http.MethodPost, "/filesystem.Filesystem/Remove", `{"path": "PATH.none"}`, e2b),
		"e2b, signed":       w.readSigned(token, signed),
		"aio, read":         w.fileRequest(http.MethodPost, "/aio/"+w.ids["sandbox"]+"/v1/file/read", `{"file": "PATH"}`, nil),
		"aio, search":       w.fileRequest(http.MethodPost, "/aio/"+w.ids["sandbox"]+"/v1/file/search", `{"file": "PATH", "regex": "."}`, nil),
		"aio, download":     w.fileRequest(http.MethodGet, "/aio/"+w.ids["sandbox"]+"/v1/file/download?path=PATH", "", nil),
		"mcp, read":         byTool("file_read", "file", nil),
		"mcp, write":        byTool("file_write", "file", map[string]any{"content": canaryText}),
		"mcp, search":       byTool("grep", "path", map[string]any{"pattern": "."}),
		"mcp, find":         byTool("glob", "path", map[string]any{"pattern": "*"}),
		"sftp, read":        w.bySFTP,
		"command line copy": w.byCopy,
	}
}

// TestFileDoors tries every way to files with confined files: what is in the working directory can be
// reached, and nothing else, by its name or by a link.
func TestFileDoors(t *testing.T) {
	t.Parallel()
	w := newTenancy(t, "[ssh]", "listen = '127.0.0.1:0'", "[sandbox]", "confine_files = true")
	w.must(t, w.bob, http.MethodPost, "/v1/sandboxes/"+w.ids["sandbox"]+"/run", `{"command": "ln -s /etc link"}`)
	refused := func(answer string) bool {
		answer = strings.ToLower(answer)
		return (strings.Contains(answer, "outside the allowed directories") || strings.Contains(answer, "permission denied")) && !strings.Contains(answer, "root:")
	}
	for name, try := range w.fileDoors(t) {
		t.Run(name, func(t *testing.T) {
			if got := try(t, "/workspace/canary"); refused(got) || strings.Contains(got, `"code":"`) || strings.Contains(got, `"isError":true`) {
				t.Errorf("a file in the working directory: %s", got)
			}
			for _, path := range []string{"/etc/passwd", "/workspace/link/passwd", "/workspace/../etc/passwd"} {
				if got := try(t, path); !refused(got) {
					t.Errorf("%s: %s", path, got)
				}
			}
		})
	}
	if got := w.must(t, w.bob, http.MethodPost, "/v1/sandboxes/"+w.ids["sandbox"]+"/run", `{"command": "grep -c root: /etc/passwd"}`); !strings.Contains(string(got), `"exit_code":0`) {
		t.Errorf("commands are not confined, and a changed file: %s", got)
	}
	session := "/v1/sandboxes/" + w.ids["sandbox"] + "/sessions/" + field(t, w.must(t, w.bob, http.MethodPost, "/v1/sandboxes/"+w.ids["sandbox"]+"/sessions", `{"name": "input", "dir": "/"}`), "id")
	if got := w.must(t, w.bob, http.MethodPost, session+"/run", `{"command": "pwd; cat; ls -A /tmp | grep -c '^.sandpit-[^.]*$'", "stdin": "typed\n"}`); !strings.Contains(string(got), `/\ntyped\n`) {
		t.Errorf("a session elsewhere with input: %s", got)
	}
}

// fileRequest returns a door by a request with the path in place of PATH.
func (w *tenancy) fileRequest(method, target, body string, header http.Header) fileDoor {
	return func(t *testing.T, path string) string {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, w.url+strings.ReplaceAll(target, "PATH", url.QueryEscape(path)), strings.NewReader(strings.ReplaceAll(body, "PATH", path)))
		if err != nil {
			t.Fatal(err)
		}
		if req.Header = header.Clone(); header == nil {
			req.Header = http.Header{"X-Api-Key": {w.bob}, "Content-Type": {"application/json"}}
		}
		res, err := w.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusForbidden {
			return "permission denied: " + string(answer)
		}
		if res.StatusCode/100 != 2 {
			return fmt.Sprintf(`%d {"code":"unexpected"} %s`, res.StatusCode, answer)
		}
		return string(answer)
	}
}

// readSigned reads a file by a signed URL of E2B.
func (w *tenancy) readSigned(token string, header http.Header) fileDoor {
	return func(t *testing.T, path string) string {
		t.Helper()
		sum := sha256.Sum256([]byte(path + ":read::" + token))
		query := url.Values{"signature": {"v1_" + base64.RawStdEncoding.EncodeToString(sum[:])}}
		return w.fileRequest(http.MethodGet, "/files?path=PATH&"+query.Encode(), "", header)(t, path)
	}
}

func (w *tenancy) bySFTP(t *testing.T, path string) string {
	t.Helper()
	conn := w.dialSSH(t)
	defer conn.Close() // only read
	c, err := sftp.NewClient(conn)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() // only read
	f, err := c.Open(path)
	if err != nil {
		return err.Error()
	}
	defer f.Close() // only read
	text, err := io.ReadAll(f)
	if err != nil {
		return string(text) + err.Error()
	}
	return string(text)
}

func (w *tenancy) byCopy(t *testing.T, path string) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "copy")
	cmd := exec.CommandContext(t.Context(), testengine.Path(t), "cp", w.ids["sandbox"]+":"+path, target)
	cmd.Env = append(testengine.Environ(t.TempDir()), "SANDPIT_URL="+w.url, "SANDPIT_API_KEY="+w.bob)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out)
	}
	text, err := os.ReadFile(target)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestLocalConfinesFiles confines file calls in a sandbox without a server to its working directory
// and its mounts.
func TestLocalConfinesFiles(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	local, err := OpenLocal(t.Context(), cfg, Listeners{ConfineFiles: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := local.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("shown"), 0o600); err != nil {
		t.Fatal(err)
	}
	box, err := local.Create(t.Context(), sandpit.Spec{Mounts: []sandpit.Mount{{Source: dir, Target: "/mnt/shown", ReadOnly: true}}})
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]sandpit.Code{"/mnt/shown/file": "", "/workspace": "", "/etc/passwd": sandpit.PermissionDenied, "/mnt": sandpit.PermissionDenied} {
		if _, err := box.Guest().Stat(t.Context(), "", path); sandpit.CodeOf(err) != want {
			t.Errorf("%s: %v, want code %q", path, err, want)
		}
	}
}
