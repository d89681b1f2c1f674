package interpreter_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

type call struct{ method, url, body string }

// send makes a request with a connection of its own. It returns the status and the response up to a word, "" being
// the end.
func send(ctx context.Context, tb testing.TB, c call, until string) (int, string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(ctx, c.method, c.url, strings.NewReader(c.body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Body.Close()
	var text strings.Builder
	for lines := bufio.NewReader(res.Body); ; {
		line, err := lines.ReadString('\n')
		text.WriteString(line)
		if err == io.EOF || until != "" && strings.Contains(line, until) {
			return res.StatusCode, text.String()
		}
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func TestHTTP(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Bash)
	ready := make(chan struct{})
	server := httptest.NewServer(newService(t).Handler(ready))
	t.Cleanup(server.Close)
	if status, _ := send(t.Context(), t, call{http.MethodGet, server.URL + "/health", ""}, ""); status != http.StatusServiceUnavailable {
		t.Errorf("health before it is ready: %d", status)
	}
	close(ready)
	for name, tc := range map[string]struct {
		method, path, body string
		status             int
		want               string
	}{
		"health":         {http.MethodGet, "/health", "", 200, `"OK"`},
		"a run":          {http.MethodPost, "/execute", `{"code":"echo hi; exit 3","language":"bash"}`, 200, `"text":"hi\n"`},
		"its end":        {http.MethodPost, "/execute", `{"code":":","language":"bash"}`, 200, `{"type":"end_of_execution"}`},
		"no kernel":      {http.MethodPost, "/execute", `{"code":"exit 4","language":"bash"}`, 200, `"name":"ContextRestarting","value":"Context was restarted: the kernel`},
		"no code":        {http.MethodPost, "/execute", `{}`, 400, "no code"},
		"no JSON":        {http.MethodPost, "/execute", `{`, 400, "body: "},
		"too large":      {http.MethodPost, "/execute", `{"code":"` + strings.Repeat("x", 17<<20) + `"}`, 413, "larger than 16777216 bytes"},
		"both":           {http.MethodPost, "/execute", `{"code":"1","context_id":"x","language":"bash"}`, 400, "Only one of"},
		"no context":     {http.MethodPost, "/execute", `{"code":"1","context_id":"x"}`, 404, "Context x not found"},
		"no language":    {http.MethodPost, "/contexts", `{"language":"cobol"}`, 404, `unknown language "cobol"`},
		"no directory":   {http.MethodPost, "/contexts", `{"language":"bash","cwd":"/nowhere"}`, 400, "no such directory"},
		"remove nothing": {http.MethodDelete, "/contexts/x", "", 404, "Context x not found"},
		"start nothing":  {http.MethodPost, "/contexts/x/restart", "", 404, "Context x not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, text := send(t.Context(), t, call{tc.method, server.URL + tc.path, tc.body}, "")
			if status != tc.status || !strings.Contains(text, tc.want) {
				t.Errorf("%d %.200s; want %d %s", status, text, tc.status, tc.want)
			}
		})
	}
}

// TestClientGone gives up a request in the middle of a run: the next one must not wait for it.
func TestClientGone(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Bash)
	server := httptest.NewServer(newService(t).Handler(nil))
	t.Cleanup(server.Close)
	// The client goes when it has seen a part.
	send(t.Context(), t, call{http.MethodPost, server.URL + "/execute", `{"code":"kept=1; echo on; sleep 600","language":"bash"}`}, `"on\n"`)
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	_, text := send(ctx, t, call{http.MethodPost, server.URL + "/execute", `{"code":"echo $kept","language":"bash"}`}, "")
	if !strings.Contains(text, `"text":"1\n"`) {
		t.Errorf("the next run: %s", text)
	}
}

// TestCrowd has more contexts, and more waiting runs, than there may be.
func TestCrowd(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Bash)
	s := newService(t)
	var err error
	for range 65 {
		if _, err = s.Create(t.Context(), interpreter.Bash, ""); err != nil {
			break
		}
	}
	if err == nil || len(s.Contexts()) != 64 || !strings.Contains(err.Error(), "64 contexts exist") {
		t.Errorf("%d contexts, %v", len(s.Contexts()), err)
	}
	first := interpreter.Request{Context: s.Contexts()[0].ID, Code: "sleep 600"}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	for range 65 {
		go func() { ended <- s.Run(ctx, first, (&told{}).take) }()
	}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "64 runs wait") {
		t.Errorf("the last of too many runs: %v", err)
	}
	cancel()
	for range 64 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("a run that was given up: %v", err)
		}
	}
}
