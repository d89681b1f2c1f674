package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/sandpit-dev/sandpit"
)

// content is where the parts of an image are: a registry, a directory, an archive.
type content interface {
	// manifest and config return small parts. Who calls them checks the digest.
	manifest(ctx context.Context, d descriptor) ([]byte, error)
	config(ctx context.Context, d descriptor) ([]byte, error)
	// layer opens one layer.
	layer(ctx context.Context, d descriptor) (io.ReadCloser, error)
}

// layered is an image that is still in layers.
type layered struct {
	content content
	digest  string // of its manifest, or what stands for that
	list    []descriptor
	raw     rawConfig
	told    Config
}

func (l *layered) count() int            { return len(l.list) }
func (l *layered) digestAt(i int) string { return l.list[i].Digest }

func (l *layered) open(ctx context.Context, i int) (io.ReadCloser, error) {
	return l.content.layer(ctx, l.list[i])
}

// key names the image in the cache.
func (l *layered) key() string { return digest("oci", l.digest) }

// thisMachine is what images must be made for.
func thisMachine() platform { return platform{OS: "linux", Architecture: runtime.GOARCH} }

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// checked returns data if it is what d names.
func checked(data []byte, err error, d descriptor) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if got := sha256Of(data); got != d.Digest {
		return nil, wrongDigest(d.Digest, got)
	}
	return data, nil
}

// choose goes from a manifest, or an index of several, to the image for this
// machine.
func choose(ctx context.Context, from content, data []byte) (*layered, error) {
	const deepest = 4
	for range deepest {
		doc, err := parseDocument(data)
		if err != nil {
			return nil, err
		}
		if doc.Config != nil {
			return chosen(ctx, from, doc, sha256Of(data))
		}
		next, err := doc.pick(thisMachine())
		if err != nil {
			return nil, err
		}
		data, err = from.manifest(ctx, next)
		if data, err = checked(data, err, next); err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
	}
	return nil, badManifest("there are too many lists in each other")
}

func chosen(ctx context.Context, from content, doc document, digest string) (*layered, error) {
	data, err := from.config(ctx, *doc.Config)
	if data, err = checked(data, err, *doc.Config); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	l := &layered{content: from, digest: digest, list: doc.Layers}
	if l.raw, l.told, err = parseConfig(data); err != nil {
		return nil, err
	}
	return l, l.check()
}

// check compares what the configuration says with the machine and the layers.
func (l *layered) check() error {
	if p := l.raw.platform(); p != (platform{}) && !p.runs(thisMachine()) {
		return wrongPlatform(thisMachine(), []string{p.String()})
	}
	if n := len(l.raw.RootFS.DiffIDs); n > 0 && n != len(l.list) {
		return badConfig("it is about %d layers, and there are %d", n, len(l.list))
	}
	return nil
}

// build returns the image of layers that are on this machine, made once.
func (s *Store) build(ctx context.Context, l *layered, source string) (*os.File, string, error) {
	key := l.key()
	return s.once(ctx, job{
		lock: key,
		find: s.keyed(key),
		write: func(f *os.File) (made, error) {
			return made{key: key}, s.convert(ctx, f, l, note{Source: source}, room{})
		},
	})
}

// convert writes an image of layers, with a note of which the rest is filled in.
func (s *Store) convert(ctx context.Context, f *os.File, l *layered, n note, space room) error {
	if err := merge(ctx, f, l, s.limits, space); err != nil {
		return err
	}
	n.Kind, n.Digest, n.Platform = KindLayers, l.digest, thisMachine().String()
	n.Created, n.Config = l.raw.created(), l.told
	return writeNote(f, n)
}

// readDocument returns what r has, which must be small.
func readDocument(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err == nil && len(data) > maxDocument {
		err = sandpit.Errorf(sandpit.Exhausted, "it has more than %d bytes", maxDocument)
	}
	return data, err
}
