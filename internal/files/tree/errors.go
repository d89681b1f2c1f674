package tree

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// fileError returns an error with the operation and the file name.
func fileError(doing, name string, err error) error {
	return sandpit.Errorf(codeOf(err), "%s %s: %w", doing, quoteName(name), err)
}

// codeOf is sandpit.CodeOf with further errors of the kernel.
func codeOf(err error) sandpit.Code {
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		switch errno {
		case unix.ENOSPC, unix.EDQUOT, unix.EFBIG, unix.EMFILE, unix.ENFILE, unix.EMLINK:
			return sandpit.Exhausted
		case unix.EROFS:
			return sandpit.PermissionDenied
		case unix.ENAMETOOLONG, unix.ELOOP, unix.ENOTDIR:
			return sandpit.Invalid
		default:
		}
	}
	return sandpit.CodeOf(err)
}

// streamError translates an error of the tar reader. in distinguishes errors of reading the stream from errors in its
// content.
func streamError(err error, in *input) error {
	switch {
	case in.err != nil && errors.Is(err, in.err) && !errors.Is(in.err, io.ErrUnexpectedEOF):
		return fmt.Errorf("read the stream: %w", in.err)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return sandpit.Errorf(sandpit.Invalid, "unexpected end of the tar stream: %w", err)
	case errors.Is(err, tar.ErrHeader):
		return sandpit.Errorf(sandpit.Invalid, "not a tar stream, or a damaged one: %w", err)
	}
	return sandpit.Errorf(sandpit.Invalid, "read the tar stream: %w", err)
}

// retryInterrupted repeats a system call that a signal interrupted.
func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
