package watch

import (
	"bytes"
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"
)

// change is one event from the kernel.
type change struct {
	wd     int32
	mask   uint32
	cookie uint32 // the same in both halves of a rename
	name   string // any bytes but NUL; "" for the watched directory itself
	at     int64  // its offset in the stream of events, in bytes
}

func (c change) hasAny(bits uint32) bool { return c.mask&bits != 0 }

var errMalformed = errors.New("malformed inotify event")

// parseChange parses the first event in data, which must not be empty, and returns the rest.
func parseChange(data []byte) (c change, rest []byte, err error) {
	if len(data) < unix.SizeofInotifyEvent {
		return change{}, nil, errMalformed
	}
	c = change{
		wd:     int32(binary.NativeEndian.Uint32(data[0:])), //nolint:gosec // a signed number in these four bytes
		mask:   binary.NativeEndian.Uint32(data[4:]),
		cookie: binary.NativeEndian.Uint32(data[8:]),
	}
	size := uint64(binary.NativeEndian.Uint32(data[12:]))
	data = data[unix.SizeofInotifyEvent:]
	if size > uint64(len(data)) {
		return change{}, nil, errMalformed
	}
	// The name is padded with NULs.
	name, _, _ := bytes.Cut(data[:size], []byte{0})
	c.name = string(name)
	return c, data[size:], nil
}
