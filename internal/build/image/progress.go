package image

import (
	"context"
	"io"
	"sync"
)

// Progress reports how many bytes of the source are fetched or converted. It is
// called about once per MiB and at the end, by one goroutine at a time, but not
// when the image is in the cache. The total is the sum of the files of a directory, the
// size of an archive, or the sum of the compressed layers of an image of a registry.
type Progress func(done, total int64)

// countingReader reads from r, reports progress, and fails when the context ends.
type countingReader struct {
	ctx      context.Context //nolint:containedctx // Read has no context parameter
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

// reportProgress calls progress with the bytes read so far.
func (m *countingReader) reportProgress() {
	m.reported = m.done
	if m.progress != nil {
		m.progress(m.done, m.total)
	}
}

// tally sums the bytes that all workers have fetched.
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
