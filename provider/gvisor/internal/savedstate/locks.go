package savedstate

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockName is the file with all locks.
const lockName = "lock"

// Locks are exclusive locks by name, which all processes share that use a directory. All are
// in one file that stays, each a byte of its own: a file for each lock would have to be
// removed while others wait for it.
type Locks struct{ Dir string }

// Lock waits until it has the lock of the name. The caller unlocks by closing the file.
func (l Locks) Lock(ctx context.Context, name string) (*os.File, error) {
	const longest = 50 * time.Millisecond
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		f, err := l.TryLock(name)
		if err != nil || f != nil {
			return f, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// TryLock is Lock without waiting. It returns nil if another process, or another part of this
// one, has the lock.
func (l Locks) TryLock(name string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(l.Dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the saved state: %w", err)
	}
	hash := fnv.New64a()
	_, _ = io.WriteString(hash, name) // never fails
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{
		Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(hash.Sum64() & (math.MaxInt64 >> 1)), Len: 1,
	})
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINTR) {
		return nil, nil //nolint:nilnil // it is locked
	}
	return nil, fmt.Errorf("lock the saved state: %w", err)
}
