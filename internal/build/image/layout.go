package image

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The files that identify a directory or archive of layers.
const (
	ociMark     = "oci-layout"
	ociIndex    = "index.json"
	dockerIndex = "manifest.json"
)

// The annotations with the name of an image in the index of a layout.
const (
	ociName        = "org.opencontainers.image.ref.name"
	containerdName = "io.containerd.image.name"
)

// fileSource opens files of a directory or of an unpacked archive. Paths have no leading slash.
type fileSource interface {
	open(path string) (io.ReadCloser, error)
}

func readSmall(f fileSource, path string) ([]byte, error) {
	r, err := f.open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	data, err := readDocument(r)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return data, nil
}

// foundImage is an image in a directory or archive, with its names there.
type foundImage struct {
	image *layeredImage
	names []string
}

// findImage returns the image with a tag, or the only one if tag is "".
func findImage(ctx context.Context, f fileSource, tag string) (foundImage, error) {
	data, err := readSmall(f, ociIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return findDocker(f, tag)
	}
	if err != nil {
		return foundImage{}, err
	}
	doc, err := parseDocument(data)
	if err != nil {
		return foundImage{}, fmt.Errorf("%s: %w", ociIndex, err)
	}
	names := make([][]string, len(doc.Manifests))
	for i, m := range doc.Manifests {
		names[i] = namesOf(m)
	}
	from := ociFiles{f}
	if tag == "" && len(slices.Concat(names...)) == 0 { // one image, perhaps for several platforms
		l, err := chooseImage(ctx, from, data)
		return foundImage{image: l}, err
	}
	i, err := pickName(names, tag)
	if err != nil {
		return foundImage{}, err
	}
	m := doc.Manifests[i]
	data, err = from.readManifest(ctx, m)
	if data, err = checkContents(data, err, m); err != nil {
		return foundImage{}, fmt.Errorf("manifest: %w", err)
	}
	l, err := chooseImage(ctx, from, data)
	return foundImage{image: l, names: names[i]}, err
}

func namesOf(d descriptor) []string {
	var names []string
	for _, key := range []string{containerdName, ociName} {
		if name := d.Annotations[key]; name != "" {
			names = append(names, name)
		}
	}
	return names
}

// pickName returns the index of the image with a tag, or of the only image if tag is "".
func pickName(names [][]string, tag string) (int, error) {
	var all []string
	found := -1
	for i, list := range names {
		for _, name := range list {
			if tag != "" && (name == tag || strings.HasSuffix(name, ":"+tag)) {
				return i, nil
			}
			all = append(all, quoteName(name))
		}
		if tag == "" && found < 0 {
			found = i
		}
	}
	slices.Sort(all)
	const most = 20
	if len(all) > most {
		all = append(all[:most], "...")
	}
	if tag != "" {
		return 0, sandpit.WithHint(
			sandpit.Errorf(sandpit.NotFound, "no image has the tag %s", quoteName(tag)), "tags: "+strings.Join(all, ", "))
	}
	if len(names) > 1 {
		return 0, sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "it contains %d images, and no tag selects one", len(names)),
			"add a colon and the tag; tags: "+strings.Join(all, ", "))
	}
	if found < 0 {
		return 0, sandpit.Errorf(sandpit.Invalid, "it contains no image")
	}
	return found, nil
}

// ociFiles are the files of an OCI layout.
type ociFiles struct{ fileSource }

func (l ociFiles) openBlob(d descriptor) (io.ReadCloser, error) {
	r, err := l.open("blobs/sha256/" + strings.TrimPrefix(d.Digest, "sha256:"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s is missing", d.Digest),
			"save the image again with all layers")
	}
	return r, err
}

func (l ociFiles) readManifest(_ context.Context, d descriptor) ([]byte, error) {
	r, err := l.openBlob(d)
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // only read
	return readDocument(r)
}

func (l ociFiles) readConfig(ctx context.Context, d descriptor) ([]byte, error) {
	return l.readManifest(ctx, d)
}

func (l ociFiles) openLayer(_ context.Context, d descriptor) (io.ReadCloser, error) {
	r, err := l.openBlob(d)
	if err != nil {
		return nil, err
	}
	return readCloser{io.LimitReader(r, d.Size+1), r}, nil
}

// readCloser combines a reader and a closer.
type readCloser struct {
	io.Reader
	io.Closer
}

// dockerImage is one image in the index of docker save.
type dockerImage struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func findDocker(f fileSource, tag string) (foundImage, error) {
	data, err := readSmall(f, dockerIndex)
	if err != nil {
		return foundImage{}, err
	}
	var list []dockerImage
	if err := json.Unmarshal(data, &list); err != nil || len(list) > maxManifests {
		return foundImage{}, errManifest("%s is not an index of docker save", dockerIndex)
	}
	names := make([][]string, len(list))
	for i, image := range list {
		names[i] = image.RepoTags
	}
	i, err := pickName(names, tag)
	if err != nil {
		return foundImage{}, err
	}
	l, err := list[i].loadLayers(f)
	return foundImage{image: l, names: names[i]}, err
}

// loadLayers reads the image's configuration, which contains the digests of its layers.
func (d dockerImage) loadLayers(f fileSource) (*layeredImage, error) {
	data, err := readSmall(f, d.Config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	from := dockerFiles{f, map[string]string{}}
	l := &layeredImage{content: from, digest: sha256Of(data)}
	if l.raw, l.config, err = parseConfig(data); err != nil {
		return nil, err
	}
	if len(d.Layers) > maxLayers || len(d.Layers) != len(l.raw.RootFS.DiffIDs) {
		return nil, errConfig("it lists %d layers, but the image has %d", len(l.raw.RootFS.DiffIDs), len(d.Layers))
	}
	for i, id := range l.raw.RootFS.DiffIDs {
		if err := checkDigest(id); err != nil {
			return nil, err
		}
		from.paths[id] = d.Layers[i]
		l.list = append(l.list, descriptor{Digest: id})
	}
	return l, l.checkMachine()
}

// dockerFiles are the files of docker save. Layers are named by the digests of their
// uncompressed bytes.
type dockerFiles struct {
	fileSource
	paths map[string]string
}

func (dockerFiles) readManifest(context.Context, descriptor) ([]byte, error) {
	return nil, errManifest("it names others")
}

func (dockerFiles) readConfig(context.Context, descriptor) ([]byte, error) {
	return nil, errManifest("it names others")
}

func (d dockerFiles) openLayer(_ context.Context, l descriptor) (io.ReadCloser, error) {
	f, err := d.open(d.paths[l.Digest])
	if err != nil {
		return nil, err
	}
	r := bufio.NewReaderSize(f, 256<<10)
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, f.Close())
	}
	z, err := newUnpacker(r, string(magic))
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return readCloser{z, f}, nil
}

// newUnpacker returns a reader of the uncompressed bytes of r. The magic bytes select the
// compression. The result need not be closed.
func newUnpacker(r io.Reader, magic string) (io.Reader, error) {
	switch {
	case strings.HasPrefix(magic, "\x1f\x8b"):
		return gzip.NewReader(r)
	case magic == "\x28\xb5\x2f\xfd":
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderMaxMemory(maxWindow))
	}
	return r, nil
}

// maxWindow bounds the memory for decompression, in bytes.
const maxWindow = 64 << 20

// dirFiles are the files of a directory of the machine. Links out of it are not followed.
type dirFiles struct{ root *os.Root }

func (d dirFiles) open(path string) (io.ReadCloser, error) {
	f, err := d.root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(sandpit.Errorf(sandpit.Invalid, "%s is not a file", quoteName(path)), err, f.Close())
	}
	return f, nil
}

// isLayout reports whether a directory is an OCI layout.
func isLayout(dir string) bool {
	for _, name := range []string{ociMark, ociIndex} {
		if info, err := os.Lstat(dir + "/" + name); err != nil || !info.Mode().IsRegular() {
			return false
		}
	}
	return true
}

// openLayout returns the image in an OCI layout.
func (s *Store) openLayout(ctx context.Context, dir, tag string) (*os.File, indexEntry, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, indexEntry{}, readError(dir, err)
	}
	defer func() { _ = root.Close() }() // only read
	image, err := findImage(ctx, dirFiles{root}, tag)
	if err != nil {
		return nil, indexEntry{}, err
	}
	f, key, err := s.builder.buildLayers(ctx, image.image, dir)
	return f, indexEntry{Key: key, Names: image.names}, err
}

// holdsLayers reports whether an archive contains an image with layers instead of a root file
// system.
func (a *archive) holdsLayers() bool {
	has := func(name string) bool { return a.root.children[name] != nil }
	if has("usr") || has("bin") || has("etc") {
		return false
	}
	return has(ociMark) && has(ociIndex) || has(dockerIndex)
}

// buildUnpacked builds the image whose layers are in an unpacked archive.
func (s *Store) buildUnpacked(ctx context.Context, a *archive, from archiveOrigin) (indexEntry, error) {
	if err := a.w.flushBuffer(); err != nil {
		return indexEntry{}, err
	}
	if err := a.w.f.Truncate(a.w.at); err != nil { // it may end with a hole
		return indexEntry{}, fmt.Errorf("unpack the archive: %w", err)
	}
	image, err := findImage(ctx, a, from.tag)
	if err != nil {
		return indexEntry{}, err
	}
	f, key, err := s.builder.buildLayers(ctx, image.image, from.path)
	if err != nil {
		return indexEntry{}, err
	}
	return indexEntry{Key: key, Names: image.names}, f.Close()
}

// open opens a file of the archive. It follows links.
func (a *archive) open(path string) (io.ReadCloser, error) {
	parts := strings.Split(path, "/")
	for range maxLinks {
		last := len(parts) - 1
		dir, err := a.walkTo(parts[:last], false)
		if err != nil {
			return nil, &fs.PathError{Op: "open", Path: quoteName(path), Err: fs.ErrNotExist}
		}
		n := dir.children[parts[last]]
		switch {
		case n == nil:
			return nil, &fs.PathError{Op: "open", Path: quoteName(path), Err: fs.ErrNotExist}
		case n.kind() == unix.S_IFREG:
			return io.NopCloser(io.NewSectionReader(a.w.f, int64(n.block)<<blockBits, n.size)), nil
		case n.kind() != unix.S_IFLNK:
			return nil, sandpit.Errorf(sandpit.Invalid, "%s is not a file", quoteName(path))
		case strings.HasPrefix(n.target, "/"):
			parts = strings.Split(n.target, "/")
		default:
			parts = slices.Concat(parts[:last], strings.Split(n.target, "/"))
		}
	}
	return nil, sandpit.Errorf(sandpit.Invalid, "too many symbolic links at %s", quoteName(path))
}
