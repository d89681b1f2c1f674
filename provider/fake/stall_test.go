package fake_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// shortBounds are the bounds of these tests. The longest that a call may take is slowest.
var shortBounds = liveness.Options{
	Quiet: 50 * time.Millisecond, Interval: 100 * time.Millisecond, Patience: 500 * time.Millisecond, Recheck: 250 * time.Millisecond,
	Call: 600 * time.Millisecond, Change: 800 * time.Millisecond, Stream: 3 * time.Second, Pace: 600 * time.Millisecond,
}

const slowest = 8 * time.Second

// stalledWorld has one sandbox with a file and a directory in it.
func stalledWorld(t *testing.T) (*fake.World, *fake.Instance) {
	t.Helper()
	w := newWorld(t)
	w.SetLiveness(shortBounds)
	i := create(t, open(t, w))
	if err := i.Guest().WriteFile(t.Context(), "", "~/file", strings.NewReader(strings.Repeat("x", 4<<10)), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	return w, i
}

// guestCall is a call into a sandbox, from its beginning to its end. begun is called when a
// guest that works has begun to answer.
type guestCall func(ctx context.Context, i *fake.Instance, begun func()) error

func content(r io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}

func ended(ctx context.Context, p sandpit.Process, err error, begun func()) error {
	if err != nil {
		return err
	}
	begun()
	_, err = p.Wait(ctx)
	return err
}

func journalOf(i *fake.Instance) sandpit.Journal {
	j, _ := sandpit.As[sandpit.Journal](i.Guest())
	return j
}

// calls are all that a guest can be asked. Those that end by themselves while the guest works
// are short; the others wait for a process, or for what happens to files.
var (
	shortCalls = map[string]guestCall{
		"list processes": func(ctx context.Context, i *fake.Instance, _ func()) error {
			_, err := i.Guest().ListProcesses(ctx)
			return err
		},
		"list commands": func(ctx context.Context, i *fake.Instance, _ func()) error {
			_, err := journalOf(i).ListCommands(ctx)
			return err
		},
		"get command": func(ctx context.Context, i *fake.Instance, _ func()) error {
			_, err := journalOf(i).GetCommand(ctx, "none")
			return err
		},
		"forget command": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return journalOf(i).ForgetCommand(ctx, "none")
		},
		"follow": func(ctx context.Context, i *fake.Instance, _ func()) error {
			_, err := journalOf(i).Follow(ctx, "none", sandpit.FollowOptions{})
			return err
		},
		"start": func(ctx context.Context, i *fake.Instance, begun func()) error {
			p, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"true"}})
			return ended(ctx, p, err, begun)
		},
		"start with input": func(ctx context.Context, i *fake.Instance, begun func()) error {
			p, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"cat"}, Stdin: strings.NewReader("input")})
			return ended(ctx, p, err, begun)
		},
		"connect": func(ctx context.Context, i *fake.Instance, begun func()) error {
			p, err := i.Guest().Connect(ctx, 1<<30, sandpit.Streams{})
			return ended(ctx, p, err, begun)
		},
		"read": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return content(i.Guest().ReadFile(ctx, "", "~/file"))
		},
		"read range": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return content(i.Guest().ReadRange(ctx, "", "~/file", 1, 4000))
		},
		"read tree": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return content(i.Guest().ReadTree(ctx, "", "~"))
		},
		"write": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return i.Guest().WriteFile(ctx, "", "~/new", bytes.NewReader(make([]byte, 8<<20)), sandpit.WriteOptions{})
		},
		"write tree": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return i.Guest().WriteTree(ctx, "", "~/tree", bytes.NewReader(make([]byte, 1024)))
		},
		"stat": func(ctx context.Context, i *fake.Instance, _ func()) error {
			_, err := i.Guest().Stat(ctx, "", "~/file")
			return err
		},
		"list": func(ctx context.Context, i *fake.Instance, _ func()) error {
			_, err := i.Guest().ListDir(ctx, "", "~", 1)
			return err
		},
		"make dir": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return i.Guest().MakeDir(ctx, "", "~/dir")
		},
		"move": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return i.Guest().Move(ctx, "", "~/a", "~/b")
		},
		"remove": func(ctx context.Context, i *fake.Instance, _ func()) error { return i.Guest().Remove(ctx, "", "~/a") },
		"its protocol": func(ctx context.Context, i *fake.Instance, _ func()) error {
			server, _ := sandpit.As[sandpit.GuestServer](i.Guest())
			return get(ctx, server.HTTP(), "/envs")
		},
		"its port": func(ctx context.Context, i *fake.Instance, _ func()) error {
			return get(ctx, i.HTTP(guest.Port), "/metrics")
		},
	}
	longCalls = map[string]guestCall{
		"silent command": func(ctx context.Context, i *fake.Instance, begun func()) error {
			p, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"sleep", "1"}})
			return ended(ctx, p, err, begun)
		},
		"named command": func(ctx context.Context, i *fake.Instance, begun func()) error {
			p, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"sleep", "1"}, ID: "mine"})
			return ended(ctx, p, err, begun)
		},
		"terminal": func(ctx context.Context, i *fake.Instance, begun func()) error {
			in, stop := io.Pipe()
			defer stop.Close()
			p, err := i.Guest().Start(ctx, sandpit.Command{
				Args: []string{"sleep", "1"}, Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24}, Stdin: in,
			})
			return ended(ctx, p, err, begun)
		},
	}
)

func get(ctx context.Context, rt http.RoundTripper, path string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+path, http.NoBody)
	if err != nil {
		return err
	}
	res, err := rt.RoundTrip(r) //nolint:bodyclose // content closes it
	if err != nil {
		return err
	}
	return content(res.Body, nil)
}

// TestNothingHangs makes every call to guests that hang in every way.
func TestNothingHangs(t *testing.T) {
	t.Parallel()
	for stall, s := range map[string]fake.Stall{
		"stopped":     {Stopped: true},
		"mute":        {Mute: true},
		"mute midway": {Mute: true, After: 3},
		"slow":        {Pause: time.Second},
	} {
		for name, call := range shortCalls {
			t.Run(stall+"/"+name, func(t *testing.T) {
				t.Parallel()
				w, i := stalledWorld(t)
				if err := w.Stall(i.ID(), s); err != nil {
					t.Fatal(err)
				}
				begin := time.Now()
				err := call(t.Context(), i, func() {})
				if took := time.Since(begin); took > slowest {
					t.Errorf("it took %v", took)
				}
				if err == nil || sandpit.CodeOf(err) == sandpit.NotFound {
					if s.Stopped {
						t.Errorf("a stopped guest answers: %v", err)
					}
					return // few bytes were enough
				}
				if s.Pause == 0 { // else an error of the guest's own may have come half
					checkHung(t, err)
				}
			})
		}
	}
}

// TestStreamSaysWhy has the guest stop in the middle of a stream of its own protocol, as
// clients that know it get it.
func TestStreamSaysWhy(t *testing.T) {
	t.Parallel()
	w, i := stalledWorld(t)
	server, _ := sandpit.As[sandpit.GuestServer](i.Guest())
	client := processconnect.NewProcessClient(&http.Client{Transport: server.HTTP()}, "http://guest")
	stream, err := client.Start(t.Context(), connect.NewRequest(&process.StartRequest{
		Process: &process.ProcessConfig{Cmd: "sleep", Args: []string{"1"}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	if !stream.Receive() {
		t.Fatal(stream.Err())
	}
	if err := w.Stall(i.ID(), fake.Stall{Stopped: true}); err != nil {
		t.Fatal(err)
	}
	for stream.Receive() {
	}
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnavailable || !strings.Contains(err.Error(), "sandpit stop ") {
		t.Errorf("got %v, want why and what to do", err)
	}
}

// checkHung wants an error that says what happened and what to do.
func checkHung(t *testing.T, err error) {
	t.Helper()
	if sandpit.CodeOf(err) != sandpit.Unavailable || !strings.Contains(err.Error(), "does not answer") && !strings.Contains(err.Error(), "did not complete the call") || !strings.Contains(sandpit.HintOf(err), "sandpit stop ") {
		t.Errorf("got %s: %v (hint %q), want unavailable, why, and what to do", sandpit.CodeOf(err), err, sandpit.HintOf(err))
	}
}

// TestStoppedMidway has the guest stop while calls go on.
func TestStoppedMidway(t *testing.T) {
	t.Parallel()
	for name, call := range longCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, i := stalledWorld(t)
			begin := time.Now()
			err := call(t.Context(), i, func() {
				if err := w.Stall(i.ID(), fake.Stall{Stopped: true}); err != nil {
					t.Error(err)
				}
			})
			if took := time.Since(begin); took > slowest {
				t.Errorf("it took %v", took)
			}
			checkHung(t, err)
		})
	}
}

// TestWatchEnds has the guest stop while files are watched.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	w, i := stalledWorld(t)
	watcher, err := i.Guest().Watch(t.Context(), "", "~", sandpit.WatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	if err := w.Stall(i.ID(), fake.Stall{Stopped: true}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), slowest)
	defer cancel()
	_, err = watcher.Next(ctx)
	checkHung(t, err)
}

// TestNothingIsCutOff has calls take longer than every bound while the guest is there.
func TestNothingIsCutOff(t *testing.T) {
	t.Parallel()
	for name, call := range longCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, i := stalledWorld(t)
			if err := call(t.Context(), i, func() {}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPausedIsNotCutOff pauses a sandbox for longer than every bound while calls go on, whose
// guest does nothing meanwhile.
func TestPausedIsNotCutOff(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]guestCall{"command": longCalls["silent command"], "stat": shortCalls["stat"], "read": shortCalls["read"]} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, i := stalledWorld(t)
			must := func(err error) {
				if err != nil {
					t.Error(err)
				}
			}
			if name != "command" {
				must(w.Stall(i.ID(), fake.Stall{Stopped: true}))
			}
			done, begun := make(chan error, 1), make(chan struct{})
			go func() { done <- call(t.Context(), i, func() { close(begun) }) }()
			if name == "command" {
				<-begun
			} else { // a guest that hangs has the call and does not begin it
				for hanging := 0; hanging == 0; time.Sleep(time.Millisecond) {
					var err error
					hanging, err = w.Hanging(i.ID())
					must(err)
				}
			}
			must(i.Pause(t.Context()))
			must(w.Stall(i.ID(), fake.Stall{Stopped: true}))
			select {
			case err := <-done:
				t.Fatalf("it ended while the sandbox was paused: %v", err)
			case <-time.After(2 * time.Second):
			}
			must(w.Stall(i.ID(), fake.Stall{}))
			must(i.Resume(t.Context()))
			must(<-done)
		})
	}
}

// TestSilentGuestIsAskedAgain has calls to a guest that did not answer fail soon, and succeed
// when it answers again.
func TestSilentGuestIsAskedAgain(t *testing.T) {
	t.Parallel()
	w, i := stalledWorld(t)
	stat := func() error { _, err := i.Guest().Stat(t.Context(), "", "~/file"); return err }
	if err := w.Stall(i.ID(), fake.Stall{Stopped: true}); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	checkHung(t, stat())
	first := time.Since(begin)
	checkHung(t, stat())
	if second := time.Since(begin) - first; second >= first {
		t.Errorf("the first call took %v, the second %v", first, second)
	}
	if err := w.Stall(i.ID(), fake.Stall{}); err != nil {
		t.Fatal(err)
	}
	if err := stat(); err != nil {
		t.Errorf("when it answers again: %v", err)
	}
}

// TestCancelStalled gives up calls to a guest that does nothing.
func TestCancelStalled(t *testing.T) {
	t.Parallel()
	w, i := stalledWorld(t)
	if err := w.Stall(i.ID(), fake.Stall{Stopped: true}); err != nil {
		t.Fatal(err)
	}
	for name, call := range shortCalls {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			begin := time.Now()
			err := call(ctx, i, func() {})
			if took := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) && sandpit.CodeOf(err) != sandpit.Unavailable || took > slowest {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
}
