package toolbox_test

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// rigMemory is the memory that an owner of memoryRig has for sessions, in bytes.
const rigMemory = 1 << 20

// memoryRig starts a server whose owners have little memory.
func memoryRig(t *testing.T) (*rig, *memory.Budget) {
	t.Helper()
	budget := memory.NewBudget(memory.Options{Total: 16 * rigMemory, PerOwner: 4 * rigMemory}) // a quarter is for sessions
	return newRig(t, toolbox.Options{Memory: budget}), budget
}

func toJSON(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestSessionMemory counts the texts of commands, which a session lists after their end.
func TestSessionMemory(t *testing.T) {
	t.Parallel()
	r, budget := memoryRig(t)
	r.newSession("s")
	r.execute("s", "true")
	exec := func(size int) string {
		return toJSON(t, map[string]any{"command": "true " + strings.Repeat("#", size), "runAsync": true})
	}
	r.do("POST", "/process/session/s/exec", exec(8<<20)).wantFailure(t, http.StatusBadRequest, "BAD_REQUEST")
	r.do("POST", "/process/session/s/exec", exec(2*rigMemory)).wantFailure(t, http.StatusTooManyRequests, "TOO_MANY_REQUESTS")
	before, _ := budget.Used(alice)
	accepted := 0
	for accepted < 100 && r.do("POST", "/process/session/s/exec", exec(rigMemory/8)).status == http.StatusAccepted {
		accepted++
	}
	if used, _ := budget.Used(alice); accepted == 0 || accepted > 8 || used < before+int64(accepted)*rigMemory/8 {
		t.Errorf("%d commands of %d bytes were accepted; %d bytes are used, before %d", accepted, rigMemory/8, used, before)
	}
	r.do("DELETE", "/process/session/s", "").want(t, http.StatusNoContent, nil)
	r.newSession("s")
	r.execute("s", "true")
	if used, _ := budget.Used(alice); used > before+rigMemory/8 {
		t.Errorf("%d bytes are used after the session, before %d", used, before)
	}
}

// TestTerminalMemory counts the variables of terminals that have not started.
func TestTerminalMemory(t *testing.T) {
	t.Parallel()
	r, budget := memoryRig(t)
	create := func(id string, size int) reply {
		return r.do("POST", "/process/pty", toJSON(t, map[string]any{"id": id, "lazyStart": true, "envs": map[string]string{"A": strings.Repeat("x", size)}}))
	}
	create("large", 2*rigMemory).wantFailure(t, http.StatusTooManyRequests, "TOO_MANY_REQUESTS")
	n := 0
	for n < 20 && create(strconv.Itoa(n), rigMemory/8).status == http.StatusCreated {
		n++
	}
	if used, _ := budget.Used(alice); n == 0 || n > 8 || used < int64(n)*rigMemory/8 {
		t.Errorf("%d terminals were created; %d bytes are used", n, used)
	}
	for i := range n {
		r.do("DELETE", "/process/pty/"+strconv.Itoa(i), "").want(t, http.StatusOK, nil)
	}
	if used, _ := budget.Used(alice); used > rigMemory/4 {
		t.Errorf("%d bytes are used after the terminals", used)
	}
}

// TestFormBounds refuses forms whose headers or names of fields would take much memory.
func TestFormBounds(t *testing.T) {
	t.Parallel()
	r := newRig(t, toolbox.Options{})
	send := func(path, name string) reply {
		return r.do("POST", path, "--X\r\nContent-Disposition: form-data; name=\""+name+"\"\r\n\r\n/tmp/x\r\n--X--\r\n", "Content-Type", "multipart/form-data; boundary=X")
	}
	for what, tc := range map[string]struct{ path, name, message string }{
		"a long name":            {"/files/bulk-upload", strings.Repeat("x", 2<<10) + ".path", "a name of 2053 bytes"},
		"a long header":          {"/files/bulk-upload", strings.Repeat("x", 100<<10) + ".path", "the header of a part"},
		"a long header, 1 file":  {"/files/upload?path=/tmp/x", strings.Repeat("x", 100<<10), "the header of a part"},
		"a path without a file":  {"/files/bulk-upload", "files[0].path", "1 paths without a file"},
		"a form without a file":  {"/files/upload?path=/tmp/x", "other", `no part "file"`},
		"a file without a path ": {"/files/bulk-upload", "files[0].file", "before files[0].file"},
	} {
		if got := send(tc.path, tc.name); got.status != http.StatusBadRequest || !strings.Contains(got.body, strings.Trim(toJSON(t, tc.message), `"`)) {
			t.Errorf("%s: %d %.300s, want %q", what, got.status, got.body, tc.message)
		}
	}
	body := "--X\r\nContent-Disposition: form-data; name=\"f[0].path\"\r\n\r\n/tmp/long\r\n--X\r\nContent-Disposition: form-data; name=\"f[0].file\"; filename=\"a\"\r\n\r\n" +
		strings.Repeat("y", 300<<10) + "\r\n--X--\r\n"
	r.do("POST", "/files/bulk-upload", body, "Content-Type", "multipart/form-data; boundary=X").want(t, http.StatusOK, nil)
	if got := r.do("GET", "/files/download?path=/tmp/long", ""); len(got.body) != 300<<10 {
		t.Errorf("a file of %d bytes arrived, want %d", len(got.body), 300<<10)
	}
}

// TestReplaceMemory counts the result of a replacement, which can be much larger than the file.
func TestReplaceMemory(t *testing.T) {
	t.Parallel()
	r, _ := memoryRig(t)
	const body = "--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\n%s\r\n--X--\r\n"
	r.do("POST", "/files/upload?path=/tmp/a", strings.Replace(body, "%s", strings.Repeat("a", 10_000), 1), "Content-Type", "multipart/form-data; boundary=X").want(t, http.StatusOK, nil)
	for replacement, want := range map[int]bool{3000: false, 2: true} {
		request := toJSON(t, map[string]any{"files": []string{"/tmp/a"}, "pattern": "a", "newValue": strings.Repeat("b", replacement)})
		var got []struct {
			Success bool   `json:"success"`
			Error   string `json:"error"`
		}
		r.do("POST", "/files/replace", request, rigAccount, "yes").want(t, http.StatusOK, &got)
		if len(got) != 1 || got[0].Success != want || !want && !strings.Contains(got[0].Error, "memory") {
			t.Errorf("a replacement of %d bytes: %+v, want success %t", replacement, got, want)
		}
	}
}
