package mcp_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// The load, which the environment can change.
const (
	sessionsVariable = "SANDPIT_TEST_MCP_SESSIONS"
	callsVariable    = "SANDPIT_TEST_MCP_CALLS"
)

// TestLoad has many sessions call tools at a time, each in a sandbox of its own: none sees
// what another has written, and nothing of them stays.
func TestLoad(t *testing.T) {
	t.Parallel()
	sessions, calls := fromEnviron(t, sessionsVariable, 8), fromEnviron(t, callsVariable, 50)
	s := newServer(t, "SANDPIT_SERVER_RATE=1000000", "SANDPIT_SERVER_BURST=1000000", fmt.Sprint("SANDPIT_SERVER_MCP_MAX_SESSIONS=", sessions+1),
		fmt.Sprint("SANDPIT_MANAGER_MAX_SANDBOXES=", sessions+1))
	key := s.key(t, "load")
	work(t, s.connect(t, key, "?tools=shell,file", nil), "mark-x", 2) // what is made once is made now
	admin, err := s.admin.Keys.Create(t.Context(), "admin", "test", 0, true)
	if err != nil {
		t.Fatal(err)
	}
	before, threads := s.open(t), s.goroutines(t, admin.Secret)
	clients := make([]*sdk.ClientSession, sessions)
	for i := range clients {
		clients[i] = s.connect(t, key, "?tools=shell,file", nil)
	}
	begun := time.Now()
	took := make([][]time.Duration, sessions)
	var group sync.WaitGroup
	for i, client := range clients {
		group.Go(func() { took[i] = work(t, client, fmt.Sprint("mark-", i), calls) })
	}
	group.Wait()
	all := slices.Concat(took...)
	if t.Failed() || len(all) == 0 {
		return
	}
	slices.Sort(all)
	t.Logf("%d sessions with %d calls each: %s, %.0f calls a second; a call takes %s (p50), %s (p99), %s at most; the server has %d descriptors more, %d MiB in memory",
		sessions, calls, time.Since(begun).Round(time.Millisecond), float64(len(all))/time.Since(begun).Seconds(),
		all[len(all)/2], all[len(all)*99/100], all[len(all)-1], s.open(t)-before, s.resident(t)>>20)
	for _, client := range clients {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	}
	s.awaitBoxes(t, "load", 1)
	s.transport.CloseIdleConnections()
	await(t, fmt.Sprintf("no more than %d descriptors are open", before+2), func() bool { return s.open(t) <= before+2 })
	await(t, fmt.Sprintf("no more than %d goroutines go on", threads+5), func() bool { return s.goroutines(t, admin.Secret) <= threads+5 })
}

// work has a session read and write what only it knows.
func work(t *testing.T, s *sdk.ClientSession, mark string, calls int) []time.Duration {
	t.Helper()
	took := make([]time.Duration, 0, calls)
	for i := range calls {
		begun := time.Now()
		name, args, want := "shell_exec", map[string]any{"command": "cat mark*; env | grep ^MARK="}, "MARK="+mark
		switch {
		case i == 0:
			args, want = map[string]any{"command": "export MARK=" + mark + "; echo " + mark + " > mark-" + mark + "; cat mark*"}, mark
		case i%2 == 1:
			name, args, want = "file_read", map[string]any{"file": "mark-" + mark}, mark
		}
		r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: name, Arguments: args})
		if err != nil {
			t.Errorf("%s, call %d: %v", mark, i, err)
			return nil
		}
		text, _ := r.Content[0].(*sdk.TextContent)
		if r.IsError || text == nil || !strings.Contains(text.Text, want) || strings.Count(text.Text, "mark-") != strings.Count(text.Text, mark) {
			t.Errorf("%s, call %d: %+v %+v", mark, i, r, text)
			return nil
		}
		took = append(took, time.Since(begun))
	}
	return took
}

func fromEnviron(t *testing.T, name string, usual int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%s: want a number", name, text)
	}
	return n
}

// open is how many descriptors the server has.
func (s *server) open(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(s.process.PID()), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// goroutines is how many go on in the server.
func (s *server) goroutines(t *testing.T, admin string) int {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-API-Key", admin)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^go_goroutines (\d+)`).FindSubmatch(text)
	if found == nil {
		t.Fatalf("no goroutines in the metrics: %d %.300s", answer.StatusCode, text)
	}
	n, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// resident is how much memory the server has, in bytes.
func (s *server) resident(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.process.PID()), "statm"))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * syscall.Getpagesize()
}
