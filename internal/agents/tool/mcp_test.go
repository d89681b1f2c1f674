package tool_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestMCP uses a server that is written with the protocol's SDK, and hostile ones.
func TestMCP(t *testing.T) {
	t.Parallel()
	box := newBox(t)
	setup := newKit(t, box, tool.SessionOptions{ID: "setup"})
	upload(t, box, "/opt/server", buildServer(t))
	script, err := os.ReadFile("testdata/hostile.py")
	if err != nil {
		t.Fatal(err)
	}
	upload(t, box, "/opt/hostile.py", script)
	t.Run("use", func(t *testing.T) { testServer(t, box) })
	t.Run("http", func(t *testing.T) { testHTTP(t, box, setup) })
	t.Run("run time", func(t *testing.T) { testServersAtRunTime(t, box) })
	t.Run("hostile", func(t *testing.T) { testHostile(t, box) })
	const count = `for p in /proc/[0-9]*/cmdline; do tr '\0' ' ' < $p; echo; done 2>/dev/null | grep -c -e '^/opt/server $' -e '[h]ostile.py'; true`
	if r := setup.want("shell_exec", fields{"command": count}); strings.TrimSpace(r.Text) != "[SUCCESS]\n0" {
		t.Errorf("servers that are left: %s\n%s", r.Text, setup.want("process_list", fields{"all": true}).Text)
	}
}

func upload(t *testing.T, box sandpit.Instance, name string, data []byte) {
	t.Helper()
	if err := box.Guest().WriteFile(t.Context(), "root", name, bytes.NewReader(data), sandpit.WriteOptions{Mode: 0o755}); err != nil {
		t.Fatal(err)
	}
}

func buildServer(t *testing.T) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "server")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, ".")
	cmd.Dir, cmd.Env = "../mcpclient/testdata/server", append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// withServers is a session with servers; its ID names its directory, too.
func withServers(t *testing.T, box sandpit.Instance, id, config string) kit {
	t.Helper()
	servers, err := mcpclient.Parse([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	return newKit(t, box, tool.SessionOptions{ID: id, Dir: "/workspace/" + id, User: "1234:1234", Servers: servers})
}

func testServer(t *testing.T, box sandpit.Instance) {
	t.Helper()
	k := withServers(t, box, "use", `{"mcpServers": {"test": {"command": "/opt/server", "env": {"API_KEY": "sk-very-secret"}}, "off": {"command": "x", "disabled": true}}}`)
	k.want("file_write", fields{"file": "a", "content": ""}) // the directory
	k.want("mcp_list_servers", nil, "test (stdio, not started)")
	k.want("env_set", fields{"name": "FROM_SESSION", "value": "variable"})
	k.want("mcp_list_tools", fields{"server_name": "test"}, `mcp_test_kinds (tool_name "kinds"): all kinds of content`, `input: {`)
	k.want("mcp_list_servers", nil, "test (stdio, running)")
	k.refused("mcp_list_tools", fields{"server_name": "off"}, sandpit.NotFound)
	k.refused("mcp_execute", fields{"server_name": "none", "tool_name": "x"}, sandpit.NotFound)
	k.refused("mcp_execute", fields{"server_name": "test", "tool_name": "x", "arguments": "text"}, sandpit.Invalid)
	k.refused("mcp_execute", fields{"server_name": "test", "tool_name": "unknown"}, sandpit.Unavailable, "unknown")

	r := k.want("mcp_execute", fields{"server_name": "test", "tool_name": "kinds"},
		"some text", "[IMAGE: image/png]", "unknown image format", "damaged, or more than 8000 pixels",
		"[AUDIO 1: audio/wav ,", "[RESOURCE: test://a]\nresource text", "[RESOURCE 2: application/zip test://b, 2 bytes]", "[RESOURCE LINK: a link test://c text/html]", "use-mcp-2.zip")
	if len(r.Images) != 1 || r.Images[0].MIME != "image/png" {
		t.Errorf("images: %+v", r.Images)
	}
	if data, err := json.Marshal(r.Data); err != nil || !strings.Contains(string(data), `"structured":{"answer":42}`) {
		t.Errorf("structured: %s, %v", data, err)
	}
	k.want("shell_exec", fields{"command": "cat .tool-output/use-mcp-1.wav"}, "RIFF....")

	if r := k.want("mcp_execute", fields{"server": "test", "tool": "fail"}, "[FAILED]\nout of luck"); !r.Failed {
		t.Error("a tool that fails has not failed")
	}
	r = k.want("mcp_execute", fields{"server_name": "test", "tool_name": "environment"}, "key ***, session's variable, uid 1234")
	k.lacks(r, "sk-very-secret")

	k.want("mcp_execute", fields{"server_name": "test", "tool_name": "change"}, "changed")
	name := regexp.MustCompile(`(mcp_test_new_tool_[0-9a-f]{10}) \(tool_name "new tool"\)`).FindStringSubmatch(k.want("mcp_list_tools", fields{"server_name": "test"}).Text)
	if name == nil {
		t.Fatal("the new tool is not listed")
	}
	k.want("mcp_execute", fields{"server_name": "test", "tool_name": name[1]}, "I am new")

	// One that has died comes again, with what it had forgotten.
	k.want("shell_exec", fields{"command": "for p in /proc/[0-9]*; do case $(tr '\\0' ' ' < $p/cmdline) in '/opt/server ') kill -9 ${p#/proc/};; esac; done"})
	for range 100 { // it is noticed soon
		if r := k.want("mcp_list_servers", nil); strings.Contains(r.Text, "not started") {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	k.want("mcp_execute", fields{"server_name": "test", "tool_name": "environment"}, "uid 1234")
	k.lacks(k.want("mcp_list_tools", fields{"server_name": "test"}), "new tool")
}

// testHTTP reaches servers in the sandbox's network, which is not this machine's.
func testHTTP(t *testing.T, box sandpit.Instance, setup kit) {
	t.Helper()
	setup.want("shell_exec", fields{"command": "exec /opt/server 127.0.0.1:8811", "background": true})
	setup.want("shell_exec", fields{"command": "for i in $(seq 200); do (exec 3<>/dev/tcp/127.0.0.1/8811) 2>/dev/null && break; sleep 0.05; done"})
	const open = `"headers": {"Authorization": "Bearer open-sesame-1234"}`
	k := withServers(t, box, "http", `{"mcpServers": {
		"new": {"url": "http://127.0.0.1:8811/mcp", "type": "streamable-http", `+open+`},
		"old": {"url": "http://127.0.0.1:8811/sse", "type": "sse", `+open+`},
		"either": {"url": "http://127.0.0.1:8811/sse", `+open+`},
		"closed": {"url": "http://127.0.0.1:8811/mcp", "type": "http"},
		"away": {"url": "http://127.0.0.1:8811/away", "type": "http"},
		"elsewhere": {"url": "http://127.0.0.1:8811/elsewhere", "type": "sse"},
		"outside": {"url": "http://192.0.2.1:80/mcp", "type": "http"},
		"nobody": {"url": "http://127.0.0.1:1/mcp", "type": "http"},
		"plain": {"url": "https://127.0.0.1:8811/mcp", "type": "http"}}}`)
	k.want("file_write", fields{"file": "a", "content": ""})
	for _, name := range []string{"new", "old", "either"} {
		k.want("mcp_list_tools", fields{"server_name": name}, "mcp_"+name+"_kinds")
		k.want("mcp_execute", fields{"server_name": name, "tool_name": "kinds"}, "some text", "[IMAGE: image/png]")
		k.want("mcp_execute", fields{"server_name": name, "tool_name": "kinds"}, "some text")
	}
	for name, text := range map[string]string{
		"closed": "Unauthorized", "elsewhere": "elsewhere", "outside": "unreachable", "nobody": "refused", "plain": "does not look like a TLS handshake",
	} {
		k.refused("mcp_execute", fields{"server_name": name, "tool_name": "kinds"}, sandpit.Unavailable, text)
	}
	k.refused("mcp_execute", fields{"server_name": "away", "tool_name": "kinds"}, sandpit.PermissionDenied, "which is not allowed")
	k.want("http_request", fields{"url": "http://127.0.0.1:8811/stolen"}, "stolen: 0")
	r := k.want("shell_exec", fields{"command": "echo open-sesame-1234"})
	k.lacks(r, "open-sesame")
}

func testHostile(t *testing.T, box sandpit.Instance) {
	t.Helper()
	modes := []string{"exit", "silent", "endless", "garbage", "many", "large", "circle", "names", "dies", "hangs", "deaf", "floods", "asks", "huge", "parts", "odd", "stays"}
	servers := map[string]any{}
	for _, mode := range modes {
		servers[mode] = map[string]any{"command": "python3", "args": []string{"/opt/hostile.py", mode}}
	}
	servers["absent"] = map[string]any{"command": "/no/such/program"}
	config, err := json.Marshal(map[string]any{"mcpServers": servers})
	if err != nil {
		t.Fatal(err)
	}
	k := withServers(t, box, "hostile", string(config))
	k.want("file_write", fields{"file": "a", "content": ""})
	registry, err := tool.New(nil) // the kit's keeps calls, and only one at a time
	if err != nil {
		t.Fatal(err)
	}
	tools := func(mode string) fields { return fields{"server_name": mode} }
	call := func(mode string) fields { return fields{"server_name": mode, "tool_name": "work"} }
	t.Run("modes", func(t *testing.T) {
		for name, f := range map[string]func(kit){
			"absent": func(k kit) { k.refused("mcp_list_tools", tools("absent"), sandpit.NotFound, "/no/such/program") },
			"exit": func(k kit) {
				k.refused("mcp_list_tools", tools("exit"), sandpit.Unavailable, "exit status 1", "no licence for this machine")
			},
			"endless": func(k kit) { k.refused("mcp_list_tools", tools("endless"), sandpit.Unavailable) },
			"garbage": func(k kit) { k.refused("mcp_list_tools", tools("garbage"), sandpit.Unavailable) },
			"silent": func(k kit) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begun := time.Now()
				if r := k.tools.Invoke(ctx, k.session, "mcp_list_tools", []byte(`{"server_name": "silent"}`)); r.Problem == nil || time.Since(begun) > 15*time.Second {
					t.Errorf("a server that never answers: %s after %s", r.Text, time.Since(begun))
				}
			},
			"many": func(k kit) {
				k.want("mcp_list_tools", tools("many"), "(the server has more tools)", "mcp_many_tool499")
			},
			"large": func(k kit) { k.want("mcp_list_tools", tools("large"), "tools were left out") },
			"circle": func(k kit) {
				k.want("mcp_list_tools", tools("circle"), "(the server has more tools)", "(1 tools were left out")
			},
			"names": testNames,
			"dies": func(k kit) {
				for range 2 { // it was started again in between
					k.refused("mcp_execute", call("dies"), sandpit.Unavailable, "exit status 3", "the disk is on fire")
				}
			},
			"hangs": func(k kit) {
				in := call("hangs")
				in["timeout"] = 1
				k.refused("mcp_execute", in, sandpit.Timeout)
			},
			"deaf": func(k kit) {
				in := call("deaf")
				in["timeout"] = 1
				k.refused("mcp_execute", in, sandpit.Timeout)
				in["arguments"] = fields{"much": strings.Repeat("x", 8<<20)}
				k.refused("mcp_execute", in, sandpit.Timeout)
			},
			"floods": func(k kit) {
				k.refused("mcp_execute", call("floods"), sandpit.Exhausted, "has sent more than")
			},
			"asks": func(k kit) {
				if r := k.want("mcp_execute", call("asks"), "sampling/createMessage: ", "elicitation/create: ", "roots/list: ", "tools/call: "); strings.Contains(r.Text, "granted") && !strings.Contains(r.Text, "roots/list: granted {'roots': []}") || strings.Count(r.Text, "granted") > 1 {
					k.Errorf("a server is given what it asks for: %s", r.Text)
				}
			},
			"huge":  func(k kit) { k.refused("mcp_execute", call("huge"), sandpit.Unavailable, "maximum line length") },
			"parts": func(k kit) { k.want("mcp_execute", call("parts"), "[4900 more parts left out]") },
			"odd":   func(k kit) { k.refused("mcp_execute", call("odd"), sandpit.Unavailable) },
			"stays": func(k kit) { k.want("mcp_execute", call("stays"), "I am process") },
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				f(kit{t, registry, k.session, k.calls})
			})
		}
	})
}

// testNames wants names that every client takes and no two the same.
func testNames(k kit) {
	r := k.want("mcp_list_tools", fields{"server_name": "names"}, "(3 tools were left out")
	seen := map[string]bool{}
	for line := range strings.SplitSeq(strings.TrimSpace(r.Text), "\n") {
		name, _, isTool := strings.Cut(line, " (tool_name ")
		if !isTool {
			continue
		}
		if !regexp.MustCompile(`^mcp_names_[A-Za-z0-9_-]+$`).MatchString(name) || len(name) > 64 || seen[name] {
			k.Errorf("the name %q", name)
		}
		seen[name] = true
	}
	if len(seen) != 9 || !seen["mcp_names_a_b"] {
		k.Errorf("%d names: %v", len(seen), seen)
	}
}

// TestMCPServers uses the protocol's own example servers.
func TestMCPServers(t *testing.T) {
	t.Parallel()
	modules := installServers(t)
	box := newBoxOf(t, sandpit.Spec{Mounts: []sandpit.Mount{{Source: modules, Target: "/opt/servers", ReadOnly: true}}})
	k := withServers(t, box, "npm", `{"mcpServers": {
		"everything": {"command": "node", "args": ["/opt/servers/node_modules/@modelcontextprotocol/server-everything/dist/index.js"]},
		"filesystem": {"command": "node", "args": ["/opt/servers/node_modules/@modelcontextprotocol/server-filesystem/dist/index.js", "/workspace/npm"]}}}`)
	k.want("file_write", fields{"file": "hello.txt", "content": "written by a tool"})
	k.want("mcp_list_tools", fields{"server_name": "everything"}, "mcp_everything_echo", "mcp_everything_get-sum")
	k.want("mcp_execute", fields{"server_name": "everything", "tool_name": "echo", "arguments": fields{"message": "hello"}}, "Echo: hello")
	k.want("mcp_execute", fields{"server_name": "everything", "tool_name": "mcp_everything_get-sum", "arguments": fields{"a": 20, "b": 22}}, "42")
	if r := k.want("mcp_execute", fields{"server_name": "everything", "tool_name": "get-tiny-image"}); len(r.Images) != 1 {
		t.Errorf("%d images: %s", len(r.Images), r.Text)
	}
	k.want("mcp_execute", fields{"server_name": "everything", "tool_name": "get-structured-content", "arguments": fields{"location": "New York"}}, "temperature")
	k.want("mcp_execute", fields{"server_name": "filesystem", "tool_name": "read_text_file", "arguments": fields{"path": "/workspace/npm/hello.txt"}}, "written by a tool")
	k.want("mcp_execute", fields{"server_name": "filesystem", "tool_name": "write_file", "arguments": fields{"path": "/workspace/npm/new.txt", "content": "by a server"}})
	k.want("file_read", fields{"file": "new.txt"}, "by a server")
	if r := k.call("mcp_execute", fields{"server_name": "filesystem", "tool_name": "read_text_file", "arguments": fields{"path": "/etc/passwd"}}); !r.Failed {
		t.Errorf("a file outside of the server's directory: %s", r.Text)
	}
}

// installServers returns a directory with the servers, kept in the user's cache.
func installServers(t *testing.T) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(t, "this machine has no %s", program)
		}
	}
	lock, err := os.ReadFile("testdata/mcp/package-lock.json")
	if err != nil {
		t.Fatal(err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(lock)
	dir := filepath.Join(cache, "sandpit-test", "mcp-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp(filepath.Dir(dir), "mcp-new-") //nolint:usetesting // it is renamed, and so on the same disk
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work)
	if err := os.CopyFS(work, os.DirFS("testdata/mcp")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = work
	if out, err := cmd.CombinedOutput(); err != nil {
		testengine.Skip(t, "npm cannot install the servers: %v\n%s", err, out)
	}
	if err := os.Chmod(work, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(work, dir); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
	return dir
}
