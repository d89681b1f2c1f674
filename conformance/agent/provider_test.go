package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/daytona"
	"github.com/sandpit-dev/sandpit/provider/docker"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

// bareImage has no programs: those of this machine are mounted, as they are in the other sandboxes.
const bareImage = "sandpit-test/agent:1"

// home is a provider with what its sandboxes need to have this machine's programs.
type home struct {
	open func(*testing.T) sandpit.Provider
	spec sandpit.Spec
}

// homes are the providers. Each cloud is a server of sandpit that has the role of the cloud.
func homes(t *testing.T) map[string]home {
	t.Helper()
	return map[string]home{
		"gvisor": {open: func(t *testing.T) sandpit.Provider { t.Helper(); return testgvisor.New(t) }},
		"docker": {open: openDocker, spec: sandpit.Spec{Image: bareImage, Mounts: []sandpit.Mount{{Source: "/usr", Target: "/usr", ReadOnly: true}}}},
		"e2b": {open: func(t *testing.T) sandpit.Provider {
			t.Helper()
			s := newServer(t, "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_E2B_TEMPLATES=base=host")
			return must(e2b.New(e2b.Options{Key: s.key, APIURL: s.address, SandboxURL: s.address, Identity: string(sandpit.NewID()), Poll: time.Second}))(t)
		}},
		"e2b with its own guest": {open: openPlainGuest},
		"daytona": {open: func(t *testing.T) sandpit.Provider {
			t.Helper()
			s := newServer(t, "SANDPIT_SERVER_KEYLESS=false")
			return must(daytona.New(daytona.Options{
				Key: s.key, Endpoint: s.address + "/api", StateDir: t.TempDir(), Manager: "agent-" + string(sandpit.NewID()),
				Image: daytona.SnapshotPrefix + "daytonaio/sandbox", Poll: time.Second,
			}))(t)
		}},
	}
}

// openDocker opens a provider of the test engine, which gets the image.
func openDocker(t *testing.T) sandpit.Provider {
	t.Helper()
	testdocker.Import(t, bareImage, bareFiles(t))
	return must(docker.New(testoptions.Docker(docker.Options{
		Endpoint: docker.Endpoint{Host: testdocker.Host(t)}, StateDir: t.TempDir(), Guest: testdocker.Guest(t),
	})))(t)
}

// bareFiles are directories, accounts, and links to the programs of this machine.
func bareFiles(t *testing.T) []testdocker.File {
	t.Helper()
	files := []testdocker.File{
		{Name: "etc/", Mode: 0o755},
		{Name: "etc/alternatives/", Mode: 0o755},
		{Name: "etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/bash\n")},
		{Name: "etc/group", Mode: 0o644, Content: []byte("root:x:0:\n")},
		{Name: "root/", Mode: 0o700},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "usr/", Mode: 0o755},
		{Name: "var/", Mode: 0o755},
	}
	links := []string{"/bin", "/sbin", "/lib", "/lib64", "/lib32"}
	for _, entry := range must(os.ReadDir("/etc/alternatives"))(t) {
		links = append(links, "/etc/alternatives/"+entry.Name())
	}
	for _, name := range links {
		if target, err := os.Readlink(name); err == nil {
			files = append(files, testdocker.File{Name: strings.TrimPrefix(name, "/"), Link: target})
		}
	}
	return files
}

// commonTurns use tools of each category, also in wrong ways.
func commonTurns() []script.Turn {
	type fields = map[string]any
	return []script.Turn{
		{Text: "I write files.", Calls: []script.Call{
			{Name: "sandbox_files", Arguments: fields{"action": "create_file", "file_path": "src/stats.py", "file_contents": brokenCode}},
			{Name: "sandbox_files", Arguments: fields{"action": "create_file", "file_path": "src/test.py", "file_contents": testCode}},
			{Name: "sandbox_files", Arguments: fields{"action": "create_file", "file_path": "größe ☃.txt", "file_contents": "zwei\n"}},
			{Name: "sandbox_files", Arguments: fields{"action": "create_file", "file_path": "src/stats.py", "file_contents": "again"}},
		}},
		run("exists already", "cd src && python3 test.py 2>&1 | grep -v '^Ran '; echo status ${PIPESTATUS[0]}"),
		{Expect: script.Expect{Last: "status 1"}, Calls: []script.Call{
			{Name: "file_read", Arguments: fields{"path": "src/stats.py"}},
			{Name: "file_list", Arguments: fields{"path": "/workspace"}},
			{Name: "glob", Arguments: fields{"pattern": "**/*.py"}},
			{Name: "grep", Arguments: fields{"pattern": "len\\(", "path": "src"}},
			{Name: "file_read", Arguments: fields{"path": "none.txt"}},
			{Name: "file_read", Arguments: fields{"path": "/etc/none/../shadow-none"}},
		}},
		turn("", "sandbox_files", fields{"action": "str_replace", "file_path": "/workspace/src/stats.py", "old_str": " / (len(values) + 1)", "new_str": " / len(values)"}),
		turn("", "str_replace_editor", fields{"command": "view", "path": "/workspace/src/stats.py"}),
		turn("", "python_exec", fields{"code": "import os, sys\nprint(os.getcwd(), os.getuid(), sys.stdin.isatty())\nx = 6\nx * 7"}),
		turn("42", "python_exec", fields{"code": "print(x)\nraise ValueError('no')"}),
		turn("ValueError", "javascript_execute", fields{"code": "[1, 2, 3].map(n => n * 2).join('-')"}),
		turn("2-4-6", "bash", fields{"command": "cd /tmp && pwd && A=1 && exit_status() { return 7; }; exit_status"}),
		turn("", "bash", fields{"command": "pwd; echo \"[$A]\"; printf '\\033[31mred\\033[0m\\r\\n'; printf '\\xff\\n'; echo error >&2"}),
		run("", "seq 1 4000"),
		turn("complete output is in the file", "sandbox_shell", fields{"action": "execute_command", "command": "sleep 60", "blocking": true, "timeout": 1}),
		turn("", "env_set", fields{"name": "API_TOKEN", "value": "hidden-0123456789"}),
		run("", "echo \"$API_TOKEN\" | tee token; id -un; umask; echo $HOME; ulimit -c"),
		{Calls: []script.Call{{Name: "nothing", Arguments: fields{"a": 1}}, {Name: "bash", Raw: "{\"command\": "}, {Name: "file_read", Arguments: fields{"lines": true}}}},
		run("", "mkdir -p site && echo '<h1>made by an agent</h1>' > site/index.html && (cd site && exec python3 -m http.server 8099 --bind 127.0.0.1 > /dev/null 2>&1 &) ; for i in $(seq 100); do curl -s -o /dev/null http://127.0.0.1:8099/ && break; sleep 0.1; done; curl -s http://127.0.0.1:8099/"),
		turn("made by an agent", "http_request", fields{"url": "http://127.0.0.1:8099/none"}),
		turn("404", "http_request", fields{"url": "http://127.0.0.1:1/"}),
		turn("", "plan", fields{"steps": []fields{{"text": "write", "state": "done"}, {"text": "check"}}}),
		turn("", "ask_human", fields{"inquire": "Which?"}),
		run("no person answers", "git init -q repo && cd repo && git -c user.name=a -c user.email=a@b.example commit -q --allow-empty -m first && git log --format=%s; rm -rf /workspace/none; ls -A /workspace; ln -s loop loop; cat loop"),
		turn("first", "mcp_calc_add", fields{"a": 40, "b": 2}),
		finish("sum 42", "done everywhere"),
	}
}

// TestProviders has one task done in sandboxes of every provider. The transcripts are the same.
func TestProviders(t *testing.T) {
	t.Parallel()
	all := homes(t)
	var mu sync.Mutex
	transcripts := map[string]string{}
	t.Run("run", func(t *testing.T) {
		for name, h := range all {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				text := runCommonTask(t, h)
				mu.Lock()
				defer mu.Unlock()
				transcripts[name] = text
			})
		}
	})
	want := transcripts["gvisor"]
	if len(transcripts) < len(all) {
		return // a task failed, or was skipped
	}
	for name, got := range transcripts {
		if got != want {
			t.Errorf("the transcript on %s differs from that on gvisor:\n%s", name, diffLines(want, got))
		}
	}
	if strings.Count(want, "\n") < 60 {
		t.Errorf("the transcript is short:\n%s", want)
	}
}

// runCommonTask returns the transcript of the task without IDs and times.
func runCommonTask(t *testing.T, h home) string {
	t.Helper()
	k := newKit(t, protocols["direct"], commonTurns(), func(k *kit, o *agent.Options) {
		provider := h.open(t)
		t.Cleanup(func() {
			if err := provider.Close(); err != nil {
				t.Errorf("close the provider: %v", err)
			}
		})
		o.MaxSteps = 50
		o.MCPServers = map[string]agent.MCPServer{"calc": {Command: "python3", Args: []string{"-c", calcServer}}}
		o.Open = func(ctx context.Context) (agent.Sandbox, error) {
			box, err := provider.Create(ctx, sandpit.NewID(), h.spec)
			if err != nil {
				return agent.Sandbox{}, err
			}
			k.boxes = append(k.boxes, box)
			return agent.Sandbox{ID: box.ID(), Guest: box.Guest(), Close: func(ctx context.Context) error {
				k.closed++
				return box.Destroy(ctx)
			}}, nil
		}
	})
	k.want(agent.Finished, "done everywhere")
	return withoutIDs(t, k.transcript.Bytes(), string(k.boxes[0].ID()))
}

// idPattern matches times, and IDs in names of files.
var idPattern = regexp.MustCompile(`"at":"[^"]*"|Date: [^\\]*|session_[0-9a-f]+`)

// withoutIDs returns a transcript without IDs and times. Results of calls that ran at the same time are
// in the order of the calls.
func withoutIDs(t *testing.T, transcript []byte, id string) string {
	t.Helper()
	var lines []string
	results := map[string]string{} // by the ID of the call
	add := func() {
		for _, call := range slices.Sorted(maps.Keys(results)) {
			lines = append(lines, results[call])
		}
		clear(results)
	}
	for line := range bytes.Lines(transcript) {
		var entry struct {
			Message struct {
				CallID string `json:"call_id"`
			}
		}
		if err := json.Unmarshal(line, &entry); err != nil {
			t.Fatalf("%v: %.500q", err, line)
		}
		text := strings.ReplaceAll(idPattern.ReplaceAllString(string(line), "-"), id, "ID")
		if call := entry.Message.CallID; call != "" {
			results[call] = text
			continue
		}
		add()
		lines = append(lines, text)
	}
	add()
	return strings.Join(lines, "")
}

// diffLines returns the pairs of lines that differ, from shortly before their first difference.
func diffLines(want, got string) string {
	var b strings.Builder
	wants, gots := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(wants), len(gots)) {
		w, g := append(wants, make([]string, len(gots))...)[i], append(gots, make([]string, len(wants))...)[i]
		if w == g {
			continue
		}
		common := 0
		for common < min(len(w), len(g)) && w[common] == g[common] {
			common++
		}
		from := max(common-100, 0)
		fmt.Fprintf(&b, "line %d\n- %.500s\n+ %.500s\n", i+1, w[min(from, len(w)):], g[min(from, len(g)):])
	}
	return b.String()
}
