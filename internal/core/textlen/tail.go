package textlen

import "sync"

// Tail is an io.Writer that keeps the last bytes of what is written to it. Its methods may be called
// concurrently.
type Tail struct {
	size int

	mu   sync.Mutex
	data []byte
}

// NewTail returns a Tail that keeps size bytes.
func NewTail(size int) *Tail { return &Tail{size: size} }

// Write implements io.Writer. It never fails.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p[max(0, len(p)-t.size):]...)
	t.data = t.data[max(0, len(t.data)-t.size):]
	return len(p), nil
}

// String returns the kept bytes. The first ones may be a part of a rune.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}
