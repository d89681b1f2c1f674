package workspace

import (
	"context"
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// resultCost is how many bytes each byte of a Result takes: in the window, as the
// Result's text, and once more for whoever passes that on.
const resultCost = 3

// Window keeps the beginning and the end of what is written to it, within a
// bound. It may be read while it is written.
type Window struct {
	mu     sync.Mutex
	kept   *memory.Window
	closed bool
}

// NewWindow returns a window of up to limit bytes.
func NewWindow(limit int) *Window { return newWindow(nil, limit, 1) }

// NewWindowOf returns a window of up to limit bytes, which it takes from the account of
// ctx, cost bytes for each. When the account is used up, more is left out.
func NewWindowOf(ctx context.Context, limit int, cost int64) *Window {
	return newWindow(memory.AccountOf(ctx), limit, cost)
}

func newWindow(account *memory.Account, limit int, cost int64) *Window {
	return &Window{kept: memory.NewWindow(account, limit, cost)}
}

// Write implements io.Writer. It never fails.
func (w *Window) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return len(p), nil
	}
	return w.kept.Write(p)
}

// Close returns what was kept. What is written from then on is dropped.
func (w *Window) Close() *memory.Window {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return w.kept
}

// Truncated reports whether something was left out.
func (w *Window) Truncated() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept.Omitted() > 0
}

// String returns what was kept, with a line where something was left out.
func (w *Window) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.kept.Bytes())
}

// teeWriter returns a writer to both; to may be nil.
func teeWriter(w *Window, to io.Writer) io.Writer {
	if to == nil {
		return w
	}
	return io.MultiWriter(w, to)
}
