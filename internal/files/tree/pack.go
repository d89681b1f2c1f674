package tree

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"path"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

const (
	// openFlags open a file of any kind without blocking and without following a link.
	openFlags = unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_NOCTTY | unix.O_CLOEXEC
	// listSize is the size of the buffer for names of a directory, in bytes.
	listSize = 64 << 10
)

// Pack writes the file or directory name to w. name is a slash-separated path inside root; "." means all of it. Links
// on the way are followed inside root; name itself is not followed, so a link is packed as a link. Members are sorted
// by name in each directory.
//
// Files may change meanwhile: a removed file is left out, a file that shrinks is padded with zeros, and a file that
// grows is cut. NotFound: no such name. PermissionDenied: a file cannot be read. Invalid: the name leads out of root
// or is not a file, directory or link, or there are more than 512 levels of directories. After an error the stream
// has no end mark, so its reader detects the error.
func Pack(ctx context.Context, w io.Writer, root *beneath.Root, name string) error {
	if !filepath.IsLocal(name) {
		return sandpit.Errorf(sandpit.Invalid, "pack %s: not a name inside the directory", quoteName(name))
	}
	dir, base := splitName(path.Clean(name))
	parent, err := root.OpenDir(dir)
	if err != nil {
		return openError(name, err)
	}
	defer func() { _ = parent.Close() }() // only read
	out := bufio.NewWriterSize(w, bufferSize)
	p := &packer{
		tar: tar.NewWriter(out), check: ctx.Err,
		buf: make([]byte, bufferSize), list: make([]byte, listSize), names: map[inode]string{},
	}
	found, err := p.packUnknown(int(parent.Fd()), base, base, 0)
	if err == nil && !found {
		err = sandpit.Errorf(sandpit.NotFound, "pack %s: not found, or not a file, directory or link", quoteName(name))
	}
	if err != nil {
		return err
	}
	if err := p.tar.Close(); err != nil {
		return writeError(err)
	}
	if err := out.Flush(); err != nil {
		return writeError(err)
	}
	return nil
}

type packer struct {
	tar   *tar.Writer
	check func() error // returns the context's error
	buf   []byte
	list  []byte
	names map[inode]string // member names of files with several links
}

type inode struct{ dev, ino uint64 }

// packEntry packs one file of any kind as member. It reports whether there was one that can be packed.
func (p *packer) packEntry(dir int, base, member string, depth int) (found bool, err error) {
	if err := p.check(); err != nil {
		return false, err
	}
	fd := -1
	err = retryInterrupted(func() (err error) {
		fd, err = unix.Openat(dir, base, openFlags, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return p.packLink(dir, base, member)
	case errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENXIO):
		return false, nil // gone, or a socket by now
	case err != nil:
		return false, fileError("open", member, err)
	}
	defer func() { _ = unix.Close(fd) }() // only read
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, fileError("stat", member, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return true, p.packFile(fd, member, &st)
	case unix.S_IFDIR:
		return true, p.packDir(fd, member, &st, depth)
	}
	return false, nil
}

// packDir packs an open directory and everything below it.
func (p *packer) packDir(fd int, member string, st *unix.Stat_t, depth int) error {
	if depth > maxDepth {
		return sandpit.Errorf(sandpit.Invalid, "pack %s: more than %d directories deep", quoteName(member), maxDepth)
	}
	prefix := member + "/"
	h := newHeader(tar.TypeDir, prefix, st)
	if depth == 0 {
		prefix, h.Name = "", "./"
	}
	if err := p.writeHeader(h); err != nil {
		return err
	}
	entries, err := p.readDir(fd)
	if err != nil {
		return fileError("list", h.Name, err)
	}
	for _, e := range entries {
		name := prefix + e.name
		switch e.kind {
		case unix.DT_LNK:
			_, err = p.packLink(fd, e.name, name)
		case unix.DT_REG, unix.DT_DIR:
			_, err = p.packEntry(fd, e.name, name, depth+1)
		case unix.DT_UNKNOWN:
			_, err = p.packUnknown(fd, e.name, name, depth+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// packUnknown packs an entry for which the file system reports no type. It does not open devices, because that could
// have effects.
func (p *packer) packUnknown(dir int, base, member string, depth int) (found bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, nil
	}
	if err != nil {
		return false, fileError("stat", member, err)
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return p.packLink(dir, base, member)
	case unix.S_IFREG, unix.S_IFDIR:
		return p.packEntry(dir, base, member, depth)
	}
	return false, nil
}

// packFile packs an open regular file. It writes exactly as many bytes as the header says.
func (p *packer) packFile(fd int, member string, st *unix.Stat_t) error {
	h := newHeader(tar.TypeReg, member, st)
	if st.Nlink > 1 {
		id := inode{dev: st.Dev, ino: st.Ino}
		if first, ok := p.names[id]; ok {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			return p.writeHeader(h)
		}
		p.names[id] = member
	}
	h.Size = st.Size
	if err := p.writeHeader(h); err != nil {
		return err
	}
	for left := st.Size; left > 0; {
		if err := p.check(); err != nil {
			return err
		}
		chunk := p.buf[:min(left, bufferSize)]
		n := 0
		err := retryInterrupted(func() (err error) {
			n, err = unix.Read(fd, chunk)
			return err
		})
		if err != nil {
			return fileError("read", member, err)
		}
		if n == 0 {
			clear(chunk)
			n = len(chunk)
		}
		if _, err := p.tar.Write(chunk[:n]); err != nil {
			return writeError(err)
		}
		left -= int64(n)
	}
	return nil
}

// packLink packs a symbolic link, unless it has become another kind of file.
func (p *packer) packLink(dir int, base, member string) (found bool, err error) {
	var st unix.Stat_t
	err = unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW)
	n := 0
	if err == nil {
		n, err = unix.Readlinkat(dir, base, p.buf)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fileError("read the link", member, err)
	}
	h := newHeader(tar.TypeSymlink, member, &st)
	h.Linkname = string(p.buf[:n])
	return true, p.writeHeader(h)
}

// writeHeader writes the header of a member.
func (p *packer) writeHeader(h *tar.Header) error {
	if len(h.Name) > maxName {
		return sandpit.Errorf(sandpit.Invalid, "pack %s: its name is too long", quoteName(h.Name))
	}
	if err := p.tar.WriteHeader(h); err != nil {
		return writeError(err)
	}
	return nil
}

func newHeader(kind byte, name string, st *unix.Stat_t) *tar.Header {
	return &tar.Header{
		Typeflag: kind, Name: name, Mode: int64(st.Mode & (permBits | specialBits)),
		ModTime: time.Unix(st.Mtim.Unix()), Format: tar.FormatPAX,
	}
}

// openError is the error of resolving name. One without a system error comes from the root: the name leads outside.
func openError(name string, err error) error {
	if _, ok := errors.AsType[unix.Errno](err); !ok {
		return sandpit.Errorf(sandpit.Invalid, "pack %s: %w", quoteName(name), err)
	}
	return fileError("open", name, err)
}

func writeError(err error) error {
	return sandpit.Errorf(codeOf(err), "write the tar stream: %w", err)
}
