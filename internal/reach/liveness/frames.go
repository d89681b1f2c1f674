package liveness

import "encoding/binary"

// Frames follows a stream of Connect's protocol by its bytes: each message has a byte of
// flags and four of its length, high byte first, before it. The zero value is at the
// beginning of a stream.
type Frames struct {
	head [5]byte
	got  int    // of head
	left uint32 // of the message
}

// Pass takes what comes next, and reports whether a message ended in it.
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
		f.left, p = f.left-uint32(n), p[n:] //nolint:gosec // it is not more than left
		if f.left == 0 {
			f.got, ended = 0, true
		}
	}
	return ended
}

// Between reports whether no message has begun that has not ended.
func (f *Frames) Between() bool { return f.got == 0 }
