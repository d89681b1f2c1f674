package workspace

import (
	"fmt"
	"io"
	"sync"
)

// Window keeps the beginning and the end of what is written to it, within a
// bound. It may be read while it is written.
type Window struct {
	mu   sync.Mutex
	half int
	head []byte
	tail []byte // a ring once it is full
	next int    // where the ring goes on
	size int64  // of all that was written
}

// NewWindow returns a window of up to limit bytes.
func NewWindow(limit int) *Window { return &Window{half: max(1, limit/2)} }

// Write implements io.Writer. It never fails.
func (w *Window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	written := len(p)
	w.size += int64(written)
	if room := w.half - len(w.head); room > 0 {
		n := min(room, len(p))
		w.head = append(w.head, p[:n]...)
		p = p[n:]
	}
	if len(p) > w.half {
		p = p[len(p)-w.half:]
	}
	if room := w.half - len(w.tail); room > 0 {
		n := min(room, len(p))
		w.tail = append(w.tail, p[:n]...)
		p = p[n:]
	}
	for len(p) > 0 {
		n := copy(w.tail[w.next:], p)
		w.next = (w.next + n) % w.half
		p = p[n:]
	}
	return written, nil
}

func (w *Window) left() int64 { return w.size - int64(len(w.head)+len(w.tail)) }

// Truncated reports whether something was left out.
func (w *Window) Truncated() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.left() > 0
}

// String returns what was kept, with a line where something was left out.
func (w *Window) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	middle := ""
	if left := w.left(); left > 0 {
		middle = fmt.Sprintf("\n[%d bytes left out]\n", left)
	}
	return string(w.head) + middle + string(w.tail[w.next:]) + string(w.tail[:w.next])
}

// tee returns a writer to both; to may be nil.
func tee(w *Window, to io.Writer) io.Writer {
	if to == nil {
		return w
	}
	return io.MultiWriter(w, to)
}
