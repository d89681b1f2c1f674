package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// readRecord reads a small file of the cache into v. It leaves v unchanged if the file is
// missing, or was truncated by a crash of the machine.
func (c *cacheDir) readRecord(name string, v any) error {
	data, err := os.ReadFile(filepath.Join(c.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the image cache: %w", err)
	}
	if !json.Valid(data) {
		return nil
	}
	return json.Unmarshal(data, v)
}

// writeRecord writes a small file of the cache atomically.
func (c *cacheDir) writeRecord(ctx context.Context, name string, v any) error {
	f, err := c.lockNew(ctx, name)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // releases the lock; the file was synced
	if err := json.NewEncoder(f).Encode(v); err != nil {
		return errors.Join(fmt.Errorf("write to the image cache: %w", err), os.Remove(f.Name()))
	}
	return c.publishFile(f, name)
}

// limitRecords removes the oldest records with a prefix and suffix until there are fewer
// than most. It ignores errors: an extra record is harmless.
func (c *cacheDir) limitRecords(prefix, suffix string, most int) {
	files, err := c.listFiles(suffix)
	if err != nil {
		return
	}
	files = slices.DeleteFunc(files, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	for ; len(files) >= most; files = files[1:] {
		slices.SortFunc(files, func(a, b string) int {
			x, _ := c.recordTime(a)
			y, _ := c.recordTime(b)
			return x.Compare(y)
		})
		_ = os.Remove(filepath.Join(c.dir, files[0]))
	}
}

// recordTime is when a record was written, or the zero time.
func (c *cacheDir) recordTime(name string) (time.Time, error) {
	info, err := os.Lstat(filepath.Join(c.dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the image cache: %w", err)
	}
	return info.ModTime(), nil
}

// listFiles returns the names of the cache's files with a suffix.
func (c *cacheDir) listFiles(suffix string) ([]string, error) {
	entries, err := os.ReadDir(c.dir)
	if err != nil {
		return nil, fmt.Errorf("read the image cache: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// removeRecord removes a record if drop selects it and it is not being written.
func (c *cacheDir) removeRecord(ctx context.Context, file string, drop func() (bool, error)) error {
	if gone, err := drop(); err != nil || !gone {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	f, err := c.lockNew(ctx, file)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // it is being written
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // releases the lock
	gone, err := drop()
	if err == nil && gone {
		if err = os.Remove(filepath.Join(c.dir, file)); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	return errors.Join(err, os.Remove(f.Name()))
}

// removeOrphanRecords removes the records of images that do not exist.
func (c *cacheDir) removeOrphanRecords(ctx context.Context) error {
	missing := func(key string) (bool, error) {
		if !isKey(key) {
			return true, nil
		}
		there, err := c.existingKey(key)
		return there == "", err
	}
	names, err1 := c.listFiles(nameSuffix)
	indexes, err2 := c.listFiles(indexSuffix)
	origins, err3 := c.listFiles(originSuffix)
	errs := []error{err1, err2, err3}
	for _, file := range slices.Concat(names, indexes, origins) {
		errs = append(errs, c.removeRecord(ctx, file, func() (bool, error) {
			var e struct{ Key string }
			if err := c.readRecord(file, &e); err != nil {
				return false, err
			}
			return missing(e.Key)
		}))
	}
	return errors.Join(errs...)
}
