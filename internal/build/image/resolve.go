package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// openRegistry returns the image of a name, from the cache or from the registry.
func (s *Store) openRegistry(ctx context.Context, text string, p Progress) (*os.File, error) {
	r, err := parseReference(text)
	if err != nil {
		return nil, hintPath(err, text)
	}
	f, err := s.openNamed(ctx, shared, r, s.o.Pull, p)
	return f, hintPath(err, text)
}

// hintPath adds a hint to an error if text is also the name of a file.
func hintPath(err error, text string) error {
	if code := sandpit.CodeOf(err); err == nil || code == sandpit.Canceled {
		return err
	}
	if _, statErr := os.Lstat(text); statErr == nil {
		return sandpit.WithHint(err, "to use the file or directory of that name: ./"+text)
	}
	return err
}

// openNamed returns the image that a name means for an owner.
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
	return nil, sandpit.Errorf(sandpit.Unavailable, "the image was removed from the cache repeatedly")
}

// lookUpName returns the record of a name for an owner, without a key if the registry has to
// be asked. A shared name has precedence over the owner's own, so that names in the
// administrator's cache mean the same to all owners.
//
// NotFound: the name belongs to an imported image that was removed. The registry's image of
// that name does not replace it: its publisher could otherwise run code under a name that
// the administrator chose.
func (s *Store) lookUpName(owner string, r reference, policy PullPolicy) (nameRecord, error) {
	have, err := s.names.lookUp(shared, r)
	if err != nil {
		return nameRecord{}, err
	}
	if owner != shared && isBuildName(r) {
		return nameRecord{}, nil // only the manager knows the owners of builds
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
	// ID identifies it in the cache, see Entry.ID. "" for the host image.
	ID string
	// Path is the EROFS file.
	Path string
	// File is the same file, open for reading. While it, or a duplicate of its
	// descriptor, is open in any process, the cache does not remove the image to free
	// space. The caller closes it.
	File *os.File
	// Mounts are directories of the machine that belong to it, all read only, with
	// sources that contain no symbolic links. Only the host image has mounts.
	Mounts []sandpit.Mount
	// Config is the image's configuration for programs.
	Config
}

// Resolve returns the root file system that ref names. It fetches and converts the image
// first if the cache does not have it. Forms of ref:
//
//   - "" or "host": the machine's own programs;
//   - a directory, as a path that starts with /, ./ or ../. Mounted file systems below
//     it are included, except virtual ones (proc, sysfs and the like), which become empty
//     directories. If the directory is an OCI layout, the image in it is used; a colon
//     and a tag after the path select one of several;
//   - a tar file, as a path that ends in .tar, .tar.gz, .tgz or .tar.zst: of a root
//     file system, of an OCI layout, or the output of docker save, again with a
//     tag if it contains several images;
//   - "template:" and a name that SetTemplate has set;
//   - an Entry's ID: that image of the cache;
//   - anything else is an image of a registry, as in docker pull.
//
// NotFound: no such file, image or tag. Unsupported: another form, or an image for another
// machine. Invalid: the archive is damaged, truncated, or contains invalid names.
// Exhausted: the image is too large, or the disk is full. PermissionDenied: a file cannot
// be read, or the registry denies access. Unavailable: a file changed while it was read, or
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

// newRoot returns the Root of a finished image, with the configuration in its note.
func newRoot(f *os.File) (Root, error) {
	n, err := readNote(f)
	if err != nil {
		return Root{}, errors.Join(err, f.Close())
	}
	return Root{Path: f.Name(), File: f, Config: n.Config}, nil
}

// openPath returns the image of a directory or archive, and its index entry if it has one.
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
		return nil, indexEntry{}, sandpit.Errorf(sandpit.NotFound, "%s is not an OCI layout, and only images in one have tags", ref)
	case info.IsDir():
		f, err := s.openDir(ctx, ref, p)
		return f, indexEntry{}, err
	case info.Mode().IsRegular() && isTar(ref):
		return s.openTar(ctx, ref, tag, p)
	}
	return nil, indexEntry{}, sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "neither a directory nor a .tar, .tar.gz, .tgz or .tar.zst file"),
		"unpack it, and pass the directory or a .tar file")
}

// splitTag splits a path and the optional tag after it.
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

// withoutPath removes the path from an error that is reported with the image's name.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// IsPath reports whether Resolve takes ref as a path in the machine's file system rather
// than as an image of a registry.
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
