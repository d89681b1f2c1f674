package mcp_test

import (
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// aio is a client of AIO's interface to a sandbox.
type aio struct {
	testing.TB

	base, key string
}

// send sends a request, and returns the status and the body.
func (a aio) send(method, path, kind string, body io.Reader) (int, string) {
	a.Helper()
	r, err := http.NewRequestWithContext(a.Context(), method, a.base+path, body)
	if err != nil {
		a.Fatal(err)
	}
	r.Header.Set("Content-Type", kind)
	if a.key != "" {
		r.Header.Set("Authorization", "Bearer "+a.key)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		a.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		a.Fatal(err)
	}
	return answer.StatusCode, string(text)
}

// ask sends JSON, and wants a status and texts in the answer.
func (a aio) ask(request string, status int, texts ...string) string {
	a.Helper()
	head, body, _ := strings.Cut(request, " {")
	if body != "" {
		body = "{" + body
	}
	method, path, _ := strings.Cut(head, " ")
	got, text := a.send(method, path, "application/json", strings.NewReader(body))
	if got != status {
		a.Errorf("%s: %d %.500s, want %d", request, got, text, status)
	}
	for _, want := range texts {
		if !strings.Contains(text, want) {
			a.Errorf("%s: %.1000s\nwant %s in it", request, text, want)
		}
	}
	return text
}

// TestAIO uses a sandbox as clients of AIO sandboxes do.
func TestAIO(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	key := s.key(t, "aio")
	mine, err := client.New(client.Options{URL: s.url, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	box, err := mine.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Image: "host", Resources: sandpit.Resources{Memory: 1 << 30}}})
	if err != nil {
		t.Fatal(err)
	}
	base := s.url + "/aio/" + string(box.ID)
	a := aio{t, base, key}
	t.Run("doors", func(t *testing.T) {
		(aio{t, base, ""}).ask("GET /v1/sandbox", 401)
		(aio{t, base, s.key(t, "stranger")}).ask("GET /v1/sandbox", 404)
		(aio{t, s.url + "/aio/none", key}).ask("GET /v1/sandbox", 404)
		a.ask("GET /v1/nothing", 404)
		a.ask("GET /v1/shell/exec", 405)
	})
	for name, test := range map[string]func(aio){"sandbox": aioSandbox, "shell": aioShell, "files": aioFiles, "code": aioCode, "rest": aioRest} {
		t.Run(name, func(t *testing.T) { test(aio{t, base, key}) })
	}
	if events, err := s.admin.Events.List(t.Context(), client.EventFilter{Action: "tool", Limit: 1000}); err != nil || len(events) < 20 || events[0].Actor != "aio" {
		t.Errorf("%d calls are in the trail, %v", len(events), err)
	}
	if err := box.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.ask("GET /v1/sandbox", 410)
}

func aioSandbox(a aio) {
	a.ask("GET /v1/sandbox", 200, `"success":true`, `"home_dir":"/root"`, `"workspace":"/workspace"`, `"version":`, `"runtime":{`)
	a.ask("GET /v1/sandbox/packages/python", 200, `"success":true`, `"data":[`)
}

func aioShell(a aio) {
	a.ask(`POST /v1/shell/exec {"command": "cd /tmp && X=kept; echo out", "id": "s"}`, 200, `"success":true`, `"status":"completed"`, `"exit_code":0`, `"output":"out\n"`, `"ps1":"$ "`)
	a.ask(`POST /v1/shell/exec {"command": "echo $X in $PWD; exit 0 # '; touch /tmp/pwned", "id": "s"}`, 200, `kept in /tmp`)
	a.ask(`POST /v1/shell/view {"id": "s"}`, 200, `kept in /tmp`, `"status":"completed"`)
	a.ask(`POST /v1/shell/exec {"command": "(exit 3)"}`, 200, `"success":true`, `"exit_code":3`, `"session_id":"main"`)
	a.ask(`POST /v1/shell/exec {"command": "sleep 60", "timeout": 0.5, "id": "slow"}`, 200, `"status":"hard_timeout"`, `"exit_code":null`)
	a.ask(`POST /v1/shell/exec {"command": "pwd", "exec_dir": "/usr"}`, 200, `"output":"/usr\n"`)
	a.ask(`POST /v1/shell/exec {"command": "read line; echo got $line", "id": "bg", "async_mode": true}`, 200, `"status":"running"`)
	a.ask(`POST /v1/shell/wait {"id": "bg", "seconds": 0}`, 200, `"status":"running"`)
	a.ask(`POST /v1/shell/write {"id": "bg", "input": "it's", "press_enter": true}`, 200, `"success":true`)
	a.ask(`POST /v1/shell/wait {"id": "bg", "seconds": 30}`, 200, `"status":"completed"`)
	a.ask(`POST /v1/shell/view {"id": "bg"}`, 200, `got it's`, `"exit_code":0`)
	a.ask(`POST /v1/shell/exec {"command": "sleep 1000", "id": "bg", "async_mode": true}`, 200)
	a.ask(`POST /v1/shell/kill {"id": "bg"}`, 200, `"status":"terminated"`)
	a.ask(`POST /v1/shell/sessions/create {"id": "made", "exec_dir": "/usr/share"}`, 200, `"session_id":"made"`, `"working_dir":"/usr/share"`)
	a.ask(`POST /v1/shell/sessions/create {"exec_dir": "/no 'where"}`, 200, `"success":false`)
	a.ask(`GET /v1/shell/sessions`, 200, `"made":{`, `"working_dir":"/usr/share"`)
	a.ask(`POST /v1/shell/view {"id": "none"}`, 200, `"success":false`, `"data":null`)
	for _, bad := range []string{`exec {"command": 1}`, `exec {}`, `exec {"command": "if"}`, `view {}`, `exec {"command": "x", "id": "../x"}`, `exec {"command": "x", "timeout": 1e9}`, `exec {`} {
		a.ask("POST /v1/shell/"+bad, 422, `"detail":[`)
	}
	a.ask(`POST /v1/shell/exec {"command": "ls /tmp/pwned"}`, 200, `"exit_code":2`)
}

func aioFiles(a aio) {
	a.ask(`POST /v1/file/write {"file": "/workspace/d/a.txt", "content": "one\ntwo", "trailing_newline": true}`, 200, `"success":true`, `"bytes_written":8`)
	a.ask(`POST /v1/file/write {"file": "/workspace/d/a.txt", "content": "dGhyZWUK", "encoding": "base64", "append": true}`, 200, `"bytes_written":6`)
	a.ask(`POST /v1/file/read {"file": "/workspace/d/a.txt"}`, 200, `"content":"one\ntwo\nthree\n"`)
	a.ask(`POST /v1/file/read {"file": "/workspace/d/a.txt", "start_line": 1, "end_line": 2}`, 200, `"content":"two\n"`)
	a.ask(`POST /v1/file/replace {"file": "/workspace/d/a.txt", "old_str": "t", "new_str": ""}`, 200, `"replaced_count":2`)
	a.ask(`POST /v1/file/search {"file": "/workspace/d/a.txt", "regex": "^w"}`, 200, `"matches":["wo"]`, `"line_numbers":[2]`)
	a.ask(`POST /v1/file/find {"path": "/workspace", "glob": "*.txt"}`, 200, `"files":["/workspace/d/a.txt"]`)
	a.ask(`POST /v1/file/list {"path": "/workspace/d"}`, 200, `"name":"a.txt"`, `"is_directory":false`, `"total_count":1`)
	a.ask(`POST /v1/file/write {"file": "/workspace/empty", "content": ""}`, 200, `"bytes_written":0`)
	a.ask(`POST /v1/file/read {"file": "/workspace/empty"}`, 200, `"content":""`)
	a.ask(`POST /v1/file/read {"file": "/workspace/none"}`, 200, `"success":false`, "not found")
	a.ask(`POST /v1/file/str_replace_editor {"command": "insert", "path": "/workspace/d/a.txt", "insert_line": 0, "new_str": "zero"}`, 200, `"success":true`, "zero")
	a.ask(`POST /v1/file/str_replace_editor {"command": "undo_edit", "path": "d"}`, 422, "no absolute path")
	a.ask(`POST /v1/file/write {"file": "/workspace/x"}`, 422) // nothing to write is not the same as nothing said
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile("file", "../../bin")
	if err == nil {
		_, err = part.Write([]byte{0, 1, 2, 255})
	}
	if err != nil || w.Close() != nil {
		a.Fatal(err)
	}
	if status, text := a.send(http.MethodPost, "/v1/file/upload", w.FormDataContentType(), &form); status != 200 || !strings.Contains(text, `"file_path":"/workspace/bin"`) {
		a.Errorf("upload: %d %s", status, text)
	}
	if status, text := a.send(http.MethodGet, "/v1/file/download?path=/workspace/bin", "", nil); status != 200 || text != "\x00\x01\x02\xff" {
		a.Errorf("download: %d %q", status, text)
	}
	a.ask("GET /v1/file/download", 422)
	if status, text := a.send(http.MethodPost, "/v1/file/write", "application/json", strings.NewReader(`{"file": "`+strings.Repeat("x", 17<<20))); status != 400 {
		a.Errorf("a body of 17 MiB: %d %.300s", status, text)
	}
}

func aioCode(a aio) {
	a.ask(`POST /v1/jupyter/execute {"code": "x = 40\nprint('hi')\nx + 2", "session_id": "j"}`, 200, `"status":"ok"`, `"name":"stdout","text":"hi\n"`, `"output_type":"execute_result"`, `"text/plain":"42"`)
	a.ask(`POST /v1/jupyter/execute {"code": "x / 0", "session_id": "j"}`, 200, `"success":true`, `"status":"error"`, `"ename":"ZeroDivisionError"`)
	a.ask(`POST /v1/jupyter/execute {"code": "x"}`, 200, `"ename":"NameError"`) // a session of its own
	a.ask(`POST /v1/jupyter/execute {"code": "import time; time.sleep(60)", "session_id": "j", "timeout": 1}`, 200, `"status":"timeout"`)
	a.ask(`POST /v1/jupyter/sessions/create {"kernel_name": "python3"}`, 200, `"session_id":"jupyter-`)
	a.ask(`POST /v1/code/execute {"language": "python", "code": "print(6 * 7)"}`, 200, `"stdout":"42\n"`, `"exit_code":0`)
	a.ask(`POST /v1/code/execute {"language": "cobol", "code": "x"}`, 422)
	a.ask(`POST /v1/code/execute {"language": "python", "code": "x", "cwd": "/"}`, 422, "cwd cannot be chosen")
	a.ask(`GET /v1/code/info`, 200, `"language":"python"`)
	a.ask(`POST /v1/nodejs/execute {"code": "console.log(require('fs').readFileSync(0, 'utf8') + 1); process.exit(3)", "stdin": "in"}`, 200, `"stdout":"in1\n"`, `"exit_code":3`, `"status":"error"`)
}

func aioRest(a aio) {
	a.ask("GET /v1/mcp/servers", 200, `"success":true`, `"data":[]`)
	a.ask("GET /v1/mcp/none/tools", 200, `"success":false`)
	a.ask(`POST /v1/mcp/none/tools/x {"a": 1}`, 200, `"success":false`)
	a.ask(`POST /v1/browser/actions {"action_type": "MOUSE_DOWN"}`, 422, "no action")
	if _, err := exec.LookPath("chromium"); err != nil {
		testengine.Skip(a, "this machine has no chromium")
	}
	a.ask("GET /v1/browser/info", 200, `"user_agent":"Mozilla`, `"viewport":{`, `"cdp_url":""`)
	a.ask(`POST /v1/browser/actions {"action_type": "MOVE_TO", "x": 10, "y": 20}`, 200, `"action_performed":"MOVE_TO"`)
	a.ask(`POST /v1/browser/actions {"action_type": "CLICK", "x": 10}`, 422)
	if status, text := a.send(http.MethodGet, "/v1/browser/screenshot", "", nil); status != 200 || !strings.HasPrefix(text, "\x89PNG") {
		a.Errorf("screenshot: %d %.300q", status, text)
	}
	// Requests side by side share the session.
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { a.ask(`POST /v1/shell/exec {"command": "echo $((6 * 7))"}`, 200, `"output":"42\n"`) })
	}
	group.Wait()
	begun := time.Now()
	var told struct{ Success bool }
	if err := json.Unmarshal([]byte(a.ask("GET /v1/sandbox", 200)), &told); err != nil || !told.Success || time.Since(begun) > patience {
		a.Errorf("%v, %+v", err, told)
	}
}
