package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// line is a way to the engine that can be cut.
type line struct {
	address  string
	target   string
	accepted atomic.Int64 // connections

	mu    sync.Mutex
	conns map[net.Conn]bool // both ends of each connection
	down  bool
}

func newLine(t *testing.T) *line {
	t.Helper()
	host := testdocker.Host(t)
	target, ok := strings.CutPrefix(host, "unix://")
	if !ok {
		t.Skip("the engine is not on a socket of this machine")
	}
	dir, err := os.MkdirTemp("", "line") //nolint:usetesting // short, for a socket's name
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "sock")
	var config net.ListenConfig
	ln, err := config.Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	l := &line{address: "unix://" + path, target: target, conns: make(map[net.Conn]bool)}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			l.accepted.Add(1)
			wg.Go(func() { l.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		l.cut(true)
		wg.Wait()
		_ = os.RemoveAll(dir)
	})
	return l
}

func (l *line) serve(c net.Conn) {
	defer c.Close()
	var dialer net.Dialer
	other, err := dialer.DialContext(context.Background(), "unix", l.target)
	if err != nil {
		return
	}
	defer other.Close()
	if !l.carry(c, other) {
		return
	}
	defer l.drop(c, other)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _ = io.Copy(other, c)
		_ = other.(*net.UnixConn).CloseWrite()
	})
	_, _ = io.Copy(c, other)
	_ = c.Close()
	wg.Wait()
}

// carry notes a connection, unless the line is down.
func (l *line) carry(ends ...net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range ends {
		if !l.down {
			l.conns[end] = true
		}
	}
	return !l.down
}

func (l *line) drop(ends ...net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, end := range ends {
		delete(l.conns, end)
	}
}

// cut breaks all connections, at both ends: an engine need not notice that one was half
// closed. If down it breaks also those that are made later.
func (l *line) cut(down bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = down
	for c := range l.conns {
		_ = c.Close()
	}
}

// TestCut breaks every connection to the engine, again and again, while a command
// runs and a file is written: neither hears of it.
func TestCut(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	o := options(t)
	o.Endpoint.Host = l.address
	box := create(t, open(t, o), sandpit.Spec{Image: busybox})
	var out bytes.Buffer
	p, err := box.Guest().Start(within(t), sandpit.Command{
		Args: []string{"sh", "-c", "for i in $(seq 40); do echo $i; sleep 0.05; done"}, Stdout: &out,
	})
	if err != nil {
		t.Fatal(err)
	}
	content := strings.Repeat("0123456789abcdef", 1<<18)
	written := make(chan error, 1)
	go func() {
		written <- box.Guest().WriteFile(t.Context(), "", "large", strings.NewReader(content), sandpit.WriteOptions{})
	}()
	for range 5 {
		time.Sleep(200 * time.Millisecond)
		l.cut(false)
	}
	status, err := p.Wait(within(t))
	if err != nil || status.Code != 0 {
		t.Fatalf("wait: %v, %v", status, err)
	}
	if got := strings.Count(out.String(), "\n"); got != 40 {
		t.Errorf("%d lines came, want 40", got)
	}
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	r, err := box.Guest().ReadFile(within(t), "", "large")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got, err := io.ReadAll(r); err != nil || string(got) != content {
		t.Errorf("%d bytes came back, %v; want %d", len(got), err, len(content))
	}
}

// TestConnections uses one connection for everything inside a sandbox, and a few again
// and again for the engine's own calls.
func TestConnections(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	o := options(t)
	o.Endpoint.Host = l.address
	p := open(t, o)
	box := create(t, p, sandpit.Spec{Image: busybox})
	shell(t, box, "true")
	before := l.accepted.Load()
	for range 4 {
		var group sync.WaitGroup
		for range 5 {
			group.Go(func() {
				if _, code := run(t, box, "true"); code != 0 {
					t.Errorf("exit code %d", code)
				}
			})
		}
		group.Wait()
	}
	if made := l.accepted.Load() - before; made > 1 { // the stream of events may break
		t.Errorf("20 commands make %d connections", made)
	}
	before = l.accepted.Load()
	for range 20 {
		if _, err := p.List(within(t)); err != nil {
			t.Fatal(err)
		}
	}
	if made := l.accepted.Load() - before; made > 5 {
		t.Errorf("20 calls of the engine make %d connections", made)
	}
}

// TestUnreachable has the engine be away, and come back.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	l := newLine(t)
	o := options(t)
	o.Endpoint.Host, o.Patience, o.CallTimeout = l.address, 500*time.Millisecond, 20*time.Second
	p := open(t, o)
	box := create(t, p, sandpit.Spec{Image: busybox})
	l.cut(true)
	_, err := box.Wait(within(t))
	wantCode(t, err, sandpit.Unavailable)
	_, err = p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: busybox})
	wantCode(t, err, sandpit.Unavailable)
	if sandpit.HintOf(err) == "" {
		t.Errorf("no hint: %v", err)
	}
	l.cut(false)
	if got := shell(t, box, "echo back"); got != "back\n" {
		t.Errorf("got %q", got)
	}
}

// TestOwnerChanges has another program take over a sandbox while the first hangs
// and holds its attachment.
func TestOwnerChanges(t *testing.T) {
	t.Parallel()
	o := options(t)
	first := open(t, o)
	box := create(t, first, sandpit.Spec{Image: busybox, Env: map[string]string{"KEPT": "yes"}})
	shell(t, box, "echo left > left")
	second := open(t, o)
	attached, err := second.Attach(within(t), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, attached, "cat left; echo $KEPT"); got != "left\nyes\n" {
		t.Errorf("got %q", got)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	third := open(t, o)
	list, err := third.List(within(t))
	if err != nil || len(list) != 1 {
		t.Fatalf("list: %v, %v", list, err)
	}
	last, err := third.Attach(within(t), list[0].Handle)
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, last, "cat left"); got != "left\n" {
		t.Errorf("got %q", got)
	}
	if err := last.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
}

// TestExits ends sandboxes in several ways.
func TestExits(t *testing.T) {
	t.Parallel()
	o := options(t)
	p := open(t, o)
	api := testdocker.Client(t)
	for name, tc := range map[string]struct {
		end   func(t *testing.T, box *docker.Instance, container string)
		known bool
		want  string
	}{
		"killed": {func(t *testing.T, _ *docker.Instance, container string) {
			t.Helper()
			if _, err := api.ContainerKill(within(t), container, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
				t.Fatal(err)
			}
		}, true, "killed by another program"},
		"killed after a program ran out of memory": {func(t *testing.T, box *docker.Instance, container string) {
			t.Helper()
			run(t, box, "tail", "/dev/zero") // ends at the limit
			for begin := time.Now(); ; time.Sleep(100 * time.Millisecond) {
				stats, err := box.Stats(within(t))
				if err != nil {
					t.Fatal(err)
				}
				if stats.OOMKills > 0 {
					break
				}
				if time.Since(begin) > long {
					t.Fatal("no kill for lack of memory was counted")
				}
			}
			if _, err := api.ContainerKill(within(t), container, client.ContainerKillOptions{Signal: "KILL"}); err != nil {
				t.Fatal(err)
			}
		}, true, "killed by another program"},
		"exited": {func(t *testing.T, _ *docker.Instance, container string) {
			t.Helper()
			if _, err := api.ContainerKill(within(t), container, client.ContainerKillOptions{Signal: "TERM"}); err != nil {
				t.Fatal(err)
			}
		}, true, "exit status 0"},
		"destroyed": {func(t *testing.T, box *docker.Instance, _ string) {
			t.Helper()
			if err := box.Destroy(within(t)); err != nil {
				t.Fatal(err)
			}
		}, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := create(t, p, sandpit.Spec{Image: busybox, Resources: sandpit.Resources{Memory: 64 << 20}})
			tc.end(t, box, "sandpit-"+string(box.ID()))
			exit, err := box.Wait(within(t))
			if err != nil || exit.Reason == "" || !strings.Contains(exit.Reason, tc.want) || tc.known && !exit.Known {
				t.Errorf("exit: %+v, %v; want a reason with %q", exit, err, tc.want)
			}
			_, err = box.Guest().Stat(within(t), "", "/")
			wantCode(t, err, sandpit.Gone)
		})
	}
}

// TestDamagedRecord destroys a sandbox whose record the machine has lost the content of.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{"empty": "", "half": `{"id":"s`, "another type": `[1]`} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := options(t)
			box := create(t, open(t, o), sandpit.Spec{Image: busybox})
			file := filepath.Join(o.StateDir, "sandboxes", string(box.ID())+".json")
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			p := open(t, o)
			attached, err := p.Attach(within(t), box.Handle())
			if err != nil {
				t.Fatal(err)
			}
			if err := attached.Destroy(within(t)); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the record: %v, want it gone", err)
			}
		})
	}
}

// TestLostRecord destroys a sandbox of which only the container is left.
func TestLostRecord(t *testing.T) {
	t.Parallel()
	o := options(t)
	box := create(t, open(t, o), sandpit.Spec{Image: busybox, Name: "found by its label"})
	if err := os.Remove(filepath.Join(o.StateDir, "sandboxes", string(box.ID())+".json")); err != nil {
		t.Fatal(err)
	}
	p := open(t, o)
	list, err := p.List(within(t))
	if err != nil || len(list) != 1 || list[0].Spec.Name != "found by its label" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	attached, err := p.Attach(within(t), list[0].Handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := attached.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
}
