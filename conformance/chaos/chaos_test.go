package chaos_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// Variables for a longer run.
const (
	operationsVariable = "SANDPIT_TEST_CHAOS_OPERATIONS"
	killsVariable      = "SANDPIT_TEST_CHAOS_KILLS"
)

const clients = 16

// errLost is a call whose answer did not come: the server was killed.
var errLost = errors.New("the connection was lost")

// world is one server after another, and what clients know.
type world struct {
	t   *testing.T
	dir string
	max int // sandboxes

	// image is an image with its own files, or "".
	image sandpit.Image

	mu     sync.Mutex
	server *exec.Cmd
	words  *bytes.Buffer
	acked  map[sandpit.ID]string // the keys of sandboxes that a client was told of
	taken  map[sandpit.ID]bool   // some client meant this one to end
	unsure []call                // creates whose answer was lost, to be asked for again
	saved  map[sandpit.SnapshotID]saved
	counts map[string]int // answers, by operation and code
	faults []string
	// engines are all that were ever seen, namespaces all that their processes had.
	engines    map[string]bool
	namespaces namespaces

	done atomic.Int64
}

// TestChaos has 16 clients do random operations while the server, and at times an
// engine, is killed, and looks what is left.
func TestChaos(t *testing.T) {
	w := newWorld(t, 40)
	operations, kills := 400, 6
	if testing.Short() {
		operations, kills = 150, 3
	}
	operations, kills = number(operationsVariable, operations), number(killsVariable, kills)
	begin := time.Now()
	w.start()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for range clients {
		group.Go(func() {
			for ctx.Err() == nil {
				w.step(ctx)
			}
		})
	}
	killed, engines := 0, 0
	for killed < kills || w.done.Load() < int64(operations) {
		time.Sleep(time.Duration(rand.N(2500)) * time.Millisecond)
		if killed%20 == 19 && w.killEngine() {
			engines++
		}
		w.kill()
		killed++
		w.start()
	}
	cancel()
	group.Wait()
	t.Logf("%d operations, %d servers and %d engines killed in %s", w.done.Load(), killed, engines, time.Since(begin).Round(time.Second))
	w.logCounts()
	w.settle()
	w.compare()
	w.deleteAll()
	w.compareSaved()
	w.must(call{Op: "close"}) // what waits in the pool goes with the manager
	w.kill()
	w.expectNothing()
	if len(w.faults) > 0 {
		t.Errorf("%d faults:\n%s", len(w.faults), strings.Join(w.faults[:min(len(w.faults), 40)], "\n"))
	}
}

func number(variable string, usual int) int {
	if n, err := strconv.Atoi(os.Getenv(variable)); err == nil {
		return n
	}
	return usual
}

func newWorld(t *testing.T, most int) *world {
	t.Helper()
	w := &world{
		t: t, dir: t.TempDir(), max: most, acked: make(map[sandpit.ID]string), taken: make(map[sandpit.ID]bool),
		saved:  make(map[sandpit.SnapshotID]saved),
		counts: make(map[string]int), engines: make(map[string]bool), namespaces: make(namespaces),
	}
	program, err := os.ReadFile(testengine.Path(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.dir, engineName), program, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"run", "scratch", "images", "stopped"} {
		if err := os.Mkdir(filepath.Join(w.dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	w.image = busyboxImage(t, w.dir)
	t.Cleanup(w.namespaces.close)
	t.Cleanup(w.kill)
	return w
}

// busyboxImage makes a directory with a shell that can be an image; "" without busybox.
func busyboxImage(t *testing.T, dir string) sandpit.Image {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		return ""
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "root", "bin")
	if err := errors.Join(os.MkdirAll(bin, 0o755), os.WriteFile(filepath.Join(bin, "busybox"), content, 0o755)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "cat"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return sandpit.Image(filepath.Join(dir, "root"))
}

// start starts a server and waits until it answers.
func (w *world) start() {
	w.t.Helper()
	w.words = new(bytes.Buffer)
	cmd := exec.Command(os.Args[0], "-test.run=^TestServer$", "-test.timeout=0") //nolint:noctx // it is killed by hand
	cmd.Env = append(os.Environ(), dirVariable+"="+w.dir, maxVariable+"="+strconv.Itoa(w.max))
	cmd.Stderr = w.words
	if err := cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	w.mu.Lock()
	w.server = cmd
	w.mu.Unlock()
	for limit := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := w.ask(call{Op: "list"}); err == nil {
			break
		}
		if time.Now().After(limit) {
			w.kill()
			w.t.Fatalf("the server does not start: %s", w.words)
		}
	}
	w.seeEngines()
}

func (w *world) kill() {
	w.mu.Lock()
	cmd := w.server
	w.server = nil
	w.mu.Unlock()
	if cmd == nil {
		return
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if words := w.words.String(); words != "" {
		w.fault("the server said: %s", words)
	}
}

// killEngine kills one engine, and with it all sandboxes in it.
func (w *world) killEngine() bool {
	for _, p := range w.processes() {
		if strings.HasPrefix(p.line, "sandpit-engine") {
			found, err := os.FindProcess(p.pid)
			return err == nil && found.Kill() == nil
		}
	}
	return false
}

func (w *world) fault(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

// ask makes one call.
func (w *world) ask(c call) (result, error) {
	var r result
	conn, err := (&net.Dialer{Timeout: answer}).DialContext(context.Background(), "unix", filepath.Join(w.dir, socketName))
	if err != nil {
		return r, errLost
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(3 * answer))
	if err := json.NewEncoder(conn).Encode(c); err != nil {
		return r, errLost
	}
	if err := json.NewDecoder(conn).Decode(&r); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			w.fault("%s: no answer within %s", c.Op, 3*answer)
		}
		return r, errLost
	}
	if r.Code != "" {
		return r, &sandpit.Error{Code: r.Code, Err: errors.New(r.Error)}
	}
	return r, nil
}

// step does something at random.
func (w *world) step(ctx context.Context) {
	c := w.choose()
	r, err := w.ask(c)
	w.mu.Lock()
	w.counts[fmt.Sprintf("%s %s", c.Op, codeOf(err))]++
	w.mu.Unlock()
	if !errors.Is(err, errLost) {
		w.done.Add(1)
	} else if c.Op == "create" {
		w.mu.Lock()
		w.unsure = append(w.unsure, c)
		w.mu.Unlock()
	}
	switch {
	case errors.Is(err, errLost) || sandpit.CodeOf(err) == sandpit.Exhausted:
		select { // until the next one is there, or there is room
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
		}
	case err != nil && !slices.Contains(allowed[c.Op], sandpit.CodeOf(err)):
		w.fault("%s %s: %s: %v", c.Op, c.ID, sandpit.CodeOf(err), err)
	case err == nil && c.Op == "create":
		w.mu.Lock()
		w.acked[r.Sandbox.ID] = c.Key
		w.taken[r.Sandbox.ID] = c.Deadline > 0
		w.mu.Unlock()
	case err == nil && c.Op == "fork":
		w.mu.Lock()
		for _, s := range r.Sandboxes {
			w.acked[s.ID] = s.Spec.Labels["key"]
		}
		w.mu.Unlock()
	case err == nil && c.Op == "snapshot":
		w.mu.Lock()
		w.saved[r.Snapshots[0]] = saved{c.ID, w.acked[c.ID]}
		w.mu.Unlock()
	case err == nil && c.Op == "run":
		w.mu.Lock()
		key := w.acked[c.ID]
		w.mu.Unlock()
		if strings.TrimSpace(r.Output) != key {
			w.fault("sandbox %s has %q, want %q", c.ID, r.Output, key)
		}
	}
}

func codeOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, errLost):
		return "lost"
	}
	return string(sandpit.CodeOf(err))
}

func (w *world) logCounts() {
	var lines []string
	for what, n := range w.counts {
		lines = append(lines, fmt.Sprintf("%s %d", what, n))
	}
	slices.Sort(lines)
	w.t.Log(strings.Join(lines, ", "))
}

// must makes a call that has to succeed.
func (w *world) must(c call) result {
	w.t.Helper()
	r, err := w.ask(c)
	if err != nil {
		w.t.Errorf("%s %s: %v", c.Op, c.ID, err)
	}
	return r
}

// settle waits until nothing is on its way any more.
func (w *world) settle() {
	for limit := time.Now().Add(30 * time.Second); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		on := slices.ContainsFunc(w.must(call{Op: "list"}).Sandboxes, func(s sandpit.Sandbox) bool {
			return !s.State.Lasting() || !s.Lease.Deadline.IsZero()
		})
		if _, err := w.ask(call{Op: "pool"}); !on && err == nil {
			return
		}
	}
	w.t.Error("half a minute later something is still on its way")
}

// compare checks rows, sandboxes and what clients were told against each other.
func (w *world) compare() {
	rows := w.must(call{Op: "list"}).Sandboxes
	waiting := w.must(call{Op: "pool"}).Pool
	placed := w.must(call{Op: "placed"}).Placed
	var listed []sandpit.ID
	for _, s := range rows {
		listed = append(listed, s.ID)
		if s.State == sandpit.StateArchived {
			w.must(call{Op: "restore", ID: s.ID})
			s.State = sandpit.StateStopped
		}
		// It was not resumed, or the response was lost. As many have room beside those that run.
		if way := map[sandpit.State]string{sandpit.StatePaused: "resume", sandpit.StateStopped: "start"}[s.State]; way != "" {
			_, err := w.ask(call{Op: way, ID: s.ID})
			if sandpit.CodeOf(err) == sandpit.Exhausted {
				continue
			}
			if err != nil {
				w.t.Errorf("%s %s: %v", way, s.ID, err)
			}
			s.State = sandpit.StateRunning
		}
		if s.State != sandpit.StateRunning {
			w.t.Errorf("sandbox %s is %s: %s", s.ID, s.State, s.Reason)
			continue
		}
		if got := strings.TrimSpace(w.must(call{Op: "run", ID: s.ID, Command: "cat /workspace/key"}).Output); got != s.Spec.Labels["key"] {
			w.t.Errorf("sandbox %s has %q, want %q", s.ID, got, s.Spec.Labels["key"])
		}
	}
	// Those in the pool are placed and have no owner.
	unknown := slices.DeleteFunc(slices.Clone(placed), func(id sandpit.ID) bool { return slices.Contains(listed, id) })
	lost := slices.DeleteFunc(slices.Clone(listed), func(id sandpit.ID) bool { return slices.Contains(placed, id) })
	if len(lost) > 0 || len(unknown) != waiting {
		w.t.Errorf("rows without a sandbox: %v\nsandboxes without a row: %v; %d of them wait in the pool", lost, unknown, waiting)
	}
	reasons := make(map[string]int)
	for id := range w.acked {
		r, err := w.ask(call{Op: "get", ID: id})
		switch {
		case err != nil:
			w.t.Errorf("sandbox %s: %v", id, err)
		case r.Sandbox.State == sandpit.StateDeleted && r.Sandbox.Reason == "":
			w.t.Errorf("sandbox %s is gone without a reason", id)
		case r.Sandbox.State == sandpit.StateDeleted:
			reasons[r.Sandbox.Reason]++
		}
	}
	w.t.Logf("%d sandboxes were made known, %d are there; the others: %v", len(w.acked), len(listed), reasons)
}

func (w *world) deleteAll() {
	var group sync.WaitGroup
	for _, s := range w.must(call{Op: "list"}).Sandboxes {
		group.Go(func() { w.must(call{Op: "delete", ID: s.ID}) })
	}
	group.Wait()
}

type process struct {
	pid  int
	line string
}

// processes are those of this world's engines.
func (w *world) processes() []process {
	var list []process
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		program, err := os.Readlink(exe)
		if err != nil || !strings.HasPrefix(program, filepath.Join(w.dir, engineName)) {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(filepath.Dir(exe), "cmdline"))
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
		list = append(list, process{pid, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '}))})
	}
	return list
}

func (w *world) seeEngines() {
	entries, _ := os.ReadDir(filepath.Join(w.dir, "run", "engines"))
	for _, e := range entries {
		w.engines[e.Name()] = true
	}
	for _, p := range w.processes() {
		w.namespaces.add(p.pid)
	}
}

// leftovers describes what there is on the machine that belongs to sandboxes.
func (w *world) leftovers() []string {
	var left []string
	for _, p := range w.processes() {
		left = append(left, fmt.Sprintf("process %d %s", p.pid, p.line))
	}
	w.seeEngines()
	for _, dir := range []string{"run/engines", "scratch", "suspended", "snapshots", "archive", "stopped/checkpoints", "stopped/archived"} {
		entries, _ := os.ReadDir(filepath.Join(w.dir, dir))
		for _, e := range entries {
			left = append(left, "file "+filepath.Join(dir, e.Name()))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry fs.DirEntry, err error) error {
		engine, ok := strings.CutPrefix(filepath.Base(path), "sandpit-")
		if err == nil && ok && entry.IsDir() && w.engines[engine] {
			left = append(left, "control group "+path)
		}
		return nil // others come and go meanwhile
	})
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range bytes.Lines(mounts) {
		if bytes.Contains(line, []byte(w.dir)) {
			left = append(left, "mount "+string(line))
		}
	}
	return append(left, w.namespaces.processes()...)
}

// expectNothing waits for the engines to see that they have no sandboxes.
func (w *world) expectNothing() {
	var left []string
	for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); time.Sleep(100 * time.Millisecond) {
		if left = w.leftovers(); len(left) == 0 {
			w.t.Logf("nothing is left of %d engines and %d namespaces", len(w.engines), len(w.namespaces))
			return
		}
	}
	w.t.Errorf("left:\n%s", strings.Join(left, "\n"))
}
