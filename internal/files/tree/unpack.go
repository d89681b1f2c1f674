package tree

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"io"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// maxTail is how much may follow the end mark of a stream, in bytes: writers pad their last block.
const maxTail = 1 << 20

const notRegular = "a hard link to a file that is not regular"

// Unpack reads a tar stream from r into root, the target directory. It changes nothing outside, whatever the stream
// contains. Existing directories are merged; existing files are replaced, never written through.
//
// It returns its Report also with an error: then the members before the bad one are unpacked, and nothing is left of
// the bad one. Invalid: not a tar stream, an incomplete one, or a forbidden member. Exhausted: a bound of o, or no
// disk space. Errors of r keep their codes. Unpack checks ctx between reads; the owner of r must end a read that
// hangs.
func Unpack(ctx context.Context, r io.Reader, root *beneath.Root, o Options) (Report, error) {
	dirs, err := openDirs(root, o.Owner)
	if err != nil {
		return Report{}, err
	}
	in := &input{r: r, check: ctx.Err}
	in.buffered = bufio.NewReaderSize(in.newSource(), bufferSize)
	u := &unpacker{o: o, in: in, tar: tar.NewReader(in), dirs: dirs, buf: make([]byte, bufferSize)}
	err = u.unpackMembers()
	// After an error, too, the directories get their modes, so that no unreadable ones are left; an error of that is
	// not reported.
	if closed := dirs.close(); err == nil {
		err = closed
	}
	if err == nil {
		err = in.readTail()
	}
	return u.report.detach(), err
}

type unpacker struct {
	o       Options
	in      *input
	tar     *tar.Reader
	dirs    *dirs
	buf     []byte
	report  Report
	entries int
}

func (u *unpacker) unpackMembers() error {
	for {
		h, err := u.tar.Next()
		if errors.Is(err, io.EOF) && !u.in.ended {
			return nil
		}
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF // no end mark
		}
		if err != nil {
			return streamError(err, u.in)
		}
		if u.entries++; u.o.MaxEntries > 0 && u.entries > u.o.MaxEntries {
			return sandpit.Errorf(sandpit.Exhausted, "the tar stream has more than %d members", u.o.MaxEntries)
		}
		if err := u.in.check(); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // a comment, as git writes
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return err
		}
		if err := u.reserveBytes(MemberBytes); err != nil {
			return err
		}
		if err := u.unpackMember(h, name); err != nil {
			return err
		}
	}
}

func (u *unpacker) reserveBytes(bytes int64) error {
	if u.o.Reserve == nil {
		return nil
	}
	return u.o.Reserve(bytes)
}

func (u *unpacker) unpackMember(h *tar.Header, name string) error {
	if name == "." && h.Typeflag != tar.TypeDir {
		return memberError(h.Name, "the top of the tree must be a directory")
	}
	switch h.Typeflag {
	case tar.TypeDir:
		return u.unpackDir(h, name)
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		if strings.HasSuffix(h.Name, "/") {
			return memberError(h.Name, "a file with the name of a directory")
		}
		return u.unpackFile(h, name)
	case tar.TypeSymlink:
		return u.unpackSymlink(h, name)
	case tar.TypeLink:
		return u.unpackHardLink(h, name)
	}
	u.report.addSkipped(name)
	return nil
}

func (u *unpacker) unpackDir(h *tar.Header, name string) error {
	if name == "." && u.o.KeepTop {
		return nil
	}
	if err := u.dirs.makeDescribed(name, u.metaOf(h)); err != nil {
		return err
	}
	if name != "." {
		u.report.Dirs++
	}
	return nil
}

func (u *unpacker) unpackSymlink(h *tar.Header, name string) error {
	if h.Linkname == "" || len(h.Linkname) > maxName || strings.IndexByte(h.Linkname, 0) >= 0 {
		return memberError(h.Name, "a link with an invalid target")
	}
	dir, base := splitName(name)
	at, err := u.dirs.enterDir(dir)
	if err != nil {
		return err
	}
	if !u.o.OutsideLinks && leadsOutside(h.Linkname, u.dirs.depth()) {
		u.report.addSkipped(name)
		return nil
	}
	err = at.replaceEntry(base, func() error { return unix.Symlinkat(h.Linkname, at.fd, base) })
	if err != nil {
		return fileError("create the link", name, err)
	}
	if u.dirs.owner != nil {
		if err := chownLink(at.fd, base, u.dirs.owner); err != nil {
			return fileError("set the owner of", name, err)
		}
	}
	if err := setTime(at.fd, base, u.metaOf(h).mtime); err != nil {
		return fileError("set the time of", name, err)
	}
	u.report.Links++
	return nil
}

// chownLink changes the owner of a symbolic link. It verifies that the file is still a link, because other processes
// may replace it by a file whose owner must not change.
func chownLink(dir int, name string, to *Owner) error {
	fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFLNK {
		return unix.ENOENT
	}
	return unix.Fchownat(fd, "", to.UID, to.GID, unix.AT_EMPTY_PATH)
}

// unpackHardLink adds a name to a file of the tree. The root opens the target's directory.
func (u *unpacker) unpackHardLink(h *tar.Header, name string) error {
	target, err := cleanName(h.Linkname)
	if err != nil || target == "." {
		return memberError(h.Name, "a hard link to "+quoteName(h.Linkname)+", which is not a valid name in the tree")
	}
	if target == name {
		return memberError(h.Name, "a hard link to itself")
	}
	fromDir, fromBase := splitName(target)
	dir, base := splitName(name)
	at, err := u.dirs.enterDir(dir)
	if err != nil {
		return err
	}
	from := at.fd
	if fromDir != dir {
		f, err := u.dirs.root.OpenRoot(fromDir)
		if err != nil {
			return memberError(h.Name, "a hard link to "+quoteName(target)+", which does not exist")
		}
		defer func() { _ = f.Close() }() // nothing was written
		from = f.FD()
	}
	err = at.replaceEntry(base, func() error { return unix.Linkat(from, fromBase, at.fd, base, 0) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return memberError(h.Name, "a hard link to "+quoteName(target)+", which does not exist")
	case errors.Is(err, unix.EPERM) && !isRegular(from, fromBase):
		return memberError(h.Name, notRegular)
	case err != nil:
		return fileError("create the hard link", name, err)
	case isRegular(at.fd, base):
		// Checked after linking, when the target cannot be replaced any more.
		u.report.Links++
		return nil
	}
	if err := unlinkAt(at.fd, base); err != nil {
		return fileError("remove", name, err)
	}
	return memberError(h.Name, notRegular)
}

func isRegular(dir int, name string) bool {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
}

// metaOf returns the mode and time of a member.
func (u *unpacker) metaOf(h *tar.Header) meta {
	mode := uint32(h.Mode & (permBits | specialBits))
	if !u.o.SpecialBits {
		mode &= permBits
	}
	t := h.ModTime
	return meta{mode: mode, mtime: unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}}
}

// replaceEntry creates an entry under a name of the directory, and replaces an existing one.
func (l *level) replaceEntry(name string, create func() error) error {
	var err error
	for range maxTries {
		if err = retryInterrupted(create); !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err = removeEntry(l.fd, name); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return err
}

// removeEntry removes a file, a link or an empty directory.
func removeEntry(dir int, name string) error {
	err := unlinkAt(dir, name)
	if !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.EPERM) {
		return err
	}
	rmdir := retryInterrupted(func() error { return unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) })
	switch {
	case errors.Is(rmdir, unix.ENOTDIR):
		return err
	case errors.Is(rmdir, unix.ENOTEMPTY), errors.Is(rmdir, unix.EEXIST):
		return sandpit.Errorf(sandpit.Invalid, "a directory that is not empty has the name")
	}
	return rmdir
}
