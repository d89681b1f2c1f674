package toolbox_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

type executed struct {
	ExitCode  int    `json:"exitCode"`
	Result    string `json:"result"`
	Artifacts struct {
		Charts []map[string]any `json:"charts"`
	} `json:"artifacts"`
}

func TestExecute(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	for body, want := range map[string]executed{
		`{"command":"echo out; echo err >&2; exit 3"}`:                               {ExitCode: 3, Result: "out\nerr\n"},
		`{"command":"pwd; echo $A","cwd":"/usr","envs":{"A":"b c"},"timeout":60}`:    {Result: "/usr\nb c\n"},
		`{"command":"cat; printf '\\377'","timeout":0,"unknown":"field"}`:            {Result: "\uFFFD"},
		`{"command":"i=0; while [ $i -lt 3 ]; do\necho $i\ni=$((i+1))\ndone"}`:       {Result: "0\n1\n2\n"},
		`{"command":"` + strings.Repeat("x", 10) + ` 2>/dev/null || kill -KILL $$"}`: {ExitCode: 137},
	} {
		var got executed
		r.do("POST", "/process/execute", body).want(t, http.StatusOK, &got)
		if got.ExitCode != want.ExitCode || got.Result != want.Result {
			t.Errorf("%s: %+v, want %+v", body, got, want)
		}
	}
	for body, want := range map[string]int{
		`{"command":" "}`: 400, `{}`: 400, `{"command":1}`: 400, `[`: 400, `{"command":"true","timeout":-1}`: 400,
		`{"command":"true","cwd":"/no/such/directory"}`: 400,
	} {
		r.do("POST", "/process/execute", body).wantFailure(t, want, "BAD_REQUEST")
	}
	begin := time.Now()
	r.do("POST", "/process/execute", `{"command":"sleep 600","timeout":0.3}`).wantFailure(t, http.StatusRequestTimeout, "PROCESS_EXECUTION_TIMEOUT")
	if took := time.Since(begin); took > patience/2 {
		t.Errorf("a timeout of 0.3 s took %v", took)
	}
	legacy := r.doAs(alice, r.url+"/api/toolbox/"+string(r.id)+"/toolbox/process/execute", "POST", `{"command":"echo old"}`)
	if legacy.status != http.StatusOK || !strings.Contains(legacy.body, `"old\n"`) {
		t.Errorf("the path of older clients: %+v", legacy)
	}
	r.do("GET", "/no/such/call", "").wantFailure(t, http.StatusNotFound, "NOT_FOUND")
	r.checkIdle()
}

// TestLongTexts runs a command and programs that are too long for one argument of a process.
func TestLongTexts(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	long := strings.Repeat("y", 256<<10)
	var got executed
	command := "x='" + long + "'\necho ${#x} \"$A\" ${__sandpit-unset}; cat; exit 3\n\n"
	r.do("POST", "/process/execute", encode(t, object{"command": command, "envs": object{"A": "b"}})).want(t, http.StatusOK, &got)
	if got.ExitCode != 3 || got.Result != "262144 b unset\n" {
		t.Errorf("a long command: exit code %d, %.200q", got.ExitCode, got.Result)
	}
	r.do("POST", "/process/execute", encode(t, object{"command": "# " + long + "\nif then"})).want(t, http.StatusOK, &got)
	if got.ExitCode == 0 || !strings.Contains(got.Result, "yntax error") {
		t.Errorf("a long command that is wrong: exit code %d, %.200q", got.ExitCode, got.Result)
	}
	for _, tc := range []struct{ language, program, text string }{
		{"python", "python3", "x = '" + long + "'\nimport sys\nprint(len(x), sys.argv[1], repr(sys.stdin.read()))\nsys.exit(3)"},
		{"javascript", "node", "const x = '" + long + "'\nconsole.log(x.length, process.argv[2], \"''\")\nprocess.exit(3)"},
	} {
		if _, err := exec.LookPath(tc.program); err != nil {
			t.Logf("no %s", tc.program)
			continue
		}
		r.do("POST", "/process/code-run", encode(t, object{"code": tc.text, "language": tc.language, "argv": []string{"a b"}})).want(t, http.StatusOK, &got)
		if got.ExitCode != 3 || got.Result != "262144 a b ''\n" {
			t.Errorf("a long program in %s: exit code %d, %.200q", tc.language, got.ExitCode, got.Result)
		}
	}
	for path, body := range map[string]object{
		"/process/execute":  {"command": "true # " + strings.Repeat("y", 8<<20)},
		"/process/code-run": {"code": "// " + long, "language": "typescript"},
	} {
		r.do("POST", path, encode(t, body)).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	}
	r.checkIdle()
}

// encode returns a value as JSON.
func encode(tb testing.TB, value any) string {
	tb.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return string(text)
}

// TestDefaultTimeout ends a command whose request has no timeout.
func TestDefaultTimeout(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{CommandTimeout: 300 * time.Millisecond})
	r.do("POST", "/process/execute", `{"command":"sleep 600"}`).wantFailure(t, http.StatusRequestTimeout, "PROCESS_EXECUTION_TIMEOUT")
	r.do("POST", "/process/session", `{"sessionId":"s"}`).want(t, http.StatusCreated, nil)
	r.do("POST", "/process/session/s/exec", `{"command":"sleep 600"}`).wantFailure(t, http.StatusRequestTimeout, "PROCESS_EXECUTION_TIMEOUT")
	var got map[string]any
	r.do("POST", "/process/session/s/exec", `{"command":"echo usable"}`).want(t, http.StatusOK, &got)
	if got["output"] != "usable\n" {
		t.Errorf("after it: %v", got)
	}
}

// TestDisconnectKills ends a command whose client disconnects.
func TestDisconnectKills(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	file := t.TempDir() + "/running"
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url+toolbox.Path+string(r.id)+"/process/execute",
		strings.NewReader(`{"command":"echo $$ >`+file+`; exec sleep 600"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set(rigOwner, alice)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if res, err := r.client.Do(req); err == nil {
			t.Errorf("status %d, want no response", res.StatusCode)
			_ = res.Body.Close()
		}
	}()
	alive := func() bool {
		var got executed
		r.do("POST", "/process/execute", `{"command":"kill -0 $(cat `+file+`) 2>/dev/null"}`).want(t, http.StatusOK, &got)
		return got.ExitCode == 0
	}
	eventually(t, "the command runs", alive)
	cancel()
	<-done
	eventually(t, "the command is killed", func() bool { return !alive() })
	r.checkIdle()
}

func TestCodeRun(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	for body, want := range map[string]executed{
		`{"code":"import sys, os\nprint(sys.argv[1:], os.environ['A'])\nsys.exit(3)","language":"python","argv":["x","-y"],"envs":{"A":"b"}}`: {ExitCode: 3, Result: "['x', '-y'] b\n"},
		// There is no interpreter here, so that the plain runtime runs it.
		`{"code":"# matplotlib\nprint(1)","language":"python"}`: {Result: "1\n"},
		`{"code":"console.log(process.argv.slice(2), process.env.A); process.exit(4)","language":"javascript","argv":["x","-y"],"envs":{"A":"b"}}`: {
			ExitCode: 4, Result: "[ 'x', '-y' ] b\n",
		},
	} {
		var got executed
		r.do("POST", "/process/code-run", body).want(t, http.StatusOK, &got)
		if got.ExitCode != want.ExitCode || got.Result != want.Result || got.Artifacts.Charts == nil {
			t.Errorf("%s: %+v, want %+v", body, got, want)
		}
	}
	var failed executed
	r.do("POST", "/process/code-run", `{"code":"1/0","language":"python"}`).want(t, http.StatusOK, &failed)
	if failed.ExitCode != 1 || !strings.Contains(failed.Result, "ZeroDivisionError") {
		t.Errorf("failed code: %+v", failed)
	}
	for _, body := range []string{`{"code":"","language":"python"}`, `{"code":"x","language":"cobol"}`, `{"code":"x"}`, `{"code":"x","language":"python","timeout":-1}`} {
		r.do("POST", "/process/code-run", body).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	}
	r.do("POST", "/process/code-run", `{"code":"import time; time.sleep(600)","language":"python","timeout":0.5}`).
		wantFailure(t, http.StatusRequestTimeout, "PROCESS_EXECUTION_TIMEOUT")
}

// TestTypeScriptRuntime runs a program in the first runtime for TypeScript that the image has.
func TestTypeScriptRuntime(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/tsx", []byte("#!/bin/sh\nprintf '%s|' \"$@\"\nexit 6\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var got executed
	body := `{"code":"const x: number = 1","language":"typescript","argv":["-a","b c"],"envs":{"PATH":"` + dir + `:/usr/bin:/bin"}}`
	r.do("POST", "/process/code-run", body).want(t, http.StatusOK, &got)
	if got.ExitCode != 6 || got.Result != "-e|const x: number = 1|--|code.ts|-a|b c|" {
		t.Errorf("a runtime: %+v", got)
	}
	if out, err := exec.CommandContext(t.Context(), "node", "-e", `require("/usr/share/nodejs/typescript")`).CombinedOutput(); err != nil {
		t.Skipf("no package typescript: %s", out)
	}
	got = executed{}
	body = `{"code":"import * as path from 'path'\ninterface P { n: number }\nconst p: P = { n: 2 }\nconsole.log(path.join('a', 'b'), p.n, process.argv.slice(2))\nprocess.exit(7)",` +
		`"language":"typescript","argv":["-a","b c"],"envs":{"PATH":"/usr/bin:/bin"}}`
	r.do("POST", "/process/code-run", body).want(t, http.StatusOK, &got)
	if got.ExitCode != 7 || got.Result != "a/b 2 [ '-a', 'b c' ]\n" {
		t.Errorf("a program: %+v", got)
	}
}
