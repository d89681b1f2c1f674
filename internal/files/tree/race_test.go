package tree_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

// mountTmpfs mounts one MiB of memory.
func mountTmpfs(t *testing.T, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("cannot mount a small file system: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// TestRace exchanges a directory for a link to the outside, over and over, while
// streams are unpacked into it.
func TestRace(t *testing.T) {
	t.Parallel()
	c := newCage(t)
	victim, aside := filepath.Join(c.target, "d"), filepath.Join(c.target, "aside")
	stop := make(chan struct{})
	swaps := 0
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			// Any of these may fail, depending on what the stream has made.
			_ = os.RemoveAll(aside)
			_ = os.Rename(victim, aside)
			if os.Symlink("../../outside/dir", victim) == nil {
				swaps++
			}
			_ = os.Remove(victim)
			_ = os.Mkdir(victim, 0o755)
		}
	})
	const rounds = 600
	fine := 0
	for i := range rounds {
		name := fmt.Sprint("d/", i%20)
		data := stream(t, dir("d", 0o777), file(name, "x"), file("other", "x"), file(name+"-b", "x"), dir(name+"-dir", 0o777),
			file(name+"-dir/f", "x"), symlink(name+"-link", "f"), hardLink(name+"-hard", name))
		if _, err := unpack(t, c.target, data, tree.Options{OutsideLinks: true, SpecialBits: true}); err == nil {
			fine++
		}
	}
	close(stop)
	wg.Wait()
	c.check(t)
	t.Logf("%d swaps, %d of %d streams came through", swaps, fine, rounds)
	if swaps < 200 {
		t.Skip("the machine was too busy for a race")
	}
}

// TestConcurrent unpacks streams with the same names into one directory.
func TestConcurrent(t *testing.T) {
	t.Parallel()
	target := t.TempDir()
	var wg sync.WaitGroup
	for i := range 4 {
		var members []member
		for j := range 200 {
			members = append(members, file(fmt.Sprintf("d%d/%d/f%d", j%10, j, i), "x"))
		}
		data, root := stream(t, members...), openRoot(t, target)
		wg.Go(func() {
			if _, err := tree.Unpack(t.Context(), newReader(data), root, tree.Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
