package tool_test

import (
	"context"
	"encoding/json"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestSessions looks at sessions that share a sandbox.
func TestSessions(t *testing.T) {
	t.Parallel()
	box := newBox(t)
	sessions := tool.NewSessions(tool.SessionsOptions{
		Open: func(context.Context, string) (tool.Box, error) {
			return tool.Box{Guest: box.Guest(), Close: func(context.Context) error { return nil }}, nil
		},
	})
	t.Run("apart", func(t *testing.T) { testApart(t, sessions) })
	t.Run("state", func(t *testing.T) { testState(t, sessions, box) })
	t.Run("alone", func(t *testing.T) { testAlone(t, box) })
	t.Run("processes", func(t *testing.T) { testProcesses(t, sessions, box) })
	t.Run("expiry", func(t *testing.T) { testExpiry(t, box) })
	if err := sessions.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// newMember is a session of a sandbox called "box".
func newMember(tb testing.TB, s *tool.Sessions, id string) kit {
	tb.Helper()
	if _, err := s.Create(tb.Context(), tool.SessionRequest{ID: id, Shared: "box"}); err != nil {
		tb.Fatal(err)
	}
	k := kit{TB: tb, calls: new([]tool.Call)}
	var err error
	if k.tools, err = tool.New(nil); err != nil {
		tb.Fatal(err)
	}
	if err := s.Use(id, func(session *tool.Session) error { k.session = session; return nil }); err != nil {
		tb.Fatal(err)
	}
	return k
}

// testApart has one session try to get at another in every way, and that other one at
// itself in the same: so each way is one that can work.
func testApart(t *testing.T, sessions *tool.Sessions) {
	t.Helper()
	owner, other := newMember(t, sessions, "owner"), newMember(t, sessions, "other")
	for name, k := range map[string]kit{"victim.py": owner, "ways.py": other} {
		script, err := os.ReadFile("testdata/" + name)
		if err != nil {
			t.Fatal(err)
		}
		k.want("file_write", fields{"file": name, "content": string(script)})
		if name == "ways.py" {
			owner.want("file_write", fields{"file": name, "content": string(script)})
		}
	}
	owner.want("env_set", fields{"name": "MARK", "value": "the-owner's-secret"})
	owner.want("shell_exec", fields{"command": "exec python3 victim.py", "background": true})
	owner.want("shell_exec", fields{"command": "for i in $(seq 300); do [ -e told.json ] && break; sleep 0.05; done; cat told.json"}, "address")
	told := owner.want("file_read", fields{"file": "told.json"}).Text

	failed := tryWays(t, other, told)
	worked := tryWays(t, owner, told)
	if len(worked) < 40 || len(worked) != len(failed) {
		t.Fatalf("%d and %d ways were tried, want at least 40", len(worked), len(failed))
	}
	for name, way := range failed {
		if way.Worked {
			t.Errorf("another session can %s", name)
		}
		if !worked[name].Worked {
			t.Errorf("the session itself cannot %s (%s): so this shows nothing", name, worked[name].Why)
		}
	}
	owner.want("python_exec", fields{"code": "kept = 6 * 7"})
	owner.want("python_exec", fields{"code": "kept"}, "42")
	if r := other.call("python_exec", fields{"code": "kept"}); !strings.Contains(r.Text, "NameError") {
		t.Errorf("another session's variable: %s", r.Text)
	}
	for _, k := range []kit{owner, other} {
		k.want("shell_exec", fields{"command": "grep NoNewPrivs /proc/self/status; umask; id -G; echo $TMPDIR $HOME"}, "NoNewPrivs:\t1", "0077", k.session.Dir()+"/.tmp "+k.session.Dir())
	}
}

type way struct {
	Worked bool
	Why    string
}

func tryWays(t *testing.T, k kit, told string) map[string]way {
	t.Helper()
	r := k.want("shell_exec", fields{"command": "python3 ways.py '" + strings.TrimSpace(told) + "' | tee answer.json"}, "[SUCCESS]")
	_, text, _ := strings.Cut(r.Text, "\n")
	ways := map[string]way{}
	if err := json.Unmarshal([]byte(text), &ways); err != nil {
		t.Fatalf("%v: %s", err, r.Text)
	}
	return ways
}

// testProcesses has another process, which knows nothing of this one's sessions, name one.
func testProcesses(t *testing.T, sessions *tool.Sessions, box sandpit.Instance) {
	t.Helper()
	k := newMember(t, sessions, "twice")
	k.want("shell_exec", fields{"command": "exec sleep 8765", "background": true})
	other := tool.NewSessions(tool.SessionsOptions{Open: func(context.Context, string) (tool.Box, error) {
		return tool.Box{Guest: box.Guest(), Close: func(context.Context) error { return nil }}, nil
	}})
	request := tool.SessionRequest{ID: "twice", Shared: "box"}
	if _, err := other.Create(t.Context(), request); sandpit.CodeOf(err) != sandpit.AlreadyExists || !strings.Contains(sandpit.HintOf(err), "120 s") {
		t.Errorf("a session that another process uses: %v (%s)", err, sandpit.HintOf(err))
	}
	k.want("shell_view", nil, "[RUNNING]")
	release, err := sessions.Hold(t.Context(), "twice")
	if err != nil {
		t.Fatal(err)
	}
	release()
	if err := sessions.Cleanup(t.Context(), "twice", false); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Create(t.Context(), request); err != nil {
		t.Errorf("after the first process has ended it: %v", err)
	}
	if _, err := sessions.Hold(t.Context(), "twice"); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("held after its end: %v", err)
	}
	if err := other.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// testState follows one session through its life.
func testState(t *testing.T, sessions *tool.Sessions, box sandpit.Instance) {
	t.Helper()
	k := newMember(t, sessions, "life")
	k.want("env_set", fields{"name": "STAY", "value": "with me"})
	k.want("shell_exec", fields{"command": "mkdir -p deep && cd deep && echo kept > file"})
	k.want("shell_exec", fields{"command": "pwd; echo $STAY"}, "/sessions/life/deep", "with me")
	k.want("shell_exec", fields{"command": "exec sleep 9871", "background": true})
	k.want("shell_sessions", nil, "running: exec sleep 9871")
	// Programs that leave their shell, start others faster than one could kill them, and hide.
	k.want("shell_exec", fields{"command": `
		setsid sleep 9872 >/dev/null 2>&1 </dev/null &
		python3 -c 'import ctypes,os,time
if os.fork() == 0:
    os.setsid(); ctypes.CDLL(None).prctl(4, 0, 0, 0, 0); time.sleep(9873)'
		setsid python3 -c 'import os, time
while os.fork() == 0: time.sleep(0.0005)
' >/dev/null 2>&1 </dev/null &
		echo mine > /tmp/left-behind; mkdir -p /dev/shm/left/behind; sleep 0.2`})
	if _, err := sessions.Create(t.Context(), tool.SessionRequest{ID: "life", Shared: "box"}); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("a second session of the same ID: %v", err)
	}
	root := newKit(t, box, tool.SessionOptions{ID: "root"})
	uid := strings.Fields(root.want("shell_exec", fields{"command": "stat -c '%u %a' /sessions/life"}).Text)
	if uid[2] != "700" {
		t.Errorf("the directory's mode is %s", uid[2])
	}
	// What runs as a user is counted by another caller, and not by the tool that killed it.
	count := fields{"command": `cat /proc/[0-9]*/status 2>/dev/null | awk '$1 == "State:" { s = $2 } $1 == "Uid:" && $2 == ` + uid[1] + ` && s != "Z" { n++ } END { print "running: " n+0 }'`}
	if r := root.want("shell_exec", count); strings.Contains(r.Text, "running: 0") {
		t.Fatalf("before the session ends: %s", r.Text)
	}
	if err := sessions.Cleanup(t.Context(), "life", false); err != nil {
		t.Fatal(err)
	}
	root.want("shell_exec", count, "running: 0")
	root.want("shell_exec", fields{"command": "cat /sessions/life/deep/file"}, "kept")
	if err := sessions.Use("life", func(*tool.Session) error { return nil }); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("use of a session that has ended: %v", err)
	}
	again := newMember(t, sessions, "life")
	again.want("file_read", fields{"file": "deep/file"}, "kept")
	again.want("shell_exec", fields{"command": "sleep 9874 & echo ${STAY:-nothing}"}, "nothing")
	if err := sessions.Cleanup(t.Context(), "life", true); err != nil {
		t.Fatal(err)
	}
	root.want("shell_exec", count, "running: 0")
	root.want("shell_exec", fields{"command": "ls -a /sessions /sessions/.state /tmp /dev/shm | grep -c -e life -e left; true"}, "\n0")
	// No session inherits a number.
	newMember(t, sessions, "life")
	if r := root.want("shell_exec", fields{"command": "stat -c %u /sessions/life"}); strings.Contains(r.Text, uid[1]) {
		t.Errorf("the user of a session that was removed is given again: %s", r.Text)
	}
}

// testAlone looks at IDs, limits, and when sandboxes are made and given back.
func testAlone(t *testing.T, box sandpit.Instance) {
	t.Helper()
	var open atomic.Int32
	sessions := tool.NewSessions(tool.SessionsOptions{
		Open: func(_ context.Context, name string) (tool.Box, error) {
			if name == "broken" {
				return tool.Box{}, sandpit.Errorf(sandpit.Unavailable, "no sandbox today")
			}
			open.Add(1)
			return tool.Box{Guest: box.Guest(), Dir: "/workspace", Close: func(context.Context) error { open.Add(-1); return nil }}, nil
		},
		Most: 2,
	})
	ctx := t.Context()
	for _, r := range []tool.SessionRequest{{ID: "../x"}, {ID: "-a"}, {ID: strings.Repeat("x", 65)}, {ID: "a b"}, {ID: "a", Shared: "$(id)"}} {
		if _, err := sessions.Create(ctx, r); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%+v: %v", r, err)
		}
	}
	if _, err := sessions.Create(ctx, tool.SessionRequest{Shared: "broken"}); sandpit.CodeOf(err) != sandpit.Unavailable || len(sessions.List()) != 0 {
		t.Errorf("a sandbox that cannot be had: %v, %v", err, sessions.List())
	}
	first, err := sessions.Create(ctx, tool.SessionRequest{})
	if err != nil || !strings.HasPrefix(first.ID, "session_") || len(first.ID) != len("session_")+8 {
		t.Fatalf("%+v, %v", first, err)
	}
	if _, err := sessions.Create(ctx, tool.SessionRequest{ID: "chat_123"}); err != nil {
		t.Fatal(err)
	}
	if _, err := sessions.Create(ctx, tool.SessionRequest{ID: "third"}); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("one too many: %v", err)
	}
	if n := open.Load(); n != 2 {
		t.Errorf("%d sandboxes, want one each", n)
	}
	if err := sessions.Cleanup(ctx, "chat_123", true); err != nil || open.Load() != 1 {
		t.Errorf("cleanup with files: %v, %d sandboxes", err, open.Load())
	}
	if err := sessions.Cleanup(ctx, "chat_123", true); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("cleanup of nothing: %v", err)
	}
	never := sessions.Use("never", func(*tool.Session) error { return nil })
	if sandpit.CodeOf(never) != sandpit.NotFound || never.Error() != `session "never" is not initialized` || sandpit.HintOf(never) != "create it first" {
		t.Errorf("use of a session that was never created: %v", never)
	}
	if err := sessions.Cleanup(ctx, first.ID, false); err != nil || open.Load() != 1 {
		t.Errorf("cleanup that keeps files: %v, %d sandboxes", err, open.Load())
	}
	if _, err := sessions.Create(ctx, tool.SessionRequest{ID: first.ID, Shared: "other"}); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("a session whose files are elsewhere: %v", err)
	}
	if err := sessions.Close(ctx); err != nil || open.Load() != 0 {
		t.Errorf("close: %v, %d sandboxes", err, open.Load())
	}
	if _, err := sessions.Create(ctx, tool.SessionRequest{}); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("create afterwards: %v", err)
	}
}

// testExpiry has one session that is used outlive one that is not.
func testExpiry(t *testing.T, box sandpit.Instance) {
	t.Helper()
	sessions := tool.NewSessions(tool.SessionsOptions{
		Open: func(context.Context, string) (tool.Box, error) {
			return tool.Box{Guest: box.Guest(), Close: func(context.Context) error { return nil }}, nil
		},
		Idle: 300 * time.Millisecond, Expired: func(id string, err error) { t.Errorf("%s: %v", id, err) },
	})
	defer func() {
		if err := sessions.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	for _, id := range []string{"used", "idle"} {
		if _, err := sessions.Create(t.Context(), tool.SessionRequest{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	active := func(id string) bool {
		return sandpit.CodeOf(sessions.Use(id, func(*tool.Session) error { return nil })) != sandpit.Gone
	}
	err := sessions.Use("used", func(*tool.Session) error {
		for range 500 {
			time.Sleep(20 * time.Millisecond)
			if list := sessions.List(); !list[0].Active { // "idle"
				return nil
			}
		}
		return sandpit.Errorf(sandpit.Timeout, "nothing has expired")
	})
	if err != nil || !active("used") || active("idle") {
		t.Errorf("%v: %+v", err, sessions.List())
	}
}
