package preview_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// browser is a real one. It is for one goroutine.
type browser struct {
	testing.TB

	conn *websocket.Conn
	next int
}

// newBrowser starts Chromium with further flags, until the test ends.
func newBrowser(tb testing.TB, flags ...string) *browser {
	tb.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		testengine.Skip(tb, "no chromium: %v", err)
	}
	dir := tb.TempDir()
	flags = append(flags, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
		"--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync", "--password-store=basic",
		"--window-size=800,500", "--remote-debugging-port=0", "--user-data-dir="+dir, "about:blank")
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), path, flags...)
	cmd.Env = append(os.Environ(), "HOME="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // all of its processes
		_ = cmd.Wait()
		eventually(tb, "no process writes into the browser's directory", func() bool { return os.RemoveAll(dir) == nil })
	})
	var lines []string
	eventually(tb, "the browser listens", func() bool {
		text, _ := os.ReadFile(filepath.Join(dir, "DevToolsActivePort"))
		lines = strings.Split(string(text), "\n")
		return len(lines) == 2 && lines[1] != ""
	})
	b := &browser{TB: tb}
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	if b.conn, _, err = websocket.Dial(ctx, "ws://127.0.0.1:"+lines[0]+lines[1], nil); err != nil { //nolint:bodyclose // the connection has it
		tb.Fatal(err)
	}
	b.conn.SetReadLimit(64 << 20)
	tb.Cleanup(func() { _ = b.conn.CloseNow() })
	return b
}

// page is one tab of a browser.
type page struct {
	*browser

	session string
}

// open opens a URL in a tab of its own.
func (b *browser) open(url string) *page {
	b.Helper()
	var target struct{ TargetID string }
	b.call("", "Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	b.call("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	p := &page{b, session.SessionID}
	var gone struct{ ErrorText string }
	p.call(p.session, "Page.navigate", map[string]any{"url": url}, &gone)
	if gone.ErrorText != "" {
		b.Fatalf("open %s: %s", url, gone.ErrorText)
	}
	return p
}

// call calls a method of the browser's debugger.
func (b *browser) call(session, method string, params, result any) {
	b.Helper()
	if err := b.try(session, method, params, result); err != nil {
		b.Fatal(err)
	}
}

// try is call for what may fail.
func (b *browser) try(session, method string, params, result any) error {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), long)
	defer cancel()
	b.next++
	text, err := json.Marshal(struct {
		ID        int    `json:"id"`
		SessionID string `json:"sessionId,omitempty"`
		Method    string `json:"method"`
		Params    any    `json:"params"`
	}{b.next, session, method, params})
	if err != nil {
		b.Fatal(err)
	}
	if err := b.conn.Write(ctx, websocket.MessageText, text); err != nil {
		b.Fatalf("%s: %v", method, err)
	}
	for {
		_, text, err := b.conn.Read(ctx)
		if err != nil {
			b.Fatalf("%s: %v", method, err)
		}
		var answer struct {
			ID     int
			Result json.RawMessage
			Error  json.RawMessage
		}
		if err := json.Unmarshal(text, &answer); err != nil {
			b.Fatal(err)
		}
		if answer.ID != b.next {
			continue // an event
		}
		if answer.Error != nil {
			return fmt.Errorf("%s: %s", method, answer.Error)
		}
		return json.Unmarshal(answer.Result, result)
	}
}

// eval runs JavaScript in the page, as if a user had clicked there, and returns what it
// comes to, as text.
func (p *page) eval(script string) string {
	p.Helper()
	var out struct {
		Result           struct{ Value any }
		ExceptionDetails json.RawMessage
	}
	p.call(p.session, "Runtime.evaluate", map[string]any{"expression": script, "awaitPromise": true, "returnByValue": true, "userGesture": true}, &out)
	if out.ExceptionDetails != nil {
		p.Fatalf("%s: %s", script, out.ExceptionDetails)
	}
	return fmt.Sprint(out.Result.Value)
}

// until waits until a script comes to a value, also if the page is left meanwhile.
func (p *page) until(script, want string) {
	p.Helper()
	got := ""
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var out struct{ Result struct{ Value any } }
		if p.try(p.session, "Runtime.evaluate", map[string]any{"expression": script, "returnByValue": true}, &out) != nil {
			continue
		}
		if got = fmt.Sprint(out.Result.Value); got == want {
			return
		}
	}
	p.Fatalf("%s is %q, want %q", script, got, want)
}

// screenshot returns the page as PNG.
func (p *page) screenshot() []byte {
	p.Helper()
	var out struct{ Data string }
	p.call(p.session, "Page.captureScreenshot", map[string]any{"format": "png"}, &out)
	png, err := base64.StdEncoding.DecodeString(out.Data)
	if err != nil {
		p.Fatal(err)
	}
	return png
}
