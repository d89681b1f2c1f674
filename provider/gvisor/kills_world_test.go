package gvisor_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// killWorld is the machine of TestOperationsSurviveKills.
type killWorld struct {
	t   *testing.T
	dir string
	// doing is what is tried, for failures.
	doing string
	p     *gvisor.Provider
	took  map[string]time.Duration // what each operation has taken
	// engines are all that there have been.
	engines map[string]bool
}

func newKillWorld(t *testing.T) *killWorld {
	t.Helper()
	dir := t.TempDir()
	return &killWorld{
		t: t, dir: dir, p: newProviderWith(t, dir, lasting), took: make(map[string]time.Duration), engines: make(map[string]bool),
	}
}

func (w *killWorld) usual(operation string) time.Duration {
	if took := w.took[operation]; took > 0 {
		return took
	}
	return 250 * time.Millisecond
}

// The notes in a sandbox's file.
const (
	noteSaved = "as in the snapshot"
	noteNow   = "as it is now"
)

// try has one operation end with a kill, and looks what there is afterwards.
func (w *killWorld) try(name, victim string, part float64) (how string) {
	w.t.Helper()
	o := operations()[name]
	k := killTask{Dir: w.dir, Operation: name, Other: sandpit.NewSnapshotID(), Fork: sandpit.NewID()}
	box := create(w.t, w.p, sandpit.Spec{Image: busyboxImage(w.t), Env: map[string]string{"A": "b"}})
	counting(w.t, box)
	sum := output(w.t, box, "busybox head -c 4000000 /dev/urandom > /large; busybox sha256sum /large; echo "+noteSaved+" > /note")
	if o.snapshot {
		count(w.t, box)
		k.Snapshot = snapshotOf(w.t, box).ID
	}
	count(w.t, box)
	output(w.t, box, "echo "+noteNow+" > /note")
	checkpointOf(w.t, box)
	w.prepare(box, o.from, k)
	k.Handle = box.Handle()
	id := box.ID()
	if name == "fork" {
		id = k.Fork
	}
	said := w.run(k, id, victim, part)
	w.reopen()

	box, how = w.bringBack(box.ID())
	if got := output(w.t, box, "busybox sha256sum /large; echo $A"); got != sum+"\nb" {
		w.t.Errorf("%s: %q, want %q", w.doing, got, sum)
	}
	note := output(w.t, box, "cat /note")
	if note != noteNow && (name != "rollback" || note != noteSaved) {
		w.t.Errorf("%s: its note says %q", w.doing, note)
	}
	goesOn := slices.Contains([]string{"running", "paused", "suspended"}, how)
	if o.memory && victim == "process" && !goesOn {
		w.t.Errorf("%s: it was %s, and its programs are lost", w.doing, how)
	}
	if o.memory && goesOn {
		w.expectCount(box, o, note)
	}
	w.lookAtOthers(k, said)
	destroy(w.t, box)
	if k.Snapshot != "" {
		if err := w.p.RemoveSnapshot(w.t.Context(), k.Snapshot); err != nil {
			w.t.Error(err)
		}
	}
	return how
}

// expectCount has the program in it count on. In one of which there is a snapshot it has
// counted before that, too.
func (w *killWorld) expectCount(box sandpit.Instance, o operation, note string) {
	w.t.Helper()
	want := 2
	if o.snapshot && note == noteNow {
		want = 3
	}
	if got := count(w.t, box); got != strconv.Itoa(want) {
		w.t.Errorf("with the note %q it counts %s, want %d", note, got, want)
	}
}

// prepare brings a sandbox to where an operation begins.
func (w *killWorld) prepare(box sandpit.Instance, from string, k killTask) {
	w.t.Helper()
	switch from {
	case "suspended":
		suspend(w.t, box)
	case "stopped":
		stopOf(w.t, box)
	case "archived":
		stopOf(w.t, box)
		archiveOf(w.t, box)
	case "ended":
		kill(w.t, box)
	}
	if k.Operation == "import" {
		if err := exportTask(w.t.Context(), k, w.p, box); err != nil {
			w.t.Fatal(err)
		}
	}
}

// reopen does what the next start of a program does.
func (w *killWorld) reopen() {
	w.t.Helper()
	for _, e := range list(w.t, filepath.Join(w.dir, "run", "engines")) {
		w.engines[e.Name()] = true
	}
	if err := w.p.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.p = newProviderWith(w.t, w.dir, lasting)
}

// bringBack brings a sandbox to run, and returns how it was found.
func (w *killWorld) bringBack(id sandpit.ID) (sandpit.Instance, string) {
	w.t.Helper()
	box := w.find(id)
	if box == nil {
		w.t.Fatalf("%s: it is gone, and its checkpoint with it", w.doing)
	}
	suspended := w.has("suspended", id)
	ctx := w.t.Context()
	for _, way := range []struct {
		from string
		do   func(context.Context) error
	}{
		{"archived", box.(sandpit.Archiver).Restore},
		{"stopped", box.(sandpit.Stopper).Start},
		{"paused", box.(sandpit.Pauser).Resume},
	} {
		err := way.do(ctx)
		switch code := sandpit.CodeOf(err); {
		case err == nil && way.from == "archived":
			startOf(w.t, box)
			return box, way.from
		case err == nil && suspended:
			return box, "suspended"
		case err == nil:
			return box, way.from
		case code != sandpit.Conflict && code != sandpit.Gone:
			w.t.Fatalf("%s: bring it back as if it were %s: %v", w.doing, way.from, err)
		}
	}
	next, err := box.(sandpit.Reviver).Revive(ctx)
	if err == nil {
		return next, "ended"
	}
	if sandpit.CodeOf(err) != sandpit.Conflict {
		w.t.Fatalf("%s: revive: %v", w.doing, err)
	}
	return box, "running"
}

func (w *killWorld) has(dir string, id sandpit.ID) bool {
	_, err := os.Lstat(filepath.Join(w.dir, dir, string(id)))
	return err == nil
}

// find returns a sandbox that the provider lists, else nil.
func (w *killWorld) find(id sandpit.ID) sandpit.Instance {
	w.t.Helper()
	all, err := w.p.List(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, placed := range all {
		if placed.ID != id {
			continue
		}
		box, err := w.p.Attach(w.t.Context(), placed.Handle)
		if err != nil {
			w.t.Fatal(err)
		}
		return box
	}
	return nil
}

// lookAtOthers looks at what the operation was to make besides: it is complete, or not
// there. said is how it ended, if it did.
func (w *killWorld) lookAtOthers(k killTask, said string) {
	w.t.Helper()
	done := said == "<nil>"
	if box := w.find(k.Fork); box != nil {
		destroy(w.t, box) // the test knows its ID
	}
	snaps, err := w.p.ListSnapshots(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	there := slices.ContainsFunc(snaps, func(s sandpit.Snapshot) bool { return s.ID == k.Other })
	if makes := k.Operation == "snapshot" || k.Operation == "import"; makes && done && !there {
		w.t.Errorf("%s is done, and there is nothing", k.Operation)
	}
	if there {
		fork := create(w.t, w.p, sandpit.Spec{Image: sandpit.SnapshotImage(k.Other)})
		want := map[string]string{"snapshot": noteNow, "import": noteSaved}[k.Operation]
		if got := output(w.t, fork, "cat /note"); got != want || count(w.t, fork) != "2" {
			w.t.Errorf("the copy's note says %q", got)
		}
		destroy(w.t, fork)
		if err := w.p.RemoveSnapshot(w.t.Context(), k.Other); err != nil {
			w.t.Fatal(err)
		}
	}
	if k.Operation == "export" && done {
		if err := importTask(w.t.Context(), k, w.p, nil); err != nil {
			w.t.Errorf("the export is done: %v", err)
		}
		if err := w.p.RemoveSnapshot(w.t.Context(), k.Other); err != nil {
			w.t.Fatal(err)
		}
	}
}

// killEngines kills all engines of this world.
func (w *killWorld) killEngines() (some bool) {
	for _, pid := range descendants(os.Getpid()) {
		args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")) // empty for one that has ended
		if !bytes.HasPrefix(args, []byte("sandpit-reaper\x00"+w.dir+"/")) {
			continue
		}
		for _, engine := range descendants(pid) {
			if args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(engine), "cmdline")); bytes.HasPrefix(args, []byte("sandpit-engine")) {
				some = syscall.Kill(engine, syscall.SIGKILL) == nil || some
			}
		}
	}
	return some
}

// expectNothing looks at all that a sandbox leaves on the machine.
func (w *killWorld) expectNothing() {
	w.t.Helper()
	w.reopen() // which removes what the killed have left
	awaitEmpty(w.t, filepath.Join(w.dir, "run", "engines"))
	expectNothingKept(w.t, w.dir)
	for _, dir := range []string{"scratch", "suspended", "snapshots", "archive", "stopped/checkpoints", "stopped/archived"} {
		expectEmpty(w.t, filepath.Join(w.dir, dir))
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error {
		engine, ok := strings.CutPrefix(filepath.Base(path), "sandpit-")
		if err == nil && ok && entry.IsDir() && w.engines[engine] {
			w.t.Errorf("left: control group %s", path)
		}
		return nil // others come and go meanwhile
	})
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || bytes.Contains(mounts, []byte(w.dir)) {
		w.t.Errorf("left: a mount, %v\n%s", err, mounts)
	}
}
