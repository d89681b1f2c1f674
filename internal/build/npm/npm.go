// Package npm builds directories of npm packages on this machine from a lock file. It runs no
// scripts of packages and does not use npm. Registries need not be trusted, because a lock
// file has the digest of every package; the lock file determines only the contents of the
// directory.
package npm

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/mirror"
)

// Name is the name of npm's registry in the configuration of mirrors.
const Name = "npm"

// Source fetches packages from registries. Its methods may be called concurrently, and any
// number of processes may share the directory.
type Source struct {
	// Dir stores fetched files; it is created if missing. Files that were not used for a month
	// are removed.
	Dir string
	// Registries are tried in this order: http or https URLs. Default: Configured.
	Registries []string
	// Bounds limit the disk space of packages. Default: only each package is limited.
	Bounds Bounds
}

// Bounds limit the disk space of packages.
type Bounds = mirror.Bounds

const (
	maxPacked   = 1 << 30 // bytes of one package's archive
	maxUnpacked = 8 << 30 // bytes of all packages
	maxFiles    = 500_000 // of all packages
)

// Tree returns an archive of the directory that a lock file describes: node_modules with the
// commands of packages in .bin, below the directory to, owned by root. The caller closes the
// archive.
//
// NotFound: no registry has a package. Invalid: an archive is not a package. Exhausted: the
// packages are too large. Unavailable, Timeout: no registry sends a package with the digest in
// the lock file.
func (s Source) Tree(ctx context.Context, l Lock, to string) (io.ReadCloser, error) {
	registries := s.Registries
	if len(registries) == 0 {
		configured, err := Configured(ctx)
		if err != nil {
			return nil, err
		}
		registries = []string{configured}
	}
	c, err := mirror.Open(mirror.Options{Dir: s.Dir, Bases: registries, Bounds: s.Bounds})
	if err != nil {
		return nil, err
	}
	defer c.Close()
	list := make([]mirror.Wanted, len(l.Packages))
	for i, p := range l.Packages {
		list[i] = mirror.Wanted{Name: p.Name, Path: p.registryPath(), Pin: mirror.Pin{Digest: p.SHA512, Limit: maxPacked}}
	}
	return c.WriteArchive(ctx, list, func(out io.Writer, files []*os.File) error {
		w := &writer{Writer: tar.NewWriter(out), left: maxUnpacked, files: maxFiles, written: map[string]bool{}}
		return w.writeAll(ctx, l.Packages, files, path.Clean(strings.Trim(to, "/")))
	})
}

// writer writes the archive of a directory.
type writer struct {
	*tar.Writer
	left    int64 // bytes
	files   int
	written map[string]bool // directories and links in the archive
}

func (w *writer) writeAll(ctx context.Context, packages []Package, files []*os.File, to string) error {
	for dir := to; dir != "."; dir = path.Dir(dir) {
		w.written[dir] = true // keep the image's directories
	}
	for i, p := range packages {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := w.addPackage(p, files[i], path.Join(to, p.Path)); err != nil {
			return fmt.Errorf("the package %s: %w", p.Name, err)
		}
	}
	for _, p := range packages {
		if err := w.addCommands(p, path.Join(to, p.Path)); err != nil {
			return err
		}
	}
	return w.Close()
}

// addPackage adds the files of one package. The top directory in its archive may have any name.
func (w *writer) addPackage(p Package, f io.Reader, to string) error {
	z, err := gzip.NewReader(f)
	if err != nil {
		return errInvalidPackage(err)
	}
	programs := slices.Collect(maps.Values(p.Bin))
	for r := tar.NewReader(io.LimitReader(z, maxUnpacked)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errInvalidPackage(err)
		}
		if h.Typeflag != tar.TypeReg {
			continue // packages contain only files; addParents creates directories
		}
		_, name, _ := strings.Cut(strings.TrimPrefix(h.Name, "./"), "/")
		if name = path.Clean(name); !isBelow(name) {
			return sandpit.Errorf(sandpit.Invalid, "invalid file name %.200q", h.Name)
		}
		mode := int64(0o644)
		if h.Mode&0o111 != 0 || slices.Contains(programs, name) {
			mode = 0o755
		}
		if err := w.addFile(path.Join(to, name), mode, h.Size, packageReader{r}); err != nil {
			return err
		}
	}
}

func errInvalidPackage(err error) error {
	return sandpit.Errorf(sandpit.Invalid, "not an npm package: %w", err)
}

// packageReader marks read errors as errors of the package.
type packageReader struct{ io.Reader }

func (c packageReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = errInvalidPackage(err)
	}
	return n, err
}

// isBelow reports whether a path is clean, relative, not outside of its directory, and without
// special meaning in layers of images.
func isBelow(name string) bool {
	return name != "." && path.Clean(name) == name && !path.IsAbs(name) && name != ".." && !strings.HasPrefix(name, "../") &&
		!strings.ContainsAny(name, "\x00\\") && !slices.ContainsFunc(strings.Split(name, "/"), func(part string) bool { return strings.HasPrefix(part, ".wh.") })
}

func (w *writer) addFile(name string, mode, size int64, contents io.Reader) error {
	if w.left, w.files = w.left-size, w.files-1; size < 0 || w.left < 0 || w.files < 0 {
		return sandpit.Errorf(sandpit.Exhausted, "the packages have more than %d bytes or %d files", int64(maxUnpacked), maxFiles)
	}
	if err := w.addParents(name); err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: size, ModTime: time.Unix(0, 0), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err := io.Copy(w, contents)
	return err
}

// addParents adds the parent directories of a name, once.
func (w *writer) addParents(name string) error {
	dir := path.Dir(name)
	if dir == "." || w.written[dir] {
		return nil
	}
	if err := w.addParents(dir); err != nil {
		return err
	}
	w.written[dir] = true
	return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: time.Unix(0, 0), Format: tar.FormatPAX})
}

// addCommands adds links for the commands of a package.
func (w *writer) addCommands(p Package, to string) error {
	modules := strings.TrimSuffix(to, "/"+p.installName())
	for _, name := range slices.Sorted(maps.Keys(p.Bin)) {
		at := path.Join(modules, ".bin", name)
		if w.written[at] {
			continue // the first package has precedence
		}
		if err := w.addParents(at); err != nil {
			return err
		}
		w.written[at] = true
		h := &tar.Header{
			Typeflag: tar.TypeSymlink, Name: at, Linkname: path.Join("..", p.installName(), p.Bin[name]), Mode: 0o777, ModTime: time.Unix(0, 0), Format: tar.FormatPAX,
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
	}
	return nil
}
