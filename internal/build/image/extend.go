package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Extension describes an image that is built from another one.
type Extension struct {
	// Base is any image except the host's, in a form that Resolve takes, or Scratch.
	Base sandpit.Image
	// Key identifies the difference from the base: for the same base and key the image is
	// built once.
	Key string
	// Layer opens the layer to add, compressed or not, in the format of registries. It is
	// called only if the image must be built, and its result is closed. Nil changes no files.
	Layer func(ctx context.Context) (io.ReadCloser, error)
	// Config replaces the base's configuration.
	Config Config
	// Template is stored with the image for its builder. Default: nothing.
	Template json.RawMessage
	// Source describes what the image is built from, for people.
	Source string
	// Owner is the owner whose share of the cache the image uses while it has no name.
	// Default: none.
	Owner string
}

// Scratch is the base of an Extension that starts with an empty directory.
const Scratch sandpit.Image = "scratch"

// Extend returns the image that e describes, as an entry without a name. It builds the image
// if it does not exist; concurrent callers for the same image wait.
//
// Unsupported: the base is the host's image. Otherwise it returns errors of Resolve and Layer.
func (s *Store) Extend(ctx context.Context, e Extension, p Progress) (Entry, error) {
	if e.Base == Scratch {
		return s.builder.extendFrom(ctx, e, nil)
	}
	base, err := s.Resolve(ctx, e.Base, p)
	if err != nil {
		return Entry{}, err
	}
	defer func() { _ = base.File.Close() }() // only read
	if len(base.Mounts) > 0 {
		return Entry{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "image %s consists of this machine's programs and cannot be a base", sandpit.HostImage),
			"start from an image of a registry, a directory or an archive")
	}
	return s.builder.extendFrom(ctx, e, base.File)
}

// extendFrom builds the image of an Extension from an open base, or from nothing if base is nil.
func (b *builder) extendFrom(ctx context.Context, e Extension, base *os.File) (Entry, error) {
	config, err := json.Marshal(e.Config)
	if err != nil {
		return Entry{}, fmt.Errorf("extend image %s: %w", e.Base, err)
	}
	baseKey := string(Scratch)
	if base != nil {
		baseKey = b.cache.keyOf(base)
	}
	key := cacheKey("extend", baseKey, e.Key, string(config), string(e.Template))
	var space reservation
	defer func() { space.release() }() // from now on the finished image counts
	f, _, err := b.makeOnce(ctx, makeJob{
		lock: key,
		find: b.cache.findKey(key),
		write: func(out *os.File) (_ makeResult, err error) {
			if space, err = b.space.reserve(e.Owner, sizeOnDisk(base)); err != nil {
				return makeResult{}, err
			}
			x := extensionJob{Extension: e, base: base, out: out, space: space}
			if e.Layer != nil {
				if x.layer, err = e.Layer(ctx); err != nil {
					return makeResult{}, err
				}
			}
			return makeResult{key: key}, b.unpackWith(func() error { return b.writeExtension(ctx, x) })
		},
	})
	if err != nil {
		return Entry{}, err
	}
	entry, err := newEntry(f, key)
	return entry, errors.Join(err, f.Close())
}

// extensionJob is an unfinished image of an Extension.
type extensionJob struct {
	Extension

	base  *os.File      // nil: no base
	layer io.ReadCloser // the opened Extension.Layer; nil: no layer
	out   *os.File
	space reservation
}

// writeExtension writes an image that begins with the contents of its base, if it has one. It
// closes the layer.
func (b *builder) writeExtension(ctx context.Context, x extensionJob) (err error) {
	defer func() {
		if x.layer != nil {
			err = errors.Join(err, x.layer.Close())
		}
	}()
	a := newArchive(x.out, b.limits)
	a.w.space = x.space
	var end int64
	if x.base != nil {
		var err error
		if a.root, end, err = openTree(x.base, b.limits); err != nil {
			return err
		}
		a.w.at = end
	}
	if r := x.layer; r != nil {
		x.layer = nil
		if err := a.addOpened(ctx, r); err != nil {
			return err
		}
	}
	if x.base != nil {
		if err := x.space.takeBytes(sizeOnDisk(x.base)); err != nil {
			return err
		}
		if err := copyContents(x.out, x.base, end); err != nil {
			return fmt.Errorf("write the image: %w", err)
		}
	}
	if err := a.w.punchHoles(a.root); err != nil {
		return err
	}
	if err := a.w.finishImage(a.root); err != nil {
		return err
	}
	return writeNote(x.out, note{
		Kind: KindTemplate, Source: x.Source, Platform: thisMachine().String(), Created: time.Now().UTC().Truncate(time.Second),
		Config: x.Config, Template: x.Template, Owner: x.Owner,
	})
}

// addOpened adds a layer and closes it.
func (a *archive) addOpened(ctx context.Context, r io.ReadCloser) error {
	a.layer = newLayer()
	defer func() { a.layer = nil }()
	err := a.readAll(bufio.NewReaderSize(&countingReader{ctx: ctx, r: r}, bufferSize))
	if err != nil {
		err = archiveError(err)
	}
	return errors.Join(err, r.Close())
}
