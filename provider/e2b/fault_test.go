package e2b_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/faultproxy"
)

// faultOperations is how many operations TestFaults makes. SANDPIT_TEST_FAULTS sets another number.
const faultOperations = 100

// TestFaults works with sandboxes through a network that fails. No sandbox remains that the provider does not list, no
// operation happens twice, and each error has a code and no secret.
func TestFaults(t *testing.T) {
	t.Parallel()
	operations := faultOperations
	if testing.Short() {
		operations /= 2
	}
	if text := os.Getenv("SANDPIT_TEST_FAULTS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			t.Fatalf("SANDPIT_TEST_FAULTS=%q: want a number of operations", text)
		}
		operations = n
	}
	c := newCloud(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	proxy := faultproxy.Start(t, faultproxy.Options{Target: c.url, Seed: seed, Share: 0.25, Only: isAPICall})
	o := c.options()
	o.APIURL, o.SandboxURL = proxy.URL, proxy.URL
	f := &faultRun{T: t, p: newProvider(t, o), key: c.key, done: make(map[string]int)}
	const workers = 4
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			worker := &faultWorker{faultRun: f, rng: rand.New(rand.NewPCG(seed, uint64(w)+2))}
			for n := range operations / workers {
				worker.step(fmt.Sprintf("%d-%d", w, n))
			}
			worker.finish()
		})
	}
	wg.Wait()
	t.Logf("requests: %v; outcomes: %v", proxy.Counts(), f.done)
	proxy.Heal()
	f.checkLeftovers(c)
	f.removeSnapshots(c, o.Identity)
}

// TestSnapshotDeliveredTwice saves a sandbox over a network that delivers the request twice. The cloud refuses the second
// delivery, because the name is taken; the snapshot exists nevertheless, and has its record.
func TestSnapshotDeliveredTwice(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	proxy := faultproxy.Start(t, faultproxy.Options{
		Target: c.url, Share: 1,
		Only: func(r *http.Request) bool {
			return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/snapshots")
		},
		Faults: func(*http.Request) []faultproxy.Fault { return []faultproxy.Fault{faultproxy.Duplicate} },
	})
	o := c.options()
	o.APIURL, o.SandboxURL = proxy.URL, proxy.URL
	p := newProvider(t, o)
	box := create(t, p, sandpit.Spec{})
	saved, err := ability[sandpit.Snapshotter](t, box).Snapshot(t.Context(), sandpit.NewSnapshotID())
	if err != nil {
		t.Errorf("save: %v", err)
	}
	list, err := p.ListSnapshots(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != saved.ID || list[0].Unloadable != "" {
		t.Errorf("listed: %+v, %v", list, err)
	}
	for _, one := range list {
		if err := p.RemoveSnapshot(t.Context(), one.ID); err != nil {
			t.Error(err)
		}
	}
	if n := proxy.Counts()[faultproxy.Duplicate]; n != 1 {
		t.Errorf("%d requests were delivered twice, want 1", n)
	}
}

// isAPICall reports whether a request is for the API: a sandbox does not answer twice.
func isAPICall(r *http.Request) bool { return r.Header.Get("E2b-Sandbox-Id") == "" }

// faultRun is what the workers share.
type faultRun struct {
	*testing.T

	p   sandpit.Provider
	key string

	mu    sync.Mutex
	done  map[string]int // operations by kind and outcome
	alive []sandpit.ID   // sandboxes that a worker could not destroy
}

// count records an operation, and checks its error.
func (f *faultRun) count(kind string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done[kind+" "+string(sandpit.CodeOf(err))]++
	if err == nil {
		return
	}
	if _, typed := errors.AsType[*sandpit.Error](err); !typed && !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		f.Errorf("%s: an error without a code: %v", kind, err)
	}
	s := sandpit.SubjectOf(err)
	if s.Provider != "e2b" || s.Operation == "" || s.Sandbox == "" && kind != "list" && kind != "remove snapshot" {
		f.Errorf("%s: the error concerns %+v, want provider, sandbox and operation: %v", kind, s, err)
	}
	if strings.Contains(err.Error(), f.key) {
		f.Errorf("%s: the error contains the key", kind)
	}
}

// faultWorker works with one sandbox at a time.
type faultWorker struct {
	*faultRun

	rng     *rand.Rand
	box     sandpit.Instance
	written map[string]bool // names of commands, and whether they certainly ran
}

// step makes one operation.
func (w *faultWorker) step(name string) {
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	if w.box == nil {
		box, err := w.p.Create(ctx, sandpit.NewID(), sandpit.Spec{})
		w.count("create", err)
		if err == nil {
			w.box, w.written = box, make(map[string]bool)
		}
		return
	}
	switch n := w.rng.IntN(21); {
	case n < 7:
		w.run(ctx, name)
	case n < 9:
		w.pause(ctx)
	case n < 12:
		renewer, _ := sandpit.As[sandpit.Renewer](w.box)
		w.count("renew", renewer.Renew(ctx, sandpit.Expiry{Deadline: time.Now().Add(time.Hour)}))
	case n < 14:
		w.list(ctx)
	case n < 16:
		again, err := w.p.Attach(ctx, w.box.Handle())
		w.count("attach", err)
		if err == nil {
			w.box = again
		}
	case n < 17:
		w.save(ctx)
	default:
		w.destroy(ctx)
	}
}

// run appends the name to a file.
func (w *faultWorker) run(ctx context.Context, name string) {
	p, err := w.box.Guest().Start(ctx, sandpit.Command{ID: name, Args: []string{"sh", "-c", "echo " + name + " >>/log"}})
	if err == nil {
		_, err = p.Wait(ctx)
	}
	w.count("run", err)
	w.written[name] = err == nil
}

// pause pauses the sandbox, and resumes it.
func (w *faultWorker) pause(ctx context.Context) {
	pauser, _ := sandpit.As[sandpit.Pauser](w.box)
	err := pauser.Pause(ctx)
	w.count("pause", err)
	err = pauser.Resume(ctx)
	w.count("resume", err)
}

// save saves the sandbox, and removes the snapshot.
func (w *faultWorker) save(ctx context.Context) {
	snapshotter, _ := sandpit.As[sandpit.Snapshotter](w.box)
	id := sandpit.NewSnapshotID()
	_, err := snapshotter.Snapshot(ctx, id)
	w.count("snapshot", err)
	if err == nil {
		keeper, _ := sandpit.As[sandpit.SnapshotKeeper](w.p)
		w.count("remove snapshot", keeper.RemoveSnapshot(ctx, id))
	}
}

// list lists the sandboxes: the worker's is among them exactly once.
func (w *faultWorker) list(ctx context.Context) {
	list, err := w.p.List(ctx)
	w.count("list", err)
	found := 0
	for _, one := range list {
		if one.ID == w.box.ID() {
			found++
		}
	}
	if err == nil && found != 1 {
		w.Errorf("sandbox %s is listed %d times", w.box.ID(), found)
	}
}

// destroy checks what ran, and destroys the sandbox.
func (w *faultWorker) destroy(ctx context.Context) {
	w.check(ctx)
	err := w.box.Destroy(ctx)
	w.count("destroy", err)
	if err != nil {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.alive = append(w.alive, w.box.ID())
	}
	w.box = nil
}

// check compares the file with the commands: none ran twice, and those without an error ran.
func (w *faultWorker) check(ctx context.Context) {
	r, err := w.box.Guest().ReadFile(ctx, "", "/log")
	if err != nil {
		return // no command ran, or the sandbox is paused
	}
	defer r.Close()
	var text bytes.Buffer
	if _, err := text.ReadFrom(r); err != nil {
		return
	}
	for name, certain := range w.written {
		n := strings.Count("\n"+text.String(), "\n"+name+"\n")
		if n > 1 || certain && n == 0 {
			w.Errorf("command %s ran %d times; it returned without an error: %t", name, n, certain)
		}
	}
}

func (w *faultWorker) finish() {
	if w.box == nil {
		return
	}
	ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
	defer cancel()
	w.destroy(ctx)
}

// removeSnapshots removes the snapshots that a worker could not remove: the provider lists all that the cloud has.
func (f *faultRun) removeSnapshots(c *cloud, identity string) {
	f.Helper()
	keeper, _ := sandpit.As[sandpit.SnapshotKeeper](f.p)
	list, err := keeper.ListSnapshots(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	for _, one := range list {
		if one.Unloadable != "" {
			f.Errorf("snapshot %s: %s", one.ID, one.Unloadable)
		}
		if err := keeper.RemoveSnapshot(f.Context(), one.ID); err != nil {
			f.Errorf("remove snapshot %s: %v", one.ID, err)
		}
	}
	if n := c.snapshotsOf(f.T, identity); n > 0 {
		f.Errorf("%d snapshots are left at the cloud", n)
	}
}

// checkLeftovers waits until the cloud has the sandboxes only that a worker could not destroy.
func (f *faultRun) checkLeftovers(c *cloud) {
	f.Helper()
	wanted := make(map[sandpit.ID]bool)
	for _, id := range f.alive {
		wanted[id] = true
	}
	for end := time.Now().Add(long); ; time.Sleep(time.Second) {
		if _, err := f.p.List(f.Context()); err != nil { // finds sandboxes that were created twice
			f.Fatal(err)
		}
		var left []string
		for _, cloudID := range c.list(f) {
			if !wanted[c.idOf(f, cloudID)] {
				left = append(left, cloudID)
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			f.Fatalf("left at the cloud, and neither listed nor to be deleted: %v", left)
		}
	}
}
