// Package npm makes directories of npm's packages on this machine, from what a lock file
// says: no script of a package runs, and nothing of npm is needed. Registries are not
// trusted, since a lock file has the digest of every package; who gives us the lock file
// decides what is in the directory and nothing else.
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

// Name is what stands for npm's registry where registries have mirrors.
const Name = "npm"

// Source is where packages come from. Its methods may be called concurrently, and any
// number of processes may share the directory.
type Source struct {
	// Dir is where files are kept; it is made if missing. What was not used for a month
	// is removed.
	Dir string
	// Registries are asked in this order: http or https URLs. Default: Configured.
	Registries []string
	// Bounds limit the disk that packages take. Default: only each package is limited.
	Bounds Bounds
}

// Bounds limit the disk that packages take.
type Bounds = mirror.Bounds

const (
	maxPacked   = 1 << 30 // bytes of one package's file
	maxUnpacked = 8 << 30 // bytes of all packages
	maxFiles    = 500_000 // of all packages
)

// Tree returns an archive of the directory that a lock file describes: node_modules, with
// the commands of packages in .bin beside them, below the directory to. All is root's.
// Who calls it closes the archive.
//
// NotFound: no registry has a package. Invalid: a package is none. Exhausted: it is too
// much. Unavailable, Timeout: no registry gives what the lock file promises.
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
	files, err := c.Files(ctx, list)
	defer func() {
		for _, f := range files {
			if f != nil {
				_ = f.Close() // only read
			}
		}
	}()
	if err != nil {
		return nil, err
	}
	out, err := os.CreateTemp(s.Dir, "*"+mirror.Unfinished)
	if err == nil {
		err = os.Remove(out.Name())
	}
	if err != nil {
		return nil, err
	}
	w := &writer{Writer: tar.NewWriter(out), left: maxUnpacked, files: maxFiles, written: map[string]bool{}}
	if err := w.writeAll(ctx, l.Packages, files, path.Clean(strings.Trim(to, "/"))); err != nil {
		return nil, errors.Join(err, out.Close())
	}
	_, err = out.Seek(0, io.SeekStart)
	return out, err
}

// writer is the archive in the making.
type writer struct {
	*tar.Writer
	left    int64 // bytes
	files   int
	written map[string]bool // directories and links that are there
}

func (w *writer) writeAll(ctx context.Context, packages []Package, files []*os.File, to string) error {
	for dir := to; dir != "."; dir = path.Dir(dir) {
		w.written[dir] = true // what the image has there stays as it is
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

// addPackage adds the files of one package. Its first directory has any name.
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
			continue // npm knows nothing else, and makes directories itself
		}
		_, name, _ := strings.Cut(strings.TrimPrefix(h.Name, "./"), "/")
		if name = path.Clean(name); !isBelow(name) {
			return sandpit.Errorf(sandpit.Invalid, "a file has the name %.200q", h.Name)
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
	return sandpit.Errorf(sandpit.Invalid, "it is no package: %w", err)
}

// packageReader says whose fault it is that a file cannot be read.
type packageReader struct{ io.Reader }

func (c packageReader) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = errInvalidPackage(err)
	}
	return n, err
}

// isBelow is true of a path that leads nowhere else, and has no meaning in layers of
// images.
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

// addParents adds the directories that a name is below, once.
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

// addCommands makes the commands of a package.
func (w *writer) addCommands(p Package, to string) error {
	modules := strings.TrimSuffix(to, "/"+p.installName())
	for _, name := range slices.Sorted(maps.Keys(p.Bin)) {
		at := path.Join(modules, ".bin", name)
		if w.written[at] {
			continue // the first one's
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
