package image

import (
	"context"
	"io"
	"sync"
)

// Progress hears how many bytes of the source are fetched or converted. It is
// called about once per MiB and at the end, by one goroutine at a time, and not at
// all when the image is in the cache. The total of a directory is the sum of its
// files, that of an archive the size of its file, that of an image of a registry
// the size of its layers as they are sent.
type Progress func(done, total int64)

// countingReader passes bytes on, counts them for whoever wants to know, and ends with
// the context.
type countingReader struct {
	ctx      context.Context //nolint:containedctx // a reader has no other way to hear of it
	r        io.Reader
	total    int64
	progress Progress

	done, reported int64
}

const progressStep = 1 << 20 // bytes

func (m *countingReader) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.done += int64(n)
	if m.done-m.reported >= progressStep {
		m.reportProgress()
	}
	return n, err
}

// reportProgress tells how far it is.
func (m *countingReader) reportProgress() {
	m.reported = m.done
	if m.progress != nil {
		m.progress(m.done, m.total)
	}
}

// tally adds up what all workers have fetched.
type tally struct {
	mu          sync.Mutex
	report      Progress
	done, total int64
	reported    int64
}

func (t *tally) addBytes(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	if t.report != nil && (t.done-t.reported >= progressStep || t.done == t.total || t.done < t.reported) {
		t.reported = t.done
		t.report(t.done, t.total)
	}
}
