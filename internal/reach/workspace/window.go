package workspace

import (
	"context"
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// resultCost is the bytes of memory for each byte of a Result: the window, the Result's text,
// and a copy of the caller.
const resultCost = 3

// Window keeps the beginning and the end of what is written to it, within a bound. All methods
// may be called concurrently.
type Window struct {
	mu     sync.Mutex
	kept   *memory.Window
	closed bool
}

// NewWindow returns a window of up to limit bytes.
func NewWindow(limit int) *Window { return newWindow(nil, limit, 1) }

// NewWindowOf returns a window of up to limit bytes. It reserves cost bytes for each of them
// from the account of ctx, and omits more when the account is used up.
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

// Close returns the kept output. Later writes are dropped.
func (w *Window) Close() *memory.Window {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return w.kept
}

// Truncated reports whether the window omits something.
func (w *Window) Truncated() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.kept.Omitted() > 0
}

// String returns the kept output, with a line at an omission.
func (w *Window) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return string(w.kept.Bytes())
}

// teeWriter returns a writer to w and to; to may be nil.
func teeWriter(w *Window, to io.Writer) io.Writer {
	if to == nil {
		return w
	}
	return io.MultiWriter(w, to)
}
