package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// pullers is how many layers are fetched at the same time.
const pullers = 3

// remote is an image in a registry and its mirrors.
type remote struct {
	*client
	puller    *puller
	endpoints []*endpoint // the one that has the manifest comes first
	progress  *tally
	prefetch  *prefetcher
	origin    string // the repository of the image
}

// puller fetches images from registries and records where they came from.
type puller struct {
	cache    *cacheDir
	names    *nameTable
	space    *spaceManager
	builder  *builder
	o        Options
	timeouts timeouts
}

// acceptManifest lists the supported media types of manifests and indexes.
const acceptManifest = "application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json, " +
	"application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json"

// pullImage fetches the image that r names in its registry, and returns it with its key and
// the digest of the name's manifest. It waits for a pull slot first.
func (pl *puller) pullImage(ctx context.Context, owner string, r reference, p Progress) (f *os.File, key, digest string, err error) {
	release, err := pl.acquireSlot(ctx, owner)
	if err != nil {
		return nil, "", "", err
	}
	defer release()
	ctx, cancel := context.WithTimeoutCause(ctx, pl.o.PullTimeout, sandpit.WithHint(
		sandpit.Errorf(sandpit.Timeout, "the pull took longer than %s", pl.o.PullTimeout),
		"try again: complete layers are not fetched again; image.pull_timeout sets the limit"))
	defer cancel()
	c := pl.newClient(owner)
	defer c.close()
	from := &remote{client: c, puller: pl, endpoints: pl.newEndpoints(c, r), progress: &tally{report: p}, origin: originOf(r)}
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
	f, key, err = pl.buildFetched(ctx, image, fetchRequest{owner: owner, name: r.String(), origin: from.origin})
	if err != nil {
		return nil, "", "", causeOf(ctx, err)
	}
	from.prefetch.removeLayers()
	return f, key, sha256Of(data), nil
}

// causeOf returns the cause of ctx's end if it has ended, else err.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// AcquirePull waits for a slot for a pull, for at most Options.PullTimeout. The caller calls
// release once.
//
// Exhausted: the wait timed out, or too many requests of the owner are waiting.
func (s *Store) AcquirePull(ctx context.Context, owner string) (release func(), err error) {
	return s.puller.acquireSlot(ctx, owner)
}

func (pl *puller) acquireSlot(ctx context.Context, owner string) (release func(), err error) {
	if pl.o.Sharing == nil || pl.o.Sharing.Pulls == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, pl.o.PullTimeout, sandpit.WithHint(
		sandpit.Errorf(sandpit.Exhausted, "timed out after %s while the server fetched other images", pl.o.PullTimeout),
		"try again later; image.max_pulls sets how many are fetched at a time"))
	defer cancel()
	slot, err := pl.o.Sharing.Pulls.Acquire(ctx, owner, 1)
	if err != nil {
		return nil, err
	}
	return slot.Release, nil
}

// latestDigest returns the digest of the registry's current image under a name.
func (pl *puller) latestDigest(ctx context.Context, owner string, r reference) (string, error) {
	release, err := pl.acquireSlot(ctx, owner)
	if err != nil {
		return "", err
	}
	defer release()
	c := pl.newClient(owner)
	defer c.close()
	data, err := (&remote{client: c, puller: pl, endpoints: pl.newEndpoints(c, r)}).fetchTop(ctx, r)
	return sha256Of(data), err
}

// fetchTop returns the manifest or index that r names, from the first endpoint that has it.
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

// tryEach calls f with the endpoints in order until one succeeds, and moves that one to the
// front. If all fail, it returns the error of the last one, which is the registry itself.
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

// fetchDocument fetches a manifest or configuration.
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

// Pull fetches the image of a registry if it is not in the cache, or, with always,
// if the registry has a newer one. The name is shared.
//
// Conflict: the name belongs to an imported image, which always would replace.
// PermissionDenied: the pull policy is PullNever. Otherwise as Resolve.
func (s *Store) Pull(ctx context.Context, name string, always bool, p Progress) (Entry, error) {
	return s.pullFor(ctx, shared, name, always, p)
}

func (s *Store) pullFor(ctx context.Context, owner, name string, always bool, p Progress) (e Entry, err error) {
	r, err := parseReference(name)
	if err != nil {
		return e, fmt.Errorf("image %s: %w", quoteName(name), err)
	}
	f, err := s.pullExplicitly(ctx, owner, r, always, p)
	if err != nil {
		return e, fmt.Errorf("image %s: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e, err = newEntry(f, s.cache.keyOf(f))
	e.Name, e.Owner = r.shortName(), owner
	return e, err
}

// pullExplicitly returns the image of a name for a pull request.
func (s *Store) pullExplicitly(ctx context.Context, owner string, r reference, always bool, p Progress) (*os.File, error) {
	if !always || r.digest != "" || r.template != "" {
		return s.openNamed(ctx, owner, r, s.o.Pull, p)
	}
	if s.o.Pull == PullNever {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"),
			"set image.pull to missing, or: sandpit image import FILE --name "+r.shortName())
	}
	have, err := s.names.lookUp(shared, r)
	switch {
	case err != nil:
		return nil, err
	case have.isImported(r):
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the image was imported, and a pull does not replace it"),
			"to use the registry's image, ask an administrator to remove this one: sandpit image rm "+r.shortName())
	case owner != shared && have.Key != "":
		return s.latestShared(ctx, owner, r, have)
	}
	return s.openNamed(ctx, owner, r, PullAlways, p)
}

// latestShared returns the image of a shared name, if the registry has no newer one.
//
// PermissionDenied: the registry has a newer one.
func (s *Store) latestShared(ctx context.Context, owner string, r reference, have nameRecord) (*os.File, error) {
	now, err := s.puller.latestDigest(ctx, owner, r)
	if err != nil {
		return nil, err
	}
	if now != have.Digest {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the registry has a newer version, and only an administrator can replace the shared one"),
			"ask an administrator to pull it, or name the version by its digest: "+r.untaggedName()+"@"+now)
	}
	f, err := s.cache.openImage(ctx, have.Key)
	if err == nil && f == nil {
		err = sandpit.Errorf(sandpit.Unavailable, "the image was just removed from the cache")
	}
	return f, err
}

// Update compares an image of the cache with that of its registry.
type Update struct {
	Name string `json:"name"`
	// Have is the digest of the image in the cache; "" if it was imported.
	Have string `json:"have,omitempty"`
	// Latest is the digest of the registry's current image.
	Latest string `json:"latest"`
	// Newer is true if they differ.
	Newer bool `json:"newer"`
}

// Check asks the registry for the current image of a name. It changes nothing.
//
// NotFound: the name is not in the cache, or not in the registry. PermissionDenied: the
// pull policy is PullNever. Otherwise as Resolve.
func (s *Store) Check(ctx context.Context, name string) (Update, error) {
	r, err := parseReference(name)
	if err != nil {
		return Update{}, fmt.Errorf("image %s: %w", quoteName(name), err)
	}
	have, err := s.names.lookUp(shared, r)
	if err == nil && have.Key == "" {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the image is not in the cache"), "sandpit image pull "+r.shortName())
	}
	u := Update{Name: r.shortName(), Have: have.Digest}
	if err == nil && s.o.Pull == PullNever {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"), "set image.pull to missing")
	}
	if err == nil && r.digest == "" && r.template == "" {
		u.Latest, err = s.puller.latestDigest(ctx, shared, r)
	} else {
		u.Latest = have.Digest // a digest always means the same image
	}
	if err != nil {
		return Update{}, fmt.Errorf("image %s: %w", name, err)
	}
	u.Newer = u.Have != u.Latest
	return u, nil
}

// pullNamed fetches the image of a name for an owner and records the name. Concurrent calls
// for the same name of the same owner fetch it once.
func (pl *puller) pullNamed(ctx context.Context, owner string, r reference, policy PullPolicy, p Progress) (*os.File, error) {
	file := nameFile(owner, r)
	before, err := pl.cache.recordTime(file)
	if err != nil {
		return nil, err
	}
	record, err := pl.cache.lockNew(ctx, file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = record.Close() }() // releases the lock; the file was synced
	drop := func(err error) error {
		if removeErr := os.Remove(record.Name()); removeErr != nil {
			err = errors.Join(err, fmt.Errorf("clean the image cache: %w", removeErr))
		}
		return err
	}
	after, err := pl.cache.recordTime(file)
	if err != nil {
		return nil, drop(err)
	}
	if have, err := pl.names.lookUp(owner, r); err != nil || have.Key != "" && (policy != PullAlways || !after.Equal(before)) {
		if err != nil {
			return nil, drop(err)
		}
		f, err := pl.cache.openImage(ctx, have.Key)
		return f, drop(err)
	}
	f, key, digest, err := pl.pullImage(ctx, owner, r, p)
	if err != nil {
		return nil, drop(err)
	}
	if owner != shared {
		pl.cache.limitRecords(ownPrefix(owner), nameSuffix, maxOwnNames)
	}
	if err := pl.names.write(record, file, nameRecord{Name: r.String(), Owner: owner, Key: key, Digest: digest}); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// newEndpoints returns the mirrors of a reference's registry, followed by the registry.
func (pl *puller) newEndpoints(c *client, r reference) []*endpoint {
	var list []*endpoint
	for _, registry := range append(slices.Clone(pl.o.Mirrors[r.registry]), r.registry) {
		host, prefix, _ := strings.Cut(strings.TrimSuffix(registry, "/"), "/")
		e := &endpoint{client: c, registry: registry, host: host, repository: r.repository, scheme: "https"}
		if prefix != "" {
			e.repository = prefix + "/" + r.repository
		}
		if host == hub {
			e.host = "registry-1.docker.io"
		}
		list = append(list, e)
	}
	return list
}
