package toolbox_test

import (
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// TestRealSandbox goes through commands, a session with input, a terminal and an interpreter of
// a real sandbox.
func TestRealSandbox(t *testing.T) {
	t.Parallel()
	r := rigOn(t, toolbox.Options{}, map[string]sandpit.Provider{"gvisor": testgvisor.New(t)})
	var got executed
	r.do("POST", "/process/execute", `{"command":"pwd; echo err >&2; exit 3"}`).want(t, http.StatusOK, &got)
	if got.ExitCode != 3 || got.Result != sandpit.DefaultWorkDir+"\nerr\n" {
		t.Errorf("a command: %+v", got)
	}
	r.newSession("s")
	r.execute("s", "cd /usr; A=1")
	path := r.start("s", `{"command":"read x; echo \"$A $PWD $x\"; cd /tmp","runAsync":true,"suppressInputEcho":true}`)
	r.do("POST", path+"/input", `{"data":"word\n"}`).want(t, http.StatusNoContent, nil)
	if body := r.do("GET", path+"/logs?follow=true", ""); !strings.HasSuffix(body.body, "1 /usr word\n") {
		t.Errorf("the log: %q", body.body)
	}
	if last := r.execute("s", "pwd; ls -A /tmp"); *last.Stdout != "/tmp\n" {
		t.Errorf("after it: %q, want no files in /tmp", *last.Stdout)
	}
	w := r.dial("/process/pty/create-connect?id=t&cols=91&rows=17", nil, exitControl)
	w.control()
	w.send("stty size; exit 7\n")
	seen, closed := w.rest()
	if !strings.Contains(seen, "17 91") {
		t.Errorf("the terminal shows %q", seen)
	}
	wantExit(t, closed, 7)
	r.checkInterpreter(t)
	r.checkIdle()
	r.checkCharts(t)
}

// TestProgramsOfPausedSandbox continues with the programs of a session and a terminal after two
// pauses.
func TestProgramsOfPausedSandbox(t *testing.T) {
	t.Parallel()
	r := rigOn(t, toolbox.Options{}, map[string]sandpit.Provider{"gvisor": testgvisor.New(t)})
	r.newSession("s")
	r.execute("s", "cd /tmp; A=1")
	const count = `for i in 1 2 3 4 5 6 7 8 9; do echo $i; echo e$i >&2; sleep 0.2; done; read x; echo "$A $x"; exit 3`
	path := r.start("s", `{"command":"`+strings.ReplaceAll(count, `"`, `\"`)+`","runAsync":true,"suppressInputEcho":true}`)
	next := r.start("s", `{"command":"pwd","runAsync":true}`) // it waits
	w := r.dial("/process/pty/create-connect?id=t", nil)
	w.control()
	w.send("B=2; PS1=\n")
	w.until("B=2")
	for range 2 {
		eventually(t, "the command writes", func() bool { return r.do("GET", path+"/logs", "").body != "" })
		if err := r.manager.Suspend(t.Context(), r.id); err != nil {
			t.Fatal(err)
		}
		if err := r.manager.Resume(t.Context(), r.id); err != nil {
			t.Fatal(err)
		}
		var running commandInfo
		r.do("GET", path, "").want(t, http.StatusOK, &running)
		if running.ExitCode != nil {
			t.Fatalf("the command ended with %d: %s", *running.ExitCode, r.do("GET", path+"/logs", "").body)
		}
	}
	w = r.dial("/process/pty/t/connect", nil)
	w.control()
	w.send("echo \"<$((B + 40))>\"\n")
	w.until("<42>")
	w.send("exit 4\n")
	_, closed := w.rest()
	wantExit(t, closed, 4)
	r.do("POST", path+"/input", `{"data":"word"}`).want(t, http.StatusNoContent, nil)
	eventually(t, "the next command ends", func() bool {
		var ended commandInfo
		r.do("GET", next, "").want(t, http.StatusOK, &ended)
		return ended.ExitCode != nil
	})
	var logs struct{ Stdout, Stderr string }
	r.do("GET", path+"/logs", "", "X-Daytona-Split-Output", "true").want(t, http.StatusOK, &logs)
	if logs.Stdout != "1\n2\n3\n4\n5\n6\n7\n8\n9\n1 word\n" || logs.Stderr != "e1\ne2\ne3\ne4\ne5\ne6\ne7\ne8\ne9\n" {
		t.Errorf("the log: %+v", logs)
	}
	var ended commandInfo
	r.do("GET", path, "").want(t, http.StatusOK, &ended)
	if ended.ExitCode == nil || *ended.ExitCode != 3 {
		t.Errorf("the command: %+v", ended)
	}
	r.checkIdle()
	r.start("s", `{"command":"sleep 1000","runAsync":true}`)
	if err := r.manager.Suspend(t.Context(), r.id); err != nil {
		t.Fatal(err)
	}
	if err := r.toolboxes.Close(); err != nil {
		t.Errorf("close with a paused sandbox: %v", err)
	}
}

// checkInterpreter runs code in contexts.
func (r *rig) checkInterpreter(t *testing.T) {
	t.Helper()
	var created map[string]any
	r.do("POST", "/process/interpreter/context", `{"cwd":"/usr"}`).want(t, http.StatusOK, &created)
	id, _ := created["id"].(string)
	if id == "" || created["language"] != "python" || created["cwd"] != "/usr" || created["active"] != true || created["createdAt"] == "" {
		t.Errorf("the context: %v", created)
	}
	var list map[string][]map[string]any
	r.do("GET", "/process/interpreter/context", "").want(t, http.StatusOK, &list)
	if len(list["contexts"]) != 1 || list["contexts"][0]["id"] != id {
		t.Errorf("the contexts: %v", list)
	}
	for _, tc := range []struct {
		request, want string
		code          websocket.StatusCode
		sdk           string
	}{
		{
			`{"code":"x = 1\nimport os, sys\nprint(os.getcwd(), os.environ['A'])","contextId":"ID","envs":{"A":"b"},"timeout":60}`,
			`{"type":"stdout","text":"/usr b\n"}{"type":"control","text":"completed"}`, websocket.StatusNormalClosure, "",
		},
		{`{"code":"print(x, os.environ.get('A'))","contextId":"ID"}`, `{"type":"stdout","text":"1 None\n"}{"type":"control","text":"completed"}`, websocket.StatusNormalClosure, ""},
		{`{"code":"print('x' in globals())"}`, `{"type":"stdout","text":"False\n"}{"type":"control","text":"completed"}`, websocket.StatusNormalClosure, ""},
		{`{"code":"import sys; print('err', file=sys.stderr)"}`, `{"type":"stderr","text":"err\n"}{"type":"control","text":"completed"}`, websocket.StatusNormalClosure, ""},
		{`{"code":"1/0"}`, `{"type":"error","name":"ZeroDivisionError","value":"division by zero","traceback":`, websocket.StatusNormalClosure, ""},
		{`{"code":"import time; time.sleep(600)","timeout":0.5}`, "", 4008, "sdk-typescript"},
		{`{"code":"import time; time.sleep(600)","timeout":0.5}`, "", 4001, "sdk-go"},
		{`{"code":"1","contextId":"unknown"}`, "", websocket.StatusPolicyViolation, ""},
		{`{"code":""}`, "", websocket.StatusPolicyViolation, ""},
	} {
		w := r.dial("/process/interpreter/execute", http.Header{"X-Daytona-Source": {tc.sdk}})
		w.send(strings.ReplaceAll(tc.request, "ID", id))
		seen, closed := w.rest()
		if closed.Code != tc.code || !strings.HasPrefix(seen, tc.want) {
			t.Errorf("%s: %q, closed with %+v; want %q", tc.request, seen, closed, tc.want)
		}
	}
	r.do("DELETE", "/process/interpreter/context/"+id, "").want(t, http.StatusOK, nil)
	r.do("DELETE", "/process/interpreter/context/"+id, "").wantFailure(t, http.StatusNotFound, "NOT_FOUND")
	r.do("POST", "/process/interpreter/context", `{"language":"cobol"}`).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	var drawn executed
	r.do("POST", "/process/code-run", `{"code":"# matplotlib\nimport sys\nprint(sys.argv[1:])\n42\nsys.exit(3)","language":"python","argv":["a"]}`).want(t, http.StatusOK, &drawn)
	if drawn.ExitCode != 3 || drawn.Result != "['a']\n" {
		t.Errorf("a program that may draw: %+v", drawn)
	}
}

// checkCharts runs a program that draws.
func (r *rig) checkCharts(t *testing.T) {
	t.Helper()
	const find = "from importlib.util import find_spec; find_spec('matplotlib').name"
	if out, err := exec.CommandContext(t.Context(), "/usr/bin/python3", "-c", find).CombinedOutput(); err != nil {
		t.Skipf("this machine has no matplotlib, nor have its sandboxes: %v: %s", err, out)
	}
	const code = `import matplotlib\nmatplotlib.use('Agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='L')\nplt.title('T')\nplt.xlabel('X')\nplt.show()\nprint('drawn')`
	var got executed
	r.do("POST", "/process/code-run", `{"code":"`+code+`","language":"python"}`).want(t, http.StatusOK, &got)
	if got.ExitCode != 0 || got.Result != "drawn\n" || len(got.Artifacts.Charts) != 1 {
		t.Fatalf("the result: %.500s, exit code %d, %d charts", got.Result, got.ExitCode, len(got.Artifacts.Charts))
	}
	chart := got.Artifacts.Charts[0]
	picture, _ := chart["png"].(string)
	if chart["type"] != "line" || chart["title"] != "T" || chart["x_label"] != "X" || !strings.HasPrefix(picture, "iVBOR") {
		delete(chart, "png")
		t.Errorf("the chart: %v, a picture of %d bytes", chart, len(picture))
	}
	elements, _ := chart["elements"].([]any)
	if len(elements) != 1 {
		t.Fatalf("the elements: %v", chart["elements"])
	}
}
