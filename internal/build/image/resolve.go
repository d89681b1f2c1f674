package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"golang.org/x/sys/unix"
)

// openRegistry returns the image of a name: that of the cache, or what the
// registry has.
func (s *Store) openRegistry(ctx context.Context, text string, p Progress) (*os.File, error) {
	r, err := parseReference(text)
	if err != nil {
		return nil, hintPath(err, text)
	}
	f, err := s.openNamed(ctx, shared, r, s.o.Pull, p)
	return f, hintPath(err, text)
}

// hintPath tells of a file that may be meant.
func hintPath(err error, text string) error {
	if code := sandpit.CodeOf(err); err == nil || code == sandpit.Canceled {
		return err
	}
	if _, statErr := os.Lstat(text); statErr == nil {
		return sandpit.WithHint(err, "for the file or directory of that name write ./"+text)
	}
	return err
}

// openNamed returns the image that a name means to an owner.
func (s *Store) openNamed(ctx context.Context, owner string, r reference, policy PullPolicy, p Progress) (*os.File, error) {
	for range 5 {
		have, err := s.lookUpName(owner, r, policy)
		if err != nil {
			return nil, err
		}
		if have.Key != "" {
			if f, err := s.cache.openImage(ctx, have.Key); err != nil || f != nil {
				return f, err
			}
		}
		if r.template != "" {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no such template"), s.templateHint(r.template))
		}
		if policy == PullNever {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "not in the cache, and image.pull is never: pulling is disabled"),
				"set image.pull to missing, or: sandpit image import FILE --name "+r.shortName())
		}
		if policy == pullOffline {
			return nil, sandpit.Errorf(sandpit.NotFound, "the image is no longer in the cache")
		}
		f, err := s.puller.pullNamed(ctx, owner, r, policy, p)
		if err != nil || f != nil {
			return f, err
		}
	}
	return nil, sandpit.Errorf(sandpit.Unavailable, "somebody keeps removing the image from the cache")
}

// lookUpName returns what a name means to an owner, without a key if a registry has to be
// asked. A shared name comes before the owner's own, so that the administrator's cache
// means the same to all owners.
//
// NotFound: it is the name of an imported image that is gone. The registry's image of that
// name does not replace it, because its publisher would run code here under a name that the
// administrator chose.
func (s *Store) lookUpName(owner string, r reference, policy PullPolicy) (nameRecord, error) {
	have, err := s.names.lookUp(shared, r)
	if err != nil {
		return nameRecord{}, err
	}
	if owner != shared && isBuildName(r) {
		return nameRecord{}, nil // builds have owners, and the manager knows them
	}
	if have.isImported(r) {
		if have.Key == "" {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the image was imported, and is no longer in the cache"),
				"import it again, or remove the name to use its registry: sandpit image rm "+r.shortName())
		}
		return have, err
	}
	if policy == PullAlways && r.digest == "" && r.template == "" {
		return nameRecord{}, nil
	}
	if have.Key != "" || owner == shared {
		return have, nil
	}
	return s.names.lookUp(owner, r)
}

// Root is a root file system to start from.
type Root struct {
	// ID names it in the cache, see Entry.ID. "" for the host image.
	ID string
	// Path is the EROFS file.
	Path string
	// File is the same file, open for reading. While it, or a descriptor made
	// from it, is open in any process, the cache does not make room by removing
	// the image. Who asked for the Root closes it.
	File *os.File
	// Mounts are directories of the machine that belong to it, all read only,
	// sources without symbolic links. Only the host image has any.
	Mounts []sandpit.Mount
	// Config is what the image says about programs in it.
	Config
}

// Resolve returns the root file system that ref names, fetching and converting it
// first if need be:
//
//   - "" or "host": the machine's own programs;
//   - a directory, as a path that starts with /, ./ or ../. What other file
//     systems mounted in it hold is included, but for those that the machine's
//     kernel makes up (proc, sysfs and the like), which become empty
//     directories. If it is an OCI layout, the image in it is meant, and a colon
//     and a tag after the path say which one;
//   - a tar file, as a path that ends in .tar, .tar.gz, .tgz or .tar.zst: of a root
//     file system, of an OCI layout, or of what docker save writes, again with a
//     tag if it has several images;
//   - "template:" and a name: what SetTemplate gave that name;
//   - an Entry's ID: that image of the cache;
//   - anything else is an image of a registry, as docker pull takes it.
//
// NotFound: no such file, image or tag. Unsupported: another form, or not made for
// this machine. Invalid: the archive is damaged, cut off, or names what it must
// not. Exhausted: too large, or the disk is full. PermissionDenied: a file cannot
// be read, or the registry refuses. Unavailable: it changed while it was read, or
// the registry cannot be reached. Timeout: the registry is too slow.
func (s *Store) Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error) {
	root, err := s.resolveRoot(ctx, string(ref), p)
	if err != nil {
		if ref == "" {
			ref = sandpit.HostImage
		}
		return Root{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return root, nil
}

func (s *Store) resolveRoot(ctx context.Context, ref string, p Progress) (Root, error) {
	if ref == "" || ref == string(sandpit.HostImage) {
		return s.resolveHost(ctx, p)
	}
	var f *os.File
	var err error
	switch {
	case IsPath(ref):
		f, _, err = s.openPath(ctx, ref, p)
	case isKey(ref):
		f, err = s.cache.openID(ctx, ref)
	default:
		f, err = s.openRegistry(ctx, ref, p)
	}
	if err != nil {
		return Root{}, err
	}
	root, err := newRoot(f)
	root.ID = s.cache.keyOf(f)
	return root, err
}

// newRoot describes a finished image by its note.
func newRoot(f *os.File) (Root, error) {
	n, err := readNote(f)
	if err != nil {
		return Root{}, errors.Join(err, f.Close())
	}
	return Root{Path: f.Name(), File: f, Config: n.Config}, nil
}

// openPath returns the image of a directory or archive, and what else is known
// of it.
func (s *Store) openPath(ctx context.Context, ref string, p Progress) (*os.File, indexEntry, error) {
	ref, tag := splitTag(ref)
	info, err := os.Stat(ref)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return nil, indexEntry{}, sandpit.Errorf(sandpit.NotFound, "%w", withoutPath(err))
	case err != nil:
		return nil, indexEntry{}, withoutPath(err)
	case info.IsDir() && isLayout(ref):
		return s.openLayout(ctx, ref, tag)
	case info.IsDir() && tag != "":
		return nil, indexEntry{}, sandpit.Errorf(sandpit.NotFound, "%s is not a directory of images with tags", ref)
	case info.IsDir():
		f, err := s.openDir(ctx, ref, p)
		return f, indexEntry{}, err
	case info.Mode().IsRegular() && isTar(ref):
		return s.openTar(ctx, ref, tag, p)
	}
	return nil, indexEntry{}, sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "neither a directory nor a .tar, .tar.gz, .tgz or .tar.zst file"),
		"unpack it, and name the directory or the .tar file")
}

// splitTag tells a path from the tag behind it, if there is one.
func splitTag(ref string) (path, tag string) {
	if _, err := os.Lstat(ref); err == nil {
		return ref, ""
	}
	i := strings.LastIndexByte(ref, ':')
	if i <= 0 || strings.Contains(ref[i:], "/") {
		return ref, ""
	}
	if _, err := os.Lstat(ref[:i]); err != nil {
		return ref, ""
	}
	return ref[:i], ref[i+1:]
}

// withoutPath drops the path from an error that will be told with the image's name.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// IsPath reports whether ref, which Resolve takes, names something of the machine's
// file system rather than an image of a registry.
func IsPath(ref string) bool {
	first, _, more := strings.Cut(ref, "/")
	if first == "" && more || first == "." || first == ".." || isTar(ref) {
		return true
	}
	path, _, found := strings.Cut(ref, ":")
	return found && isTar(path)
}

func isTar(ref string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst"} {
		if strings.HasSuffix(ref, suffix) {
			return true
		}
	}
	return false
}
