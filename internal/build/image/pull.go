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
	store  *Store
	places []*endpoint // the one that had the manifest first
	tell   *tally
	ahead  *ahead
	origin string // the repository whose contents these are
}

// acceptManifest is what is understood of what a registry may have.
const acceptManifest = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// pull returns the image that r names in its registry now, and the digest that
// the registry has under that name. It waits for a pull slot first.
func (s *Store) pull(ctx context.Context, owner string, r reference, p Progress) (f *os.File, key, digest string, err error) {
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
	from := &remote{client: c, store: s, places: s.endpoints(c, r), tell: &tally{tell: p}, origin: originOf(r)}
	data, err := from.top(ctx, r)
	if err != nil {
		return nil, "", "", err
	}
	image, err := choose(ctx, from, data)
	if err != nil {
		return nil, "", "", causeOf(ctx, err)
	}
	from.ahead = newAhead(ctx, from, image.list)
	defer from.ahead.stop()
	f, key, err = s.buildFetched(ctx, image, fetch{owner: owner, name: r.String(), origin: from.origin})
	if err != nil {
		return nil, "", "", causeOf(ctx, err)
	}
	from.ahead.remove()
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

// latest returns the digest that a registry has under a name now.
func (s *Store) latest(ctx context.Context, owner string, r reference) (string, error) {
	release, err := s.AcquirePull(ctx, owner)
	if err != nil {
		return "", err
	}
	defer release()
	c := s.newClient(owner)
	defer c.close()
	data, err := (&remote{client: c, store: s, places: s.endpoints(c, r)}).top(ctx, r)
	return sha256Of(data), err
}

// top returns the manifest or index that r names, from the first place that has
// it.
func (m *remote) top(ctx context.Context, r reference) ([]byte, error) {
	var data []byte
	err := m.each(ctx, func(e *endpoint) error {
		var err error
		data, err = m.document(ctx, e, "manifests/"+r.target())
		return err
	})
	if err == nil && r.digest != "" {
		data, err = checked(data, nil, descriptor{Digest: r.digest})
	}
	return data, err
}

// each tries the places in order until one has what is wanted, and from then on
// that one first. What the last one says is told: it is the registry itself.
func (m *remote) each(ctx context.Context, f func(*endpoint) error) error {
	var err error
	for i, e := range m.places {
		if err = f(e); err == nil {
			m.places = append([]*endpoint{e}, append(m.places[:i:i], m.places[i+1:]...)...)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return err
}

// document fetches a manifest or another small part.
func (m *remote) document(ctx context.Context, e *endpoint, path string) ([]byte, error) {
	var data []byte
	err := m.retry(ctx, func() (bool, error) {
		idle, cancel := newIdle(ctx, e)
		defer cancel()
		resp, err := e.get(idle.ctx, path, http.Header{"Accept": {acceptManifest}}, http.StatusOK)
		if err != nil {
			return false, err
		}
		defer func() { _ = resp.Body.Close() }() // only read
		data, err = readDocument(idle.reader(resp.Body))
		if sandpit.CodeOf(err) == sandpit.Exhausted {
			return false, err
		}
		if err != nil {
			return false, e.explain(idle.ctx, err)
		}
		return false, nil
	})
	return data, err
}

func (m *remote) small(ctx context.Context, d descriptor, path string) ([]byte, error) {
	var data []byte
	err := m.each(ctx, func(e *endpoint) error {
		var err error
		data, err = m.document(ctx, e, path+d.Digest)
		data, err = checked(data, err, d)
		return err
	})
	return data, err
}

func (m *remote) manifest(ctx context.Context, d descriptor) ([]byte, error) {
	return m.small(ctx, d, "manifests/")
}

func (m *remote) config(ctx context.Context, d descriptor) ([]byte, error) {
	return m.small(ctx, d, "blobs/")
}

func (m *remote) layer(ctx context.Context, d descriptor) (io.ReadCloser, error) {
	f, err := m.ahead.wait(ctx, d)
	if err != nil {
		return nil, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return io.NopCloser(f), err
}

// ahead fetches layers while the ones before are unpacked.
type ahead struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup
	layers  map[string]*fetched // by digest
	order   []*fetched
	from    *remote
	begin   sync.Once
	ctx     context.Context //nolint:containedctx // lives as long as one pull
}

// fetched is a layer that is here, or will be.
type fetched struct {
	descriptor
	done chan struct{}
	file *os.File // locked, so that nobody removes it
	err  error
}

func newAhead(ctx context.Context, from *remote, list []descriptor) *ahead {
	a := &ahead{layers: map[string]*fetched{}, from: from}
	a.ctx, a.cancel = context.WithCancel(ctx)
	for _, d := range list {
		if a.layers[d.Digest] == nil {
			l := &fetched{descriptor: d, done: make(chan struct{})}
			a.layers[d.Digest] = l
			a.order = append(a.order, l)
			from.tell.total += d.Size
		}
	}
	return a
}

// start is called when the first layer is wanted: not at all if another has made
// the image meanwhile.
func (a *ahead) start() {
	next := make(chan *fetched, len(a.order))
	for _, l := range a.order {
		next <- l
	}
	close(next)
	for range min(pullers, len(a.order)) {
		a.workers.Go(func() {
			for l := range next {
				l.file, l.err = a.from.blob(a.ctx, l.descriptor)
				close(l.done)
				if l.err != nil {
					a.cancel() // the others are of no use
				}
			}
		})
	}
}

func (a *ahead) wait(ctx context.Context, d descriptor) (*os.File, error) {
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
func (a *ahead) stop() {
	a.cancel()
	a.begin.Do(func() {}) // from now on it starts no more
	a.workers.Wait()
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // only read
		}
	}
}

// remove gives the room of the layers back, but for those that others need.
func (a *ahead) remove() {
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
	tell        Progress
	done, total int64
	told        int64
}

func (t *tally) add(n int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.done += n
	if t.tell != nil && (t.done-t.told >= progressStep || t.done == t.total || t.done < t.told) {
		t.told = t.done
		t.tell(t.done, t.total)
	}
}
