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

// format is part of every name in the cache. It changes when the same source is converted
// to a different file.
const format = "sandpit image 2"

const (
	imageSuffix = ".erofs"
	tempSuffix  = ".tmp"
)

// cacheKey returns the name in the cache of what is built from the given parts.
func cacheKey(parts ...string) string {
	text := appendText(nil, format)
	for _, p := range parts {
		text = appendText(text, p)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// cacheDir is the directory of a cache: finished images, records, and files in the making
// with their locks.
type cacheDir struct{ dir string }

// findKey returns a find function for an image whose key is known before it is built.
func (c *cacheDir) findKey(key string) func() (string, error) {
	return func() (string, error) { return c.existingKey(key) }
}

// existingKey returns key if its image exists, else "".
func (c *cacheDir) existingKey(key string) (string, error) {
	_, err := os.Lstat(c.imagePath(key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the image cache: %w", err)
	}
	return key, nil
}

func (c *cacheDir) imagePath(key string) string { return filepath.Join(c.dir, key+imageSuffix) }

// usedStep is the precision of an image's time of last use.
const usedStep = 10 * time.Second

// openImage opens a finished image, or returns nil if it does not exist. While it is open,
// it is not removed to free space.
func (c *cacheDir) openImage(ctx context.Context, key string) (*os.File, error) {
	path := c.imagePath(key)
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image cache: %w", err)
	}
	err = lockFile(ctx, f, path, unix.LOCK_SH)
	if errors.Is(err, errReplaced) {
		return nil, f.Close()
	}
	var info fs.FileInfo
	if err == nil {
		info, err = f.Stat()
	}
	if err == nil && info.Mode().Perm() != imageMode { // its builder was killed before Chmod
		err = f.Chmod(imageMode)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read the image cache: %w", err), f.Close())
	}
	if now := time.Now(); now.Sub(info.ModTime()) > usedStep {
		_ = os.Chtimes(path, now, now) // without it the image is only removed earlier
	}
	return f, nil
}

// imageMode is the mode of finished images: readable for all users, because an
// engine may run as another user than the one that filled the cache. The mode of the
// directory controls access.
const imageMode = 0o444

// publishFile renames an unfinished file to its final name.
func (c *cacheDir) publishFile(f *os.File, name string) error {
	err := f.Sync()
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(c.dir, name))
	}
	if err != nil {
		return c.hintDiskFull(errors.Join(fmt.Errorf("finish the image: %w", err), os.Remove(f.Name())))
	}
	// Chmod is last: other processes must be able to open and lock the file under its old name.
	return f.Chmod(imageMode)
}

// lockNew returns the empty file NAME.tmp with an exclusive lock.
func (c *cacheDir) lockNew(ctx context.Context, name string) (*os.File, error) {
	path := filepath.Join(c.dir, name+tempSuffix)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, c.hintDiskFull(fmt.Errorf("write to the image cache: %w", err))
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

// errReplaced reports that a file was finished or removed while the caller waited for its lock.
var errReplaced = errors.New("the file no longer exists")

// lockFile waits for a shared or exclusive lock on f, which is at path. The kernel
// releases the lock when the process ends. A finished file keeps its locks under its new
// name for as long as it is in use, so a caller that waits for the old name must not wait
// for those.
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

// removeAbandoned removes unfinished files that have no builder, and layers that were not
// used for blobAge.
func (c *cacheDir) removeAbandoned() error {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		path := filepath.Join(c.dir, e.Name())
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

// removeIfFree removes a file that is not locked and was not changed after the given time;
// the zero time sets no such condition.
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
		return false, nil // in use
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

// hintDiskFull adds a hint to an error that a full disk causes.
func (c *cacheDir) hintDiskFull(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%w", err),
			"free space on the disk of "+c.dir+"; sandpit image prune --all removes images that no sandbox uses")
	}
	return err
}

// lockForAppend opens or creates the file at path with an exclusive lock and keeps its
// contents.
func (c *cacheDir) lockForAppend(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, c.hintDiskFull(fmt.Errorf("write to the image cache: %w", err))
		}
		err = lockFile(ctx, f, path, unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		_ = f.Close() // nothing was written
		if !errors.Is(err, errReplaced) {
			return nil, fmt.Errorf("wait for the image cache: %w", err)
		}
	}
}

// keyOf returns the key of an open image.
func (c *cacheDir) keyOf(f *os.File) string {
	return strings.TrimSuffix(f.Name()[len(c.dir)+1:], imageSuffix)
}

// openID returns the image with an ID. NotFound: no such image.
func (c *cacheDir) openID(ctx context.Context, id string) (*os.File, error) {
	var f *os.File
	var err error
	if isKey(id) {
		f, err = c.openImage(ctx, id)
	}
	if err == nil && f == nil {
		err = errNoSuchID(id)
	}
	return f, err
}
