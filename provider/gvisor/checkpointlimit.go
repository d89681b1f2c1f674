package gvisor

import (
	"context"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// allCheckpoints is locked while a checkpoint is published and their total is limited. It is
// not a valid ID. A process that locks it may have a sandbox's lock, and takes none afterwards.
const allCheckpoints = "checkpoints"

// detachLimit is how long a start waits for others that publish a checkpoint.
const detachLimit = 5 * time.Second

// reserveCheckpoint returns when a checkpoint of the sandbox with that many bytes may be
// published, and keeps others from publishing one until release is called.
//
// Exhausted: all checkpoints together would be too large.
func (s *savedStates) reserveCheckpoint(ctx context.Context, id sandpit.ID, size int64) (release func(), err error) {
	if s.checkpointBytes <= 0 {
		return func() {}, nil
	}
	lock, err := s.locks.Lock(ctx, allCheckpoints)
	if err != nil {
		return nil, err
	}
	others, err := s.otherCheckpointBytes(id)
	if err == nil && others+size > s.checkpointBytes {
		err = sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "its checkpoint has %d bytes, those of other sandboxes %d: the limit of all together is %d",
				size, others, s.checkpointBytes),
			"delete sandboxes with large checkpoints, or raise the limit")
	}
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return func() { _ = lock.Close() }, nil // only locked
}

// otherCheckpointBytes returns how many bytes the checkpoints of all sandboxes but one have.
// Images are shared and do not count.
func (s *savedStates) otherCheckpointBytes(except sandpit.ID) (sum int64, err error) {
	all, err := s.checkpoints.Names()
	for _, name := range all {
		if name != string(except) {
			sum += s.checkpoints.Size(name, layerFileNames())
		}
	}
	return sum, err
}

// dropExpiredCheckpoints removes the checkpoints that are too old.
func (s *savedStates) dropExpiredCheckpoints() error {
	if s.checkpointAge <= 0 {
		return nil
	}
	all, err := s.checkpoints.Names()
	errs := []error{err}
	for _, name := range all {
		id := sandpit.ID(name)
		if !s.isCheckpointExpired(id) {
			continue
		}
		lock, err := s.locks.TryLock(name)
		if lock == nil {
			errs = append(errs, err)
			continue // its user checks its age
		}
		errs = append(errs, s.dropExpiredCheckpoint(id), lock.Close())
	}
	return errors.Join(errs...)
}

// dropExpiredCheckpoint removes the checkpoint of a sandbox if it is too old. The caller has
// the sandbox's lock.
func (s *savedStates) dropExpiredCheckpoint(id sandpit.ID) error {
	if !s.isCheckpointExpired(id) {
		return nil
	}
	return s.checkpoints.Remove(string(id))
}

// isCheckpointExpired reports whether a sandbox has a checkpoint that is too old.
func (s *savedStates) isCheckpointExpired(id sandpit.ID) bool {
	at := s.checkpoints.SavedAt(string(id))
	return s.checkpointAge > 0 && !at.IsZero() && time.Since(at) > s.checkpointAge
}

// checkpointedAt returns when the last checkpoint of a sandbox was saved, the zero time if it
// has none or an expired one.
func (s *savedStates) checkpointedAt(id sandpit.ID) time.Time {
	if s.isCheckpointExpired(id) {
		return time.Time{}
	}
	return s.checkpoints.SavedAt(string(id))
}
