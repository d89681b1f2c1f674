package daemon

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func TestDiskProbe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	var p diskProbe
	if err := p.checkDir(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
	if err := p.checkDir(t.Context(), filepath.Join(dir, "missing")); err == nil {
		t.Error("a directory that is missing can be written to")
	}
	if err := p.waitForProbes(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestDiskThatHangs has a disk never answer: a pipe without a reader takes the place of the
// file.
func TestDiskThatHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	pipe := filepath.Join(dir, probeName)
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	var p diskProbe
	for range 3 { // of which one waits
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if err := p.checkDir(ctx, dir); sandpit.CodeOf(err) != sandpit.Timeout {
			t.Errorf("got %v, want a timeout", err)
		}
		cancel()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.waitForProbes(ctx); sandpit.CodeOf(err) != sandpit.Timeout {
		t.Errorf("wait: %v, want a timeout", err)
	}
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	if err := p.waitForProbes(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestNotReadyOnAFullDisk fills the disk of the state.
func TestNotReadyOnAFullDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		testengine.Skip(t, "no file system can be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	s := &service{cfg: configured(t), disks: diskspace.NewDisks(1 << 30)}
	s.cfg.StateDir, s.cfg.CacheDir, s.cfg.RuntimeDir = dir, t.TempDir(), t.TempDir()
	if err := s.checkDisks(t.Context()); err != nil {
		t.Fatal(err)
	}
	for size, want := range map[int64]string{4<<20 - 100<<10: "state_dir: the server's disk is almost full", 4 << 20: "state_dir: write"} {
		file := filepath.Join(dir, "rest")
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Fallocate(int(f.Fd()), 0, 0, size); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.checkDisks(t.Context()); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("with %d bytes in use: %v, want %q", size, err, want)
		}
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
}
