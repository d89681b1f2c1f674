package attacks_test

import (
	"context"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// small are limits that a test can reach without harm to a machine where they
// do not hold: what the attacker tries is bounded besides, by the attempt's count.
var small = sandpit.Resources{Memory: 256 << 20, PIDs: 100, Disk: 300 << 20}

func floodAttacks() []attack {
	return []attack{
		{name: "descriptor-flood", as: anybody, in: everybox, count: 2000, long: 200000, mortal: true, proves: "Open files, also of the machine's, run out inside first."},
		{name: "thread-flood", as: root, in: imageBox, count: 200, long: 5000, mortal: true, proves: "Threads are the sandbox's own."},
		{name: "zombie-flood", as: root, in: imageBox, count: 40, long: 5000, mortal: true, proves: "Children without a waiting parent affect only the sandbox."},
		{name: "signal-flood", as: anybody, in: imageBox, count: 5000, long: 500000, mortal: true, proves: "Endless signals do not slow down the machine."},
		{name: "event-flood", as: root, in: imageBox, count: 500, long: 50000, mortal: true, proves: "Countless timers, events and nested epolls affect only the sandbox."},
		{name: "pipe-flood", as: root, in: imageBox, count: 200, long: 2000, mortal: true, proves: "Full pipes use the sandbox's own memory."},
		{name: "socket-flood", as: root, in: imageBox, count: 500, long: 20000, mortal: true, proves: "Connections, ports and descriptors on their way are the sandbox's own."},
		{name: "file-flood", as: anybody, in: everybox, count: 1000, long: 50000, mortal: true, proves: "Files without number are in the sandbox's own layer."},
		{name: "deep-directories", as: user, in: everybox, count: 200, long: 5000, mortal: true, proves: "Deep directories and links to links do not harm programs that read them."},
		{name: "mapping-flood", as: root, in: imageBox, count: 3000, long: 60000, mortal: true, proves: "Mappings without number run out inside first."},
		{name: "watch-flood", as: root, in: everybox, count: 300, long: 10000, mortal: true, proves: "Watched directories, and unread events, affect only the sandbox."},
		{name: "terminal-flood", as: root, in: imageBox, count: 20000, long: 500000, play: playFlood(52), proves: "Orders to a terminal arrive as the bytes they are."},
		{name: "binary-flood", as: root, in: imageBox, count: 100, long: 5000, play: playFlood(1 << 16), proves: "Output that is no text arrives whole."},
		{name: "long-line", as: root, in: imageBox, count: 20, long: 100, play: playFlood(1 << 20), proves: "A line without end arrives whole, and needs no memory for its length."},
	}
}

// limitAttacks are made in small sandboxes of their own.
func limitAttacks() []attack {
	return []attack{
		{name: "fork-bomb", as: anybody, in: imageBox, count: 300, play: playLimit(false), proves: "No more processes can be started than the limit allows."},
		{name: "memory-hog", as: anybody, in: imageBox, count: 700, play: playLimit(true), proves: "No more memory can be used than the limit allows."},
		{name: "fill-tmp", as: anybody, in: everybox, count: 700, play: playLimit(false), proves: "/tmp takes no more than the limits allow, and a full one ends nothing."},
		{name: "fill-shm", as: anybody, in: imageBox, count: 700, play: playLimit(false), proves: "/dev/shm takes no more than the limits allow, and a full one ends nothing."},
		{name: "fill-root", as: root, in: everybox, count: 700, play: playLimit(false), proves: "A sandbox's own files take no more than the limits allow, and a full layer ends nothing."},
		{name: "busy", as: anybody, in: imageBox, count: 1500, play: playBusy, proves: "A sandbox that uses all the processors it can leaves others enough to answer."},
	}
}

// counter counts bytes.
type counter struct{ total int64 }

func (c *counter) Write(b []byte) (int, error) {
	c.total += int64(len(b))
	return len(b), nil
}

// playFlood has the attacker write, each time so many bytes, with and without a
// terminal.
func playFlood(size int64) func(t *testing.T, s scene) {
	return func(t *testing.T, s scene) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 5*attackTime)
		defer cancel()
		name := map[int64]string{52: "terminal-flood", 1 << 16: "binary-flood", 1 << 20: "long-line"}[size]
		for _, terminal := range []*sandpit.TerminalSize{nil, {Cols: 80, Rows: 24}} {
			var out counter
			p, err := s.box.Guest().Start(ctx, sandpit.Command{
				Args: []string{programPath, name, s.params(t)}, Stdout: &out, Stderr: io.Discard, Terminal: terminal,
			})
			if err != nil {
				t.Fatal(err)
			}
			status, err := p.Wait(ctx)
			want := int64(s.count) * size
			// A terminal adds returns to the ends of lines.
			if err != nil || status.Code != 0 || out.total < want || (terminal == nil && out.total != want) {
				t.Errorf("%d bytes, want %d: %v, %v", out.total, want, status, err)
			}
		}
	}
}

// playLimit has the attacker use up more than a small sandbox may have. Where
// the attacker is lethal it may be killed for it; else the sandbox must go on.
func playLimit(lethal bool) func(t *testing.T, s scene) {
	return func(t *testing.T, s scene) {
		t.Helper()
		name := strings.Split(t.Name(), "/")[2]
		box := s.lab.tryBox(t, s.place, small)
		s.box = box
		defer func() {
			if err := box.Destroy(context.WithoutCancel(t.Context())); err != nil {
				t.Errorf("destroy: %v", err)
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), attackTime)
		defer cancel()
		var out bounded
		p, err := box.Guest().Start(ctx, sandpit.Command{
			Args: []string{programPath, name, s.params(t)}, User: s.user(), Dir: "/tmp", Stdout: &out, Stderr: &out,
		})
		if err != nil {
			t.Fatal(err)
		}
		status, err := p.Wait(ctx)
		t.Logf("the attacker: %v, %v, %.300s", status, err, &out)
		if err == nil && status.Code == 0 {
			for _, step := range s.decode(t, out.Bytes()) {
				done, _, found := strings.Cut(step.Got, ",")
				n, err := strconv.Atoi(done)
				if found && (err != nil || n >= s.count || strings.HasSuffix(step.Got, "<nil>")) {
					t.Errorf("%s: %s of %d, and no limit was met", step.Try, step.Got, s.count)
				}
			}
		}
		if lethal && sandpit.CodeOf(err) == sandpit.Gone {
			exit, err := box.Wait(ctx)
			t.Logf("the sandbox has ended: %+v, %v", exit, err)
			if err != nil || exit.Reason == "" {
				t.Errorf("wait: %+v, %v", exit, err)
			}
			return
		}
		if got, err := output(ctx, box, "echo alive"); err != nil || got != "alive" {
			t.Errorf("the sandbox answers %q, %v", got, err)
		}
	}
}

// tryBox makes a sandbox with limits, or skips the test where they cannot be
// kept.
func (l *lab) tryBox(t *testing.T, place audience, limits sandpit.Resources) sandpit.Instance {
	t.Helper()
	spec := sandpit.Spec{Image: l.image, Hostname: "limited", Resources: limits}
	if place == hostBox {
		spec.Image = sandpit.HostImage
	}
	box, err := l.provider.Create(t.Context(), sandpit.NewID(), spec)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		testengine.Skip(t, "this machine keeps no limits: %v", err)
	}
	if err != nil {
		t.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	l.putProgram(t, box)
	return box
}

// playBusy asks the neighbour while a sandbox is busy.
func playBusy(t *testing.T, s scene) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.attempt(t, attack{name: "busy"})
	}()
	for running := true; running; {
		started := time.Now()
		if got, err := output(t.Context(), s.lab.neighbour, "echo alive"); err != nil || got != "alive" {
			t.Errorf("the neighbour answers %q, %v", got, err)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("the neighbour took %v", took)
		}
		select {
		case <-done:
			running = false
		default:
		}
	}
}
