package gvisor

import (
	"context"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.SaveEstimator = (*Instance)(nil)

// saveOverhead is what a sandbox with hardly any files takes.
const saveOverhead = 1 << 20

// EstimateSave implements sandpit.SaveEstimator. How large the files are is what the sandbox
// says, but never more than its limit. Those of a paused one are not counted, as it says
// nothing.
func (i *Instance) EstimateSave(ctx context.Context, memory bool) (int64, error) {
	rep, f, err := i.call(ctx, request{Op: opStats, ID: i.id})
	if f != nil {
		_ = f.Close()
	}
	if err != nil {
		return 0, err
	}
	if rep.Stats == nil {
		return 0, sandpit.Errorf(sandpit.Internal, "estimate what saving takes: the engine sent no figures")
	}
	bytes := int64(saveOverhead)
	if memory {
		bytes += rep.Stats.Memory
	}
	if rep.Paused {
		return bytes, nil
	}
	files, err := i.guest.DiskUsed(ctx)
	if limit := rep.Stats.Limits.Disk; limit > 0 {
		files = min(files, limit)
	}
	return bytes + max(0, files), err
}

// savedBytes returns how many bytes are on the disk, or in the archive, of a sandbox that is
// stopped, paused on disk or archived.
func (p *Provider) savedBytes(id sandpit.ID) int64 {
	if p.keep.dir == "" {
		return 0
	}
	bytes := ownBytes(p.keep.path(id)) + ownBytes(p.suspended.path(string(id)))
	if p.archived.has(id) {
		if found, err := p.archived.read(id); err == nil { // else nobody can restore it either
			bytes += found.Size
		}
	}
	return bytes
}

func (p *Provider) checkpointBytes(id sandpit.ID) int64 {
	if p.keep.dir == "" {
		return 0
	}
	return ownBytes(p.saved.path(id))
}

// ownBytes returns how many bytes the files in a directory have that are nowhere else: images
// are links, as long as others have them, too. What is not there has none.
func ownBytes(dir string) (sum int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, e.Name()), &st); err == nil && st.Nlink == 1 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			sum += st.Size
		}
	}
	return sum
}

// bytes returns how many bytes the files of a stopped sandbox have, its image included.
func (k kept) bytes() (sum int64) {
	for _, size := range k.Sizes {
		sum += size
	}
	return sum
}
