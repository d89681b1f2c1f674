package data_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// bigFile is a file without content that takes no disk.
func bigFile(t *testing.T) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "big")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(1 << 40); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	dir := t.TempDir()
	for _, tc := range []struct {
		name string
		req  wire.Run
		want wire.RunResult
	}{
		{"both streams", wire.Run{Command: "echo out; echo err >&2; exit 3"}, wire.RunResult{Stdout: "out\n", Stderr: "err\n", ExitCode: 3}},
		{"no shell", wire.Run{Args: []string{"echo", "$HOME", ";"}}, wire.RunResult{Stdout: "$HOME ;\n"}},
		{"input", wire.Run{Args: []string{"cat"}, Stdin: "in\x00put"}, wire.RunResult{Stdout: "in\x00put"}},
		{"no input", wire.Run{Args: []string{"cat"}}, wire.RunResult{}},
		{"place and variables", wire.Run{Command: `pwd; echo "$A"`, Dir: dir, Env: map[string]string{"A": "a b"}}, wire.RunResult{Stdout: dir + "\na b\n"}},
		{"no UTF-8", wire.Run{Command: `printf '\377x'`}, wire.RunResult{Stdout: "\uFFFDx", StdoutBytes: []byte("\xffx")}},
		{"signal", wire.Run{Command: `kill -9 $$`}, wire.RunResult{ExitCode: 137}},
		{"too long", wire.Run{Command: "echo before; exec sleep 1000", Timeout: 0.5}, wire.RunResult{Stdout: "before\n", ExitCode: 137, TimedOut: true}},
		{"no timeout", wire.Run{Command: "echo a", Timeout: -1}, wire.RunResult{Stdout: "a\n"}},
		{"much", wire.Run{Command: `printf 0123456789`, MaxOutput: 4}, wire.RunResult{Stdout: "01\n[6 bytes left out]\n89", Truncated: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got wire.RunResult
			r.do(r.client, http.MethodPost, id, "/run", asJSON(t, tc.req)).want(t, http.StatusOK, &got)
			if got.Duration <= 0 {
				t.Errorf("it took %v s", got.Duration)
			}
			got.Duration, got.ID = 0, ""
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
	for name, tc := range map[string]struct {
		body string
		want sandpit.Code
	}{
		"nothing":         {`{}`, sandpit.Invalid},
		"both":            {`{"command":"a","args":["a"]}`, sandpit.Invalid},
		"no program":      {`{"args":["no-such-program"]}`, sandpit.NotFound},
		"no name":         {`{"args":[""]}`, sandpit.Invalid},
		"NUL":             {`{"command":"a\u0000b"}`, sandpit.Invalid},
		"no directory":    {`{"command":"true","dir":"/no/such"}`, sandpit.Invalid},
		"nobody":          {`{"command":"true","user":"no-such-user"}`, sandpit.Invalid},
		"misspelt":        {`{"command":"true","timeout":3}`, sandpit.Invalid},
		"too much output": {`{"command":"true","max_output":16777217}`, sandpit.Invalid},
		"less than none":  {`{"command":"true","max_output":-1}`, sandpit.Invalid},
		"years":           {`{"command":"true","timeout_seconds":1e300}`, sandpit.Invalid},
		"a list":          {`[]`, sandpit.Invalid},
		"a directory":     {`{"args":["/etc"]}`, sandpit.PermissionDenied},
	} {
		t.Run(name, func(t *testing.T) {
			r.do(r.client, http.MethodPost, id, "/run", strings.NewReader(tc.body)).wantProblem(t, tc.want)
			req := r.request(t.Context(), http.MethodPost, id, "/run", strings.NewReader(tc.body))
			req.Header.Set("Accept", "text/event-stream")
			r.send(r.client, req).wantProblem(t, tc.want)
		})
	}
	r.idle()
}

// TestRunEvents reads a command's output as it comes.
func TestRunEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{Heartbeat: 10 * time.Millisecond})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		dir := t.TempDir()
		body := asJSON(t, wire.Run{Command: `printf 'a\377'; while ! test -e "$D/go"; do sleep 0.02; done; echo b >&2; exit 9`, Env: map[string]string{"D": dir}})
		s := r.stream(client, r.request(t.Context(), http.MethodPost, id, "/run", body))
		var started wire.Started
		if s.must("start", &started); started.PID < 1 {
			t.Errorf("process %d", started.PID)
		}
		var out wire.Output
		if s.must("stdout", &out); string(out.Data) != "a\xff" {
			t.Errorf("output %q", out.Data)
		}
		if err := os.WriteFile(dir+"/go", nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if s.must("stderr", &out); string(out.Data) != "b\n" {
			t.Errorf("errors %q", out.Data)
		}
		var exit wire.Exit
		s.must("exit", &exit)
		if exit.ExitCode != 9 || exit.Duration <= 0 || exit.TimedOut {
			t.Errorf("%+v", exit)
		}
		if e, more := s.next(); more {
			t.Errorf("%+v after the end", e)
		}
	})
	r.idle()
}

// TestHeartbeat has a stream of events live while nothing happens.
func TestHeartbeat(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{Heartbeat: 10 * time.Millisecond})
	id := r.box()
	s := r.stream(r.client, r.request(t.Context(), http.MethodPost, id, "/run", strings.NewReader(`{"command":"sleep 1000"}`)))
	beats := 0
	for beats < 3 && s.lines.Scan() {
		if strings.HasPrefix(s.lines.Text(), ":") {
			beats++
		}
	}
	if beats < 3 {
		t.Errorf("%d heartbeats, %v", beats, s.lines.Err())
	}
}

// TestRunMuch has events and the bounded answer tell the same of much output.
func TestRunMuch(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	const bytesOut = 8 << 20
	command := fmt.Sprintf("head -c %d /dev/zero", bytesOut)
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		s := r.stream(client, r.request(t.Context(), http.MethodPost, id, "/run", asJSON(t, wire.Run{Command: command})))
		s.must("start", &wire.Started{})
		got := 0
		for {
			e, ok := s.next()
			if !ok {
				t.Fatalf("the stream ends after %d bytes: %v", got, s.lines.Err())
			}
			if e.name == "exit" {
				break
			}
			got += len(e.data)*3/4 - len(`{"data":""}`) // about
		}
		if got < bytesOut*9/10 {
			t.Errorf("%d bytes, want %d", got, bytesOut)
		}
		var answer wire.RunResult
		r.do(client, http.MethodPost, id, "/run", asJSON(t, wire.Run{Command: command, MaxOutput: 1000})).want(t, http.StatusOK, &answer)
		if !answer.Truncated || len(answer.Stdout) > 1100 || !strings.Contains(answer.Stdout, strconv.Itoa(bytesOut-1000)) {
			t.Errorf("%t, %d bytes", answer.Truncated, len(answer.Stdout))
		}
	})
}

// TestRunGivenUp has clients go away: their commands are killed.
func TestRunGivenUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) { //nolint:thelper // it is the test
		for _, accept := range []string{"application/json", "text/event-stream"} {
			file := filepath.Join(t.TempDir(), "pid")
			body := asJSON(t, wire.Run{Command: `echo $$ > "$F.new"; mv "$F.new" "$F"; exec sleep 1000`, Env: map[string]string{"F": file}})
			ctx, giveUp := context.WithCancel(t.Context())
			req := r.request(ctx, http.MethodPost, id, "/run", body)
			req.Header.Set("Accept", accept)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				res, err := client.Do(req)
				if err == nil {
					_, _ = new(bytes.Buffer).ReadFrom(res.Body)
					_ = res.Body.Close()
				}
			}()
			var pid int
			eventually(t, "the command runs", func() bool {
				text, _ := os.ReadFile(file)
				pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return pid > 0
			})
			giveUp()
			<-ended
			eventually(t, "the command is killed", func() bool { return syscall.Kill(pid, 0) != nil })
			r.idle()
		}
	})
}
