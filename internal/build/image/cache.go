package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// format is part of every name in the cache. It changes when the same source
// would no longer give the same file.
const format = "sandpit image 2"

const (
	imageSuffix = ".erofs"
	tempSuffix  = ".tmp"
)

// cacheKey names what was made from the given parts.
func cacheKey(parts ...string) string {
	text := appendText(nil, format)
	for _, p := range parts {
		text = appendText(text, p)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// makeJob is one image to be made once.
type makeJob struct {
	// lock names the job: whoever does the same job uses the same name.
	lock string
	// find returns the finished image's key, or "".
	find func() (key string, err error)
	// write fills an empty file and returns the image's key, or makes the image
	// elsewhere and returns its key with done set.
	write func(f *os.File) (makeResult, error)
}

// makeResult is what a job came to.
type makeResult struct {
	key     string
	inCache bool // the image is in the cache already; the file was not needed
}

// findKey makes find for an image whose key is known before it is made.
func (s *Store) findKey(key string) func() (string, error) {
	return func() (string, error) { return s.existingKey(key) }
}

// existingKey returns key if its image is there, else "".
func (s *Store) existingKey(key string) (string, error) {
	_, err := os.Lstat(s.imagePath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look into the image cache: %w", err)
	}
	return key, nil
}

func (s *Store) imagePath(key string) string { return filepath.Join(s.dir, key+imageSuffix) }

// usedStep is how exactly it is known when an image was used last.
const usedStep = 10 * time.Second

// openImage returns a finished image, or nil if there is none. While it is open
// nobody makes room by removing it.
func (s *Store) openImage(ctx context.Context, key string) (*os.File, error) {
	path := s.imagePath(key)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look into the image cache: %w", err)
	}
	err = lockFile(ctx, f, path, unix.LOCK_SH)
	if errors.Is(err, errReplaced) {
		return nil, f.Close()
	}
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err == nil && info.Mode().Perm() != imageMode { // its maker never came so far
		err = f.Chmod(imageMode)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("look into the image cache: %w", err), f.Close())
	}
	if now := time.Now(); now.Sub(info.ModTime()) > usedStep {
		_ = os.Chtimes(path, now, now) // at worst it goes a little earlier
	}
	return f, nil
}

// makeOnce returns the image that j makes, open. It is made by one caller; the
// others wait, as long as ctx allows.
func (s *Store) makeOnce(ctx context.Context, j makeJob) (*os.File, string, error) {
	for range 5 {
		key, err := s.makeImage(ctx, j)
		if err != nil {
			return nil, "", err
		}
		if f, err := s.openImage(ctx, key); err != nil || f != nil {
			return f, key, err
		}
	}
	return nil, "", sandpit.Errorf(sandpit.Unavailable, "somebody keeps removing the image from the cache")
}

func (s *Store) makeImage(ctx context.Context, j makeJob) (string, error) {
	if key, err := j.find(); err != nil || key != "" {
		return key, err
	}
	f, err := s.lockNew(ctx, j.lock)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // gives up the lock; the file was synced
	key, err := j.find()
	if err == nil && key == "" {
		var m makeResult
		m, err = j.write(f)
		if err == nil && !m.inCache {
			if err := s.publishFile(f, m.key+imageSuffix); err != nil {
				return "", err
			}
			_ = s.trimToSize(ctx) // the image is there; who prunes the cache hears of it
			return m.key, nil
		}
		key = m.key
	}
	if removeErr := os.Remove(f.Name()); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("clean the image cache: %w", removeErr))
	}
	return key, s.hintDiskFull(err)
}

// imageMode is that of finished images: readable for everyone, because an
// engine may be another user than the one that filled the cache. Who gets at
// them is decided by the directory.
const imageMode = 0o444

// publishFile gives the file its final name.
func (s *Store) publishFile(f *os.File, name string) error {
	err := f.Sync()
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, name))
	}
	if err != nil {
		return s.hintDiskFull(errors.Join(fmt.Errorf("finish the image: %w", err), os.Remove(f.Name())))
	}
	// Last, for under its old name others must be able to open and lock it.
	return f.Chmod(imageMode)
}

// lockNew returns the empty file NAME.tmp, locked for this caller alone.
func (s *Store) lockNew(ctx context.Context, name string) (*os.File, error) {
	path := filepath.Join(s.dir, name+tempSuffix)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, s.hintDiskFull(fmt.Errorf("write to the image cache: %w", err))
		}
		err = lockFile(ctx, f, path, unix.LOCK_EX)
		if errors.Is(err, errReplaced) {
			_ = f.Close() // nothing was written
			continue
		}
		if err == nil {
			err = f.Truncate(0)
		}
		if err != nil {
			_ = f.Close() // nothing was written
			return nil, fmt.Errorf("wait for the image cache: %w", err)
		}
		return f, nil
	}
}

// errReplaced is a file that was finished or removed while its lock was waited for.
var errReplaced = errors.New("the file is not there any more")

// lockFile waits for the lock on f, which is at path, to be shared or not. The kernel
// drops it when the process ends, in whatever way. A finished file keeps its locks
// under its new name, held for as long as somebody uses it: so who waits for the
// old name must not wait for those.
func lockFile(ctx context.Context, f *os.File, path string, how int) error {
	const longest = 25 * time.Millisecond
	wait := time.Millisecond
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		blocked := errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.EINTR)
		if err != nil && !blocked {
			return err
		}
		if !isAt(f, path) {
			return errReplaced
		}
		if !blocked {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(wait):
			wait = min(2*wait, longest)
		}
	}
}

// isAt reports whether path still names the open file f.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(own, there)
}

// removeAbandoned removes files in the making that nobody makes any more, and layers that
// nobody has come back for.
func (s *Store) removeAbandoned() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(s.dir, e.Name())
		switch {
		case !e.Type().IsRegular():
		case strings.HasSuffix(e.Name(), tempSuffix):
			_, err = removeIfFree(path, time.Time{})
			errs = append(errs, err)
		case isBlob(e.Name()):
			_, err = removeIfFree(path, time.Now().Add(-blobAge))
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeIfFree removes a file that nobody has locked and that was not changed
// after a time, unless that is zero.
func removeIfFree(path string, after time.Time) (removed bool, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // finished or removed meanwhile
	}
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }() // only read
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil // somebody is at it
	}
	if err != nil || !isAt(f, path) {
		return false, err
	}
	info, err := f.Stat()
	if err != nil || !after.IsZero() && info.ModTime().After(after) {
		return false, err
	}
	return true, os.Remove(path)
}

// hintDiskFull adds what a person can do about a full disk.
func (s *Store) hintDiskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%w", err),
			"make room on the disk of "+s.dir+"; sandpit image prune --all removes images that no sandbox uses")
	}
	return err
}
