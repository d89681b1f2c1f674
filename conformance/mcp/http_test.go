package mcp_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
)

// hello is the request that begins a session.
const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`

// TestHTTP has clients use a server side by side.
func TestHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_MCP_MAX_SESSIONS=3")
	for name, test := range map[string]func(*testing.T, *server){
		"doors": testDoors, "life": testLife, "limit": testLimit, "choice": testChoice, "apart": testApart,
		"progress": testProgress, "cancel": testCancel, "resume": testResume, "lost": testLost,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, s)
		})
	}
}

// testDoors tries to get in without a key, by another's session, by a page of another site
// and by another name of the server.
func testDoors(t *testing.T, s *server) {
	t.Helper()
	mine, others := s.key(t, "doors"), s.key(t, "stranger")
	session := s.connect(t, mine, "", nil)
	second := s.key(t, "doors") // of the same owner
	list := `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`
	for name, tc := range map[string]struct {
		method, key, session, body string
		headers                    []string
		want                       int
	}{
		"no key":           {http.MethodPost, "", "", hello, nil, http.StatusUnauthorized},
		"a wrong key":      {http.MethodPost, "sp_none", "", hello, nil, http.StatusUnauthorized},
		"mine":             {http.MethodPost, mine, session.ID(), list, nil, http.StatusOK},
		"another's":        {http.MethodPost, others, session.ID(), list, nil, http.StatusNotFound},
		"another's stream": {http.MethodGet, others, session.ID(), "", nil, http.StatusNotFound},
		"another's end":    {http.MethodDelete, others, session.ID(), "", nil, http.StatusNotFound},
		"another key":      {http.MethodPost, second, session.ID(), list, nil, http.StatusNotFound},
		"none":             {http.MethodPost, mine, "AAAA", list, nil, http.StatusNotFound},
		"a stream of none": {http.MethodGet, mine, "", "", nil, http.StatusBadRequest},
		"a page":           {http.MethodPost, mine, session.ID(), list, []string{"Origin", "http://evil.example"}, http.StatusForbidden},
		"a page reads":     {http.MethodGet, mine, session.ID(), "", []string{"Origin", "http://evil.example"}, http.StatusForbidden},
		"a name":           {http.MethodPost, mine, session.ID(), list, []string{"Host", "evil.example"}, http.StatusForbidden},
		"not JSON":         {http.MethodPost, mine, session.ID(), list, []string{"Content-Type", "text/plain"}, http.StatusUnsupportedMediaType},
		"a method":         {http.MethodPut, mine, session.ID(), list, nil, http.StatusMethodNotAllowed},
		"outside":          {http.MethodPost, mine, "", list, nil, http.StatusOK}, // an error of the protocol, and no session
	} {
		answer := s.ask(t, visitor{tc.key, tc.session}, tc.method, tc.body, tc.headers...)
		if answer.status != tc.want {
			t.Errorf("%s: %d %.300s, want %d", name, answer.status, answer.text, tc.want)
		}
		if tc.want == http.StatusUnauthorized && !strings.HasPrefix(answer.header.Get("WWW-Authenticate"), "Bearer") {
			t.Errorf("%s: %v does not say how to log in", name, answer.header)
		}
		if name == "outside" && !strings.Contains(answer.text, `"error"`) {
			t.Errorf("%s: %s", name, answer.text)
		}
	}
	answer := s.ask(t, visitor{mine, session.ID()}, http.MethodPost, strings.Repeat(" ", 25<<20)+list)
	if answer.status != http.StatusBadRequest || !strings.Contains(answer.text, "larger than") {
		t.Errorf("a request of 25 MiB: %d %.300s", answer.status, answer.text)
	}
	if list := s.boxes(t, "stranger"); len(list) != 0 {
		t.Errorf("the stranger has %v", list)
	}
}

// testLife sees a sandbox come with the first call and go with the session.
func testLife(t *testing.T, s *server) {
	t.Helper()
	key := s.key(t, "life")
	session := s.connect(t, key, "?tools=all", nil)
	if _, err := session.ListTools(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if list := s.boxes(t, "life"); len(list) != 0 {
		t.Errorf("before the first call: %v", list)
	}
	call(t, session, "shell_exec", map[string]any{"command": "sleep 1000 & echo 1 > a"})
	if text := call(t, session, "shell_exec", map[string]any{"command": "cat a"}); !strings.Contains(text, "1") {
		t.Errorf("the second call: %s", text)
	}
	s.awaitBoxes(t, "life", 1)
	text := call(t, session, "sandbox_files", map[string]any{"action": "create_file", "file_path": "index.html", "file_contents": "<p>seen by people"})
	if where := regexp.MustCompile(`The page has the URL (http\S+)`).FindStringSubmatch(text); where == nil {
		t.Errorf("a page: %s", text)
	} else if page := fetch(t, where[1]); page != "<p>seen by people" {
		t.Errorf("%s: %.300s", where[1], page)
	}
	failed := make(chan string, 1)
	go func() {
		r, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"command": "sleep 100", "timeout": 100}})
		failed <- fmt.Sprint(r, err)
	}()
	time.Sleep(300 * time.Millisecond)
	begun := time.Now()
	if answer := s.ask(t, visitor{key, session.ID()}, http.MethodDelete, ""); answer.status != http.StatusNoContent {
		t.Errorf("the end: %d %s", answer.status, answer.text)
	}
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("the end of a session with a command took %s", took)
	}
	if list := s.boxes(t, "life"); len(list) != 0 {
		t.Errorf("after the end: %v", list)
	}
	<-failed // how the client takes it is its own business, but it must
	if answer := s.ask(t, visitor{key, session.ID()}, http.MethodDelete, ""); answer.status != http.StatusNotFound {
		t.Errorf("a second end: %d %s", answer.status, answer.text)
	}
}

// fetch returns what is at a URL, as a browser that follows redirects and keeps cookies gets it.
func fetch(t *testing.T, url string) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	here := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, err := net.SplitHostPort(address) // names below localhost are this machine for browsers
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}
	answer, err := (&http.Client{Jar: jar, Transport: here}).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// testLimit begins more sessions than one owner may have.
func testLimit(t *testing.T, s *server) {
	t.Helper()
	key := s.key(t, "limit")
	first := s.connect(t, key, "", nil)
	s.connect(t, key, "", nil)
	s.connect(t, s.key(t, "limit"), "", nil)
	answer := s.ask(t, visitor{key, ""}, http.MethodPost, hello)
	if answer.status != http.StatusTooManyRequests || answer.header.Get("Retry-After") == "" || !strings.Contains(answer.text, "3 sessions") {
		t.Errorf("a fourth session: %d %s", answer.status, answer.text)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if answer = s.ask(t, visitor{key, ""}, http.MethodPost, hello); answer.status != http.StatusOK {
		t.Errorf("after the end of one: %d %s", answer.status, answer.text)
	}
}

// testChoice asks for tools and sandboxes of several kinds, some of which this key cannot have.
func testChoice(t *testing.T, s *server) {
	t.Helper()
	key := s.key(t, "choice")
	session := s.connect(t, key, "?tools=file,shell&network=false&image=host", nil)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range list.Tools {
		names[d.Name] = true
	}
	if !names["file_read"] || !names["shell_exec"] || names["grep"] || names["git_clone"] {
		t.Errorf("the tools of two categories: %v", names)
	}
	if text := call(t, session, "shell_exec", map[string]any{"command": "cat /proc/net/route | wc -l"}); !strings.Contains(text, "\n1") && !strings.Contains(text, "\n0") {
		t.Errorf("routes without a network: %s", text)
	}
	for query, want := range map[string]string{
		"?tools=none":            "400 unknown tool or category",
		"?colour=red":            "400 unknown parameter",
		"?network=maybe":         "400 network",
		"?image=host&template=x": "400 image and template exclude each other",
		"?image=a&image=b":       "400 image has two different values",
		"?image=%zz":             "400 invalid query",
		"?image=/etc":            "403 image",
		"?image=../../etc":       "403 image",
		"?template=nobody-has":   "400 nobody-has",
		"?template=../../etc":    "400 ../../etc",
	} {
		answer := s.ask(t, visitor{key, ""}, http.MethodPost+" "+query, hello)
		if status, words, _ := strings.Cut(want, " "); strconv.Itoa(answer.status) != status || !strings.Contains(answer.text, words) {
			t.Errorf("%s: %d %s, want %s", query, answer.status, answer.text, want)
		}
	}
	for query, want := range map[string]string{ // what is found out when the sandbox is made
		"?provider=none": "Unsupported provider",
	} {
		session := s.connect(t, key, query, nil)
		if text, failed := try(t, session, "shell_exec", map[string]any{"command": "true"}); !failed || !strings.Contains(text, want) {
			t.Errorf("%s: %s, want %s", query, text, want)
		}
		if err := session.Close(); err != nil { // there may be no more than three
			t.Error(err)
		}
	}
	answer := s.ask(t, visitor{key, ""}, http.MethodPost, hello, "Sandpit-Image", "/etc")
	if answer.status != http.StatusForbidden {
		t.Errorf("a directory of the machine by a header: %d %s", answer.status, answer.text)
	}
}

// testApart has two sessions of one key use the same names for different things.
func testApart(t *testing.T, s *server) {
	t.Helper()
	key := s.key(t, "apart")
	var group sync.WaitGroup
	for i := range 2 {
		session := s.connect(t, key, "", nil)
		group.Go(func() {
			mark := fmt.Sprint("mark-", i)
			call(t, session, "file_write", map[string]any{"file": "/workspace/mark", "content": mark})
			call(t, session, "env_set", map[string]any{"name": "MARK", "value": mark})
			text := call(t, session, "shell_exec", map[string]any{"command": "cat mark; echo; echo $MARK"})
			if strings.Count(text, mark) != 2 {
				t.Errorf("session %d: %s", i, text)
			}
		})
	}
	group.Wait()
	s.awaitBoxes(t, "apart", 2)
}

// testProgress hears what a command says while it runs, without the secret in it.
func testProgress(t *testing.T, s *server) {
	t.Helper()
	var mu sync.Mutex
	var heard []*sdk.ProgressNotificationParams
	session := s.connect(t, s.key(t, "progress"), "", &sdk.ClientOptions{
		ProgressNotificationHandler: func(_ context.Context, r *sdk.ProgressNotificationClientRequest) {
			mu.Lock()
			defer mu.Unlock()
			heard = append(heard, r.Params)
		},
	})
	call(t, session, "env_set", map[string]any{"name": "TOKEN", "value": "hunter2-hunter2", "secret": true})
	params := &sdk.CallToolParams{Name: "shell_exec", Arguments: map[string]any{
		"command": "yes line | head -n 10000; for i in 1 2 3; do echo step $i $TOKEN; printf half; sleep 1.2; echo; done",
	}}
	params.SetProgressToken("mine")
	if r, err := session.CallTool(t.Context(), params); err != nil || r.IsError {
		t.Fatalf("%+v, %v", r, err)
	}
	mu.Lock()
	defer mu.Unlock()
	var all strings.Builder
	last := 0.0
	for _, p := range heard {
		if p.ProgressToken != "mine" || p.Progress <= last || len(p.Message) > 3<<10 {
			t.Errorf("%+v after %g", p, last)
		}
		last = p.Progress
		all.WriteString(p.Message)
	}
	if !strings.Contains(all.String(), "step 1 ***") || !strings.Contains(all.String(), "step 2 ***") {
		t.Errorf("while it ran: %s", &all)
	}
	if strings.Contains(all.String(), "hunter2") || len(heard) > 8 {
		t.Errorf("%d notifications, with the secret: %s", len(heard), &all)
	}
}

// testCancel gives a call up, which ends its command.
func testCancel(t *testing.T, s *server) {
	t.Helper()
	session := s.connect(t, s.key(t, "cancel"), "?tools=default,system", nil)
	call(t, session, "shell_exec", map[string]any{"command": "true"})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := session.CallTool(ctx, &sdk.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"command": "sleep 4321", "timeout": 600, "session_id": "other"}})
		done <- err
	}()
	running := func() bool {
		text := call(t, session, "process_list", map[string]any{})
		return strings.Contains(text, "4321")
	}
	await(t, "the command runs", running)
	cancel()
	if err := <-done; err == nil {
		t.Error("a call that was given up has succeeded")
	}
	await(t, "the command has ended", func() bool { return !running() })
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// testResume breaks the connection of a call, and gets the answer by another one.
func testResume(t *testing.T, s *server) {
	t.Helper()
	key := s.key(t, "resume")
	answer := s.ask(t, visitor{key, ""}, http.MethodPost, hello)
	id := answer.header.Get("Mcp-Session-Id")
	if id == "" {
		t.Fatalf("%d %s", answer.status, answer.text)
	}
	version := []string{"Mcp-Protocol-Version", "2025-11-25"}
	s.ask(t, visitor{key, id}, http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, version...)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/mcp", strings.NewReader(
		`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"shell_exec","arguments":{"command":"sleep 1; echo all of it"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{
		"Accept": {"application/json, text/event-stream"}, "Content-Type": {"application/json"},
		"X-Api-Key": {key}, "Mcp-Session-Id": {id}, "Mcp-Protocol-Version": {version[1]},
	}
	broken, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 4096)
	n, err := broken.Body.Read(first)
	event := regexp.MustCompile(`id: (\S+)`).FindStringSubmatch(string(first[:n]))
	if event == nil {
		t.Fatalf("the answer begins with %q, %v", first[:n], err)
	}
	cancel()
	broken.Body.Close()
	await(t, "the server has noticed", func() bool {
		answer = s.ask(t, visitor{key, id}, http.MethodGet, "", append(version, "Last-Event-ID", event[1])...)
		return answer.status != http.StatusConflict
	})
	if answer.status != http.StatusOK || !strings.Contains(answer.text, "all of it") {
		t.Errorf("the rest: %d %s", answer.status, answer.text)
	}
	if answer = s.ask(t, visitor{key, id}, http.MethodGet, "", append(version, "Last-Event-ID", "none_1")...); answer.status != http.StatusBadRequest {
		t.Errorf("the rest of nothing: %d %s", answer.status, answer.text)
	}
}

// testLost takes the sandbox away from a session, which gets another.
func testLost(t *testing.T, s *server) {
	t.Helper()
	session := s.connect(t, s.key(t, "lost"), "", nil)
	call(t, session, "shell_exec", map[string]any{"command": "echo 1 > a"})
	box, err := s.admin.Sandboxes.Get(t.Context(), s.boxes(t, "lost")[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
	if text, failed := try(t, session, "file_read", map[string]any{"file": "a"}); !failed || !strings.Contains(text, "deleted") && !strings.Contains(text, "killed") {
		t.Errorf("the call after the end of its sandbox: %s", text)
	}
	if text, failed := try(t, session, "file_read", map[string]any{"file": "a"}); !failed || !strings.Contains(text, "file not found") {
		t.Errorf("in the next one: %s", text)
	}
	s.awaitBoxes(t, "lost", 1)
	done, refused := s.trail(t, box.ID), s.trail(t, s.boxes(t, "lost")[0].ID)
	if done.Actor != "lost" || done.Args["tool"] != "shell_exec" || done.Result != "ok" || len(done.Args) != 1 {
		t.Errorf("the first call in the audit trail: %+v", done)
	}
	if refused.Args["tool"] != "file_read" || refused.Result != string(sandpit.NotFound) || len(refused.Args) != 1 {
		t.Errorf("the last call in the audit trail: %+v", refused)
	}
}

// trail waits for what the audit trail says of a call in a sandbox.
func (s *server) trail(t *testing.T, id sandpit.ID) (found api.Event) {
	t.Helper()
	await(t, "a call is in the audit trail", func() bool {
		list, err := s.admin.Events.List(t.Context(), client.EventFilter{Sandbox: id})
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(list, func(e api.Event) bool { return e.Action == "tool" })
		if i >= 0 {
			found = list[i]
		}
		return i >= 0
	})
	return found
}

// TestNothingStays leaves sessions without a word, kills the server, and ends it while
// a client listens: no sandbox is left.
func TestNothingStays(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_MCP_IDLE_TIMEOUT=3")
	key := s.key(t, "leaks")
	s.connect(t, key, "", nil) // which only listens
	call(t, s.connect(t, key, "", nil), "shell_exec", map[string]any{"command": "sleep 1000 &"})
	s.awaitBoxes(t, "leaks", 0) // for idleness

	// What follows may take longer than such a session lasts.
	s.end(t, syscall.SIGKILL)
	s.settings = append(s.settings, "SANDPIT_SERVER_MCP_IDLE_TIMEOUT=1800")
	s.start(t)
	call(t, s.connect(t, key, "", nil), "shell_exec", map[string]any{"command": "sleep 1000 &"})
	copies, err := s.admin.Sandboxes.Fork(t.Context(), s.boxes(t, "leaks")[0].ID, client.ForkRequest{})
	if err != nil {
		t.Fatal(err)
	}
	s.end(t, syscall.SIGKILL)
	s.start(t)
	s.awaitBoxes(t, "leaks", 1)
	if left := s.boxes(t, "leaks"); left[0].ID != copies[0].ID {
		t.Errorf("what was made of a session's sandbox is gone; there is %v", left)
	}
	if err := copies[0].Delete(t.Context()); err != nil {
		t.Fatal(err)
	}

	session := s.connect(t, key, "", nil)
	call(t, session, "shell_exec", map[string]any{"command": "true"})
	begun := time.Now()
	s.end(t, syscall.SIGTERM)
	if took := time.Since(begun); took > 20*time.Second {
		t.Errorf("the server took %s to end", took)
	}
	s.start(t)
	if list := s.boxes(t, "leaks"); len(list) != 0 {
		t.Errorf("after an orderly end: %v", list)
	}
}
