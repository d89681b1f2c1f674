package toolbox_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

type sessionInfo struct {
	ID       string        `json:"sessionId"`
	Commands []commandInfo `json:"commands"`
}

type commandInfo struct {
	ID       string `json:"id"`
	Command  string `json:"command"`
	ExitCode *int   `json:"exitCode"`
}

type result struct {
	ID       string  `json:"cmdId"`
	Output   *string `json:"output"`
	Stdout   *string `json:"stdout"`
	Stderr   *string `json:"stderr"`
	ExitCode *int    `json:"exitCode"`
}

// newClient are the headers of a client that separates the outputs.
var newClient = []string{"X-Daytona-SDK-Version", "0.218.0"}

// execute runs a command in a session.
func (r *rig) execute(session, command string) result {
	r.Helper()
	text, err := json.Marshal(map[string]any{"command": command})
	if err != nil {
		r.Fatal(err)
	}
	var got result
	r.do("POST", "/process/session/"+session+"/exec", string(text), newClient...).want(r.TB, http.StatusOK, &got)
	if got.ExitCode == nil || got.Stdout == nil || got.Stderr == nil || got.Output == nil {
		r.Fatalf("%s: %+v, want all fields", command, got)
	}
	return got
}

// start starts a command in a session, and returns the path of the command.
func (r *rig) start(session, body string) string {
	r.Helper()
	var got result
	r.do("POST", "/process/session/"+session+"/exec", body, newClient...).want(r.TB, http.StatusAccepted, &got)
	if got.ID == "" || got.Output != nil || got.ExitCode != nil {
		r.Fatalf("%s: %+v, want only an ID", body, got)
	}
	return "/process/session/" + session + "/command/" + got.ID
}

func (r *rig) newSession(id string) {
	r.Helper()
	r.do("POST", "/process/session", `{"sessionId":"`+id+`"}`).want(r.TB, http.StatusCreated, nil)
}

func TestSessionKeepsState(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("one")
	r.newSession("two")
	r.do("POST", "/process/session", `{"sessionId":"one"}`).wantFailure(t, http.StatusConflict, "CONFLICT")
	for _, body := range []string{`{}`, `{"sessionId":"entrypoint"}`, `{"sessionId":"` + strings.Repeat("x", 257) + `"}`} {
		r.do("POST", "/process/session", body).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	}
	r.execute("one", "cd /usr; A=1; f() { echo \"f $A\"; }")
	got := r.execute("one", "pwd; f; echo err >&2; (exit 7)")
	if *got.Stdout != "/usr\nf 1\n" || *got.Stderr != "err\n" || *got.ExitCode != 7 {
		t.Errorf("the second command: %q, %q, %d", *got.Stdout, *got.Stderr, *got.ExitCode)
	}
	if other := r.execute("two", `echo ".$A"`); *other.Stdout != ".\n" {
		t.Errorf("another session: %q", *other.Stdout)
	}
	if bad := r.execute("one", "echo 'open"); *bad.ExitCode != 2 || *bad.Stderr == "" {
		t.Errorf("a syntax error: %d, %q", *bad.ExitCode, *bad.Stderr)
	}
	var list []sessionInfo
	r.do("GET", "/process/session", "").want(t, http.StatusOK, &list)
	var one sessionInfo
	r.do("GET", "/process/session/one", "").want(t, http.StatusOK, &one)
	if len(list) != 2 || list[0].ID != "one" || len(list[0].Commands) != 3 || len(one.Commands) != 3 || one.Commands[1].ID != got.ID || *one.Commands[1].ExitCode != 7 {
		t.Errorf("the sessions: %+v, %+v", list, one)
	}
	var cmd commandInfo
	r.do("GET", "/process/session/one/command/"+got.ID, "").want(t, http.StatusOK, &cmd)
	if cmd.ExitCode == nil || *cmd.ExitCode != 7 || !strings.HasPrefix(cmd.Command, "pwd") {
		t.Errorf("the command: %+v", cmd)
	}
	r.do("POST", "/process/session/one/exec", `{"command":""}`).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	r.do("DELETE", "/process/session/one", "").want(t, http.StatusNoContent, nil)
	for method, path := range map[string]string{"GET": "one", "DELETE": "one", "POST": "one/exec"} {
		r.do(method, "/process/session/"+path, `{"command":"true"}`).wantFailure(t, http.StatusNotFound, "NOT_FOUND")
	}
	r.newSession("one") // the name is free again
}

func TestSessionLogs(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("s")
	path := r.start("s", `{"command":"echo out; echo err >&2; read x; echo \"got $x\"; exit 5","runAsync":true,"suppressInputEcho":true}`)
	var cmd commandInfo
	r.do("GET", path, "").want(t, http.StatusOK, &cmd)
	if cmd.ExitCode != nil {
		t.Errorf("a running command has the exit code %d", *cmd.ExitCode)
	}
	follow := r.dial(path+"/logs?follow=true", http.Header{"X-Daytona-Sdk-Version": {"0.218.0"}})
	seen := follow.until("err\n")
	r.do("POST", path+"/input", `{"data":"word"}`).want(t, http.StatusNoContent, nil) // an answer is a line
	more, closed := follow.rest()
	seen += more
	if closed.Code != websocket.StatusNormalClosure || !strings.Contains(seen, "\x01\x01\x01out\n") || !strings.Contains(seen, "\x02\x02\x02err\n") ||
		!strings.HasSuffix(seen, "\x01\x01\x01got word\n") {
		t.Errorf("followed %q, closed with %+v", seen, closed)
	}
	var logs map[string]string
	r.do("GET", path+"/logs", "", newClient...).want(t, http.StatusOK, &logs)
	if logs["stdout"] != "out\ngot word\n" || logs["stderr"] != "err\n" || len(logs["output"]) != len("out\nerr\ngot word\n") {
		t.Errorf("the logs: %q", logs)
	}
	marked := r.do("GET", path+"/logs", "", "X-Daytona-SDK-Version", "0.166.9")
	if marked.status != http.StatusOK || !strings.Contains(marked.body, "\x01\x01\x01out\n") || !strings.Contains(marked.body, "\x02\x02\x02err\n") {
		t.Errorf("the logs for a client that separates a text: %+v", marked)
	}
	for _, headers := range [][]string{nil, {"X-Daytona-SDK-Version", "0.26.9"}} {
		text := r.do("GET", path+"/logs", "", headers...)
		if text.status != http.StatusOK || !strings.HasPrefix(text.header.Get("Content-Type"), "text/plain") || len(text.body) != len("out\nerr\ngot word\n") {
			t.Errorf("the logs for %q: %+v", headers, text)
		}
	}
	r.do("GET", path+"/logs", "", "X-Daytona-Split-Output", "true").want(t, http.StatusOK, &logs)
	if body := r.do("GET", path+"/logs?follow=true", "", newClient...); body.status != http.StatusOK || !strings.Contains(body.body, "\x01\x01\x01out\n") || !strings.Contains(body.body, "got word\n") {
		t.Errorf("followed in a body: %+v", body)
	}
	if body := r.do("GET", path+"/logs?follow=true", "", "X-Daytona-SDK-Version", "0.21.8"); strings.ContainsAny(body.body, "\x01\x02") {
		t.Errorf("followed by an older client: %+v", body)
	}
	r.do("POST", path+"/input", `{"data":"late\n"}`).wantFailure(t, http.StatusGone, "COMMAND_ALREADY_COMPLETED")
	r.do("GET", path+"x/logs", "").wantFailure(t, http.StatusNotFound, "NOT_FOUND")
	r.do("GET", path, "").want(t, http.StatusOK, &cmd)
	if cmd.ExitCode == nil || *cmd.ExitCode != 5 {
		t.Errorf("the ended command: %+v", cmd)
	}
	old := r.do("POST", "/process/session/s/exec", `{"command":"echo out; echo err >&2"}`)
	if old.status != http.StatusOK || strings.Contains(old.body, "stdout") || !strings.Contains(old.body, `out\n`) {
		t.Errorf("an older client: %+v", old)
	}
	r.checkIdle()
}

// TestInputEcho shows the input of a command in its log, unless that is suppressed.
func TestInputEcho(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("s")
	path := r.start("s", `{"command":"read x; echo \"got $x\"","async":true}`)
	r.do("POST", path+"/input", `{"data":"word"}`).want(t, http.StatusNoContent, nil) // an answer is a line
	body := r.do("GET", path+"/logs?follow=true", "", newClient...)
	if strings.Count(body.body, "word\n") != 2 {
		t.Errorf("the log: %q, want the input and the output", body.body)
	}
}

// TestSessionOrder runs commands in the order of the requests, in one shell.
func TestSessionOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("s")
	r.execute("s", "list=")
	for _, n := range []string{"1", "2", "3", "4", "5"} {
		r.start("s", `{"command":"sleep 0.05; list=\"$list `+n+`\"","runAsync":true}`)
	}
	if got := r.execute("s", `echo "$list"`); *got.Stdout != " 1 2 3 4 5\n" {
		t.Errorf("the order: %q", *got.Stdout)
	}
}

// TestSessionEnds ends running commands with their session, and the sessions with their sandbox.
func TestSessionEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("s")
	path := r.start("s", `{"command":"echo begun; sleep 600","runAsync":true}`)
	waiting := r.start("s", `{"command":"echo never","runAsync":true}`)
	follow := r.dial(path+"/logs?follow=true", nil)
	follow.until("begun\n")
	r.do("DELETE", "/process/session/s", "").want(t, http.StatusNoContent, nil)
	if _, closed := follow.rest(); closed.Code != websocket.StatusNormalClosure {
		t.Errorf("closed with %+v", closed)
	}
	r.do("GET", waiting, "").wantFailure(t, http.StatusNotFound, "NOT_FOUND")
	r.newSession("s")
	path = r.start("s", `{"command":"echo begun; sleep 600","runAsync":true}`)
	follow = r.dial(path+"/logs?follow=true", nil)
	follow.until("begun\n")
	if err := r.manager.Stop(t.Context(), r.id); err != nil {
		t.Fatal(err)
	}
	if _, closed := follow.rest(); closed.Code == 0 {
		t.Errorf("closed with %+v", closed)
	}
	f := r.do("GET", "/process/session", "").wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	if !strings.HasPrefix(f.Message, "bad request: ") || !strings.HasSuffix(f.Message, "Is the Sandbox started?") {
		t.Errorf("the message of a stopped sandbox: %q", f.Message)
	}
	if err := r.manager.Start(t.Context(), r.id); err != nil {
		t.Fatal(err)
	}
	var list []sessionInfo
	r.do("GET", "/process/session", "").want(t, http.StatusOK, &list)
	if len(list) != 0 {
		t.Errorf("sessions after a restart: %+v", list)
	}
	r.newSession("s")
	r.checkIdle()
}

// TestAbandonedFollow releases the sandbox when a client disconnects that follows output.
func TestAbandonedFollow(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("s")
	path := r.start("s", `{"command":"echo begun; sleep 600","runAsync":true}`)
	follow := r.dial(path+"/logs?follow=true", nil)
	follow.until("begun\n")
	if err := follow.conn.CloseNow(); err != nil {
		t.Fatal(err)
	}
	r.checkIdle()
	r.do("GET", path, "").want(t, http.StatusOK, nil) // the command still runs
}

// TestEntrypoint reads the start command of a sandbox, and finds an empty session without one.
func TestEntrypoint(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	var none sessionInfo
	r.do("GET", "/process/session/entrypoint", "").want(t, http.StatusOK, &none)
	if none.ID != "entrypoint" || none.Commands == nil || len(none.Commands) != 0 {
		t.Errorf("without a start command: %+v", none)
	}
	if got := r.do("GET", "/process/session/entrypoint/logs", ""); got.status != http.StatusOK || got.body != "" {
		t.Errorf("its log: %d %q", got.status, got.body)
	}
	if _, closed := r.dial("/process/session/entrypoint/logs?follow=true", nil).rest(); closed.Code != websocket.StatusNormalClosure {
		t.Errorf("its log is closed with %+v", closed)
	}
	proceed := t.TempDir() + "/continue"
	r.startEntrypoint(`echo out; echo err >&2; while ! test -e ` + proceed + `; do sleep 0.05; done; echo end; exit 4`)
	follow := r.dial("/process/session/entrypoint/logs?follow=true", http.Header{"X-Daytona-Sdk-Version": {"0.218.0"}})
	seen := follow.until("err\n")
	var got sessionInfo
	r.do("GET", "/process/session/entrypoint", "").want(t, http.StatusOK, &got)
	if got.ID != "entrypoint" || len(got.Commands) != 1 || got.Commands[0].ExitCode != nil || !strings.HasPrefix(got.Commands[0].Command, "echo out") {
		t.Errorf("the session: %+v", got)
	}
	var logs map[string]string
	r.do("GET", "/process/session/entrypoint/logs", "", newClient...).want(t, http.StatusOK, &logs)
	if logs["stdout"] != "out\n" || logs["stderr"] != "err\n" {
		t.Errorf("the logs: %q", logs)
	}
	r.do("POST", "/process/execute", `{"command":"touch `+proceed+`"}`).want(t, http.StatusOK, nil)
	more, closed := follow.rest()
	if seen += more; closed.Code != websocket.StatusNormalClosure || !strings.Contains(seen, "end\n") || !strings.Contains(seen, "\x02\x02\x02err\n") {
		t.Errorf("followed %q, closed with %+v", seen, closed)
	}
	r.do("GET", "/process/session/entrypoint", "").want(t, http.StatusOK, &got)
	if got.Commands[0].ExitCode == nil || *got.Commands[0].ExitCode != 4 {
		t.Errorf("the ended session: %+v", got)
	}
	r.checkIdle()
}

// startEntrypoint starts a command as the manager starts that of a template.
func (r *rig) startEntrypoint(script string) {
	r.Helper()
	held, err := r.manager.Use(r.Context(), r.id)
	if err != nil {
		r.Fatal(err)
	}
	defer held.Release()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel() // ends the connection; the command continues
	if _, err := held.Guest().Start(ctx, sandpit.Command{Args: sandpit.ShellArgs(script), Tag: "start"}); err != nil {
		r.Fatal(err)
	}
}

// TestForeignSandboxProcess gives the same response for a sandbox of another owner as for an
// unknown one, on every route.
func TestForeignSandboxProcess(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.newSession("s")
	unknown := sandpit.NewID()
	for _, route := range []string{
		"POST /process/execute", "POST /process/code-run", "POST /process/session", "GET /process/session", "GET /process/session/s",
		"DELETE /process/session/s", "POST /process/session/s/exec", "GET /process/session/s/command/x", "GET /process/session/s/command/x/logs",
		"POST /process/session/s/command/x/input", "GET /process/session/entrypoint", "GET /process/session/entrypoint/logs",
		"POST /process/pty", "GET /process/pty", "GET /process/pty/x", "DELETE /process/pty/x", "POST /process/pty/x/resize", "GET /process/pty/x/connect",
		"GET /process/pty/create-connect", "POST /process/interpreter/context", "GET /process/interpreter/context",
		"DELETE /process/interpreter/context/x", "GET /process/interpreter/execute", "GET /unknown",
	} {
		method, path, _ := strings.Cut(route, " ")
		var seen []failure
		for _, id := range []sandpit.ID{r.id, unknown} {
			for _, prefix := range []string{"/toolbox/" + string(id), "/api/toolbox/" + string(id) + "/toolbox"} {
				f := r.doAs(bob, r.url+prefix+path, method, `{}`).wantFailure(t, http.StatusNotFound, "NOT_FOUND")
				f.Message = strings.ReplaceAll(f.Message, string(id), "ID")
				seen = append(seen, failure{StatusCode: f.StatusCode, Message: f.Message, Code: f.Code})
			}
		}
		for _, f := range seen[1:] {
			if f != seen[0] {
				t.Errorf("%s: %+v and %+v", route, f, seen[0])
			}
		}
		r.doAs("", r.url+toolbox.Path+string(r.id)+path, method, `{}`).wantFailure(t, http.StatusUnauthorized, "UNAUTHORIZED")
	}
}
