package toolbox_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

const exitControl = "X-Daytona-Pty-Exit-Control"

type terminalInfo struct {
	ID        string            `json:"id"`
	Dir       string            `json:"cwd"`
	Envs      map[string]string `json:"envs"`
	Cols      int               `json:"cols"`
	Rows      int               `json:"rows"`
	CreatedAt string            `json:"createdAt"`
	Active    bool              `json:"active"`
	Lazy      bool              `json:"lazyStart"`
}

// TestTerminal creates a terminal, and connects to it as clients up to version 0.190 do.
func TestTerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	var created map[string]string
	r.do("POST", "/process/pty", `{"id":"t","cwd":"/usr","envs":{"A":"b c"},"cols":91,"rows":17}`).want(t, http.StatusCreated, &created)
	if created["sessionId"] != "t" {
		t.Errorf("created: %v", created)
	}
	r.do("POST", "/process/pty", `{"id":"t"}`).wantFailure(t, http.StatusConflict, "CONFLICT")
	var got terminalInfo
	r.do("GET", "/process/pty/t", "").want(t, http.StatusOK, &got)
	if got.ID != "t" || got.Dir != "/usr" || got.Envs["A"] != "b c" || got.Cols != 91 || got.Rows != 17 || !got.Active || got.CreatedAt == "" {
		t.Errorf("the terminal: %+v", got)
	}
	w := r.dial("/process/pty/t/connect", nil)
	if c := w.control(); c["type"] != "control" || c["status"] != "connected" {
		t.Errorf("the first frame: %v", c)
	}
	w.send("stty size; echo \"dir $PWD, A $A\"\n")
	if seen := w.until("dir /usr, A b c"); !strings.Contains(seen, "17 91") {
		t.Errorf("the terminal shows %q", seen)
	}
	r.do("POST", "/process/pty/t/resize", `{"cols":100,"rows":30}`).want(t, http.StatusOK, &got)
	if got.Cols != 100 || got.Rows != 30 {
		t.Errorf("resized: %+v", got)
	}
	w.send("stty size\n")
	w.until("30 100")
	if err := w.conn.Close(websocket.StatusNormalClosure, ""); err != nil {
		t.Error(err)
	}
	w = r.dial("/process/pty/t/connect", nil) // the shell continues without a client
	w.control()
	w.send("echo \"again $A\"; exit 3\n")
	seen, closed := w.rest()
	if !strings.Contains(seen, "again b c") || strings.Contains(seen, "17 91") {
		t.Errorf("the second client gets %q", seen)
	}
	wantExit(t, closed, 3)
	r.do("GET", "/process/pty/t", "").want(t, http.StatusOK, &got)
	if got.Active {
		t.Error("an ended terminal is active")
	}
	r.do("POST", "/process/pty/t/resize", `{"cols":1,"rows":1}`).wantFailure(t, http.StatusGone, "SESSION_ENDED")
	r.do("POST", "/process/pty", `{"id":"t"}`).want(t, http.StatusCreated, nil) // the name is free again
	var list map[string][]terminalInfo
	r.do("GET", "/process/pty", "").want(t, http.StatusOK, &list)
	if len(list["sessions"]) != 1 {
		t.Errorf("the list: %+v", list)
	}
	w = r.dial("/process/pty/t/connect", nil, exitControl)
	w.control()
	r.do("DELETE", "/process/pty/t", "").want(t, http.StatusOK, nil)
	_, closed = w.rest()
	wantExit(t, closed, 137)
	for method, path := range map[string]string{"GET": "t", "DELETE": "t", "POST": "t/resize"} {
		r.do(method, "/process/pty/"+path, `{"cols":1,"rows":1}`).wantFailure(t, http.StatusNotFound, "NOT_FOUND")
	}
	r.checkIdle()
}

// wantExit checks the exit code in the reason of a close frame.
func wantExit(t *testing.T, closed websocket.CloseError, code int) {
	t.Helper()
	var reason struct {
		ExitCode *int `json:"exitCode"`
	}
	if err := json.Unmarshal([]byte(closed.Reason), &reason); err != nil || reason.ExitCode == nil || *reason.ExitCode != code || closed.Code != websocket.StatusNormalClosure {
		t.Errorf("closed with %+v, want exit code %d", closed, code)
	}
}

// TestTerminalInOneStep creates and connects a terminal as later clients do.
func TestTerminalInOneStep(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	envs := "X-Daytona-Pty-Envs~" + base64.RawURLEncoding.EncodeToString([]byte(`{"A":"b?>c"}`))
	path := "/process/pty/create-connect?" + url.Values{"id": {"t"}, "cols": {"91"}, "rows": {"17"}, "cwd": {"/usr"}}.Encode()
	w := r.dial(path, nil, envs, exitControl)
	if got := w.conn.Subprotocol(); got != exitControl {
		t.Errorf("the subprotocol %q", got)
	}
	if c := w.control(); c["status"] != "connected" {
		t.Errorf("the first frame: %v", c)
	}
	w.send("stty size; echo \"dir $PWD, A $A\"; exit 5\n")
	all := w.until(`"exited"`)
	if !strings.Contains(all, "dir /usr, A b?>c") || !strings.Contains(all, "17 91") || !strings.Contains(all, `"exitCode":5`) {
		t.Errorf("the terminal shows %q", all)
	}
	_, closed := w.rest()
	wantExit(t, closed, 5)
	only := r.dial("/process/pty/create-connect?id=u", nil, envs)
	if got := only.conn.Subprotocol(); got != envs {
		t.Errorf("the subprotocol %q, want the offered one", got)
	}
	only.control()
	if got := r.dial(path+"&x", nil).control(); got["status"] != "connected" { // t has ended
		t.Errorf("%v", got)
	}
	for target, want := range map[string]string{
		"/process/pty/create-connect?id=u":         `PTY session with ID "u" already exists`,
		"/process/pty/create-connect?id=v&cols=a":  `invalid cols "a"`,
		"/process/pty/create-connect?id=v&rows=-1": "invalid rows -1: want 1 to 1000",
	} {
		refused := r.dial(target, nil)
		if got := refused.control(); got["type"] != "control" || got["status"] != "error" || got["error"] != want {
			t.Errorf("%s: %v, want the error %q", target, got, want)
		}
	}
	r.do("GET", "/process/pty/create-connect?id=w", "").wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
}

// TestLazyTerminal starts the shell with the first connection.
func TestLazyTerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	r.do("POST", "/process/pty", `{"id":"t","lazyStart":true}`).want(t, http.StatusCreated, nil)
	var got terminalInfo
	r.do("GET", "/process/pty/t", "").want(t, http.StatusOK, &got)
	if got.Active || !got.Lazy || got.Cols != 80 || got.Rows != 24 {
		t.Errorf("before the connection: %+v", got)
	}
	r.do("POST", "/process/pty/t/resize", `{"cols":70,"rows":20}`).want(t, http.StatusOK, nil)
	w := r.dial("/process/pty/t/connect", nil)
	w.control()
	w.send("stty size\n")
	w.until("20 70")
	r.do("POST", "/process/pty", `{"id":"never","lazyStart":true}`).want(t, http.StatusCreated, nil)
	r.do("DELETE", "/process/pty/never", "").want(t, http.StatusOK, nil)
}

// TestMissingTerminal gets the error as a control frame.
func TestMissingTerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	w := r.dial("/process/pty/none/connect", nil)
	if c := w.control(); c["status"] != "error" || c["error"] == "" {
		t.Errorf("the frame %v", c)
	}
	_, closed := w.rest()
	var reason map[string]string
	if err := json.Unmarshal([]byte(closed.Reason), &reason); err != nil || reason["error"] == "" {
		t.Errorf("closed with %+v", closed)
	}
	r.do("POST", "/process/pty", `{"id":"t","cwd":"/no/such/directory"}`).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	r.do("GET", "/process/pty/t", "").wantFailure(t, http.StatusNotFound, "NOT_FOUND")
}

// TestTerminalOfStoppedSandbox ends a connection when the sandbox stops.
func TestTerminalOfStoppedSandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	w := r.dial("/process/pty/create-connect?id=t", nil, exitControl)
	w.control()
	if err := r.manager.Stop(t.Context(), r.id); err != nil {
		t.Fatal(err)
	}
	for {
		_, _, err := w.frame()
		if err == nil {
			continue
		}
		closed, ok := errors.AsType[websocket.CloseError](err)
		if !ok {
			t.Fatal(err)
		}
		wantExit(t, closed, 137)
		break
	}
	r.checkIdle()
}
