package shell

import "fmt"

// window keeps the beginning and the end of what is written to it, within a
// bound. It is not for concurrent use.
type window struct {
	half int
	head []byte
	tail []byte // a ring once it is full
	next int    // where the ring goes on
	size int64  // of all that was written
}

// newWindow returns a window of up to limit bytes.
func newWindow(limit int) *window { return &window{half: max(1, limit/2)} }

func (w *window) write(p []byte) {
	w.size += int64(len(p))
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
}

// left is how many bytes were left out.
func (w *window) left() int64 { return w.size - int64(len(w.head)+len(w.tail)) }

// bytes returns what was kept. A line in the place of what was not says so.
func (w *window) bytes() []byte {
	all := make([]byte, 0, len(w.head)+len(w.tail)+32)
	all = append(all, w.head...)
	if left := w.left(); left > 0 {
		all = fmt.Appendf(all, "\n[%d bytes left out]\n", left)
	}
	all = append(all, w.tail[w.next:]...)
	return append(all, w.tail[:w.next]...)
}
