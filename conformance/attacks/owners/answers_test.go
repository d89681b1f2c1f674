package owners_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// peakMemory returns the most memory that the server's process had so far, in bytes.
func (l *lab) peakMemory(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", l.process.PID()))
	if err != nil {
		t.Fatal(err)
	}
	match := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		t.Fatalf("no VmHWM in %s", text)
	}
	n, err := strconv.ParseInt(string(match[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

// ask sends a request whose response is not read until the test ends, and returns its
// connection.
func (p party) ask(t *testing.T, method, path, body string) net.Conn {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetReadBuffer(4 << 10)
	}
	_, err = fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		method, path, p.key, len(body), body)
	if err != nil {
		t.Error(err)
	}
	return conn
}

// serverMemory is what a server on a machine of 512 MiB has by default for its clients, and
// mostMemory what its process may need then.
const (
	serverMemory = "memory = \"128m\""
	mostMemory   = 512 << 20
)

// checkBob has bob run commands while alice attacks.
func checkBob(t *testing.T, bob party, id string) {
	t.Helper()
	for range 3 {
		begin := time.Now()
		if out, code := bob.run(t, id, "echo $((6*7))"); code != 0 || strings.TrimSpace(out) != "42" {
			t.Errorf("bob's command: %q, exit status %d", out, code)
		}
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("bob's command took %v", took)
		}
	}
}

// TestUnreadOutput runs commands with as much output as may be asked for, and reads none
// of the answers.
func TestUnreadOutput(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{server: serverMemory})
	victim, box := l.bob.create(t, l.image), l.alice.create(t, l.image)
	before := l.peakMemory(t)
	body := `{"command": "head -c 16777216 /dev/zero", "max_output": 16777216}`
	var conns []net.Conn
	for range 10 {
		conns = append(conns, l.alice.ask(t, http.MethodPost, "/v1/sandboxes/"+box+"/run", body))
	}
	checkBob(t, l.bob, victim)
	for _, conn := range conns {
		_ = conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err != nil { // the command has ended
			t.Errorf("no answer begins: %v", err)
		}
	}
	checkBob(t, l.bob, victim)
	after := l.peakMemory(t)
	t.Logf("at most %d MiB, %d before", after>>20, before>>20)
	if after > mostMemory {
		t.Errorf("the server had %d MiB of memory, want at most %d", after>>20, mostMemory>>20)
	}
}

// TestOutputBeyondTheShare has an owner's output cut where its share ends, and says so.
func TestOutputBeyondTheShare(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{server: "memory = \"32m\"\nmemory_per_owner = \"8m\""})
	box := l.alice.create(t, l.image)
	body := map[string]any{"command": "head -c 16000000 /dev/zero; echo end", "max_output": 16 << 20}
	var result struct {
		Stdout    string `json:"stdout"`
		Truncated bool   `json:"truncated"`
	}
	r := l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+box+"/run", body)
	r.decode(t, &result)
	if n := len(result.Stdout); !result.Truncated || n < 4<<20 || n > 8<<20 || !strings.Contains(result.Stdout, "bytes left out]") {
		t.Errorf("%d bytes of output, truncated %v; want about 6 MiB and the marker", n, result.Truncated)
	}
	// The memory is there again.
	l.alice.must(t, http.MethodPost, "/v1/sandboxes/"+box+"/run", body).decode(t, &result)
	if len(result.Stdout) < 4<<20 {
		t.Errorf("%d bytes of output the second time", len(result.Stdout))
	}
}

// TestLargeBodies sends bodies that are read as a whole, and ends none of them.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{server: serverMemory})
	victim, box := l.bob.create(t, l.image), l.alice.create(t, l.image)
	paths := []string{"/mcp", "/aio/" + box + "/v1/file/write", "/v1/sandboxes/" + box + "/run", "/v1/sandboxes", "/v3/templates"}
	var group sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for i := range 60 {
		path := paths[i%len(paths)]
		group.Go(func() {
			// The rest never comes.
			body := io.MultiReader(io.LimitReader(spaces{}, 15<<20), waits(ctx.Done()))
			_, _ = l.alice.do(ctx, http.MethodPost, path, body, nil) // it is given up
		})
	}
	time.Sleep(2 * time.Second)
	checkBob(t, l.bob, victim)
	group.Wait()
	after := l.peakMemory(t)
	t.Logf("at most %d MiB", after>>20)
	if after > mostMemory {
		t.Errorf("the server had %d MiB of memory, want at most %d", after>>20, mostMemory>>20)
	}
}

// spaces is an endless body of white space.
type spaces struct{}

func (spaces) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = ' '
	}
	return len(b), nil
}

// waits is a body of which nothing comes until a channel is closed.
type waits <-chan struct{}

func (w waits) Read([]byte) (int, error) {
	<-w
	return 0, io.ErrUnexpectedEOF
}
