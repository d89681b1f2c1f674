package e2b_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

// mortal is the network of a program that is killed at one of its calls of the API. Afterwards no call ends until the
// test ends.
type mortal struct {
	next http.RoundTripper
	dead chan struct{} // closed when the program is killed
	end  chan struct{} // closed when the test ends

	once sync.Once

	mu    sync.Mutex
	left  int  // calls until the kill; none is planned below zero
	after bool // the call is carried out before the kill
}

func newMortal(t *testing.T) *mortal {
	t.Helper()
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	return &mortal{next: transport, dead: make(chan struct{}), end: make(chan struct{}), left: -1}
}

// stop has all calls end.
func (m *mortal) stop() { m.once.Do(func() { close(m.end) }) }

// plan has the program be killed at a call from now: 1 is the next one.
func (m *mortal) plan(call int, after bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.left, m.after = call, after
}

// RoundTrip implements http.RoundTripper.
func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	if m.isKilledBy(r) {
		if m.after {
			if res, err := m.next.RoundTrip(r); err == nil {
				_ = res.Body.Close() // the program does not see it
			}
		}
		close(m.dead)
	}
	select {
	case <-m.dead:
		<-m.end
		return nil, &tls.CertificateVerificationError{Err: errors.New("the program was killed")} // a call with it is not repeated
	default:
		return m.next.RoundTrip(r)
	}
}

// isKilledBy reports whether the program is killed at a request.
func (m *mortal) isKilledBy(r *http.Request) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !isAPICall(r) || m.left < 0 {
		return false
	}
	if m.left--; m.left != 0 {
		return false
	}
	m.left = -1
	return true
}

// records returns the files in a directory of records.
func records(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names
}

// ageRecords has the records be an hour old.
func ageRecords(t *testing.T, dir string) {
	t.Helper()
	before := time.Now().Add(-time.Hour)
	for _, name := range records(t, dir) {
		if err := os.Chtimes(filepath.Join(dir, name), before, before); err != nil {
			t.Fatal(err)
		}
	}
}

// snapshotsOf returns how many snapshots the cloud has of providers with an identity.
func (c *cloud) snapshotsOf(t *testing.T, identity string) (n int) {
	t.Helper()
	_, text := c.call(t, http.MethodGet, "/snapshots?limit=100")
	var list []struct {
		Names []string `json:"names"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatalf("list the snapshots: %v: %s", err, text)
	}
	for _, one := range list {
		if slices.ContainsFunc(one.Names, func(name string) bool { return strings.Contains(name, strings.ToLower(identity)) }) {
			n++
		}
	}
	return n
}

// killedAt is an operation that a program was killed in.
type killedAt struct {
	name string
	// calls are how many calls of the API it makes, and changes those that change the cloud.
	calls   int
	changes []int
	setUp   func(t *testing.T, w *killWorld)
	do      func(t *testing.T, w *killWorld, p *e2b.Provider, box sandpit.Instance) error
}

// killWorld is what programs that are killed leave behind: one sandbox at the cloud, and records.
type killWorld struct {
	c     *cloud
	o     e2b.Options
	box   sandpit.Instance
	saved sandpit.SnapshotID // of the operation
}

func killedOperations() []killedAt {
	save := func(t *testing.T, w *killWorld) {
		t.Helper()
		saved, err := ability[sandpit.Snapshotter](t, w.box).Snapshot(soon(t), sandpit.NewSnapshotID())
		if err != nil {
			t.Fatal(err)
		}
		w.saved = saved.ID
	}
	return []killedAt{
		{"snapshot", 4, []int{4}, func(*testing.T, *killWorld) {}, func(t *testing.T, w *killWorld, _ *e2b.Provider, box sandpit.Instance) error {
			t.Helper()
			_, err := ability[sandpit.Snapshotter](t, box).Snapshot(t.Context(), w.saved)
			return err
		}},
		{"snapshot of a paused sandbox", 6, []int{3, 6}, func(t *testing.T, w *killWorld) {
			t.Helper()
			if err := ability[sandpit.Pauser](t, w.box).Pause(soon(t)); err != nil && sandpit.CodeOf(err) != sandpit.Conflict {
				t.Fatal(err)
			}
		}, func(t *testing.T, w *killWorld, _ *e2b.Provider, box sandpit.Instance) error {
			t.Helper()
			_, err := ability[sandpit.Snapshotter](t, box).Snapshot(t.Context(), w.saved)
			return err
		}},
		{"fork", 3, []int{3}, save, func(t *testing.T, w *killWorld, p *e2b.Provider, _ sandpit.Instance) error {
			t.Helper()
			_, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Image: sandpit.SnapshotImage(w.saved)})
			return err
		}},
		{"delete a snapshot", 2, []int{2}, save, func(t *testing.T, w *killWorld, p *e2b.Provider, _ sandpit.Instance) error {
			t.Helper()
			return p.RemoveSnapshot(t.Context(), w.saved)
		}},
	}
}

// TestSnapshotSurvivesKills kills a program at the calls of the API by which it saves a sandbox, creates one from the
// snapshot, and deletes it: at those that change something, and with SANDPIT_TEST_SNAPSHOT_KILLS=1 at all. The next
// program finds what is left at the cloud, and can delete it; no record stays without a snapshot.
func TestSnapshotSurvivesKills(t *testing.T) {
	t.Parallel()
	all := os.Getenv("SANDPIT_TEST_SNAPSHOT_KILLS") != ""
	c := newCloud(t)
	t.Run("created late", func(t *testing.T) { t.Parallel(); testSnapshotLate(t, c) })
	for _, op := range killedOperations() {
		t.Run(op.name, func(t *testing.T) {
			t.Parallel()
			w := newKillWorld(t, c)
			for call := 1; call <= op.calls; call++ {
				for _, after := range []bool{false, true} {
					if (all || slices.Contains(op.changes, call)) && !w.kill(t, op, call, after) {
						t.Errorf("the operation has no call %d", call)
					}
				}
			}
			if all && w.kill(t, op, op.calls+1, false) {
				t.Errorf("the operation has more than %d calls", op.calls)
			}
		})
	}
}

// newKillWorld creates a sandbox of a server with records.
func newKillWorld(t *testing.T, c *cloud) *killWorld {
	t.Helper()
	o := c.options()
	o.SnapshotDir = filepath.Join(t.TempDir(), "snapshots")
	return &killWorld{c: c, o: o, box: create(t, newProvider(t, o), sandpit.Spec{Labels: map[string]string{"a": "b"}})}
}

// kill kills a program in an operation, and checks what is left. It reports false if the operation has fewer calls.
func (w *killWorld) kill(t *testing.T, op killedAt, call int, after bool) bool {
	t.Helper()
	killed := w.killOnly(t, op, call, after)
	w.check(t, fmt.Sprintf("call %d, carried out %t", call, after))
	return killed
}

// killOnly is kill without the checks.
func (w *killWorld) killOnly(t *testing.T, op killedAt, call int, after bool) bool {
	t.Helper()
	w.saved = sandpit.NewSnapshotID()
	op.setUp(t, w)
	network := newMortal(t)
	o := w.o
	o.Transport = network
	p, err := e2b.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // when its network has ended
	box, err := p.Attach(soon(t), w.box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	network.plan(call, after)
	done := make(chan error, 1)
	ended := make(chan struct{})
	t.Cleanup(func() { <-ended })
	t.Cleanup(network.stop)
	go func() {
		defer close(ended)
		done <- op.do(t, w, p, box)
	}()
	select {
	case <-network.dead:
		return true
	case err := <-done:
		if err != nil {
			t.Errorf("%s: %v", op.name, err)
		}
		return false
	}
}

// check has the next program look at what is left, and delete it.
func (w *killWorld) check(t *testing.T, when string) {
	t.Helper()
	next := newProvider(t, w.o)
	list, err := next.ListSnapshots(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		if one.Unloadable != "" || one.Spec.Labels["a"] != "b" || one.Sandbox != w.box.ID() {
			t.Errorf("%s: the snapshot is listed as %+v", when, one)
		}
	}
	if n := w.c.snapshotsOf(t, w.o.Identity); n != len(list) {
		t.Errorf("%s: the cloud has %d snapshots, and %d are listed", when, n, len(list))
	}
	ageRecords(t, w.o.SnapshotDir)
	if _, err := next.ListSnapshots(soon(t)); err != nil {
		t.Fatal(err)
	}
	if names := records(t, w.o.SnapshotDir); len(names) != len(list) {
		t.Errorf("%s: records %q of %d snapshots", when, names, len(list))
	}
	for _, one := range list {
		if err := next.RemoveSnapshot(soon(t), one.ID); err != nil {
			t.Errorf("%s: remove the snapshot: %v", when, err)
		}
	}
	if names, n := records(t, w.o.SnapshotDir), w.c.snapshotsOf(t, w.o.Identity); len(names)+n > 0 {
		t.Errorf("%s: %d snapshots and the records %q are left", when, n, names)
	}
	boxes, err := next.List(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(w.c.listWith(t, "&metadata="+url.QueryEscape("sandpit-server="+w.o.Identity))); n != len(boxes) {
		t.Errorf("%s: the cloud has %d sandboxes, and %d are listed", when, n, len(boxes))
	}
	for _, one := range boxes {
		if one.ID == w.box.ID() {
			continue
		}
		found, err := next.Attach(soon(t), one.Handle)
		if err == nil {
			err = found.Destroy(soon(t))
		}
		if err != nil {
			t.Errorf("%s: destroy the copy: %v", when, err)
		}
	}
}

// testSnapshotLate has the cloud create a snapshot after its program was killed, and after the next one has removed it:
// it is listed with its record, so that it can be recognized and deleted.
func testSnapshotLate(t *testing.T, c *cloud) {
	t.Helper()
	w := newKillWorld(t, c)
	if !w.killOnly(t, killedOperations()[0], 4, false) {
		t.Fatal("the operation has fewer calls")
	}
	if names := records(t, w.o.SnapshotDir); len(names) != 1 {
		t.Fatalf("records %q, want that of the snapshot", names)
	}
	next := newProvider(t, w.o)
	if err := next.RemoveSnapshot(soon(t), w.saved); err != nil {
		t.Fatal(err)
	}
	if list, err := next.ListSnapshots(soon(t)); err != nil || len(list) > 0 {
		t.Fatalf("listed before it exists: %+v, %v", list, err)
	}
	for _, cloudID := range c.listWith(t, "&metadata="+url.QueryEscape("sandpit-server="+w.o.Identity)) {
		name := "sandpit-" + strings.ToLower(w.o.Identity) + "-" + string(w.saved)
		if status, text := c.post(t, "/sandboxes/"+cloudID+"/snapshots", `{"name":"`+name+`"}`); status != http.StatusCreated {
			t.Fatalf("snapshot: %d %s", status, text)
		}
	}
	w.check(t, "created late")
}

// testSnapshotRefused saves what E2B cannot save.
func testSnapshotRefused(t *testing.T, c *cloud) {
	t.Helper()
	p := newProvider(t, c.options())
	if err := p.CreateVolume(soon(t), "data"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := p.RemoveVolume(ctx, "data"); err != nil {
			t.Errorf("remove the volume: %v", err)
		}
	})
	box := create(t, p, sandpit.Spec{Mounts: []sandpit.Mount{{Volume: "data", Target: "/data"}}})
	snapshotter := ability[sandpit.Snapshotter](t, box)
	refused := func(doing string, want sandpit.Code, text string) {
		t.Helper()
		_, err := snapshotter.Snapshot(soon(t), sandpit.NewSnapshotID())
		wantCode(t, doing, err, want)
		if s := sandpit.SubjectOf(err); err == nil || !strings.Contains(err.Error(), text) || s.Sandbox != box.ID() || s.Operation != "snapshot" {
			t.Errorf("%s: %v concerns %+v, want %q", doing, err, s, text)
		}
	}
	refused("with a volume", sandpit.Unsupported, `it mounts volume "data"`)
	if err := ability[sandpit.Pauser](t, box).Pause(soon(t)); err != nil {
		t.Fatal(err)
	}
	refused("paused, with a volume", sandpit.Unsupported, `it mounts volume "data"`)
	if state, err := ability[sandpit.StateReader](t, box).ReadState(soon(t)); err != nil || state != sandpit.StatePaused {
		t.Errorf("after that it is %q, %v", state, err)
	}
	if list, err := p.ListSnapshots(soon(t)); err != nil || len(list) > 0 {
		t.Errorf("listed: %+v, %v", list, err)
	}
}
