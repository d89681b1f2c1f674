package data_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// screen is a terminal that a test looks at.
type screen struct {
	t    testing.TB
	ctx  context.Context //nolint:containedctx // of the connection
	conn *websocket.Conn
	seen string
}

func (r *rig) see(id sandpit.ID, target string) *screen {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	r.Cleanup(cancel)
	req := r.request(ctx, http.MethodGet, id, target, nil)
	conn, res, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPClient: r.client, HTTPHeader: req.Header})
	if err != nil {
		r.Fatal(err)
	}
	if res.Body != nil {
		_ = res.Body.Close()
	}
	r.Cleanup(func() { _ = conn.CloseNow() })
	return &screen{t: r.TB, ctx: ctx, conn: conn}
}

// until reads until the screen has a text.
func (s *screen) until(text string) {
	s.t.Helper()
	for !strings.Contains(s.seen, text) {
		kind, frame, err := s.conn.Read(s.ctx)
		if err != nil || kind != websocket.MessageBinary {
			s.t.Fatalf("%v %q, %v; the screen has %q and no %q", kind, frame, err, s.seen, text)
		}
		s.seen += string(frame)
	}
	_, s.seen, _ = strings.Cut(s.seen, text)
}

func (s *screen) send(kind websocket.MessageType, frame string) {
	s.t.Helper()
	if err := s.conn.Write(s.ctx, kind, []byte(frame)); err != nil {
		s.t.Fatal(err)
	}
}

// end reads until the server says how it ended.
func (s *screen) end() (end wire.TerminalExit) {
	s.t.Helper()
	for {
		kind, frame, err := s.conn.Read(s.ctx)
		if err != nil {
			s.t.Fatal(err)
		}
		if kind == websocket.MessageBinary {
			continue
		}
		if err := json.Unmarshal(frame, &end); err != nil {
			s.t.Fatalf("%v: %s", err, frame)
		}
		if _, _, err := s.conn.Read(s.ctx); websocket.CloseStatus(err) != websocket.StatusNormalClosure {
			s.t.Errorf("after the end: %v", err)
		}
		return end
	}
}

func TestTerminal(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	s := r.see(id, "/terminal"+query("cols", "91", "rows", "17", "command", `stty size; read x; stty size; echo "<$x>"; exit 7`))
	s.until("17 91\r\n")
	s.send(websocket.MessageText, `{"resize":{"cols":120,"rows":40}}`)
	s.send(websocket.MessageBinary, "keys\n")
	s.until("40 120\r\n<keys>\r\n")
	if end := s.end(); end.ExitCode == nil || *end.ExitCode != 7 || end.Problem != nil {
		t.Errorf("%+v", end)
	}
	r.idle()

	s = r.see(id, "/terminal")
	s.send(websocket.MessageBinary, "echo $((40+2)); exit 3\n")
	s.until("42\r\n")
	if end := s.end(); end.ExitCode == nil || *end.ExitCode != 3 {
		t.Errorf("%+v", end)
	}
	r.idle()
}

// TestTerminalGone has the client, and then the sandbox, go away.
func TestTerminalGone(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	file := filepath.Join(t.TempDir(), "pid")
	s := r.see(id, "/terminal"+query("command", `echo $$ > `+file+`.new; mv `+file+`.new `+file+`; echo up; exec sleep 1000`))
	s.until("up")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	_ = s.conn.CloseNow()
	eventually(t, "the program is killed", func() bool { return syscall.Kill(pid, 0) != nil })
	r.idle()

	s = r.see(id, "/terminal"+query("command", "echo up; while :; do echo more; done"))
	s.until("up")
	quiet := r.see(id, "/terminal"+query("command", "echo up; sleep 1000"))
	quiet.until("up")
	deleted := make(chan error, 1)
	go func() { deleted <- r.manager.Delete(t.Context(), id) }() // waits until both have heard the end
	for _, s := range []*screen{s, quiet} {
		if end := s.end(); end.ExitCode != nil || end.Problem == nil || end.Problem.Code != sandpit.Gone {
			t.Errorf("%+v", end)
		}
	}
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	r.idle()
}

// TestTerminalFrames sends what is no frame of ours.
func TestTerminalFrames(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	for _, frame := range []string{"", "keys", `{}`, `{"resize":{"cols":0,"rows":1}}`, `{"resize":{"cols":70000,"rows":1}}`, "[" + strings.Repeat("[", 1<<19)} {
		s := r.see(id, "/terminal"+query("command", "echo up; sleep 1000"))
		s.until("up")
		s.send(websocket.MessageText, frame)
		if _, _, err := s.conn.Read(s.ctx); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
			t.Errorf("%.40q: %v", frame, err)
		}
		r.idle()
	}
	// Keys are passed on as they come, up to the limit.
	s := r.see(id, "/terminal"+query("command", "stty raw -echo; echo up; cat > /dev/null"))
	s.until("up")
	s.send(websocket.MessageBinary, strings.Repeat("x", 1<<20+1))
	var err error
	for err == nil {
		_, _, err = s.conn.Read(s.ctx)
	}
	if websocket.CloseStatus(err) != websocket.StatusMessageTooBig {
		t.Errorf("a frame of more than 1 MiB: %v", err)
	}
	r.idle()
}

// TestTerminalUnread sends keys to a program that reads none, and goes away.
func TestTerminalUnread(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{Heartbeat: 200 * time.Millisecond})
	id := r.box()
	s := r.see(id, "/terminal"+query("command", "stty raw -echo; echo up; sleep 1000"))
	s.until("up")
	for range 8 {
		s.send(websocket.MessageBinary, strings.Repeat("x", 1<<18))
	}
	_ = s.conn.CloseNow()
	r.idle()
}

func TestTerminalOrigin(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	for origin, want := range map[string]int{
		"": http.StatusSwitchingProtocols, r.url: http.StatusSwitchingProtocols,
		"http://evil.example": http.StatusForbidden, "null": http.StatusForbidden, "http://127.0.0.1": http.StatusForbidden,
	} {
		for _, target := range []string{"/terminal", "/sessions/none/attach"} {
			req := r.request(t.Context(), http.MethodGet, id, target, nil)
			for name, value := range map[string]string{
				"Connection": "Upgrade", "Upgrade": "websocket", "Sec-Websocket-Version": "13", "Sec-Websocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
			} {
				req.Header.Set(name, value)
			}
			if origin != "" {
				req.Header.Set("Origin", origin)
			}
			res, err := r.client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			_ = res.Body.Close()
			if target != "/terminal" && want == http.StatusSwitchingProtocols {
				continue // there is no such session
			}
			if res.StatusCode != want {
				t.Errorf("%s from %q: status %d, want %d", target, origin, res.StatusCode, want)
			}
		}
	}
	r.idle()
}

// TestAttach looks at a session, and at a job of it a second time.
func TestAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id, dir := r.box(), t.TempDir()
	r.do(r.client, http.MethodPost, id, "/sessions", asJSON(t, wire.NewSession{Name: "s", Dir: dir})).want(t, http.StatusCreated, nil)
	r.do(r.client, http.MethodPost, id, "/sessions/s/run", strings.NewReader(`{"command":"export A=exported"}`)).want(t, http.StatusOK, nil)
	s := r.see(id, "/sessions/s/attach?cols=100&rows=30")
	s.send(websocket.MessageBinary, "echo \"<$A>\" $(pwd) $(stty size)\n")
	s.until("<exported> " + dir + " 30 100\r\n")
	_ = s.conn.CloseNow()
	eventually(t, "the shell at the terminal is killed", func() bool {
		var jobs wire.Page[wire.Job]
		r.do(r.client, http.MethodGet, id, "/sessions/s/jobs", nil).want(t, http.StatusOK, &jobs)
		return len(jobs.Items) == 1 && !jobs.Items[0].Running
	})

	var job wire.Job
	r.do(r.client, http.MethodPost, id, "/sessions/s/jobs", strings.NewReader(`{"command":"echo shown; read x; echo \"<$x>\"; exit 2","terminal":{"cols":80,"rows":24}}`)).want(t, http.StatusCreated, &job)
	first, second := r.see(id, "/sessions/s/attach?job="+job.ID), r.see(id, "/sessions/s/attach?job="+job.ID)
	first.until("shown")
	second.until("shown")
	_ = first.conn.CloseNow()
	second.send(websocket.MessageBinary, "typed\n")
	second.until("<typed>")
	if end := second.end(); end.ExitCode == nil || *end.ExitCode != 2 {
		t.Errorf("%+v", end)
	}
	r.idle()
}
