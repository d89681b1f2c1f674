package attacks_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

const (
	neighbourPort = 7777
	programPath   = "/tmp/attacker"
)

// lab is an engine with sandboxes to attack from, and with much around it that
// must not be harmed.
type lab struct {
	dir      string // of the machine; all users may search it
	provider *gvisor.Provider
	image    sandpit.Image
	canary   string // the secret that is in many places
	name     string // the neighbour's secret
	handle   string // by which abstract sockets are found; no secret

	neighbour sandpit.Instance
	boxes     map[audience]sandpit.Instance
	program   []byte

	canaryProcess *exec.Cmd
	key, segment  int // of System V memory on the machine
	tcp, udp      []string
	heard         *notes // what came to the machine's sockets
	said          *notes // what the neighbour tells

	weak []string // what the judge of a known weakness has found

	before  observation
	holding resources
	engines []int // processes of the engine and its reaper
}

// notes are lines that several goroutines write down.
type notes struct {
	mu    sync.Mutex
	lines []string
}

func (n *notes) add(format string, args ...any) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lines = append(n.lines, fmt.Sprintf(format, args...))
}

// take returns what was written down and forgets it.
func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	lines := n.lines
	n.lines = nil
	return lines
}

// Write implements io.Writer for whole lines.
func (n *notes) Write(b []byte) (int, error) {
	for line := range strings.Lines(string(b)) {
		n.add("%s", strings.TrimSpace(line))
	}
	return len(b), nil
}

func newLab(t *testing.T) *lab {
	t.Helper()
	testengine.Path(t)
	program, err := attacker()
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{
		dir: t.TempDir(), program: program, canary: os.Getenv(canaryVariable), name: "neighbour-" + rand.Text(), handle: "handle-" + rand.Text(),
		boxes: make(map[audience]sandpit.Instance), heard: &notes{}, said: &notes{},
	}
	l.image = busyboxImage(t)
	l.provider = newProvider(t, l.dir)
	l.plantFiles(t)
	l.plantProcess(t)
	l.plantSockets(t)
	l.plantMemory(t)
	l.neighbour = l.create(t, sandpit.Spec{Image: l.image, Hostname: "neighbour"})
	l.startNeighbour(t)
	l.proveObservers(t)
	for _, place := range []audience{imageBox, hostBox} {
		l.box(t, place)
	}
	l.engines = l.engineProcesses(t)
	l.before = l.observe(t)
	l.holding = resourcesOf(l.engines)
	return l
}

func newProvider(t *testing.T, dir string) *gvisor.Provider {
	t.Helper()
	for _, sub := range []string{"run", "scratch", "images"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), Images: images, Engine: testengine.Path(t),
		Defaults: testengine.Limits(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		for _, sub := range []string{"run/engines", "scratch"} {
			if left, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(left) > 0 {
				t.Errorf("left in %s: %v, %v", sub, left, err)
			}
		}
	})
	return p
}

// busyboxImage makes a root file system of one static program.
func busyboxImage(t *testing.T) sandpit.Image {
	t.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(t, "this machine has no busybox")
	}
	content, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), content, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "cat", "date", "echo", "hostname", "ls", "sha256sum", "sleep", "stty", "true", "yes"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return sandpit.Image(filepath.Dir(bin))
}

func (l *lab) create(t *testing.T, spec sandpit.Spec) sandpit.Instance {
	t.Helper()
	box, err := l.provider.Create(t.Context(), sandpit.NewID(), spec)
	if err != nil {
		t.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	l.putProgram(t, box)
	return box
}

func (l *lab) putProgram(t *testing.T, box sandpit.Instance) {
	t.Helper()
	err := box.Guest().WriteFile(t.Context(), "", programPath, bytes.NewReader(l.program), sandpit.WriteOptions{Mode: 0o755})
	if err != nil {
		t.Fatal(err)
	}
}

// box returns the sandbox to attack from, and creates a new one if it has
// ended.
func (l *lab) box(t *testing.T, place audience) sandpit.Instance {
	t.Helper()
	if box := l.boxes[place]; box != nil {
		return box
	}
	spec := sandpit.Spec{Image: l.image, Hostname: "image"}
	if place == hostBox {
		spec = sandpit.Spec{Hostname: "host", Mounts: []sandpit.Mount{
			{Source: filepath.Join(l.dir, "ro"), Target: "/ro", ReadOnly: true},
			{Source: filepath.Join(l.dir, "rw"), Target: "/rw"},
		}}
	}
	l.boxes[place] = l.create(t, spec)
	return l.boxes[place]
}

// startNeighbour starts the program that has what attackers look for.
func (l *lab) startNeighbour(t *testing.T) {
	t.Helper()
	data, err := json.Marshal(params{Name: l.name, Abstract: []string{"neighbour-" + l.handle}, Count: neighbourPort, Key: l.key})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	p, err := l.neighbour.Guest().Start(ctx, sandpit.Command{
		Args: []string{programPath, "serve", string(data)}, Env: map[string]string{"SECRET": l.name}, Stdout: l.said, Stderr: l.said,
	})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = p.Wait(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	for range 100 {
		lines := l.said.take()
		if len(lines) == 1 && lines[0] == "ready" {
			return
		}
		if len(lines) > 0 {
			t.Fatalf("the neighbour says %q", lines)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the neighbour says nothing")
}

// proveObservers shows that what must not be seen would be seen: what a harmless
// caller on the right side of the wall does is written down.
func (l *lab) proveObservers(t *testing.T) {
	t.Helper()
	reach := func(dial func() (net.Conn, error), want string) {
		t.Helper()
		conn, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "control")
		if got, err := io.ReadAll(conn); err != nil || string(got) != want {
			t.Errorf("an observer answers %q, %v", got, err)
		}
	}
	for _, path := range []string{filepath.Join(l.dir, "rw", "canary.sock"), filepath.Join(l.dir, "ro", "canary.sock"), "@machine-" + l.handle} {
		reach(func() (net.Conn, error) { return (&net.Dialer{}).DialContext(t.Context(), "unix", path) }, l.canary)
	}
	reach(func() (net.Conn, error) { return (&net.Dialer{}).DialContext(t.Context(), "tcp", l.tcp[0]) }, l.canary)
	packet, err := (&net.Dialer{}).DialContext(t.Context(), "udp", l.udp[0])
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(packet, "control")
	_ = packet.Close()
	heard := 0
	for range 100 {
		heard += len(l.heard.take())
		if heard == 5 {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	if heard != 5 {
		t.Errorf("the machine's sockets heard %d of 5", heard)
	}
	dialer, ok := l.neighbour.(sandpit.Dialer)
	if !ok {
		t.Fatal("no raw connections")
	}
	reach(func() (net.Conn, error) { return dialer.Dial(t.Context(), neighbourPort) }, l.name)
}

// engineProcesses finds the reaper of this lab's engine, and the engine.
func (l *lab) engineProcesses(t *testing.T) []int {
	t.Helper()
	var found []int
	for _, pid := range children(os.Getpid()) {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // it may have ended
		if bytes.Contains(args, []byte(l.dir+"/run/")) {
			found = append(append(found, pid), children(pid)...)
		}
	}
	if len(found) != 2 {
		t.Fatalf("processes of the engine: %v, want two", found)
	}
	return found
}

func children(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			continue // a thread that has ended
		}
		for child := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(all, n)
			}
		}
	}
	return all
}

// control returns the path of the engine's socket.
func (l *lab) control(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(l.dir, "run", "engines", "*", "control"))
	if err != nil || len(found) != 1 {
		t.Fatalf("sockets of engines: %v, %v", found, err)
	}
	return found[0]
}

// tokens returns the tokens of all sandboxes, by sandbox.
func (l *lab) tokens(t *testing.T) map[sandpit.ID]string {
	t.Helper()
	all := make(map[sandpit.ID]string)
	records, err := filepath.Glob(filepath.Join(l.dir, "run", "engines", "*", "boxes", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range records {
		var rec struct {
			ID    sandpit.ID `json:"id"`
			Token string     `json:"token"`
		}
		data, err := os.ReadFile(path)
		if err != nil || json.Unmarshal(data, &rec) != nil || rec.Token == "" {
			t.Fatalf("record %s: %v", path, err)
		}
		all[rec.ID] = rec.Token
	}
	return all
}
