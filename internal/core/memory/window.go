package memory

import (
	"bytes"
	"fmt"
	"io"
)

// pageSize is how large the parts of a Window are, in bytes. The first one begins small.
const (
	pageSize  = 64 << 10
	firstPage = 512
)

// pages is a text in parts, so that it grows without being copied.
type pages struct {
	list [][]byte
	size int
}

// appendBytes adds as much of p as the account allows, and returns how much that was.
func (t *pages) appendBytes(account *Account, cost int64, p []byte) (n int) {
	for len(p) > 0 {
		if t.size%pageSize == 0 && t.size == len(t.list)*pageSize {
			t.list = append(t.list, nil)
		}
		last := &t.list[len(t.list)-1]
		if len(*last) == cap(*last) && !growPage(account, cost, last, len(p)) {
			return n
		}
		m := min(len(p), cap(*last)-len(*last))
		*last = append(*last, p[:m]...)
		t.size, n, p = t.size+m, n+m, p[m:]
	}
	return n
}

// growPage grows a page by up to more bytes, and returns false if the account does not
// allow it.
func growPage(account *Account, cost int64, page *[]byte, more int) bool {
	size := min(max(2*cap(*page), len(*page)+more, firstPage), pageSize)
	if account.Reserve(int64(size-cap(*page))*cost) != nil {
		return false
	}
	grown := make([]byte, len(*page), size)
	copy(grown, *page)
	*page = grown
	return true
}

// overwriteAt replaces what is at an offset.
func (t *pages) overwriteAt(offset int, p []byte) {
	for len(p) > 0 {
		n := copy(t.list[offset/pageSize][offset%pageSize:], p)
		offset, p = offset+n, p[n:]
	}
}

// eachPart calls f with the parts from one offset to another.
func (t *pages) eachPart(from, to int, f func([]byte) error) error {
	for from < to {
		page := t.list[from/pageSize]
		end := min(len(page), from%pageSize+to-from)
		if err := f(page[from%pageSize : end]); err != nil {
			return err
		}
		from += end - from%pageSize
	}
	return nil
}

// Window keeps the beginning and the end of what is written to it, within a bound and
// within what an account allows. It is not for concurrent use.
type Window struct {
	account *Account
	cost    int64
	half    int // of the bound: how much of the beginning is kept
	tailCap int // how much of the end is kept

	head, tail pages
	next       int // where the end continues, once it is a ring
	size       int64
}

// NewWindow returns a window of up to limit bytes. For each byte that it keeps it reserves
// cost bytes, 1 or more: 1 for itself, and 1 for each copy that is made of it later.
func NewWindow(account *Account, limit int, cost int64) *Window {
	half := max(1, limit/2)
	return &Window{account: account, cost: max(1, cost), half: half, tailCap: half}
}

// Write implements io.Writer. It never fails: when the account is used up, more is left
// out.
func (w *Window) Write(p []byte) (int, error) {
	written := len(p)
	w.size += int64(written)
	if room := min(w.half-w.head.size, len(p)); room > 0 {
		n := w.head.appendBytes(w.account, w.cost, p[:room])
		p = p[n:]
		if n < room {
			w.half, w.tailCap = w.head.size, 0
		}
	}
	w.writeTail(p)
	return written, nil
}

func (w *Window) writeTail(p []byte) {
	p = p[max(0, len(p)-w.tailCap):]
	if room := min(w.tailCap-w.tail.size, len(p)); room > 0 {
		n := w.tail.appendBytes(w.account, w.cost, p[:room])
		p = p[n:]
		if n < room {
			w.tailCap = w.tail.size
			p = p[max(0, len(p)-w.tailCap):]
		}
	}
	for len(p) > 0 {
		n := min(len(p), w.tailCap-w.next)
		w.tail.overwriteAt(w.next, p[:n])
		w.next = (w.next + n) % w.tailCap
		p = p[n:]
	}
}

// Size returns how many bytes were written.
func (w *Window) Size() int64 { return w.size }

// Omitted returns how many bytes were left out.
func (w *Window) Omitted() int64 { return w.size - int64(w.head.size+w.tail.size) }

// Each calls f with the kept text, in parts that are valid until the next Write. A line
// takes the place of the omitted part.
func (w *Window) Each(f func([]byte) error) error {
	if err := w.head.eachPart(0, w.head.size, f); err != nil {
		return err
	}
	if omitted := w.Omitted(); omitted > 0 {
		if err := f(fmt.Appendf(nil, "\n[%d bytes left out]\n", omitted)); err != nil {
			return err
		}
	}
	if err := w.tail.eachPart(w.next, w.tail.size, f); err != nil {
		return err
	}
	return w.tail.eachPart(0, w.next, f)
}

// WriteTo implements io.WriterTo with what Each returns.
func (w *Window) WriteTo(to io.Writer) (n int64, err error) {
	err = w.Each(func(p []byte) error {
		m, err := to.Write(p)
		n += int64(m)
		return err
	})
	return n, err
}

// Bytes returns a copy of what Each returns.
func (w *Window) Bytes() []byte {
	var b bytes.Buffer
	b.Grow(w.head.size + w.tail.size + 40)
	_, _ = w.WriteTo(&b) // a bytes.Buffer does not fail
	return b.Bytes()
}
