package cli

import (
	"bytes"
	"testing"
	"time"
)

// TestLineProgress shows a transfer without a terminal: a line every few seconds, and none
// for what is quick.
func TestLineProgress(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	now := time.Now()
	update := newLineProgress(&out, "Fetching\tx", func() time.Time { return now })
	for i := range int64(12) {
		update(i*1_000_000, 61_000_000)
		now = now.Add(time.Second)
	}
	update(20_000_000, -1)
	const want = "Fetching x: 5 MB of 61 MB\nFetching x: 10 MB of 61 MB\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	if _, clear := newProgress(&out, "x"); clear == nil {
		t.Error("there is nothing to end it with")
	}
}
