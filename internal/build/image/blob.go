package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Layers are kept compressed until their image is built, so that an interrupted pull
// continues where it stopped. Each repository has its own layers: a pull neither
// uses nor waits for bytes that another repository sends.
const (
	blobSuffix = ".blob" // complete
	partSuffix = ".part" // incomplete; locked while it is fetched
	blobAge    = 24 * time.Hour
)

func isBlob(name string) bool {
	return strings.HasSuffix(name, blobSuffix) || strings.HasSuffix(name, partSuffix)
}

func (c *cacheDir) blobPath(origin, layer string) string {
	return filepath.Join(c.dir, cacheKey("blob", origin, layer)+blobSuffix)
}

// fetchLayer returns a complete layer, locked against removal. One caller fetches it; others
// wait.
func (m *remote) fetchLayer(ctx context.Context, d descriptor) (*os.File, error) {
	path := m.puller.cache.blobPath(m.origin, d.Digest)
	defer m.puller.space.trackFetch(path)()
	for {
		f, err := openBlob(ctx, path)
		if err != nil || f != nil {
			if f != nil {
				m.progress.addBytes(d.Size)
			}
			return f, err
		}
		part := strings.TrimSuffix(path, blobSuffix) + partSuffix
		f, err = m.puller.cache.lockForAppend(ctx, part)
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(path); err == nil { // another process has fetched it
			_, _ = os.Remove(part), f.Close()
			continue
		}
		if err = m.fetchBlob(ctx, f, d); err == nil {
			err = os.Rename(part, path)
		}
		if err == nil {
			err = lockFile(ctx, f, path, unix.LOCK_SH)
		}
		if err != nil && !errors.Is(err, errReplaced) { // after a removal it is still open
			return nil, m.puller.cache.hintDiskFull(errors.Join(err, f.Close()))
		}
		return f, nil
	}
}

// openBlob opens a complete layer, or returns nil if it does not exist.
func openBlob(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the image cache: %w", err)
	}
	err = lockFile(ctx, f, path, unix.LOCK_SH)
	if errors.Is(err, errReplaced) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fetchBlob fetches the missing part of a layer into f.
func (m *remote) fetchBlob(ctx context.Context, f *os.File, d descriptor) error {
	var last error
	for _, e := range m.endpoints {
		furthest := int64(0)
		last = m.retry(ctx, func() (bool, error) {
			have, err := m.fetchRest(ctx, e, f, d)
			more := have > furthest
			furthest = max(have, furthest)
			return more, err
		})
		if last == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return last
}

// fetchRest makes one attempt to complete the file, and returns how many bytes it has then.
func (m *remote) fetchRest(ctx context.Context, e *endpoint, f *os.File, d descriptor) (have int64, err error) {
	t := &transfer{remote: m, endpoint: e, f: f, h: sha256.New(), want: d}
	defer func() {
		if err != nil {
			m.progress.addBytes(-t.received) // the next attempt counts them again
		}
	}()
	if err := t.readExisting(); err != nil {
		return 0, err
	}
	if t.received < d.Size || d.Size == 0 {
		if err := t.fetchMissing(ctx); err != nil {
			return t.received, err
		}
	}
	got := "sha256:" + sumOf(t.h)
	if t.received == d.Size && got == d.Digest {
		return t.received, nil
	}
	if err := truncateFile(f); err != nil {
		return 0, err
	}
	if t.received > d.Size {
		return 0, sandpit.Errorf(sandpit.Unavailable, "registry %s sent more than the %d bytes of %s", e.registry, d.Size, d.Digest)
	}
	return 0, errWrongDigest(d.Digest, got)
}

// transfer is one attempt to complete a layer.
type transfer struct {
	*remote
	endpoint *endpoint
	f        *os.File
	h        hash.Hash
	want     descriptor
	received int64
}

// readExisting reads and hashes the bytes that the file has.
func (t *transfer) readExisting() error {
	if _, err := t.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("read the image cache: %w", err)
	}
	n, err := io.Copy(t.h, io.LimitReader(t.f, t.want.Size+1))
	if err != nil {
		return fmt.Errorf("read the image cache: %w", err)
	}
	t.addProgress(n)
	if n > t.want.Size {
		return t.restartFile()
	}
	return nil
}

func (t *transfer) addProgress(n int64) {
	t.received += n
	t.progress.addBytes(n)
}

func (t *transfer) restartFile() error {
	t.addProgress(-t.received)
	t.h.Reset()
	return truncateFile(t.f)
}

// fetchMissing fetches the missing bytes.
func (t *transfer) fetchMissing(ctx context.Context) error {
	idle, cancel := newIdleTimeout(ctx, t.endpoint)
	defer cancel()
	resp, err := t.endpoint.getRange(idle.ctx, "blobs/"+t.want.Digest, t.received)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()                // only read
	if t.received > 0 && resp.StatusCode == http.StatusOK { // the response starts at the first byte
		if err := t.restartFile(); err != nil {
			return err
		}
	}
	_, err = io.Copy(t, io.LimitReader(idle.watchReader(resp.Body), t.want.Size-t.received+1))
	if fileErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("write to the image cache: %w", fileErr)
	}
	if err != nil {
		return t.endpoint.networkError(idle.ctx, err)
	}
	if t.received < t.want.Size {
		return &attemptError{retry: true, err: sandpit.Errorf(sandpit.Unavailable, "registry %s sent %d of %d bytes",
			t.endpoint.registry, t.received, t.want.Size)}
	}
	return nil
}

// Write writes received bytes to the file and the hash.
func (t *transfer) Write(p []byte) (int, error) {
	n, err := t.f.Write(p)
	t.h.Write(p[:n])
	t.addProgress(int64(n))
	return n, err
}

func truncateFile(f *os.File) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return err
}

// getRange requests the bytes after the first have. A registry that does not support ranges
// sends all bytes.
func (e *endpoint) getRange(ctx context.Context, path string, have int64) (*http.Response, error) {
	if have == 0 {
		return e.getOK(ctx, path, nil, http.StatusOK)
	}
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-", have)}}
	resp, err := e.getOK(ctx, path, header, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, err
	}
	right := strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have))
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent && right {
		return resp, nil
	}
	_ = resp.Body.Close() // not wanted
	return e.getOK(ctx, path, nil, http.StatusOK)
}

// idleTimeout cancels a request when no byte arrives for the time limit.
type idleTimeout struct {
	ctx   context.Context //nolint:containedctx // lives as long as one request
	limit time.Duration
	timer *time.Timer
	r     io.Reader
}

func newIdleTimeout(ctx context.Context, e *endpoint) (*idleTimeout, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	i := &idleTimeout{ctx: ctx, limit: e.times.idle}
	i.timer = time.AfterFunc(4*i.limit, func() { // connecting and headers have limits of their own
		cancel(&attemptError{retry: true, err: sandpit.WithHint(
			sandpit.Errorf(sandpit.Timeout, "registry %s sent nothing for %s", e.registry, i.limit), offlineHint)})
	})
	return i, func() {
		i.timer.Stop()
		cancel(nil)
	}
}

func (i *idleTimeout) watchReader(r io.Reader) io.Reader {
	i.r = r
	i.timer.Reset(i.limit)
	return i
}

func (i *idleTimeout) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if n > 0 {
		i.timer.Reset(i.limit)
	}
	return n, err
}
