package guest

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestManyProcesses starts and ends many processes and looks at what stays: how
// many depends on the time there is, the named command in CONTRIBUTING.md has
// 10,000.
func TestManyProcesses(t *testing.T) {
	total := 300
	if n, err := strconv.Atoi(os.Getenv("SANDPIT_TEST_PROCESSES")); err == nil {
		total = n
	}
	s := newTestServer(t)
	start := func() {
		got := frames(t, s, "/process.Process/Start", `{"process":{"cmd":"true"},"stdin":false}`)
		if len(got) != 3 || !strings.Contains(got[1], `"status":"exit status 0"`) {
			t.Fatalf("got %q", got)
		}
	}
	for range maxExits / 10 { // the memory of ended processes fills up
		start()
	}
	before := measure(t)
	for range total {
		start()
	}
	after := measure(t)
	t.Logf("before %+v, after %d processes %+v", before, total, after)
	if after.files > before.files || after.goroutines > before.goroutines+2 {
		t.Errorf("grew from %+v to %+v", before, after)
	}
	// What is remembered of each is little.
	if remembered := uint64(min(total, maxEndedCommands)) << 10; after.heap > before.heap+(2<<20)+remembered {
		t.Errorf("the heap grew from %d to %d bytes", before.heap, after.heap)
	}
	if list := send(t, s, http.MethodPost, "/process.Process/List", "application/json", "{}"); compact(t, list.body) != "{}" {
		t.Errorf("still listed: %s", list.body)
	}
}

type footprint struct {
	files, goroutines int
	heap              uint64
}

func measure(t *testing.T) footprint {
	t.Helper()
	var f footprint
	for range 10 { // connections and timers go away a little later
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	f.files, f.goroutines, f.heap = len(entries), runtime.NumGoroutine(), m.HeapAlloc
	return f
}

// TestEndedProcessesAreBounded holds what stays of processes of hostile size.
func TestEndedProcessesAreBounded(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	long := strings.Repeat("x", 100<<10)
	got := frames(t, s, "/process.Process/Start", fmt.Sprintf(`{"process":{"cmd":"true","args":[%q]},"tag":"big"}`, long))
	if len(got) != 3 {
		t.Fatalf("got %d frames", len(got))
	}
	// It is known by its tag still.
	late := frames(t, s, "/process.Process/Connect", `{"process":{"tag":"big"}}`)
	if len(late) != 3 || !strings.Contains(late[1], "end") {
		t.Errorf("got %q", late)
	}
	refused := frames(t, s, "/process.Process/Start", fmt.Sprintf(`{"process":{"cmd":"true"},"tag":%q}`, strings.Repeat("t", maxTag+1)))
	if len(refused) != 1 || !strings.Contains(refused[0], "invalid_argument") {
		t.Errorf("got %q", refused)
	}
}

// TestSignalReachesTheSession kills a process whose child has a process group of
// its own, as job control and timeout(1) make them.
func TestSignalReachesTheSession(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("timeout"); err != nil {
		t.Skip("no timeout on this machine")
	}
	s := newTestServer(t)
	pidFile := filepath.Join(t.TempDir(), "pid")
	script := fmt.Sprintf("timeout 300 sh -c 'echo $$ > %s; exec sleep 300'", pidFile)
	done := make(chan []string, 1)
	go func() {
		done <- frames(t, s, "/process.Process/Start", fmt.Sprintf(`{"process":{"cmd":"sh","args":["-c",%q]},"tag":"session"}`, script))
	}()
	pid := awaitFile(t, pidFile)
	res := send(t, s, http.MethodPost, "/process.Process/SendSignal", "application/json", `{"process":{"tag":"session"},"signal":"SIGNAL_SIGKILL"}`)
	if res.status != http.StatusOK {
		t.Fatalf("got %+v", res)
	}
	if got := <-done; len(got) != 3 || !strings.Contains(got[1], "signal: killed") {
		t.Errorf("got %q", got)
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if _, _, alive := parseStat(string(stat)); err != nil || !alive {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %s lives on: %s", pid, stat)
		}
	}
}

func awaitFile(t *testing.T, name string) string {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if data, err := os.ReadFile(name); err == nil && strings.HasSuffix(string(data), "\n") {
			return strings.TrimSpace(string(data))
		}
	}
	t.Fatalf("%s was never written", name)
	return ""
}
