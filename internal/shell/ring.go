package shell

import "sync"

// ring keeps the last bytes of an output, for many readers.
type ring struct {
	limit int

	mu      sync.Mutex
	kept    []byte // up to twice the limit, so that it is moved seldom
	size    int64  // of all that was written
	ended   bool
	changed chan struct{} // closed at the next change
}

func newRing(limit int) *ring { return &ring{limit: limit, changed: make(chan struct{})} }

// Write implements io.Writer. It never fails.
func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(p)
	r.size += int64(n)
	if len(p) > r.limit {
		p = p[len(p)-r.limit:]
	}
	if len(r.kept)+len(p) > 2*r.limit {
		kept := r.kept[max(0, len(r.kept)-r.limit):]
		r.kept = r.kept[:copy(r.kept, kept)]
	}
	r.kept = append(r.kept, p...)
	r.wake()
	return n, nil
}

// end says that nothing more will be written.
func (r *ring) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.wake()
}

func (r *ring) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// Chunk is a piece of the output of a job.
type Chunk struct {
	Data []byte `json:"data"`
	// Offset is where Data begins, in bytes from the start of the output. It is
	// beyond the one asked for if what was there is no longer kept.
	Offset int64 `json:"offset"`
	// Next is the offset to go on at.
	Next int64 `json:"next"`
	// Ended is true if the job has ended and nothing follows.
	Ended bool `json:"ended,omitempty"`
}

// read returns up to most bytes from offset on, and what to wait for if there are
// none yet.
func (r *ring) read(offset int64, most int) (Chunk, <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	first := r.size - int64(min(len(r.kept), r.limit))
	offset = min(max(offset, first), r.size)
	from := len(r.kept) - int(r.size-offset)
	data := append([]byte(nil), r.kept[from:min(len(r.kept), from+most)]...)
	next := offset + int64(len(data))
	return Chunk{Data: data, Offset: offset, Next: next, Ended: r.ended && next == r.size}, r.changed
}

func (r *ring) written() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.size
}
