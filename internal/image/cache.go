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
const format = "sandpit image 1"

const (
	imageSuffix = ".erofs"
	tempSuffix  = ".tmp"
)

// digest names what was made from the given parts.
func digest(parts ...string) string {
	text := appendText(nil, format)
	for _, p := range parts {
		text = appendText(text, p)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// job is one image to be made once.
type job struct {
	// lock names the job: whoever does the same job uses the same name.
	lock string
	// find returns the finished image's key, or "".
	find func() (key string, err error)
	// write fills an empty file and returns the image's key.
	write func(f *os.File) (key string, err error)
}

// keyed makes find for an image whose key is known before it is made.
func (s *Store) keyed(key string) func() (string, error) {
	return func() (string, error) { return s.finished(key) }
}

// finished returns key if its image is there, else "".
func (s *Store) finished(key string) (string, error) {
	info, err := os.Lstat(s.path(key))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err == nil && info.Mode().Perm() != imageMode { // its maker is not, or never came, so far
		err = os.Chmod(s.path(key), imageMode)
	}
	if err != nil {
		return "", fmt.Errorf("look into the image cache: %w", err)
	}
	return key, nil
}

func (s *Store) path(key string) string { return filepath.Join(s.dir, key+imageSuffix) }

// once returns the path of the image that j makes. It is made by one caller;
// the others wait, as long as ctx allows.
func (s *Store) once(ctx context.Context, j job) (string, error) {
	if key, err := j.find(); err != nil || key != "" {
		return s.path(key), err
	}
	f, err := s.acquire(ctx, j.lock)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // gives up the lock; the file was synced
	key, err := j.find()
	if err == nil && key == "" {
		if key, err = j.write(f); err == nil {
			return s.path(key), s.publish(f, key+imageSuffix)
		}
	}
	if removeErr := os.Remove(f.Name()); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("clean the image cache: %w", removeErr))
	}
	return s.path(key), s.explain(err)
}

// imageMode is that of finished images: readable for everyone, because an
// engine may be another user than the one that filled the cache. Who gets at
// them is decided by the directory.
const imageMode = 0o444

// publish gives the file its final name.
func (s *Store) publish(f *os.File, name string) error {
	err := f.Sync()
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(s.dir, name))
	}
	if err != nil {
		return s.explain(errors.Join(fmt.Errorf("finish the image: %w", err), os.Remove(f.Name())))
	}
	// Last, for under its old name others must be able to open and lock it.
	return f.Chmod(imageMode)
}

// acquire returns the empty file NAME.tmp, locked for this caller alone.
func (s *Store) acquire(ctx context.Context, name string) (*os.File, error) {
	path := filepath.Join(s.dir, name+tempSuffix)
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, s.explain(fmt.Errorf("write to the image cache: %w", err))
		}
		err = lock(ctx, f)
		if err == nil && !isAt(f, path) { // it was finished or removed meanwhile
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

// lock waits for the lock on f. The kernel drops it when the process ends, in
// whatever way.
func lock(ctx context.Context, f *os.File) error {
	const longest = 25 * time.Millisecond
	wait := time.Millisecond
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
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

// sweep removes files in the making that nobody makes any more.
func (s *Store) sweep() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), tempSuffix) && e.Type().IsRegular() {
			errs = append(errs, removeIfFree(filepath.Join(s.dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}

func removeIfFree(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // finished meanwhile
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil // somebody is at it
	}
	if err != nil || !isAt(f, path) {
		return err
	}
	return os.Remove(path)
}

// explain adds what a person can do about a full disk.
func (s *Store) explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%w", err),
			"make room on the disk of "+s.dir+"; images in it that no sandbox uses may be deleted")
	}
	return err
}
