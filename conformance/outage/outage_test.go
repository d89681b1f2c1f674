package outage_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// killsVariable says how often a daemon is killed.
const killsVariable = "SANDPIT_TEST_DOCKER_KILLS"

func TestMain(m *testing.M) {
	if state := os.Getenv(stateVariable); state != "" {
		os.Exit(makeAndDelete(state))
	}
	goleak.VerifyTestMain(m)
}

// kills is how often a daemon is killed: once in the middle of each thing that is done,
// unless the configuration says otherwise.
func kills(t *testing.T) int {
	t.Helper()
	text := os.Getenv(killsVariable)
	if text == "" {
		return len(acts)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// act is something in whose middle the daemon is killed.
type act struct {
	name string
	// span is about how long it takes.
	span time.Duration
	// starts says that it starts a container. A daemon that is killed while it does may
	// lose what containerd has started: no client can end that, or start the container
	// again, through it. Its files are there.
	starts bool
	// keeps says that it does nothing to the container: one that ended with its daemon
	// can be had back.
	keeps bool
	do    func(ctx context.Context, w *world) error
}

var acts = []act{
	{"create", 600 * time.Millisecond, true, false, func(ctx context.Context, w *world) error {
		box, err := w.p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: w.image})
		if err == nil && box.Guest() == nil {
			err = errors.New("no guest")
		}
		return err
	}},
	{"exec", 200 * time.Millisecond, false, true, func(ctx context.Context, w *world) error {
		for i := range 100 {
			out, err := run(ctx, w.box, fmt.Sprint("echo ", i))
			if err != nil {
				return err
			}
			if out != fmt.Sprintln(i) {
				w.t.Errorf("the command put out %q, want %d", out, i)
			}
		}
		return nil
	}},
	{"stop and start", 2 * time.Second, true, false, func(ctx context.Context, w *world) error {
		if err := w.box.Stop(ctx); err != nil {
			return err
		}
		return w.box.Start(ctx)
	}},
	{"delete", 300 * time.Millisecond, false, false, func(ctx context.Context, w *world) error { return w.box.Destroy(ctx) }},
}

// world is a daemon, a provider and a sandbox.
type world struct {
	t     *testing.T
	d     *daemon
	end   func(*daemon) // how the daemon goes
	state string
	p     *docker.Provider
	image sandpit.Image
	box   *docker.Instance
}

// TestDaemonKilled ends Docker's daemon at random moments of everything that is done,
// and starts it again.
func TestDaemonKilled(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		options []string
		end     func(*daemon)
	}{
		"plain":        {nil, (*daemon).kill},
		"live-restore": {[]string{"--live-restore"}, (*daemon).kill},
		// As a service manager restarts it: it ends its containers first.
		"in good order": {nil, (*daemon).stop},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "plain" {
				t.Skip("only the daemon differs")
			}
			w := &world{t: t, d: newDaemon(t, tc.options...), end: tc.end, state: t.TempDir(), image: rootFS(t)}
			w.p = w.d.open(w.state, nil)
			survived := 0
			for i := range kills(t) {
				w.box = w.make()
				a := acts[i%len(acts)]
				if w.round(a) {
					survived++
				}
				removeAll(t, w.p)
				if a.starts {
					w.d.endLost()
				}
				w.d.expectNothing(w.state)
				if t.Failed() {
					t.Fatalf("in round %d; the daemon says:\n%s", i, w.d.log())
				}
			}
			t.Logf("%d of %d sandboxes went on", survived, kills(t))
		})
	}
}

// make makes a sandbox with a file.
func (w *world) make() *docker.Instance {
	w.t.Helper()
	made, err := w.p.Create(within(w.t), sandpit.NewID(), sandpit.Spec{Image: w.image})
	if err != nil {
		w.t.Fatalf("create: %v", err)
	}
	box, ok := made.(*docker.Instance)
	if !ok {
		w.t.Fatalf("an instance of another kind: %T", made)
	}
	if _, err := run(within(w.t), box, "echo kept > kept; sync"); err != nil {
		w.t.Fatal(err)
	}
	return box
}

// round kills the daemon in the middle of an act and looks at what became of the
// sandbox. It reports whether that runs.
func (w *world) round(a act) bool {
	w.t.Helper()
	acted := make(chan error, 1)
	ctx := within(w.t)
	go func() { acted <- a.do(ctx, w) }()
	delay := rand.N(a.span)
	time.Sleep(delay)
	w.end(w.d)
	w.d.start()
	err := <-acted // bounded by its context
	if ctx.Err() != nil {
		w.t.Fatalf("%s, killed after %s: no answer: %v", a.name, delay, err)
	}
	switch code := sandpit.CodeOf(err); {
	case err == nil, code == sandpit.Unavailable, code == sandpit.Gone, code == sandpit.Conflict, code == sandpit.Internal && a.starts: // the last is what the daemon says of what it has lost
	default:
		w.t.Errorf("%s, killed after %s: %v (%s)", a.name, delay, err, code)
	}
	state := w.look(a)
	w.t.Logf("%s, killed after %s: %v; the sandbox is %s", a.name, delay, err, state)
	return state == "running"
}

// look says what became of the sandbox, having tried whether that is true. One that is
// stopped may need several tries: a daemon that was killed in the middle of starting it
// has to find out what is left of that, and may end it once more.
func (w *world) look(a act) string {
	w.t.Helper()
	was := "running"
	for begin := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		if w.tryRunning() {
			return was
		}
		err := w.box.Start(within(w.t))
		switch {
		case sandpit.CodeOf(err) == sandpit.Gone:
			exit, err := w.box.Wait(within(w.t))
			if err != nil || exit.Reason == "" {
				w.t.Errorf("a sandbox that is gone says %+v, %v", exit, err)
			}
			if a.keeps {
				w.revive()
			}
			return "gone: " + exit.Reason
		case err == nil:
			was = "stopped"
		case a.starts && time.Since(begin) > 10*time.Second && w.isStuck(err):
			return "stuck"
		case time.Since(begin) > time.Minute:
			w.t.Errorf("neither running, nor to be started: %v", err)
			return "lost"
		default:
			w.t.Logf("start: %v", err)
		}
	}
}

// revive has a sandbox that ended with its daemon made again, with its files. The daemon
// may still be about its end.
func (w *world) revive() {
	w.t.Helper()
	for begin := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		again, err := w.box.Revive(within(w.t))
		if err == nil {
			out, err := run(within(w.t), again, "cat kept")
			if err != nil || out != "kept\n" {
				w.t.Errorf("a sandbox that was made again has the file %q, %v", out, err)
			}
			return
		}
		if time.Since(begin) > time.Minute {
			w.t.Errorf("a sandbox that ended with its daemon cannot be made again: %v", err)
			return
		}
		w.t.Logf("revive: %v", err)
	}
}

// isStuck reports whether the daemon has lost what it was starting, by its words, since
// it has no code for it. The sandbox's file must be there all the same.
func (w *world) isStuck(err error) bool {
	w.t.Helper()
	text := err.Error()
	if !strings.Contains(text, "already exists") && !strings.Contains(text, "already in use") {
		return false
	}
	if got := w.d.client().file(within(w.t), "sandpit-"+string(w.box.ID()), "/workspace/kept"); got != "kept\n" {
		w.t.Errorf("the file of a sandbox that cannot be started holds %q", got)
	}
	return true
}

// tryRunning reports whether the sandbox runs, and complains if it has lost its file.
func (w *world) tryRunning() bool {
	w.t.Helper()
	for ctx := within(w.t); ; time.Sleep(100 * time.Millisecond) {
		out, err := run(ctx, w.box, "cat kept")
		switch code := sandpit.CodeOf(err); {
		case err == nil:
			if out != "kept\n" {
				w.t.Errorf("the file holds %q", out)
			}
			return true
		case code == sandpit.Gone, code == sandpit.Conflict:
			return false
		case code != sandpit.Unavailable || ctx.Err() != nil:
			w.t.Errorf("a command: %v", err)
			return false
		}
	}
}

// TestDaemonHangs has the daemon stand still: calls end in their time, Close too, and
// afterwards everything is found.
func TestDaemonHangs(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	state := t.TempDir()
	image := rootFS(t)
	p := d.open(state, func(o *docker.Options) { o.CallTimeout, o.Patience = 2*time.Second, time.Second })
	box, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: image})
	for sandpit.CodeOf(err) == sandpit.Unavailable { // too slow for such a short time
		t.Logf("again: %v", err)
		box, err = p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: image})
	}
	if err != nil {
		t.Fatal(err)
	}
	held, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	d.signal(syscall.SIGSTOP)
	bounded := func(what string, do func(ctx context.Context) error) {
		t.Helper()
		ctx := within(t)
		err := do(ctx)
		if ctx.Err() != nil || sandpit.CodeOf(err) != sandpit.Unavailable {
			t.Errorf("%s while the daemon hangs: %v", what, err)
		}
	}
	bounded("a command under way", func(ctx context.Context) error {
		_, err := held.Wait(ctx)
		return err
	})
	bounded("a command", func(ctx context.Context) error { return alive(ctx, box.Guest()) })
	bounded("destroy", box.Destroy)
	bounded("create", func(ctx context.Context) error {
		_, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: image})
		return err
	})
	bounded("list", func(ctx context.Context) error {
		_, err := p.List(ctx)
		return err
	})
	bounded("wait", func(ctx context.Context) error {
		_, err := box.Wait(ctx)
		return err
	})
	closed := make(chan error, 1)
	go func() { closed <- p.Close() }()
	select {
	case err := <-closed:
		if err != nil {
			t.Errorf("close: %v", err)
		}
	case <-within(t).Done():
		t.Error("close does not end while the daemon hangs")
	}
	d.signal(syscall.SIGCONT)
	removeAll(t, d.open(state, nil))
	d.expectNothing(state)
}

// TestDestroyedMeanwhile destroys sandboxes in the middle of calls of their guests.
func TestDestroyedMeanwhile(t *testing.T) {
	t.Parallel()
	d := newDaemon(t)
	state := t.TempDir()
	p := d.open(state, nil)
	image := rootFS(t)
	for range 3 {
		box, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: image})
		if err != nil {
			t.Fatal(err)
		}
		const many = 8
		ends := make(chan error, many)
		ctx := within(t)
		for range many {
			go func() {
				for {
					if _, err := run(ctx, box, "echo x"); err != nil {
						ends <- err
						return
					}
				}
			}()
		}
		time.Sleep(rand.N(200 * time.Millisecond))
		if err := box.Destroy(within(t)); err != nil {
			t.Error(err)
		}
		for range many {
			if err := <-ends; sandpit.CodeOf(err) != sandpit.Gone {
				t.Errorf("a command in the middle of which its sandbox was destroyed: %v, want %s", err, sandpit.Gone)
			}
		}
		exit, err := box.Wait(within(t))
		if err != nil || exit.Reason != "the sandbox was destroyed" {
			t.Errorf("exit: %+v, %v", exit, err)
		}
	}
	d.expectNothing(state)
}
