package shell

import (
	"sync"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// ringPage is the size of a ring's pages, in bytes; the first one starts smaller.
	ringPage      = 64 << 10
	firstRingPage = 4 << 10
)

// ring keeps the last bytes of an output for any number of readers: up to a limit, and fewer
// when the account is used up.
type ring struct {
	limit   int
	account *memory.Account

	mu        sync.Mutex
	pages     [][]byte
	keptBytes int   // bytes in the pages
	reserved  int64 // bytes reserved in the account
	size      int64 // all bytes written
	ended     bool
	changed   chan struct{} // closed at the next change
}

func newRing(limit int, account *memory.Account) *ring {
	return &ring{limit: limit, account: account, changed: make(chan struct{})}
}

// Write implements io.Writer. It never fails.
func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(p)
	r.size += int64(n)
	if skipped := len(p) - r.limit; skipped > 0 {
		p = p[skipped:]
		for len(r.pages) > 0 { // the pages are no longer adjacent to p
			r.dropPage()
		}
	}
	for len(p) > 0 {
		page := r.writablePage(len(p))
		m := min(len(p), cap(*page)-len(*page))
		*page = append(*page, p[:m]...)
		r.keptBytes, p = r.keptBytes+m, p[m:]
		for r.keptBytes-len(r.pages[0]) >= r.limit {
			r.dropPage()
		}
	}
	r.wakeReaders()
	return n, nil
}

// writablePage returns a page with room for at least one byte. The caller must hold the lock.
func (r *ring) writablePage(more int) *[]byte {
	if n := len(r.pages); n > 0 {
		last := &r.pages[n-1]
		switch {
		case len(*last) < cap(*last):
			return last
		case cap(*last) < ringPage && r.reserveMemory(cap(*last)):
			grown := make([]byte, len(*last), 2*cap(*last))
			copy(grown, *last)
			*last = grown
			return last
		}
	}
	size := firstRingPage
	if len(r.pages) > 0 || more > ringPage/2 {
		size = ringPage
	}
	if r.reserveMemory(size) {
		r.pages = append(r.pages, make([]byte, 0, size))
		return &r.pages[len(r.pages)-1]
	}
	if len(r.pages) == 0 { // small enough to need no account
		r.pages = append(r.pages, make([]byte, 0, firstRingPage))
		return &r.pages[0]
	}
	oldest := r.pages[0]
	r.keptBytes -= len(oldest)
	r.pages = append(r.pages[1:len(r.pages):len(r.pages)], oldest[:0])
	return &r.pages[len(r.pages)-1]
}

func (r *ring) reserveMemory(size int) bool {
	if r.account.Reserve(int64(size)) != nil {
		return false
	}
	r.reserved += int64(size)
	return true
}

// dropPage drops the oldest page. The caller must hold the lock.
func (r *ring) dropPage() {
	size := min(int64(cap(r.pages[0])), r.reserved)
	r.keptBytes -= len(r.pages[0])
	r.pages = r.pages[1:]
	r.reserved -= size
	r.account.Return(size)
}

// releaseMemory drops all pages.
func (r *ring) releaseMemory() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.pages) > 0 {
		r.dropPage()
	}
}

// endWriting marks the end of the output.
func (r *ring) endWriting() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wakeReaders()
}

func (r *ring) wakeReaders() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Chunk is a part of the output of a job.
type Chunk struct {
	Data []byte `json:"data"`
	// Offset is where Data begins, in bytes from the start of the output. It is larger than
	// the requested one if those bytes are no longer kept.
	Offset int64 `json:"offset"`
	// Next is the offset for the next request.
	Next int64 `json:"next"`
	// Ended is true if the job has ended and no output follows.
	Ended bool `json:"ended,omitempty"`
}

// readAt returns up to most bytes from offset on, or a channel that signals new bytes.
func (r *ring) readAt(offset int64, most int) (Chunk, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.size - int64(min(r.keptBytes, r.limit))
	offset = min(max(offset, first), r.size)
	data := r.copyFrom(r.keptBytes-int(r.size-offset), most)
	next := offset + int64(len(data))
	return Chunk{Data: data, Offset: offset, Next: next, Ended: r.ended && next == r.size}, r.changed
}

// copyFrom returns up to most kept bytes after the first skipped ones. The caller must hold
// the lock.
func (r *ring) copyFrom(skipped, most int) (data []byte) {
	for _, page := range r.pages {
		if skipped >= len(page) {
			skipped -= len(page)
			continue
		}
		data = append(data, page[skipped:min(len(page), skipped+most-len(data))]...)
		skipped = 0
		if len(data) == most {
			break
		}
	}
	return data
}

func (r *ring) writtenBytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}
