package liveness

import "encoding/binary"

// Frames tracks the message boundaries in a stream of Connect's protocol: before each message
// there are a byte of flags and four bytes of its length, big-endian. The zero value is at
// the beginning of a stream.
type Frames struct {
	head [5]byte
	got  int    // of head
	left uint32 // of the message
}

// Pass processes the next bytes, and reports whether a message ended in them.
func (f *Frames) Pass(p []byte) (ended bool) {
	for len(p) > 0 {
		if f.got < len(f.head) {
			n := copy(f.head[f.got:], p)
			f.got, p = f.got+n, p[n:]
			if f.got < len(f.head) {
				break
			}
			f.left = binary.BigEndian.Uint32(f.head[1:])
		}
		n := min(uint64(f.left), uint64(len(p)))
		f.left, p = f.left-uint32(n), p[n:] //nolint:gosec // at most left
		if f.left == 0 {
			f.got, ended = 0, true
		}
	}
	return ended
}

// Between reports whether the stream is between two messages.
func (f *Frames) Between() bool { return f.got == 0 }
