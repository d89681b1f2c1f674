package interpreter

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// TestLastReader reads a pipe whose deadline expired before the first read, and which stays open.
func TestLastReader(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll([]*os.File{r, w}) })
	want := strings.Repeat("last words\n", 1000)
	if _, err := w.WriteString(want); err != nil {
		t.Fatal(err)
	}
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(newLastReader(r))
	if err != nil || string(got) != want {
		t.Errorf("%d bytes, %v; want %d", len(got), err, len(want))
	}
}

// TestLastReaderEnds reads a pipe into which another process writes for ever.
func TestLastReaderEnds(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := w.WriteString("more\n"); err != nil {
				return // the pipe is closed
			}
		}
	}()
	if err := r.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(newLastReader(r)); err != nil || len(got) > maxLastOutput {
		t.Errorf("%d bytes, %v; want at most %d", len(got), err, maxLastOutput)
	}
	closeAll([]*os.File{r, w})
	<-done
}
