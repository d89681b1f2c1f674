package tree

import (
	"archive/tar"
	"bytes"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

const (
	fileFlags = unix.O_WRONLY | unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW | unix.O_CLOEXEC
	// minHole is how many zero bytes in a row become a hole.
	minHole = 64 << 10
)

// unpackFile creates a regular file, always a new one.
func (u *unpacker) unpackFile(h *tar.Header, name string) error {
	if left := u.o.MaxBytes - u.report.Bytes; u.o.MaxBytes > 0 && h.Size > left {
		return sandpit.Errorf(sandpit.Exhausted, "member %s: the tar stream has more than %d bytes", quoteName(name), u.o.MaxBytes)
	}
	dir, base := splitName(name)
	at, err := u.dirs.enterDir(dir)
	if err != nil {
		return err
	}
	m := u.metaOf(h)
	fd := -1
	err = at.replaceEntry(base, func() (err error) {
		fd, err = unix.Openat(at.fd, base, fileFlags, m.mode&permBits)
		return err
	})
	if err != nil {
		return fileError("create", name, err)
	}
	err = u.writeContent(fd, h.Size, name)
	if err == nil {
		err = u.setOwnerAndMode(fd, at, m, name)
	}
	if closed := unix.Close(fd); err == nil && closed != nil {
		err = fileError("close", name, closed)
	}
	if err == nil {
		if e := setTime(at.fd, base, m.mtime); e != nil {
			err = fileError("set the time of", name, e)
		}
	}
	if err != nil {
		_ = unlinkAt(at.fd, base) // the first error is returned
		return err
	}
	u.report.Files++
	u.report.Bytes += h.Size
	return nil
}

// writeContent writes the content of a new file. Long runs of zeros become holes, so a sparse file stays sparse.
func (u *unpacker) writeContent(fd int, size int64, name string) error {
	hole := false
	for left := size; left > 0; {
		chunk := u.buf[:min(left, bufferSize)]
		if _, err := io.ReadFull(u.tar, chunk); err != nil {
			return streamError(toUnexpectedEOF(err), u.in)
		}
		// Check here too: the holes of a sparse file are not read from the stream.
		if err := u.in.check(); err != nil {
			return err
		}
		left -= int64(len(chunk))
		var err error
		if hole = len(chunk) >= minHole && isZero(chunk); hole {
			_, err = unix.Seek(fd, int64(len(chunk)), io.SeekCurrent)
		} else if err = u.reserveBytes(int64(len(chunk))); err != nil {
			return err
		} else {
			err = writeAll(fd, chunk)
		}
		if err != nil {
			return fileError("write", name, err)
		}
	}
	if hole {
		if err := unix.Ftruncate(fd, size); err != nil {
			return fileError("write", name, err)
		}
	}
	return nil
}

// toUnexpectedEOF returns io.ErrUnexpectedEOF for io.EOF, and other errors unchanged.
func toUnexpectedEOF(err error) error {
	if err == io.EOF { //nolint:errorlint // ReadFull does not wrap it
		return io.ErrUnexpectedEOF
	}
	return err
}

// setOwnerAndMode sets the owner of a file, and its mode if creating the file did not.
func (u *unpacker) setOwnerAndMode(fd int, at *level, m meta, name string) error {
	if to := u.dirs.owner; to != nil {
		if err := unix.Fchown(fd, to.UID, to.GID); err != nil {
			return fileError("set the owner of", name, err)
		}
	}
	set := m.mode&^permBits != 0 || m.mode&at.denied != 0
	if !set && m.mode&^at.granted != 0 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fileError("stat", name, err)
		}
		at.granted |= m.mode & st.Mode
		at.denied |= m.mode &^ st.Mode
		set = m.mode&^st.Mode != 0
	}
	if !set {
		return nil
	}
	if err := unix.Fchmod(fd, m.mode); err != nil {
		return fileError("set the mode of", name, err)
	}
	return nil
}

func isZero(b []byte) bool {
	// Each byte equals the one after it, and the first is zero.
	return b[0] == 0 && bytes.Equal(b[1:], b[:len(b)-1])
}

func writeAll(fd int, b []byte) error {
	for len(b) > 0 {
		n := 0
		err := retryInterrupted(func() (err error) {
			n, err = unix.Write(fd, b)
			return err
		})
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
