package manager_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestFullDisk fills the disk of the store below a manager at work: what cannot be
// written down is refused and leaves nothing, what is there can be used, and with room
// again everything continues.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=4m"); err != nil {
		testengine.Skip(t, "no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	r := &rig{
		world: fake.NewWorld(t.TempDir()), dir: filepath.Join(disk, "state"), log: &logbook{},
		o: testoptions.Manager(manager.Options{MaxSandboxes: 1000}),
	}
	t.Cleanup(func() {
		r.close(t)
		if err := r.world.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	r.open(t)
	first := r.create(t, manager.CreateRequest{})
	if err := eat(filepath.Join(disk, "rest")); err != nil {
		t.Fatal(err)
	}

	kept := 1 // what the store's files have room for still
	var err error
	for ; kept < 300; kept++ {
		spec := sandpit.Spec{Env: map[string]string{"LARGE": strings.Repeat("x", 20_000)}}
		if _, err = r.Create(t.Context(), manager.CreateRequest{Spec: spec}); err != nil {
			break
		}
	}
	if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
		t.Fatalf("after %d sandboxes: %v, want it exhausted, with a hint", kept, err)
	}
	if n := len(r.List(manager.Filter{})); n != kept {
		t.Errorf("%d sandboxes are listed, want %d", n, kept)
	}
	if err := sameAsPlaced(t, r, kept); err != nil {
		t.Error(err)
	}
	h, err := r.Use(t.Context(), first.ID)
	if err != nil {
		t.Fatalf("on a full disk a sandbox cannot be used: %v", err)
	}
	if _, err := h.Guest().ListProcesses(t.Context()); err != nil {
		t.Error(err)
	}
	h.Release()
	if err := r.Delete(t.Context(), first.ID); err != nil {
		t.Errorf("on a full disk a sandbox cannot be deleted: %v", err)
	}
	r.wantGone(t, first.ID, "killed by")
	kept--
	for n := range 5000 { // more than may wait for the disk
		r.Events().Record(manager.Report{Actor: fmt.Sprint("actor", n%10), Action: "look"})
	}
	if waiting, lost := r.Events().Status(); waiting == 0 || waiting > 4096+500 {
		t.Errorf("%d events wait and %d were lost, want no more than 4096 to wait", waiting, lost)
	}

	if err := os.Remove(filepath.Join(disk, "rest")); err != nil {
		t.Fatal(err)
	}
	second := r.create(t, manager.CreateRequest{})
	if err := sameAsPlaced(t, r, kept+1); err != nil {
		t.Error(err)
	}
	if err := r.Delete(t.Context(), second.ID); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := sameAsPlaced(t, r, kept); err != nil {
		t.Error(err)
	}
	if err := r.Flush(t.Context()); err != nil {
		t.Error(err)
	}
	if waiting, _ := r.Events().Status(); waiting != 0 {
		t.Errorf("%d events wait still", waiting)
	}
	if got := r.events(t, first.ID); !slices.Contains(got, "manager: delete ok") {
		t.Errorf("what was done on the full disk is not told: %q", got)
	}
	if err := r.store.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
}

// sameAsPlaced compares what is there with how many there should be.
func sameAsPlaced(t *testing.T, r *rig, want int) error {
	t.Helper()
	placed, err := r.cable.List(t.Context())
	if err != nil {
		return err
	}
	if len(placed) != want {
		return fmt.Errorf("%d sandboxes are placed, want %d", len(placed), want)
	}
	return nil
}

// eat takes what is left of the file system.
func eat(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			if errors.Is(err, unix.ENOSPC) {
				return nil
			}
			return err
		}
	}
}
