package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// allCheckpoints is what is locked while one is made and all together are limited. It is no
// ID. Who takes it may have a sandbox's lock, and takes none afterwards.
const allCheckpoints = "checkpoints"

// unkeepLimit is how long a start waits for others that make a checkpoint.
const unkeepLimit = 5 * time.Second

// makeRoom returns when a checkpoint of the sandbox with so many bytes may be made, and
// keeps others from making one until done is called.
//
// Exhausted: all together would be too large.
func (p *Provider) makeRoom(ctx context.Context, id sandpit.ID, size int64) (done func(), err error) {
	most := p.cfg.CheckpointBytes
	if most <= 0 {
		return func() {}, nil
	}
	held, err := p.keep.lock(ctx, allCheckpoints)
	if err != nil {
		return nil, err
	}
	others, err := p.saved.total(id)
	if err == nil && others+size > most {
		err = sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "it has %d bytes, the checkpoints of other sandboxes %d, and together at most %d are kept", size, others, most),
			"delete sandboxes that have large ones, or allow more")
	}
	if err != nil {
		return nil, errors.Join(err, held.Close())
	}
	return func() { _ = held.Close() }, nil // only locked
}

// total is how many bytes of disk all take but that of one sandbox. Their images are others'
// as well, and do not count.
func (k keeper) total(but sandpit.ID) (sum int64, err error) {
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return 0, fmt.Errorf("measure the checkpoints: %w", err)
	}
	for _, e := range entries {
		if id := sandpit.ID(e.Name()); id != but && id.Validate() == nil {
			sum += k.size(k.path(id))
		}
	}
	return sum, nil
}

// size is that of the layer in a directory. What is not there takes no room.
func (k keeper) size(dir string) (sum int64) {
	for _, name := range layerFiles() {
		if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// dropOld removes the checkpoints that are too old.
func (p *Provider) dropOld() error {
	if p.cfg.CheckpointAge <= 0 || p.saved.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(p.saved.dir)
	if err != nil {
		return fmt.Errorf("look for old checkpoints: %w", err)
	}
	var errs []error
	for _, e := range entries {
		id := sandpit.ID(e.Name())
		if id.Validate() != nil || !p.isOld(id) {
			continue
		}
		held, err := p.keep.tryLock(id)
		if held == nil {
			errs = append(errs, err)
			continue // somebody is at it, who looks at its age
		}
		errs = append(errs, p.dropIfOld(id), held.Close())
	}
	return errors.Join(errs...)
}

// dropIfOld removes the checkpoint of a sandbox if it is too old. Who calls it has the lock.
func (p *Provider) dropIfOld(id sandpit.ID) error {
	if !p.isOld(id) {
		return nil
	}
	return p.saved.remove(id)
}

// isOld reports whether there is a checkpoint that is too old.
func (p *Provider) isOld(id sandpit.ID) bool {
	at := p.savedAt(id)
	return p.cfg.CheckpointAge > 0 && !at.IsZero() && time.Since(at) > p.cfg.CheckpointAge
}

// savedAt is when a checkpoint was made, zero if there is none. Its record was written last.
func (p *Provider) savedAt(id sandpit.ID) time.Time {
	if p.saved.dir == "" {
		return time.Time{}
	}
	info, err := os.Stat(filepath.Join(p.saved.path(id), keptRecord))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// checkpointedAt is savedAt of a checkpoint that is not too old.
func (p *Provider) checkpointedAt(id sandpit.ID) time.Time {
	if p.isOld(id) {
		return time.Time{}
	}
	return p.savedAt(id)
}
