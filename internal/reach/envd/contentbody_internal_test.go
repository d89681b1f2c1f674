package envd

import (
	"context"
	"errors"
	"io"
	"testing"
)

// TestContentBodyCanceled checks that the transport reads why the content of a canceled call ends: its own context may end
// later, and then it cannot tell the cancellation from a broken connection.
func TestContentBodyCanceled(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	content, end := io.Pipe()
	body := newContentBody(ctx, content)
	cancel()
	if _, err := body.Read(make([]byte, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("read of the body: %v, want %v", err, context.Canceled)
	}
	// The content ends after the call: its end must not be read in time, or it would count as all of the content.
	t.Cleanup(func() { _ = end.Close() }) // never fails
	if all, err := body.stopReading(ctx); all || err != nil {
		t.Errorf("stop reading: all %t, error %v", all, err)
	}
}
