package template

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/moby/patternmatcher"
	"github.com/moby/patternmatcher/ignorefile"

	"github.com/sandpit-dev/sandpit"
)

// IgnoreFile lists files of a directory that are not copied, in Docker's format.
const IgnoreFile = ".dockerignore"

// source is the directory that files are copied from.
type source struct {
	root    *os.Root
	ignored *patternmatcher.PatternMatcher
}

// openSource opens a directory. The caller closes the root.
func openSource(dir string) (*source, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("open the directory to copy from: %w", err)
	}
	s := &source{root: root}
	if s.ignored, err = readIgnored(root); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return s, nil
}

func readIgnored(root *os.Root) (*patternmatcher.PatternMatcher, error) {
	var lines []string
	f, err := root.Open(IgnoreFile)
	if err == nil {
		defer func() { _ = f.Close() }() // only read
		lines, err = ignorefile.ReadAll(io.LimitReader(f, maxFile))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read %s: %w", IgnoreFile, err)
	}
	m, err := patternmatcher.New(lines)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%s: %w", IgnoreFile, err)
	}
	return m, nil
}

// packedLayer is a layer in an unnamed file, with a digest of its contents.
type packedLayer struct {
	*os.File
	digest string
}

// packLayer writes a layer with the files to copy. The digest does not include times.
func (s *source) packLayer(ctx context.Context, c Copy, workDir string) (*packedLayer, error) {
	f, err := os.CreateTemp("", "sandpit-copy-*")
	if err == nil {
		err = os.Remove(f.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("copy: %w", err)
	}
	sum := sha256.New()
	p := &layerWriter{ctx: ctx, source: s, copy: c, sum: sum, tar: tar.NewWriter(f)}
	to := strings.TrimPrefix(imagePath(workDir, c.To), "/")
	last := path.Base(c.To)
	paths, err := s.expandPatterns(c.From)
	intoDir := strings.HasSuffix(c.To, "/") || last == "." || last == ".." || len(paths) > 1
	for _, from := range paths {
		if err = p.addPath(from, to, intoDir); err != nil {
			break
		}
	}
	if err == nil {
		err = p.tar.Close()
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy: %w", err), f.Close())
	}
	return &packedLayer{File: f, digest: hex.EncodeToString(sum.Sum(nil))}, nil
}

// expandPatterns returns paths with those that match in place of patterns. A path that exists is
// not a pattern. Invalid: no file matches.
func (s *source) expandPatterns(paths []string) (all []string, err error) {
	for _, from := range paths {
		if _, err := s.root.Lstat(cleanPath(from)); err == nil || !strings.ContainsAny(from, "*?[") {
			all = append(all, from)
			continue
		}
		found, err := fs.Glob(s.root.FS(), cleanPath(from))
		if err != nil || len(found) == 0 {
			return nil, sandpit.Errorf(sandpit.Invalid, "no file matches %q", from)
		}
		all = append(all, found...)
	}
	return all, nil
}

// layerWriter writes a layer.
type layerWriter struct {
	ctx    context.Context //nolint:containedctx // of one call of pack
	source *source
	copy   Copy
	sum    io.Writer
	tar    *tar.Writer
}

// addPath adds a file, or a directory with everything below it.
func (p *layerWriter) addPath(from, to string, intoDir bool) error {
	from = cleanPath(from)
	if !fs.ValidPath(from) {
		return sandpit.Errorf(sandpit.Invalid, "%q is a path outside of the directory", from)
	}
	info, err := p.source.root.Stat(from)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		if intoDir {
			to = path.Join(to, path.Base(from))
		}
		return p.addEntry(from, to, info)
	}
	return fs.WalkDir(p.source.root.FS(), from, func(name string, d fs.DirEntry, err error) error {
		if err == nil {
			err = p.ctx.Err()
		}
		if err != nil {
			return err
		}
		skip, err := p.source.isIgnored(name)
		switch {
		case err != nil:
			return err
		case skip && d.IsDir() && !p.source.ignored.Exclusions():
			return fs.SkipDir
		case skip:
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		below := strings.TrimPrefix(strings.TrimPrefix(name, from), "/")
		if from == "." {
			below = name
		}
		return p.addEntry(name, path.Join(to, below), info)
	})
}

// cleanPath returns the path relative to the directory.
func cleanPath(from string) string {
	return path.Clean(strings.TrimPrefix(filepath.ToSlash(from), "/"))
}

func (s *source) isIgnored(name string) (bool, error) {
	if name == "." {
		return false, nil
	}
	return s.ignored.MatchesOrParentMatches(name)
}

// addEntry adds one file, directory or link. It leaves out other types of files.
func (p *layerWriter) addEntry(name, to string, info fs.FileInfo) error {
	h := &tar.Header{Name: to, Uid: p.copy.UID, Gid: p.copy.GID, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	if p.copy.Mode != 0 {
		h.Mode = p.copy.Mode
	}
	var contents io.Reader = strings.NewReader("")
	switch {
	case info.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, to+"/", int64(info.Mode().Perm())
		if to == "" || to == "." {
			return nil // the image's own root stays as it is
		}
	case info.Mode()&fs.ModeSymlink != 0:
		target, err := p.source.root.Readlink(name)
		if err != nil {
			return err
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case info.Mode().IsRegular():
		f, err := p.source.root.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // only read
		h.Typeflag, h.Size, contents = tar.TypeReg, info.Size(), f
	default:
		return nil
	}
	fmt.Fprintf(p.sum, "%q %c %o %d:%d %q %d\n", h.Name, h.Typeflag, h.Mode, h.Uid, h.Gid, h.Linkname, h.Size)
	h.ModTime = h.ModTime.Truncate(time.Second)
	if err := p.tar.WriteHeader(h); err != nil {
		return err
	}
	if n, err := io.Copy(io.MultiWriter(p.tar, p.sum), contents); err != nil || n != h.Size {
		return errors.Join(sandpit.Errorf(sandpit.Unavailable, "%s changed while it was read", name), err)
	}
	return nil
}
