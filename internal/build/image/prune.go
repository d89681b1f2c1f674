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

// PruneOptions say what may go. Without any, it is images that have no name.
type PruneOptions struct {
	// All is every image, named or not.
	All bool
	// OlderThan is every image that was not used for so long. 0 means no such
	// rule.
	OlderThan time.Duration
	// MaxSize is how many bytes may stay, those used least recently going first.
	// 0 means no such rule.
	MaxSize int64
	// DryRun only tells what would go.
	DryRun bool
}

// Pruned is what Prune removed, or would have.
type Pruned struct {
	Images []Entry `json:"images"`
	// Size is in bytes on disk, half-fetched layers included.
	Size int64 `json:"size"`
}

// grace is how long an image is sure to stay after it was used, even if nobody
// has it open.
const grace = time.Minute

// Prune removes what o says, and layers that nobody is fetching. An image that a
// sandbox uses stays, so do templates, and sandpit's own for a minute after their use.
func (s *Store) Prune(ctx context.Context, o PruneOptions) (Pruned, error) {
	var p Pruned
	if o.OlderThan < 0 || o.MaxSize < 0 {
		return p, sandpit.Errorf(sandpit.Invalid, "prune: an age or size below zero")
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

// removeUnlocked removes an image that nobody uses and that is as it was when it was looked
// at.
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

// pruneBlobs removes layers that nobody is fetching or unpacking.
func (c *cacheDir) pruneBlobs(dry bool) (int64, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return 0, fmt.Errorf("prune the image cache: %w", err)
	}
	var size int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !isBlob(e.Name()) || !info.Mode().IsRegular() {
			continue // gone meanwhile, or none
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
