package diskspace_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

const mib = 1 << 20

// disk is a file system with a number of free bytes of 20 times as many.
func disk(free *atomic.Int64, minFree int64) *diskspace.Disk {
	return diskspace.NewDisk(diskspace.DiskOptions{
		MinFree: minFree,
		Measure: func() (int64, int64, error) { return free.Load(), math.MaxInt64, nil },
	})
}

func reserve(t *testing.T, b *diskspace.Budget, owner string, bytes int64) *diskspace.Reservation {
	t.Helper()
	r, err := b.Reserve(owner, bytes)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantExhausted(t *testing.T, what string, err error, text string) {
	t.Helper()
	if !errors.Is(err, sandpit.Exhausted) || err.Error() != text || sandpit.HintOf(err) == "" {
		t.Errorf("%s: %v (hint %q), want Exhausted with a hint: %s", what, err, sandpit.HintOf(err), text)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	b := diskspace.NewBudget(diskspace.Options{Name: "pulled images", Total: 10 * mib, PerOwner: 6 * mib})
	first := reserve(t, b, "alice", 6*mib)
	_, err := b.Reserve("alice", 1)
	wantExhausted(t, "a byte for alice", err, `owner "alice" uses 6.0 MiB of its 6.0 MiB for pulled images, and 1 bytes more are needed`)
	second := reserve(t, b, "bob", 4*mib)
	_, err = b.Reserve("bob", 2048)
	wantExhausted(t, "more for bob", err, `the 10.0 MiB for pulled images are in use, and 2.0 KiB more are needed`)
	if own, all := b.Reserved("alice"); own != 6*mib || all != 10*mib {
		t.Errorf("refused requests changed what is reserved: %d, %d", own, all)
	}
	first.Release()
	first.Release()
	if err := second.Grow(2 * mib); err != nil {
		t.Error(err)
	}
	if err := first.Grow(1); !errors.Is(err, sandpit.Canceled) {
		t.Errorf("grow what was released: %v, want Canceled", err)
	}
	admin, err := b.ReserveUnshared("bob", 4*mib)
	if err != nil {
		t.Errorf("the share binds an administrator: %v", err)
	}
	if _, err := b.ReserveUnshared("bob", 1); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("the total does not bind an administrator: %v", err)
	}
	second.Release()
	admin.Release()
	if own, all := b.Reserved("bob"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes are reserved at the end", own, all)
	}
}

func TestImpossibleSizesAreRefused(t *testing.T) {
	t.Parallel()
	b := diskspace.NewBudget(diskspace.Options{Name: "x"})
	for _, bytes := range []int64{-1, math.MinInt64, math.MaxInt64} {
		if _, err := b.Reserve("alice", bytes); !errors.Is(err, sandpit.Exhausted) {
			t.Errorf("%d bytes: %v, want Exhausted", bytes, err)
		}
	}
}

func TestWhatLiesOnTheDiskCounts(t *testing.T) {
	t.Parallel()
	held := map[string]int64{"alice": 5 * mib, "bob": mib}
	failure := errors.New("unreadable")
	b := diskspace.NewBudget(diskspace.Options{
		Name: "x", Total: 10 * mib, PerOwner: 6 * mib,
		Held: func(owner string) (own, all int64, err error) {
			if owner == "broken" {
				return 0, 0, failure
			}
			return held[owner], 6 * mib, nil
		},
	})
	reserve(t, b, "alice", mib)
	if _, err := b.Reserve("alice", 1); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("alice has all of her share: %v, want Exhausted", err)
	}
	reserve(t, b, "bob", 3*mib)
	if _, err := b.Reserve("carol", 1); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("everything is in use: %v, want Exhausted", err)
	}
	if _, err := b.Reserve("broken", 1); !errors.Is(err, failure) {
		t.Errorf("got %v, want the error of the measurement", err)
	}
	if own, all := b.Reserved("broken"); own != 0 || all != 4*mib {
		t.Errorf("%d of %d bytes are reserved after a failed measurement", own, all)
	}
}

func TestWritingGrowsUpToTheBound(t *testing.T) {
	t.Parallel()
	b := diskspace.NewBudget(diskspace.Options{Name: "x", PerOwner: 8*mib + 512})
	r := reserve(t, b, "alice", mib)
	var written int64
	var err error
	for ; err == nil && written < 20*mib; written += 256 {
		err = r.Write(256)
	}
	if !errors.Is(err, sandpit.Exhausted) || written-256 != 8*mib+512 {
		t.Errorf("%d bytes could be written (%v), want 8 MiB and 512", written-256, err)
	}
	r.Settle(3 * mib)
	if own, _ := b.Reserved("alice"); own != 3*mib || r.Bytes() != own {
		t.Errorf("%d bytes are reserved after settling, want 3 MiB", own)
	}
	r.Settle(20 * mib)
	if own, _ := b.Reserved("alice"); own != 20*mib {
		t.Errorf("%d bytes count, want the 20 MiB that exist", own)
	}
	r.Release()
	r.Settle(1)
	if own, all := b.Reserved("alice"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes are reserved at the end", own, all)
	}
}

func TestDiskKeepsSomeFree(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(100 * mib)
	d := disk(&free, 20*mib)
	images := diskspace.NewBudget(diskspace.Options{Name: "images", Disk: d})
	uploads := diskspace.NewBudget(diskspace.Options{Name: "uploads", Disk: d})
	first := reserve(t, images, "alice", 50*mib)
	second := reserve(t, uploads, "bob", 30*mib)
	_, err := images.Reserve("bob", 1)
	wantExhausted(t, "one byte more", err, "the server's disk is almost full: 1 bytes are needed, and 0 bytes can be used")

	// What is written is no longer free, and no longer expected.
	if err := first.Write(40 * mib); err != nil {
		t.Fatal(err)
	}
	free.Add(-40 * mib)
	if _, err := images.Reserve("bob", 1); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("after writing what was reserved: %v, want Exhausted", err)
	}
	first.Settle(40 * mib) // 10 MiB were not needed
	third := reserve(t, images, "bob", 10*mib)
	if missing, err := d.Missing(7); missing != 7 || err != nil {
		t.Errorf("%d bytes are missing (%v), want 7", missing, err)
	}
	first.Release()
	second.Release()
	third.Release()
	free.Store(20*mib - 1)
	if err := d.Check(); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("check a full disk: %v, want Exhausted", err)
	}
	free.Store(20 * mib)
	if err := d.Check(); err != nil {
		t.Error(err)
	}
}

func TestSmallDiskCanBeUsed(t *testing.T) {
	t.Parallel()
	d := diskspace.NewDisk(diskspace.DiskOptions{MinFree: 1 << 40, Measure: func() (int64, int64, error) { return 6, 100, nil }})
	if err := d.Check(); err != nil {
		t.Errorf("6 of 100 bytes are free: %v", err)
	}
	var none *diskspace.Disk
	if err := none.Check(); err != nil {
		t.Error(err)
	}
}

func TestRealDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o700); err != nil {
		t.Fatal(err)
	}
	disks := diskspace.NewDisks(1)
	first, err1 := disks.At(dir)
	second, err2 := disks.At(sub)
	if err := errors.Join(err1, err2); err != nil || first != second {
		t.Fatalf("directories of one file system have different disks: %v", err)
	}
	if err := first.Check(); err != nil {
		t.Error(err)
	}
	b := diskspace.NewBudget(diskspace.Options{Name: "x", Disk: first})
	if _, err := b.Reserve("alice", 1<<51); !errors.Is(err, sandpit.Exhausted) {
		t.Errorf("2 PiB: %v, want Exhausted", err)
	}
	if _, err := disks.At(filepath.Join(dir, "missing")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing directory: %v", err)
	}
	if proc, err := disks.At("/proc"); err != nil || proc == first {
		t.Errorf("another file system has the same disk (%v)", err)
	}
}

// TestNothingIsLost has many owners reserve, write and give back at random.
func TestNothingIsLost(t *testing.T) {
	t.Parallel()
	var free atomic.Int64
	free.Store(1 << 40)
	d := disk(&free, 1)
	b := diskspace.NewBudget(diskspace.Options{Name: "x", Disk: d, Total: 700, PerOwner: 300})
	var workers sync.WaitGroup
	var used atomic.Int64
	for i := range 16 {
		owner := fmt.Sprint("owner", i%5)
		workers.Go(func() {
			for range 500 {
				r, err := b.Reserve(owner, 1+rand.Int64N(100))
				if err != nil {
					continue
				}
				if n := used.Add(r.Bytes()); n > 700 {
					t.Errorf("%d bytes are reserved, and there are 700", n)
				}
				used.Add(-r.Bytes())
				if rand.IntN(2) == 0 {
					_ = r.Write(rand.Int64N(50)) // may be refused
				}
				if rand.IntN(2) == 0 {
					r.Settle(r.Bytes() / 2)
				}
				r.Release()
			}
		})
	}
	workers.Wait()
	if own, all := b.Reserved("owner1"); own != 0 || all != 0 {
		t.Errorf("%d of %d bytes are reserved at the end", own, all)
	}
	free.Store(1)
	if err := d.Check(); err != nil {
		t.Errorf("bytes of the disk stay reserved: %v", err)
	}
}
