package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// PruneOptions select what Prune removes. Without options it removes images without a name.
type PruneOptions struct {
	// All selects every image, with or without a name.
	All bool
	// OlderThan selects images that were not used for this time. 0: no such rule.
	OlderThan time.Duration
	// MaxSize is the size in bytes to which the cache is reduced, least recently used
	// images first. 0: no such rule.
	MaxSize int64
	// DryRun removes nothing and returns what would be removed.
	DryRun bool
}

// Pruned is what Prune removed, or would remove.
type Pruned struct {
	Images []Entry `json:"images"`
	// Size is in bytes on disk, including incomplete layers.
	Size int64 `json:"size"`
}

// grace is how long an image is kept after its last use, even if it is not open.
const grace = time.Minute

// Prune removes the images that o selects, and layers that are not being fetched. It keeps
// images that a sandbox uses, templates, and sandpit's own programs for a minute after their use.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	var p Pruned
	if o.OlderThan < 0 || o.MaxSize < 0 {
		return p, sandpit.Errorf(sandpit.Invalid, "prune: negative age or size")
	}
	images, err := s.cache.listImages()
	if err != nil {
		return p, err
	}
	names, err := s.names.list()
	if err != nil {
		return p, err
	}
	slices.SortFunc(images, func(a, b Entry) int { return a.Used.Compare(b.Used) })
	var total int64
	for _, e := range images {
		total += e.Size
	}
	now := time.Now()
	for _, e := range images {
		if of := names[e.ID]; len(of) > 0 {
			e.Name = shortenName(of[0].Name)
		}
		if isTemplate(names[e.ID]) {
			continue
		}
		goes := o.All || o.OlderThan > 0 && now.Sub(e.Used) > o.OlderThan || o.MaxSize > 0 && total > o.MaxSize
		if o.OlderThan == 0 && o.MaxSize == 0 && e.Name == "" {
			goes = true
		}
		if !goes || e.Kind == KindProgram && now.Sub(e.Used) < grace {
			continue
		}
		gone, err := s.cache.removeUnlocked(e, o.DryRun)
		if err != nil {
			return p, err
		}
		if gone {
			total -= e.Size
			p.Size += e.Size
			p.Images = append(p.Images, e)
		}
	}
	size, err := s.cache.pruneBlobs(o.DryRun)
	p.Size += size
	if err != nil || o.DryRun {
		return p, err
	}
	return p, s.cache.removeOrphanRecords(ctx)
}

// removeUnlocked removes an image that is not in use and was not used since e was read.
func (c *cacheDir) removeUnlocked(e Entry, dry bool) (bool, error) {
	path := c.imagePath(e.ID)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("prune the image cache: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) || !isAt(f, path) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("prune the image cache: %w", err)
	}
	info, err := f.Stat()
	if err != nil || !info.ModTime().Equal(e.Used) {
		return false, err // used meanwhile
	}
	if dry {
		return true, nil
	}
	return true, os.Remove(path)
}

// pruneBlobs removes layers that are not being fetched or unpacked.
func (c *cacheDir) pruneBlobs(dry bool) (int64, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return 0, fmt.Errorf("prune the image cache: %w", err)
	}
	var size int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !isBlob(e.Name()) || !info.Mode().IsRegular() {
			continue // removed meanwhile, or not a layer
		}
		gone := dry
		if !dry {
			if gone, err = removeIfFree(filepath.Join(c.dir, e.Name()), time.Time{}); err != nil {
				return size, fmt.Errorf("prune the image cache: %w", err)
			}
		}
		if gone {
			size += info.Size()
		}
	}
	return size, nil
}
