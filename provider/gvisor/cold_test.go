package gvisor_test

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func archiveOf(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Archiver).Archive(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func restoreOf(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Archiver).Restore(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func checkpointOf(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if err := box.(sandpit.Checkpointer).Checkpoint(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

func wantError(tb testing.TB, what string, err error, want sandpit.Code) {
	tb.Helper()
	if got := sandpit.CodeOf(err); got != want {
		tb.Errorf("%s: %v (%s), want %s", what, err, got, want)
	}
}

// kill ends a sandbox's kernel and waits until that is known.
func kill(tb testing.TB, box sandpit.Instance) {
	tb.Helper()
	if !killKernelOf(box.ID()) {
		tb.Fatal("there is no kernel to kill")
	}
	if _, err := box.Wait(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// TestArchive stops, archives, restores and starts a sandbox, with another Provider in
// between and without the image it was made of.
func TestArchive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProviderWith(t, dir, lasting)
	box := create(t, p, sandpit.Spec{Image: etcImage(t), Env: map[string]string{"SECRET": "x y z"}, Labels: map[string]string{"a": "b"}})
	output(t, box, manyKinds)
	before := output(t, box, everything)
	archiver := box.(sandpit.Archiver)
	wantError(t, "archive what runs", archiver.Archive(t.Context()), sandpit.Conflict)
	wantError(t, "restore what runs", archiver.Restore(t.Context()), sandpit.Conflict)
	for range 2 {
		stopOf(t, box)
		wantError(t, "restore what is stopped", archiver.Restore(t.Context()), sandpit.Conflict)
		archiveOf(t, box)
		wantError(t, "archive it again", archiver.Archive(t.Context()), sandpit.Conflict)
		wantError(t, "start what is archived", box.(sandpit.Stopper).Start(t.Context()), sandpit.Conflict)
		wantError(t, "stop what is archived", box.(sandpit.Stopper).Stop(t.Context()), sandpit.Conflict)
		if _, err := os.Lstat(filepath.Join(dir, "stopped", string(box.ID()))); !os.IsNotExist(err) {
			t.Errorf("its files are here still: %v", err)
		}
		wantArchived(t, dir)

		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p = newProviderWith(t, dir, lasting)
		list, err := p.List(t.Context())
		if err != nil || len(list) != 1 || list[0].ID != box.ID() || list[0].Spec.Labels["a"] != "b" || list[0].Spec.Env != nil {
			t.Fatalf("list: %+v, %v", list, err)
		}
		if box, err = p.Attach(t.Context(), list[0].Handle); err != nil {
			t.Fatal(err)
		}
		archiver = box.(sandpit.Archiver)
		short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		if exit, err := box.Wait(short); err == nil {
			t.Errorf("while it is archived it has ended: %+v", exit)
		}
		cancel()
		restoreOf(t, box)
		startOf(t, box)
		if diff := cmp.Diff(strings.Split(before, "\n"), strings.Split(output(t, box, everything), "\n")); diff != "" {
			t.Fatalf("what has changed:\n%s", diff)
		}
		if got := output(t, box, `echo "$SECRET"`); got != "x y z" {
			t.Errorf("the environment has %q", got)
		}
	}
	stopOf(t, box)
	archiveOf(t, box)
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err := p.Attach(t.Context(), box.Handle())
	wantError(t, "attach to what was destroyed", err, sandpit.NotFound)
	if err := p.Close(); err != nil { // a lasting engine ends after its owner has gone
		t.Fatal(err)
	}
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
}

// readArchive returns the names in an archive, and the record.
func readArchive(t *testing.T, from io.Reader) (names []string, record string) {
	t.Helper()
	z, err := zstd.NewReader(from)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	r := tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names, record
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name == "record.json" {
			data, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			record = string(data)
		}
	}
}

// wantArchived expects one object, which does not contain the environment.
func wantArchived(t *testing.T, dir string) {
	t.Helper()
	store := openArchive(t, dir)
	objects, err := store.List(t.Context())
	if err != nil || len(objects) != 1 {
		t.Fatalf("the archive has %v, %v; want one object", objects, err)
	}
	from, err := store.Get(t.Context(), objects[0].Key)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	names, record := readArchive(t, from)
	if strings.Contains(record, "x y z") || !strings.Contains(record, `"a":"b"`) {
		t.Errorf("the record in the archive: %s", record)
	}
	if len(names) != 6 || names[len(names)-1] != "root.erofs" {
		t.Errorf("the archive has %q", names)
	}
}

// TestArchiveIsDamaged cuts an object off, changes it, and takes it away. What is
// restored is the whole or nothing.
func TestArchiveIsDamaged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	output(t, box, "busybox head -c 300000 /dev/urandom > /large")
	sum := output(t, box, "busybox sha256sum /large")
	stopOf(t, box)
	archiveOf(t, box)
	objects, err := openArchive(t, dir).List(t.Context())
	if err != nil || len(objects) != 1 {
		t.Fatal(objects, err)
	}
	path := filepath.Join(dir, "archive", objects[0].Key)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	restore := box.(sandpit.Archiver).Restore
	for name, damage := range map[string]func([]byte) []byte{
		"empty":    func([]byte) []byte { return nil },
		"cut off":  func(b []byte) []byte { return b[:len(b)/2] },
		"last":     func(b []byte) []byte { return b[:len(b)-1] },
		"changed":  func(b []byte) []byte { b = append([]byte(nil), b...); b[len(b)/2] ^= 1; return b },
		"nonsense": func(b []byte) []byte { return []byte(strings.Repeat("nonsense", len(b)/8)) },
	} {
		if err := os.WriteFile(path, damage(whole), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := restore(t.Context()); err == nil {
			t.Fatalf("%s: it was restored", name)
		}
		wantError(t, name+": start", box.(sandpit.Stopper).Start(t.Context()), sandpit.Conflict)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	wantError(t, "without the object", restore(t.Context()), sandpit.NotFound)
	if err := os.WriteFile(path, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	restoreOf(t, box)
	startOf(t, box)
	if got := output(t, box, "busybox sha256sum /large"); got != sum {
		t.Errorf("the large file is %s, was %s", got, sum)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// brokenArchive fails in the middle, or when something is removed.
type brokenArchive struct {
	archive.Store

	put, remove error
}

func (b *brokenArchive) Put(ctx context.Context, key string, from io.Reader) error {
	if b.put == nil {
		return b.Store.Put(ctx, key, from)
	}
	if _, err := io.CopyN(io.Discard, from, 1000); err != nil {
		return err
	}
	return b.put
}

func (b *brokenArchive) Remove(ctx context.Context, key string) error {
	if b.remove != nil {
		return b.remove
	}
	return b.Store.Remove(ctx, key)
}

// TestArchiveIsAway has the archive fail: the sandbox is stopped as before, starts
// without it, and what it has is not taken for the sandbox later.
func TestArchiveIsAway(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	away := sandpit.Errorf(sandpit.Unavailable, "the archive is away")
	store := &brokenArchive{Store: openArchive(t, dir), put: away, remove: away}
	p := newProviderWith(t, dir, func(c *gvisor.Config) { c.Archive = store })
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	output(t, box, "echo one > /note")
	stopOf(t, box)
	wantError(t, "archive", box.(sandpit.Archiver).Archive(t.Context()), sandpit.Unavailable)
	startOf(t, box)
	stopOf(t, box)
	store.put, store.remove = nil, nil
	archiveOf(t, box)
	store.remove = away
	restoreOf(t, box)
	startOf(t, box) // and what was archived is a leftover
	if got := output(t, box, "cat /note"); got != "one" {
		t.Errorf("the note says %q", got)
	}
	kill(t, box)
	_, err := box.(sandpit.Reviver).Revive(t.Context())
	wantError(t, "revive", err, sandpit.NotFound)
	wantError(t, "restore what is gone", box.(sandpit.Archiver).Restore(t.Context()), sandpit.Conflict)
	wantError(t, "destroy while the archive is away", box.Destroy(t.Context()), sandpit.Unavailable)
	store.remove = nil
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestCheckpoint kills kernels: what comes back has the files of the last checkpoint.
func TestCheckpoint(t *testing.T) {
	t.Parallel()
	for name, image := range map[string]sandpit.Image{"on disk": sandpit.HostImage, "in memory": busyboxImage(t)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			p := newProvider(t, dir)
			box := create(t, p, sandpit.Spec{Image: image, Env: map[string]string{"NAME": "value"}})
			output(t, box, "echo 1 > /note; (while :; do busybox sleep 1; done) >/dev/null 2>&1 & echo $! > /pid")
			_, err := box.(sandpit.Reviver).Revive(t.Context())
			wantError(t, "revive what runs", err, sandpit.Conflict)
			checkpointOf(t, box)
			output(t, box, "busybox kill -0 $(cat /pid); echo 2 > /note")
			checkpointOf(t, box)
			output(t, box, "busybox kill -0 $(cat /pid); echo 3 > /note")
			for range 2 {
				kill(t, box)
				next, err := box.(sandpit.Reviver).Revive(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				box = next
				if got := output(t, box, "cat /note; echo $NAME; echo 4 > /note"); got != "2\nvalue" {
					t.Errorf("it came back with %q", got)
				}
			}
			// A checkpoint from before a stop is not what it comes back with.
			stopOf(t, box)
			wantError(t, "checkpoint what is stopped", box.(sandpit.Checkpointer).Checkpoint(t.Context()), sandpit.Conflict)
			_, err = box.(sandpit.Reviver).Revive(t.Context())
			wantError(t, "revive what is stopped", err, sandpit.Conflict)
			startOf(t, box)
			output(t, box, "echo 5 > /note")
			kill(t, box)
			if box, err = box.(sandpit.Reviver).Revive(t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := output(t, box, "cat /note"); got != "4" {
				t.Errorf("after a stop it came back with %q, want 4", got)
			}
			if err := box.Destroy(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestCheckpointOutlivesEngine looks for a sandbox whose engine is gone with everything.
func TestCheckpointOutlivesEngine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t), Labels: map[string]string{"a": "b"}})
	output(t, box, "echo 1 > /note")
	checkpointOf(t, box)
	if err := p.Close(); err != nil { // which ends the engine
		t.Fatal(err)
	}
	p = newProvider(t, dir)
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].ID != box.ID() || list[0].Spec.Labels["a"] != "b" {
		t.Fatalf("list: %+v, %v", list, err)
	}
	if box, err = p.Attach(t.Context(), box.Handle()); err != nil {
		t.Fatal(err)
	}
	if exit, err := box.Wait(t.Context()); err != nil || exit.Reason == "" {
		t.Errorf("wait: %+v, %v", exit, err)
	}
	if box, err = box.(sandpit.Reviver).Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := output(t, box, "cat /note"); got != "1" {
		t.Errorf("it came back with %q", got)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestTornCheckpoint cuts each file of a checkpoint off: it is not loaded.
func TestTornCheckpoint(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	output(t, box, "busybox seq 1 1000 > /note")
	checkpointOf(t, box)
	kill(t, box)
	saved := filepath.Join(dir, "stopped", "checkpoints", string(box.ID()))
	entries, err := os.ReadDir(saved)
	if err != nil || len(entries) != 6 {
		t.Fatalf("the checkpoint has %v, %v", entries, err)
	}
	for _, e := range entries {
		path := filepath.Join(saved, e.Name())
		whole, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if len(whole) == 0 {
			continue
		}
		// The image may be shared with the cache: it is replaced, and not changed.
		if err := os.Rename(path, path+".whole"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, whole[:len(whole)-1], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := box.(sandpit.Reviver).Revive(t.Context()); sandpit.CodeOf(err) != sandpit.Internal {
			t.Errorf("with %s cut off: %v", e.Name(), err)
		}
		if _, err := p.List(t.Context()); err != nil {
			t.Errorf("with %s cut off, list: %v", e.Name(), err)
		}
		if err := os.Rename(path+".whole", path); err != nil {
			t.Fatal(err)
		}
	}
	if box, err = box.(sandpit.Reviver).Revive(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := output(t, box, "busybox tail -n 1 /note"); got != "1000" {
		t.Errorf("the note ends with %q", got)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestKernelKilledWhileSaving kills the kernel in the middle of a checkpoint: what comes
// back is of this one or of the one before.
func TestKernelKilledWhileSaving(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	for range 3 {
		output(t, box, "echo old > /note; busybox head -c 20000000 /dev/urandom > /large")
		checkpointOf(t, box)
		output(t, box, "echo new > /note")
		killed := make(chan bool, 1)
		time.AfterFunc(time.Duration(rand.IntN(150))*time.Millisecond, func() { killed <- killKernelOf(box.ID()) })
		err := box.(sandpit.Checkpointer).Checkpoint(t.Context())
		if !<-killed {
			t.Fatal("there was no kernel to kill")
		}
		if _, err := box.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		next, reviveErr := box.(sandpit.Reviver).Revive(t.Context())
		if reviveErr != nil {
			t.Fatal(reviveErr)
		}
		box = next
		if got := output(t, box, "cat /note"); got != "new" && (got != "old" || err == nil) {
			t.Errorf("after a checkpoint that ended with %v it came back with %q", err, got)
		}
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
}
