package network

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// The buffers of streams, in bytes. Each stream has a small buffer, because thousands may be
// almost idle. A stream that fills it gets a large one while it does, of the size of several
// whole packets without their headers of 80 bytes, so that few calls empty it.
const (
	smallBuffer = 16 << 10
	largeBuffer = 4 * (MTU - 80)
	largeCount  = 64 // at a time
)

// streams copies bytes between connections, with shared large buffers.
type streams struct {
	pool sync.Pool // of large buffers
	used atomic.Int32
}

// copyStream copies until from ends, or the first error. It calls much whenever the stream
// fills the small buffer.
func (s *streams) copyStream(to io.Writer, from io.Reader, onBusy func()) error {
	small := make([]byte, smallBuffer)
	for {
		n, err := copyOnce(to, from, small)
		if err == nil && n == len(small) {
			onBusy()
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

// copyWide copies with a large buffer, if one is free, until a small one is enough.
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

// copyOnce copies the bytes of one Read.
func copyOnce(to io.Writer, from io.Reader, buffer []byte) (int, error) {
	n, err := from.Read(buffer)
	if n > 0 {
		if _, late := to.Write(buffer[:n]); late != nil {
			return n, late
		}
	}
	return n, err
}
