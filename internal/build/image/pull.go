package image

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// pullers is how many layers are fetched at once.
const pullers = 3

// remote is an image in a registry and its mirrors.
type remote struct {
	*client
	store     *Store
	endpoints []*endpoint // the one that had the manifest first
	progress  *tally
	prefetch  *prefetcher
	origin    string // the repository whose contents these are
}

// acceptManifest is what is understood of what a registry may have.
const acceptManifest = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// pullImage returns the image that r names in its registry now, and the digest that
// the registry has under that name. It waits for a pull slot first.
func (s *Store) pullImage(ctx context.Context, owner string, r reference, p Progress) (f *os.File, key, digest string, err error) {
	release, err := s.AcquirePull(ctx, owner)
	if err != nil {
		return nil, "", "", err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.PullTimeout, sandpit.WithHint(
		sandpit.Errorf(sandpit.Timeout, "fetching it took longer than %s", s.o.PullTimeout),
		"try again: what is here already is not fetched again; image.pull_timeout sets the time"))
	defer cancel()
	c := s.newClient(owner)
	defer c.close()
	from := &remote{client: c, store: s, endpoints: s.newEndpoints(c, r), progress: &tally{report: p}, origin: originOf(r)}
	data, err := from.fetchTop(ctx, r)
	if err != nil {
		return nil, "", "", err
	}
	image, err := chooseImage(ctx, from, data)
	if err != nil {
		return nil, "", "", causeOf(ctx, err)
	}
	from.prefetch = newPrefetcher(ctx, from, image.list)
	defer from.prefetch.stop()
	f, key, err = s.buildFetched(ctx, image, fetchRequest{owner: owner, name: r.String(), origin: from.origin})
	if err != nil {
		return nil, "", "", causeOf(ctx, err)
	}
	from.prefetch.removeLayers()
	return f, key, sha256Of(data), nil
}

// causeOf tells why ctx ended rather than that it did.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// AcquirePull waits for one of the slots for pulls, as long as a pull may take. The caller
// releases it.
//
// Exhausted: it takes too long, or too many requests of the owner wait already.
func (s *Store) AcquirePull(ctx context.Context, owner string) (release func(), err error) {
	if s.o.Sharing == nil || s.o.Sharing.Pulls == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, s.o.PullTimeout, sandpit.WithHint(
		sandpit.Errorf(sandpit.Exhausted, "timed out after %s while the server fetched other images", s.o.PullTimeout),
		"try again later; image.max_pulls sets how many are fetched at a time"))
	defer cancel()
	slot, err := s.o.Sharing.Pulls.Acquire(ctx, owner, 1)
	if err != nil {
		return nil, err
	}
	return slot.Release, nil
}

// latestDigest returns the digest that a registry has under a name now.
func (s *Store) latestDigest(ctx context.Context, owner string, r reference) (string, error) {
	release, err := s.AcquirePull(ctx, owner)
	if err != nil {
		return "", err
	}
	defer release()
	c := s.newClient(owner)
	defer c.close()
	data, err := (&remote{client: c, store: s, endpoints: s.newEndpoints(c, r)}).fetchTop(ctx, r)
	return sha256Of(data), err
}

// fetchTop returns the manifest or index that r names, from the first place that has
// it.
func (m *remote) fetchTop(ctx context.Context, r reference) ([]byte, error) {
	var data []byte
	err := m.tryEach(ctx, func(e *endpoint) error {
		var err error
		data, err = m.fetchDocument(ctx, e, "manifests/"+r.apiName())
		return err
	})
	if err == nil && r.digest != "" {
		data, err = checkContents(data, nil, descriptor{Digest: r.digest})
	}
	return data, err
}

// tryEach tries the places in order until one has what is wanted, and from then on
// that one first. What the last one says is told: it is the registry itself.
func (m *remote) tryEach(ctx context.Context, f func(*endpoint) error) error {
	var err error
	for i, e := range m.endpoints {
		if err = f(e); err == nil {
			m.endpoints = append([]*endpoint{e}, append(m.endpoints[:i:i], m.endpoints[i+1:]...)...)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}

// fetchDocument fetches a manifest or another small part.
func (m *remote) fetchDocument(ctx context.Context, e *endpoint, path string) ([]byte, error) {
	var data []byte
	err := m.retry(ctx, func() (bool, error) {
		idle, cancel := newIdleTimeout(ctx, e)
		defer cancel()
		resp, err := e.getOK(idle.ctx, path, http.Header{"Accept": {acceptManifest}}, http.StatusOK)
		if err != nil {
			return false, err
		}
		defer func() { _ = resp.Body.Close() }() // only read
		data, err = readDocument(idle.watchReader(resp.Body))
		if sandpit.CodeOf(err) == sandpit.Exhausted {
			return false, err
		}
		if err != nil {
			return false, e.networkError(idle.ctx, err)
		}
		return false, nil
	})
	return data, err
}

func (m *remote) fetchSmall(ctx context.Context, d descriptor, path string) ([]byte, error) {
	var data []byte
	err := m.tryEach(ctx, func(e *endpoint) error {
		var err error
		data, err = m.fetchDocument(ctx, e, path+d.Digest)
		data, err = checkContents(data, err, d)
		return err
	})
	return data, err
}

func (m *remote) readManifest(ctx context.Context, d descriptor) ([]byte, error) {
	return m.fetchSmall(ctx, d, "manifests/")
}

func (m *remote) readConfig(ctx context.Context, d descriptor) ([]byte, error) {
	return m.fetchSmall(ctx, d, "blobs/")
}

func (m *remote) openLayer(ctx context.Context, d descriptor) (io.ReadCloser, error) {
	f, err := m.prefetch.waitLayer(ctx, d)
	if err != nil {
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return io.NopCloser(f), err
}

// prefetcher fetches layers while the ones before are unpacked.
type prefetcher struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup
	layers  map[string]*prefetched // by digest
	order   []*prefetched
	from    *remote
	begin   sync.Once
	ctx     context.Context //nolint:containedctx // lives as long as one pull
}

// prefetched is a layer that is here, or will be.
type prefetched struct {
	descriptor
	done chan struct{}
	file *os.File // locked, so that nobody removes it
	err  error
}

func newPrefetcher(ctx context.Context, from *remote, list []descriptor) *prefetcher {
	a := &prefetcher{layers: map[string]*prefetched{}, from: from}
	a.ctx, a.cancel = context.WithCancel(ctx)
	for _, d := range list {
		if a.layers[d.Digest] == nil {
			l := &prefetched{descriptor: d, done: make(chan struct{})}
			a.layers[d.Digest] = l
			a.order = append(a.order, l)
			from.progress.total += d.Size
		}
	}
	return a
}

// start is called when the first layer is wanted: not at all if another has made
// the image meanwhile.
func (a *prefetcher) start() {
	next := make(chan *prefetched, len(a.order))
	for _, l := range a.order {
		next <- l
	}
	close(next)
	for range min(pullers, len(a.order)) {
		a.workers.Go(func() {
			for l := range next {
				l.file, l.err = a.from.fetchLayer(a.ctx, l.descriptor)
				close(l.done)
				if l.err != nil {
					a.cancel() // the others are of no use
				}
			}
		})
	}
}

func (a *prefetcher) waitLayer(ctx context.Context, d descriptor) (*os.File, error) {
	a.begin.Do(a.start)
	l := a.layers[d.Digest]
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if errors.Is(l.err, context.Canceled) && ctx.Err() == nil { // because of another one
		for _, other := range a.order {
			select {
			case <-other.done:
				if other.err != nil && !errors.Is(other.err, context.Canceled) {
					return nil, other.err
				}
			default:
			}
		}
	}
	return l.file, l.err
}

// stop waits for the workers and closes what they have fetched.
func (a *prefetcher) stop() {
	a.cancel()
	a.begin.Do(func() {}) // from now on it starts no more
	a.workers.Wait()
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // only read
		}
	}
}

// removeLayers gives the room of the layers back, but for those that others need.
func (a *prefetcher) removeLayers() {
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // gives up the lock
			l.file = nil
		}
		// What stays, because others use it or because of an error, is swept later.
		_, _ = removeIfFree(a.from.store.blobPath(a.from.origin, l.Digest), time.Time{})
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
