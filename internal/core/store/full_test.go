package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// largeRow returns a row of about 20 KiB.
func largeRow() store.Row {
	r := row()
	r.Spec.Env["LARGE"] = strings.Repeat("x", 20_000)
	return r
}

// fillUp inserts rows until the disk is full, and checks that those and no others
// are there.
func fillUp(ctx context.Context, s *store.Store) error {
	before, err := s.Sandboxes().ListSandboxes(ctx, store.Filter{})
	if err != nil {
		return err
	}
	kept := len(before)
	for range 1000 {
		if _, err = s.Sandboxes().InsertSandbox(ctx, largeRow()); err != nil {
			break
		}
		kept++
	}
	if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
		return fmt.Errorf("after %d rows: not exhausted with a hint, but: %w", kept, err)
	}
	if strings.Contains(err.Error(), secret) {
		return errors.New("the error tells a secret")
	}
	list, err := s.Sandboxes().ListSandboxes(ctx, store.Filter{})
	if err != nil || len(list) != kept {
		return fmt.Errorf("%d rows, want %d: %w", len(list), kept, err)
	}
	return nil
}

// TestFullDisk fills a small file system.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	disk := t.TempDir()
	if err := unix.Mount("tmpfs", disk, "tmpfs", 0, "size=3m"); err != nil {
		testengine.Skip(t, "no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	ballast := filepath.Join(disk, "ballast")
	write(t, ballast, make([]byte, 1_100_000))
	dir := filepath.Join(disk, "state")
	s, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Events().AppendEvents(t.Context(), store.Event{Action: "before"}); err != nil {
		t.Fatal(err)
	}
	if err := fillUp(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	want(t, s.Backup(t.Context(), filepath.Join(disk, "backup")), sandpit.Exhausted, "")
	if left, err := filepath.Glob(filepath.Join(disk, ".sandpit-backup-*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	want(t, eat(disk), "", "")
	list, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{Limit: 1})
	if err != nil || len(list) != 1 {
		t.Errorf("on a full disk %d rows can be read, %v", len(list), err)
	}
	_, err = store.Open(t.Context(), filepath.Join(disk, "other"), store.Options{})
	want(t, err, sandpit.Exhausted, "")
	if err := os.Remove(filepath.Join(disk, "rest")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	checkRoom(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkRoom(t, open2(t, dir))
}

// open2 opens a store that must be closed before the file system goes.
func open2(t *testing.T, dir string) *store.Store {
	t.Helper()
	s, err := store.Open(t.Context(), dir, store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// eat takes what is left of a file system.
func eat(disk string) error {
	f, err := os.Create(filepath.Join(disk, "rest"))
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

func checkRoom(t *testing.T, s *store.Store) {
	t.Helper()
	if _, err := s.Sandboxes().InsertSandbox(t.Context(), largeRow()); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := s.Events().AppendEvents(t.Context(), store.Event{Action: "after"}); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
}

// writeLimited reaches a limit of the size of files, which looks like a failing
// disk, and lifts it.
func writeLimited(ctx context.Context, dir string) error {
	s, err := store.Open(ctx, dir, store.Options{})
	if err != nil {
		return err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	low := unix.Rlimit{Cur: 1 << 20, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &low); err != nil {
		return err
	}
	if err := fillUp(ctx, s); err != nil {
		return err
	}
	if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	if _, err := s.Sandboxes().InsertSandbox(ctx, largeRow()); err != nil {
		return fmt.Errorf("without the limit: %w", err)
	}
	return s.Close()
}

func TestFileSizeLimit(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other, out := play(t, "limited", dir)
	if text, err := out.ReadString('\n'); text != "" {
		t.Errorf("it said %q, %v", text, err)
	}
	if err := other.Wait(); err != nil {
		t.Fatal(err)
	}
	checkRoom(t, open(t, dir))
}
