// Package diskspace reserves disk space before it is used. A request that would fill the disk or exceed its owner's
// share is refused, instead of failing halfway together with others.
package diskspace

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Disk keeps some bytes of a file system free. All methods may be called concurrently, also on a nil Disk, which
// keeps nothing free.
type Disk struct {
	minFree int64
	measure func() (free, size int64, err error)

	mu      sync.Mutex
	pending int64 // reserved and not written yet
}

// DiskOptions configure a Disk.
type DiskOptions struct {
	// Dir is a directory on the file system. It must exist at each reservation.
	Dir string
	// MinFree is how many bytes stay free, but at most a twentieth of the file system, so that a small disk can be
	// used. 0 or less keeps nothing free.
	MinFree int64
	// Measure returns the number of free bytes and the size of the file system. It must be safe for concurrent use.
	// Default: the kernel's figures.
	Measure func() (free, size int64, err error)
}

// NewDisk returns a Disk without reservations.
func NewDisk(o DiskOptions) *Disk {
	if o.Measure == nil {
		o.Measure = func() (int64, int64, error) { return measureDisk(o.Dir) }
	}
	return &Disk{minFree: o.MinFree, measure: o.Measure}
}

// measureDisk returns how many bytes an ordinary user can still write on the file system of dir, and its size.
func measureDisk(dir string) (free, size int64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, 0, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, nil //nolint:gosec // sizes of real disks
}

// Size returns the size of the file system in bytes, 0 for a nil Disk.
func (d *Disk) Size() (int64, error) {
	if d == nil {
		return 0, nil
	}
	_, size, err := d.measure()
	if err != nil {
		return 0, fmt.Errorf("measure the size of the disk: %w", err)
	}
	return size, nil
}

// Check reports whether the minimum is free. It is for small writes of unknown size.
//
// Exhausted: less than the minimum is free.
func (d *Disk) Check() error {
	if d == nil {
		return nil
	}
	return d.reserveBytes(0)
}

// Missing returns how many bytes must be freed before bytes can be reserved; 0 or less if none.
func (d *Disk) Missing(bytes int64) (int64, error) {
	if d == nil || d.minFree <= 0 {
		return 0, nil
	}
	free, size, err := d.measureNow()
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return bytes - d.availableLocked(free, size), nil
}

func (d *Disk) measureNow() (free, size int64, err error) {
	if free, size, err = d.measure(); err != nil {
		return 0, 0, fmt.Errorf("measure the free disk space: %w", err)
	}
	return free, size, nil
}

// availableLocked returns how many bytes can be reserved; negative if less than the minimum is free. The lock must be
// held.
func (d *Disk) availableLocked(free, size int64) int64 {
	return free - d.pending - min(d.minFree, size/20)
}

// reserveBytes reserves bytes that will be written. releaseBytes ends the reservation.
func (d *Disk) reserveBytes(bytes int64) error {
	if d == nil || d.minFree <= 0 {
		return nil
	}
	free, size, err := d.measureNow()
	if err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if room := d.availableLocked(free, size); room < 0 || bytes > room {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "the server's disk is almost full: %s are needed, and %s can be used",
				formatSize(bytes), formatSize(max(room, 0))),
			"delete sandboxes, snapshots or templates that you no longer need; the administrator can free space with sandpit image prune")
	}
	d.pending += bytes
	return nil
}

// releaseBytes ends the reservation of bytes that were written or are not needed.
func (d *Disk) releaseBytes(bytes int64) {
	if d == nil || d.minFree <= 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pending -= bytes
}

// Disks finds the Disk of a directory. Directories on the same file system share a Disk and its reservations. All
// methods may be called concurrently.
type Disks struct {
	minFree int64

	mu    sync.Mutex
	disks map[uint64]*Disk // by device
}

// NewDisks returns Disks that keep minFree bytes free each: see DiskOptions.
func NewDisks(minFree int64) *Disks { return &Disks{minFree: minFree, disks: make(map[uint64]*Disk)} }

// At returns the disk of a directory, which must exist.
func (d *Disks) At(dir string) (*Disk, error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	disk := d.disks[st.Dev]
	if disk == nil {
		disk = NewDisk(DiskOptions{Dir: dir, MinFree: d.minFree})
		d.disks[st.Dev] = disk
	}
	return disk, nil
}

// formatSize writes a number of bytes for people.
func formatSize(bytes int64) string {
	const units = "KMGTPE"
	if bytes < 1024 {
		return fmt.Sprintf("%d bytes", bytes)
	}
	value, unit := float64(bytes)/1024, 0
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	return fmt.Sprintf("%.1f %ciB", value, units[unit])
}
