package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"github.com/sandpit-dev/sandpit"
)

// builder converts what images are made from into finished images, once each.
type builder struct {
	cache   *cacheDir
	space   *spaceManager
	sharing *Sharing // nil if one user has the cache
	limits  limits
}

// buildLayers returns the image of layers that are on this machine. It is built once.
func (b *builder) buildLayers(ctx context.Context, l *layeredImage, source string) (*os.File, string, error) {
	key := l.key()
	return b.makeOnce(ctx, makeJob{
		lock: key,
		find: b.cache.findKey(key),
		write: func(f *os.File) (makeResult, error) {
			return makeResult{key: key}, b.convertLayers(ctx, f, l, note{Source: source}, reservation{})
		},
	})
}

// convertLayers writes an image of layers. It completes the note with what the layers determine.
func (b *builder) convertLayers(ctx context.Context, f *os.File, l *layeredImage, n note, space reservation) error {
	if err := mergeLayers(ctx, f, l, b.limits, space); err != nil {
		return err
	}
	n.Kind, n.Digest, n.Platform = KindLayers, l.digest, thisMachine().String()
	n.Created, n.Config = l.raw.createdAt(), l.config
	return writeNote(f, n)
}

// makeJob describes one image that is built once.
type makeJob struct {
	// lock is the job's name: all callers with the same job use the same name.
	lock string
	// find returns the finished image's key, or "".
	find func() (key string, err error)
	// write fills an empty file and returns the image's key, or returns the key of an image
	// in the cache with inCache set.
	write func(f *os.File) (makeResult, error)
}

// makeResult is the result of a job.
type makeResult struct {
	key     string
	inCache bool // the image is in the cache already; the file was not needed
}

// makeOnce returns the image of j, open, and its key. One caller builds it; the others wait
// until ctx ends.
func (b *builder) makeOnce(ctx context.Context, j makeJob) (*os.File, string, error) {
	for range 5 {
		key, err := b.makeImage(ctx, j)
		if err != nil {
			return nil, "", err
		}
		if f, err := b.cache.openImage(ctx, key); err != nil || f != nil {
			return f, key, err
		}
	}
	return nil, "", sandpit.Errorf(sandpit.Unavailable, "the image was removed from the cache repeatedly")
}

func (b *builder) makeImage(ctx context.Context, j makeJob) (string, error) {
	if key, err := j.find(); err != nil || key != "" {
		return key, err
	}
	f, err := b.cache.lockNew(ctx, j.lock)
	if err != nil {
		return "", err
	}
	defer func() { _ = f.Close() }() // releases the lock; the file was synced
	key, err := j.find()
	if err == nil && key == "" {
		var m makeResult
		m, err = j.write(f)
		if err == nil && !m.inCache {
			if err := b.cache.publishFile(f, m.key+imageSuffix); err != nil {
				return "", err
			}
			_ = b.space.trimToSize(ctx) // the image is complete; prune reports the error
			return m.key, nil
		}
		key = m.key
	}
	if removeErr := os.Remove(f.Name()); removeErr != nil {
		err = errors.Join(err, fmt.Errorf("clean the image cache: %w", removeErr))
	}
	return key, b.cache.hintDiskFull(err)
}

// makeTree returns the image of a tree whose contents are still to be read from the machine.
func (b *builder) makeTree(ctx context.Context, root *node, about note, p Progress) (*os.File, error) {
	h := sha256.New()
	root.hashInto(h)
	key := cacheKey("tree", hex.EncodeToString(h.Sum(nil)))
	f, _, err := b.makeOnce(ctx, makeJob{
		lock: key,
		find: b.cache.findKey(key),
		write: func(f *os.File) (makeResult, error) {
			m := &countingReader{ctx: ctx, progress: p}
			root.eachFile(func(n *node) { m.total += n.size })
			w := newWriter(f)
			if err := w.fetchContents(root, m); err != nil {
				return makeResult{}, err
			}
			m.reportProgress()
			if err := w.finishImage(root); err != nil {
				return makeResult{}, err
			}
			return makeResult{key: key}, writeNote(f, about)
		},
	})
	return f, err
}
