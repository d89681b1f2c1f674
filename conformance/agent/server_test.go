package agent_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
)

// server is a sandpit server, and the environment of programs that use it.
type server struct {
	*client.Client

	environ []string
	// url is the server's socket, address its URL for clients of the network.
	url, address string
	key          string
}

// newServer starts a server with a key. Settings are variables of its environment.
func newServer(t *testing.T, settings ...string) *server {
	t.Helper()
	dir := t.TempDir()
	s := &server{environ: append(testengine.Environ(dir), "SANDPIT_SERVER_LISTEN=127.0.0.1:0", "SANDPIT_SERVER_DRAIN=5")}
	process := testserver.Start(t, slices.Concat(s.environ, settings))
	t.Cleanup(func() { process.End(t, syscall.SIGTERM) })
	s.address = process.URL
	s.url = "unix://" + filepath.Join(dir, "run", "sandpit.sock")
	s.Client = must(client.New(client.Options{URL: s.url}))(t)
	t.Cleanup(s.Close)
	s.key = must(s.Keys.Create(t.Context(), "ann", "test", 0, false))(t).Secret
	return s
}

// program returns the command sandpit agent with a sandbox on the server.
func (s *server) program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testengine.Path(t), append([]string{"agent", "--server", s.url}, args...)...)
	cmd.Env = append(slices.Clone(s.environ), "SANDPIT_API_KEY="+s.key)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// count returns how many sandboxes there are.
func (s *server) count(t *testing.T) int {
	t.Helper()
	return len(must(s.Sandboxes.List(context.WithoutCancel(t.Context()), client.Filter{}))(t))
}

// servePage writes a page in a sandbox of a server, and a person opens its link, which the transcript
// does not have.
func servePage(t *testing.T, s *server, connect way) {
	t.Helper()
	var box *client.Sandbox
	look := turn(`port 8080`, "http_request", map[string]any{"url": "http://127.0.0.1:8080/"})
	k := newKit(t, connect, []script.Turn{
		turn("", "sandbox_files", map[string]any{"action": "create_file", "file_path": "index.html", "file_contents": "<h1>made by an agent</h1>"}),
		look, finish("made by an agent", "it is up"),
	}, func(_ *kit, o *agent.Options) {
		o.Open = func(ctx context.Context) (agent.Sandbox, error) {
			var err error
			if box, err = s.Sandboxes.Create(ctx, client.CreateRequest{}); err != nil {
				return agent.Sandbox{}, err
			}
			return agent.Sandbox{ID: box.ID, Guest: box.Guest(), Close: box.Delete, Preview: func(ctx context.Context, port int) (agent.Link, error) {
				l, err := s.Ports.Ticket(ctx, box.ID, port, time.Minute, 0)
				if l.URL == "" {
					l.URL = l.PathURL
				}
				return agent.Link{URL: l.URL, Port: port, ExpiresAt: l.ExpiresAt}, err
			}}, nil
		}
	})
	k.want(agent.Finished, "it is up")
	var links []agent.Link
	for _, e := range k.events {
		if e.Kind == agent.EventLink {
			links = append(links, *e.Link)
		}
	}
	if len(links) != 1 || links[0].Port != 8080 || !strings.Contains(links[0].URL, "sandpit_ticket=") {
		t.Fatalf("links: %+v", links)
	}
	if got := k.Links(); len(got) != 1 || got[8080] != links[0] {
		t.Errorf("links of the agent: %+v", got)
	}
	if page := fetch(t, links[0].URL); !strings.Contains(page, "made by an agent") {
		t.Errorf("the page: %.500s", page)
	}
	if !strings.Contains(k.transcript.String(), `"type":"link"`) {
		t.Error("the transcript has no link")
	}
}

// fetch opens a link as a browser does.
func fetch(t *testing.T, url string) string {
	t.Helper()
	dialer := &net.Dialer{}
	browser := &http.Client{Jar: must(cookiejar.New(nil))(t), Timeout: patience, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			_, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			return dialer.DialContext(ctx, network, "127.0.0.1:"+port) // every name below localhost
		},
	}}
	r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))(t)
	answer, err := browser.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	return string(must(io.ReadAll(answer.Body))(t))
}

// TestResumeAfterKill kills the program during a call, and another one continues its transcript in the
// same sandbox.
func TestResumeAfterKill(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	dir := t.TempDir()
	transcript := filepath.Join(dir, "transcript.jsonl")
	first := filepath.Join(dir, "first.toml")
	writeScript(t, first, `
[[turn]]
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "echo once >> /workspace/log; echo the key: $DEPLOY_KEY", blocking = true }
[[turn]]
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "echo twice >> /workspace/log; sleep 1000", blocking = true, timeout = 1000 }
`)
	cmd := s.program(t, "--script", first, "--prompt", "log it", "--transcript", transcript, "--project", "p", "--secret", "DEPLOY_KEY", "-o", "json")
	cmd.Env = append(cmd.Env, "DEPLOY_KEY="+canary)
	out := must(cmd.StdoutPipe())(t)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	awaitLine(t, out, `"event":"call","step":2`)
	box := must(s.Sandboxes.List(t.Context(), client.Filter{}))(t)
	if len(box) != 1 {
		t.Fatalf("%d sandboxes", len(box))
	}
	guest := s.Sandboxes.Open(box[0].ID).Guest()
	for limit := time.Now().Add(patience); !strings.Contains(readFile(t, guest, "/workspace/log"), "twice"); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the second command does not run")
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	second := filepath.Join(dir, "second.toml")
	writeScript(t, second, `
[[turn]]
expect.last = "unknown whether the call took effect"
expect.any = "log it"
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "cat /workspace/log", blocking = true }
[[turn]]
expect.last = 'once\ntwice\n?$'
  [[turn.call]]
  name = "terminate"
  arguments = { status = "success", message = "both lines are there" }
`)
	// The machine stops in the middle of a line.
	f := must(os.OpenFile(transcript, os.O_APPEND|os.O_WRONLY, 0))(t)
	if _, err := f.WriteString(`{"type":"message","mess`); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	resumed := s.program(t, "--script", second, "--resume", transcript) // which keeps the sandbox of a project
	text, err := resumed.Output()
	if err != nil || strings.TrimSpace(string(text)) != "both lines are there" {
		t.Fatalf("%q, %v: %s", text, err, stderrOf(err))
	}
	if n := s.count(t); n != 1 {
		t.Errorf("%d sandboxes; the project keeps one", n)
	}
	data := must(os.ReadFile(transcript))(t)
	if strings.Contains(string(data), s.key) || strings.Contains(string(data), canary) || !strings.Contains(string(data), "the key: ***") {
		t.Errorf("a key is in the transcript, or was not masked:\n%s", data)
	}
	read := must(agent.ReadTranscript(strings.NewReader(string(data))))(t)
	if o, ended := read.Outcome(); !ended || o.Reason != agent.Finished || len(read.Responses()) != 4 || read.SandboxID() != box[0].ID {
		t.Errorf("the transcript: %+v, %d responses, sandbox %s", o, len(read.Responses()), read.SandboxID())
	}
}

// TestEndings ends the program in several ways: each has its exit status and leaves no sandbox.
func TestEndings(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	const endless = `
[[turn]]
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "sleep 1000", blocking = true, timeout = 1000 }
`
	const step = `
[[turn]]
times = 50
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "date +%N", blocking = true }
`
	const quick = `
[[turn]]
  [[turn.call]]
  name = "sandbox_shell"
  arguments = { action = "execute_command", command = "true", blocking = true }
[[turn]]
`
	for name, tc := range map[string]struct {
		script string
		args   []string
		signal syscall.Signal
		status int
		leave  bool // the reader of the events ends at the first call
		// setting is a variable of the environment.
		setting string
	}{
		"success":    {script: quick + "[[turn.call]]\nname = \"terminate\"\narguments = { status = \"success\" }\n", status: 0},
		"failure":    {script: quick + "[[turn.call]]\nname = \"terminate\"\narguments = { status = \"failure\" }\n", status: 1},
		"steps":      {script: step, args: []string{"--max-steps", "3"}, status: 10},
		"budget":     {script: step, args: []string{"--budget", "10k"}, status: 11},
		"stuck":      {script: strings.ReplaceAll(step, "date +%N", "echo same"), status: 12},
		"model":      {script: quick + "error = { kind = \"unauthenticated\" }\n", status: 5},
		"terminated": {script: endless, signal: syscall.SIGTERM, status: 128 + int(syscall.SIGTERM)},
		"Ctrl-C":     {script: endless, signal: syscall.SIGINT, status: 128 + int(syscall.SIGINT)},
		"no sandbox": {script: quick, setting: "SANDPIT_SANDBOX_USE_SANDBOX=false", status: 2},
		"no reader":  {script: step, leave: true, status: 128 + int(syscall.SIGPIPE)},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "script.toml")
			writeScript(t, file, tc.script)
			cmd := s.program(t, append(tc.args, "--script", file, "--prompt", "x", "-o", "json")...)
			if tc.setting != "" {
				cmd.Env = append(cmd.Env, tc.setting)
			}
			out := must(cmd.StdoutPipe())(t)
			var messages strings.Builder
			cmd.Stderr = &messages
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			if tc.signal != 0 {
				awaitLine(t, out, `"event":"call","step":1`)
				for limit := time.Now().Add(patience); s.count(t) == 0; time.Sleep(20 * time.Millisecond) {
					if time.Now().After(limit) {
						t.Fatal("there is no sandbox")
					}
				}
				if err := cmd.Process.Signal(tc.signal); err != nil {
					t.Fatal(err)
				}
			}
			if tc.leave {
				awaitLine(t, out, `"event":"call","step":1`)
				if err := out.Close(); err != nil {
					t.Fatal(err)
				}
				out = io.NopCloser(strings.NewReader(""))
			}
			text := must(io.ReadAll(out))(t)
			_ = cmd.Wait() // the status is checked
			if got := cmd.ProcessState.ExitCode(); got != tc.status {
				t.Errorf("status %d, want %d: %s\n%.3000s", got, tc.status, messages.String(), text)
			}
			// The server deletes a sandbox whose creation is interrupted when it is created.
			for limit := time.Now().Add(patience); s.count(t) > 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(limit) {
					t.Fatalf("%d sandboxes are left", s.count(t))
				}
			}
		})
	}
}

func writeScript(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// awaitLine reads lines until one contains a text.
func awaitLine(t *testing.T, r io.Reader, text string) {
	t.Helper()
	var seen strings.Builder
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if strings.Contains(line, text) {
			return
		}
		if err != nil {
			t.Fatalf("%v; no line with %s in:\n%s", err, text, seen.String())
		}
		seen.WriteString(line)
	}
}

func stderrOf(err error) string {
	if e, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(e.Stderr)
	}
	return ""
}
