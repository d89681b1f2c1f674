package toolbox

import (
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// TestLanguageServerTimeouts gives a server the time of its start for the first request about the
// project, and less for later ones.
func TestLanguageServerTimeouts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := &languageServer{out: make(chan []byte, maxQueued), ended: make(chan struct{}), pending: make(map[int64]chan serverMessage)}
		request := func(method string, responds bool, want time.Duration) {
			t.Helper()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if responds {
				id := json.RawMessage([]byte{'1' + byte(l.last)})
				go func() {
					time.Sleep(want)
					l.deliver(serverMessage{ID: id})
				}()
			}
			begin := time.Now()
			_, _, err := l.request(ctx, method, nil)
			if took := time.Since(begin); took != want || responds != (err == nil) || !responds && sandpit.CodeOf(err) != sandpit.Timeout {
				t.Errorf("%s: %v after %v, want %v", method, err, took, want)
			}
		}
		request(methodInitialize, true, time.Second)
		request("workspace/symbol", false, serverStartTimeout)
		request("workspace/symbol", true, lspTimeout+time.Second)
		request("workspace/symbol", false, lspTimeout)
	})
}

// newServerMemory returns a language server without a process whose owner has a number of bytes.
func newServerMemory(bytes int64) *languageServer {
	budget := memory.NewBudget(memory.Options{Total: 16 * bytes, PerOwner: 4 * bytes}) // a quarter is for sessions
	return &languageServer{
		out: make(chan []byte, maxQueued), ended: make(chan struct{}), pending: make(map[int64]chan serverMessage), account: budget.OpenSession("alice"),
	}
}

// TestLanguageServerFloods has a language server ask for more than it may be sent, and counts what
// waits until it reads.
func TestLanguageServerFloods(t *testing.T) {
	t.Parallel()
	settings := func(n int) json.RawMessage {
		return json.RawMessage(`{"items":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}`)
	}
	const method = "workspace/configuration"
	l := newServerMemory(1 << 20)
	if err := l.respond(serverMessage{Method: method, ID: json.RawMessage("1"), Params: settings(2)}); err != nil || string(<-l.out) != "Content-Length: 45\r\n\r\n"+`{"jsonrpc":"2.0","id":1,"result":[null,null]}` {
		t.Errorf("two settings: %v", err)
	}
	for what, m := range map[string]serverMessage{
		"many settings": {Method: method, ID: json.RawMessage("1"), Params: settings(maxSettings + 1)},
		"a long ID":     {Method: "x", ID: json.RawMessage(`"` + strings.Repeat("x", maxRequestID) + `"`)},
	} {
		if err := l.respond(m); !errors.Is(err, errServerResponse) || len(l.out) != 0 {
			t.Errorf("%s: %v, %d messages", what, err, len(l.out))
		}
	}
	text := strings.Repeat("x", 400<<10)
	for i, code := range []sandpit.Code{"", "", sandpit.Exhausted} {
		if err := l.notify(t.Context(), "textDocument/didOpen", text); sandpit.CodeOf(err) != code {
			t.Errorf("document %d that is not read: %v, want %q", i, err, code)
		}
	}
	l.cancel = func() {}
	l.end(errNotInitialized)
	if used := l.account.Used(); used != 0 {
		t.Errorf("%d bytes are used after the end", used)
	}
}

// TestCountElements counts the elements of lists, which take more memory than their text.
func TestCountElements(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		`[]`: 1, `[0,0,0]`: 3, `{"a":1,"b":2}`: 0, `{"a":[{},{"x":[1,2]}],"b":2}`: 4, `["a,b[","\"],[",1]`: 3, `]],`: 0, `"`: 0, `["\`: 1, ``: 0,
	} {
		if n := countElements([]byte(text)); n != want {
			t.Errorf("%s: %d, want %d", text, n, want)
		}
	}
	budget := memory.NewBudget(memory.Options{Total: 64 << 20})
	ctx := memory.WithAccount(t.Context(), budget.OpenRequest("alice"))
	many := json.RawMessage("[" + strings.Repeat("0,", 1<<20) + "0]")
	if _, err := parseCompletions(ctx, many); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("a million completions: %v, want %q", err, sandpit.Exhausted)
	}
}

// TestLanguageServersStarting counts the language servers that are being started.
func TestLanguageServersStarting(t *testing.T) {
	t.Parallel()
	var l languageServers
	for i := range maxServers {
		if err := l.beginStart(serverKey{"python", strconv.Itoa(i)}); err != nil {
			t.Fatal(err)
		}
	}
	first := serverKey{"python", "0"}
	if err := l.beginStart(first); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("one that is being started: %v", err)
	}
	if err := l.beginStart(serverKey{"go", "x"}); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("one more: %v", err)
	}
	l.endStart(first)
	if err := l.beginStart(serverKey{"go", "x"}); err != nil {
		t.Errorf("after the end of one: %v", err)
	}
}
