package gvisor_test

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// hostileTime is how long a hostile sandbox may keep a caller by the caller's
// context, and hostileSlack how much later the call must have returned.
const (
	hostileTime  = 5 * time.Second
	hostileSlack = 20 * time.Second
)

// hostileProgram builds the program that plays the guest.
var hostileProgram = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sandpit-hostile-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "hostile")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", path, "./testdata/hostile")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// newHostileProvider returns a provider whose guest is the hostile program: its
// image lies where the provider looks for that of the honest one.
func newHostileProvider(t *testing.T) *gvisor.Provider {
	t.Helper()
	engine := testengine.Path(t)
	program, err := hostileProgram()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	key := guestbin.Digest(runtime.GOARCH)
	if key == "" {
		key = buildID(t, engine)
	}
	opened := false
	_, err = images.Single(t.Context(), key, guest.Name, func() (io.ReadCloser, error) {
		opened = true
		return io.NopCloser(bytes.NewReader(program)), nil
	})
	if err != nil || !opened {
		t.Fatalf("plant the hostile guest: %v, %v", opened, err)
	}
	return newProvider(t, dir)
}

// buildID returns what the provider names the guest's image by when the engine
// plays the guest.
func buildID(t *testing.T, path string) string {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	note, err := f.Section(".note.go.buildid").Data()
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(bytes.TrimRight(note[16:], "\x00"))
}

// inTime calls f and complains if it takes longer than a hostile sandbox may
// take.
func inTime(t *testing.T, what string, f func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hostileTime)
	defer cancel()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(ctx)
	}()
	select {
	case <-done:
	case <-time.After(hostileTime + hostileSlack):
		stacks := make([]byte, 1<<20)
		t.Fatalf("%s hangs:\n%s", what, stacks[:runtime.Stack(stacks, true)])
	}
}

// TestHostileGuestIsNoSandbox makes sandboxes whose first process never becomes
// a guest. Each fails in time, and an honest one in the same engine hears
// nothing of it.
func TestHostileGuestIsNoSandbox(t *testing.T) {
	p := newHostileProvider(t)
	honest := create(t, p, sandpit.Spec{Hostname: "honest"})
	before := resourcesOf(t)
	var wg sync.WaitGroup
	free := make(chan struct{}, 6) // most of it is waiting
	for mode, codes := range map[string][]sandpit.Code{
		"silent":                {sandpit.Timeout},
		"exit":                  {sandpit.Gone, sandpit.Unavailable},
		"refuse":                {sandpit.Unavailable},
		"badanswer":             {sandpit.Unavailable},
		"noanswer":              {sandpit.Timeout},
		"garbage":               {sandpit.Gone, sandpit.Internal},
		"endless":               {sandpit.Gone, sandpit.Internal},
		"hangup":                {sandpit.Gone},
		"floods":                {sandpit.Timeout},
		"closes":                {sandpit.Gone, sandpit.Unavailable, sandpit.Timeout},
		"lies-init-silent":      {sandpit.Timeout},
		"lies-init-redirect":    {sandpit.Internal},
		"lies-switch-silent":    {sandpit.Internal},
		"lies-error-escapes":    {sandpit.NotFound},
		"lies-error-endless":    {sandpit.Internal},
		"lies-continue-endless": {sandpit.Gone},
		"lies-head-1mib":        {sandpit.Gone},
	} {
		wg.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			t.Run(mode, func(t *testing.T) {
				inTime(t, "create", func(ctx context.Context) {
					box, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{Hostname: mode})
					if err == nil {
						t.Error("a sandbox came of it")
						_ = box.Destroy(ctx)
						return
					}
					if got := sandpit.CodeOf(err); !slices.Contains(codes, got) || len(err.Error()) > 4<<10 {
						t.Errorf("got %s, want %s: %.1000v", got, codes, err)
					}
				})
			})
		})
	}
	for range 50 {
		if got := output(t, honest, "echo alive"); got != "alive" {
			t.Errorf("the honest one: %q", got)
		}
	}
	wg.Wait()
	expectList(t, p, honest.ID())
	expectResources(t, before)
}

func expectList(t *testing.T, p *gvisor.Provider, want ...sandpit.ID) {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil || len(list) != len(want) {
		t.Errorf("list: %+v, %v; want %v", list, err, want)
		return
	}
	for i := range want {
		if list[i].ID != want[i] {
			t.Errorf("list: %+v, want %v", list, want)
		}
	}
}

// TestHostileGuestIsDestroyed has calls without a deadline hang in sandboxes
// that answer nothing or without end, and then destroys these.
func TestHostileGuestIsDestroyed(t *testing.T) {
	p := newHostileProvider(t)
	honest := create(t, p, sandpit.Spec{Hostname: "honest"})
	before := resourcesOf(t)
	for _, mode := range []string{
		"forks", "deaf", "lies-none", "lies-silence-after-start", "lies-stdout-endless-32768", "lies-file-endless", "lies-file-silent",
		"lies-watch-endless", "lies-upload-unread", "lies-list-endless", "lies-tree-silent", "lies-keepalives", "lies-signal-silent",
	} {
		t.Run(mode, func(t *testing.T) {
			var box sandpit.Instance
			inTime(t, "create", func(ctx context.Context) {
				var err error
				if box, err = p.Create(ctx, sandpit.NewID(), sandpit.Spec{Hostname: mode}); err != nil {
					t.Error(err)
				}
			})
			if t.Failed() {
				return
			}
			var calls sync.WaitGroup
			hangInside(t, box, &calls)
			time.Sleep(300 * time.Millisecond)
			inTime(t, "destroy", func(ctx context.Context) {
				if err := box.Destroy(ctx); err != nil {
					t.Error(err)
				}
			})
			inTime(t, "a call after the end", func(context.Context) { calls.Wait() })
			inTime(t, "wait", func(ctx context.Context) {
				if exit, err := box.Wait(ctx); err != nil || exit.Reason == "" {
					t.Errorf("wait: %+v, %v", exit, err)
				}
			})
			expectList(t, p, honest.ID())
		})
	}
	if got := output(t, honest, "echo alive"); got != "alive" {
		t.Errorf("the honest one: %q", got)
	}
	expectResources(t, before)
}

// hangInside makes calls that nothing but the sandbox's end ends.
func hangInside(t *testing.T, box sandpit.Instance, calls *sync.WaitGroup) {
	t.Helper()
	g, endless := box.Guest(), context.WithoutCancel(t.Context())
	in, keyboard := io.Pipe()
	calls.Go(func() {
		defer keyboard.Close()
		p, err := g.Start(endless, sandpit.Command{Args: []string{"x"}, Stdin: in, Stdout: io.Discard})
		if err != nil {
			return
		}
		calls.Go(func() { _ = p.Signal(endless, sandpit.SIGKILL) })
		_, _ = p.Wait(endless)
	})
	calls.Go(func() {
		if r, err := g.ReadFile(endless, "", "/file"); err == nil {
			_, _ = io.Copy(io.Discard, r)
			_ = r.Close()
		}
	})
	calls.Go(func() {
		if r, err := g.ReadTree(endless, "", "/dir"); err == nil {
			_, _ = io.Copy(io.Discard, r)
			_ = r.Close()
		}
	})
	calls.Go(func() { _ = g.WriteFile(endless, "", "/file", zeroes{}, sandpit.WriteOptions{}) })
	calls.Go(func() { _, _ = g.ListProcesses(endless) })
	calls.Go(func() {
		w, err := g.Watch(endless, "", "/dir", sandpit.WatchOptions{})
		if err != nil {
			return
		}
		for err == nil {
			_, err = w.Next(endless)
		}
		_ = w.Close()
	})
	calls.Go(func() {
		if _, err := box.Wait(endless); err != nil {
			t.Errorf("wait: %v", err)
		}
	})
	if dialer, ok := box.(sandpit.Dialer); ok {
		calls.Go(func() {
			if conn, err := dialer.Dial(endless, 80); err == nil {
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		})
	}
}

type zeroes struct{}

func (zeroes) Read(b []byte) (int, error) {
	clear(b)
	return len(b), nil
}

// TestDeafGuestHarmsNobody opens connections to guests that take none. What
// waits for them inside must not use up what the others need.
func TestDeafGuestHarmsNobody(t *testing.T) {
	p := newHostileProvider(t)
	honest := create(t, p, sandpit.Spec{Hostname: "honest"})
	const sandboxes, dials = 3, 600
	for range sandboxes {
		box := create(t, p, sandpit.Spec{Hostname: "deaf"})
		dialer, ok := box.(sandpit.Dialer)
		if !ok {
			t.Fatal("no raw connections")
		}
		var wg sync.WaitGroup
		codes := make(chan sandpit.Code, dials)
		free := make(chan struct{}, 50)
		for range dials {
			free <- struct{}{}
			wg.Go(func() {
				defer func() { <-free }()
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
				defer cancel()
				conn, err := dialer.Dial(ctx, 80)
				if err == nil {
					_ = conn.Close()
				}
				code := sandpit.CodeOf(err)
				if code != sandpit.Timeout && code != sandpit.Unavailable {
					t.Errorf("connection: %v", err)
				}
				codes <- code
			})
		}
		wg.Wait()
		close(codes)
		told := make(map[sandpit.Code]int)
		for code := range codes {
			told[code]++
		}
		if told[""] > 0 || told[sandpit.Timeout]+told[sandpit.Unavailable] != dials {
			t.Errorf("connections: %v", told)
		}
		if got := output(t, honest, "echo alive"); got != "alive" {
			t.Errorf("the honest one: %q", got)
		}
	}
	fresh := create(t, p, sandpit.Spec{Hostname: "fresh"})
	if got := output(t, fresh, "echo alive"); got != "alive" {
		t.Errorf("another one: %q", got)
	}
}

// resources are what this process and those below it hold.
type resources struct{ goroutines, descriptors, processes, engineDescriptors, mounts int }

func resourcesOf(t *testing.T) resources {
	t.Helper()
	r := resources{goroutines: runtime.NumGoroutine(), descriptors: countDescriptors(os.Getpid())}
	for _, pid := range descendants(os.Getpid()) {
		args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // empty for a process that has ended
		status, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		// A kernel has as many nameless children as its sandbox has processes.
		if len(args) > 0 || bytes.Contains(status, []byte("\nState:\tZ")) {
			r.processes++
		}
		if bytes.HasPrefix(args, []byte("sandpit-engine")) {
			r.engineDescriptors += countDescriptors(pid)
			mounts, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "mountinfo"))
			r.mounts += bytes.Count(mounts, []byte("\n"))
		}
	}
	return r
}

// countDescriptors returns 0 for a process that may not be looked into. The ones that
// stand for processes are not counted: gVisor leaves them to the garbage collector of
// the engine, which has no reason to run.
func countDescriptors(pid int) int {
	n := 0
	links, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "fd", "*"))
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to != "anon_inode:[pidfd]" {
			n++
		}
	}
	return n
}

func descendants(pid int) []int {
	var all []int
	lists, _ := filepath.Glob(filepath.Join("/proc", strconv.Itoa(pid), "task", "*", "children"))
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			continue // a thread that has ended
		}
		for child := range strings.FieldsSeq(string(text)) {
			if n, err := strconv.Atoi(child); err == nil {
				all = append(append(all, n), descendants(n)...)
			}
		}
	}
	return all
}

// expectResources waits until no more is held than before.
func expectResources(t *testing.T, before resources) {
	t.Helper()
	var now resources
	for range 100 {
		runtime.GC() // files without an owner
		now = resourcesOf(t)
		if now.goroutines <= before.goroutines+4 && now.descriptors <= before.descriptors+4 &&
			now.processes <= before.processes && now.engineDescriptors <= before.engineDescriptors+4 && now.mounts <= before.mounts {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("before %+v, now %+v", before, now)
}
