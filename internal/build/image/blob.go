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

// Layers are kept, as the registry sent them, until their image is made: a pull
// that was broken off goes on where it was. Each repository has its own: a pull neither
// uses bytes that another repository has sent, nor waits for them.
const (
	blobSuffix = ".blob" // complete
	partSuffix = ".part" // the beginning of one; locked by who fetches it
	blobAge    = 24 * time.Hour
)

func isBlob(name string) bool {
	return strings.HasSuffix(name, blobSuffix) || strings.HasSuffix(name, partSuffix)
}

func (s *Store) blobPath(origin, layer string) string {
	return filepath.Join(s.dir, digest("blob", origin, layer)+blobSuffix)
}

// blob returns a complete layer, locked against removal. It is fetched by one
// caller; others wait.
func (m *remote) blob(ctx context.Context, d descriptor) (*os.File, error) {
	path := m.store.blobPath(m.origin, d.Digest)
	defer m.store.trackFetch(path)()
	for {
		f, err := openBlob(ctx, path)
		if err != nil || f != nil {
			if f != nil {
				m.tell.add(d.Size)
			}
			return f, err
		}
		part := strings.TrimSuffix(path, blobSuffix) + partSuffix
		f, err = m.store.claim(ctx, part)
		if err != nil {
			return nil, err
		}
		if _, err := os.Lstat(path); err == nil { // another one came first
			_, _ = os.Remove(part), f.Close()
			continue
		}
		if err = m.fetchBlob(ctx, f, d); err == nil {
			err = os.Rename(part, path)
		}
		if err == nil {
			err = lock(ctx, f, path, unix.LOCK_SH)
		}
		if err != nil && !errors.Is(err, errMoved) { // removed or not, it is open
			return nil, m.store.explain(errors.Join(err, f.Close()))
		}
		return f, nil
	}
}

// openBlob returns a layer that is here, or nil.
func openBlob(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look into the image cache: %w", err)
	}
	err = lock(ctx, f, path, unix.LOCK_SH)
	if errors.Is(err, errMoved) {
		return nil, f.Close()
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// fetchBlob completes the file, of which a beginning may be there.
func (m *remote) fetchBlob(ctx context.Context, f *os.File, d descriptor) error {
	var last error
	for _, e := range m.places {
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

// fetchRest makes one attempt to complete the file, and returns how far it came.
func (m *remote) fetchRest(ctx context.Context, e *endpoint, f *os.File, d descriptor) (have int64, err error) {
	t := &transfer{remote: m, endpoint: e, f: f, h: sha256.New(), want: d}
	defer func() {
		if err != nil {
			m.tell.add(-t.have) // the next attempt counts anew
		}
	}()
	if err := t.begin(); err != nil {
		return 0, err
	}
	if t.have < d.Size || d.Size == 0 {
		if err := t.rest(ctx); err != nil {
			return t.have, err
		}
	}
	got := "sha256:" + sumOf(t.h)
	if t.have == d.Size && got == d.Digest {
		return t.have, nil
	}
	if err := restart(f); err != nil {
		return 0, err
	}
	if t.have > d.Size {
		return 0, sandpit.Errorf(sandpit.Unavailable, "registry %s sends more than the %d bytes of %s", e.registry, d.Size, d.Digest)
	}
	return 0, wrongDigest(d.Digest, got)
}

// transfer is one attempt to complete a layer.
type transfer struct {
	*remote
	endpoint *endpoint
	f        *os.File
	h        hash.Hash
	want     descriptor
	have     int64
}

// begin reads what is there of the file.
func (t *transfer) begin() error {
	if _, err := t.f.Seek(0, io.SeekStart); err != nil {
		return fmt.Errorf("look into the image cache: %w", err)
	}
	n, err := io.Copy(t.h, io.LimitReader(t.f, t.want.Size+1))
	if err != nil {
		return fmt.Errorf("look into the image cache: %w", err)
	}
	t.add(n)
	if n > t.want.Size {
		return t.restart()
	}
	return nil
}

func (t *transfer) add(n int64) {
	t.have += n
	t.tell.add(n)
}

func (t *transfer) restart() error {
	t.add(-t.have)
	t.h.Reset()
	return restart(t.f)
}

// rest fetches what is missing.
func (t *transfer) rest(ctx context.Context) error {
	idle, cancel := newIdle(ctx, t.endpoint)
	defer cancel()
	resp, err := t.endpoint.getRange(idle.ctx, "blobs/"+t.want.Digest, t.have)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()            // only read
	if t.have > 0 && resp.StatusCode == http.StatusOK { // it begins at the beginning
		if err := t.restart(); err != nil {
			return err
		}
	}
	_, err = io.Copy(t, io.LimitReader(idle.reader(resp.Body), t.want.Size-t.have+1))
	if fileErr, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("write to the image cache: %w", fileErr)
	}
	if err != nil {
		return t.endpoint.explain(idle.ctx, err)
	}
	if t.have < t.want.Size {
		return &failure{again: true, err: sandpit.Errorf(sandpit.Unavailable, "registry %s sent %d of %d bytes",
			t.endpoint.registry, t.have, t.want.Size)}
	}
	return nil
}

// Write takes bytes as they come.
func (t *transfer) Write(p []byte) (int, error) {
	n, err := t.f.Write(p)
	t.h.Write(p[:n])
	t.add(int64(n))
	return n, err
}

func restart(f *os.File) error {
	err := f.Truncate(0)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return err
}

// getRange asks for what comes after the bytes that are here. A registry that
// cannot do that sends all of it.
func (e *endpoint) getRange(ctx context.Context, path string, have int64) (*http.Response, error) {
	if have == 0 {
		return e.get(ctx, path, nil, http.StatusOK)
	}
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-", have)}}
	resp, err := e.get(ctx, path, header, http.StatusOK, http.StatusPartialContent, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, err
	}
	right := strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", have))
	if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent && right {
		return resp, nil
	}
	_ = resp.Body.Close() // not wanted
	return e.get(ctx, path, nil, http.StatusOK)
}

// idle ends a request of which no byte comes for too long.
type idle struct {
	ctx   context.Context //nolint:containedctx // lives as long as one request
	limit time.Duration
	timer *time.Timer
	r     io.Reader
}

func newIdle(ctx context.Context, e *endpoint) (*idle, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	i := &idle{ctx: ctx, limit: e.times.idle}
	i.timer = time.AfterFunc(4*i.limit, func() { // connecting and headers have limits of their own
		cancel(&failure{again: true, err: sandpit.WithHint(
			sandpit.Errorf(sandpit.Timeout, "registry %s sends nothing for %s", e.registry, i.limit), offlineHint)})
	})
	return i, func() {
		i.timer.Stop()
		cancel(nil)
	}
}

func (i *idle) reader(r io.Reader) io.Reader {
	i.r = r
	i.timer.Reset(i.limit)
	return i
}

func (i *idle) Read(p []byte) (int, error) {
	n, err := i.r.Read(p)
	if n > 0 {
		i.timer.Reset(i.limit)
	}
	return n, err
}

// claim returns the file at path, made if missing, locked for this caller alone,
// with what is in it.
func (s *Store) claim(ctx context.Context, path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
		if err != nil {
			return nil, s.explain(fmt.Errorf("write to the image cache: %w", err))
		}
		err = lock(ctx, f, path, unix.LOCK_EX)
		if err == nil {
			return f, nil
		}
		_ = f.Close() // nothing was written
		if !errors.Is(err, errMoved) {
			return nil, fmt.Errorf("wait for the image cache: %w", err)
		}
	}
}
