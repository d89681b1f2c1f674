package network

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// What streams are carried in, in bytes. Each has a small buffer, since thousands may
// have little to say; those that fill it have a large one while they do, which few
// calls empty: as much as some whole packets hold, whose headers have 80 bytes.
const (
	smallBuffer = 16 << 10
	largeBuffer = 4 * (MTU - 80)
	largeCount  = 64 // at a time
)

// streams carries bytes from one connection to another.
type streams struct {
	pool sync.Pool // of large buffers
	used atomic.Int32
}

// copyStream returns when from has ended, or at the first error. It calls much whenever there
// is much to carry.
func (s *streams) copyStream(to io.Writer, from io.Reader, much func()) error {
	small := make([]byte, smallBuffer)
	for {
		n, err := copyOnce(to, from, small)
		if err == nil && n == len(small) {
			much()
			err = s.copyWide(to, from)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// copyWide carries by a large buffer, if there is one left, until a small one would do.
func (s *streams) copyWide(to io.Writer, from io.Reader) error {
	defer s.used.Add(-1)
	if s.used.Add(1) > largeCount {
		return nil
	}
	buffer, _ := s.pool.Get().(*[largeBuffer]byte)
	if buffer == nil {
		buffer = new([largeBuffer]byte)
	}
	defer s.pool.Put(buffer)
	for {
		if n, err := copyOnce(to, from, buffer[:]); err != nil || n < smallBuffer {
			return err
		}
	}
}

// copyOnce passes on what one call reads.
func copyOnce(to io.Writer, from io.Reader, buffer []byte) (int, error) {
	n, err := from.Read(buffer)
	if n > 0 {
		if _, late := to.Write(buffer[:n]); late != nil {
			return n, late
		}
	}
	return n, err
}
