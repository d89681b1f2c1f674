package image

import (
	"context"
	"fmt"
	"os"

	"github.com/sandpit-dev/sandpit"
)

// The digest of a manifest identifies an image, and a manifest identifies layers by their
// digests. A registry that knows the digests can claim to have an image without having its
// content. The cache therefore records the repositories from which it has received all layers
// of an image. If a name refers to another repository, the layers are fetched from there and
// compared although the image exists. The registry, which is asked for the manifest each
// time, decides whether a client may read a repository.

// originSuffix is the file name suffix of records of the repositories of an image.
const originSuffix = ".origin"

// maxOrigins limits the repositories that are recorded for an image. The layers are fetched
// again from one whose record was removed.
const maxOrigins = 100

// originOf returns the repository of a reference. Its mirrors count as the same repository.
func originOf(r reference) string { return r.fullName() }

// originRecord records that a repository has sent all layers of an image.
type originRecord struct {
	Key    string `json:"key"`
	Origin string `json:"origin"`
}

func originPrefix(key string) string { return key[:16] + "." }

func originFile(key, origin string) string {
	return originPrefix(key) + cacheKey("origin", key, origin) + originSuffix
}

// finishedFrom returns key if its image exists and a repository has sent it, else "".
func (pl *puller) finishedFrom(key, origin string) (string, error) {
	if existing, err := pl.cache.existingKey(key); err != nil || existing == "" {
		return "", err
	}
	var rec originRecord
	if err := pl.cache.readRecord(originFile(key, origin), &rec); err != nil {
		return "", err
	}
	if rec == (originRecord{Key: key, Origin: origin}) || pl.firstOrigin(key) == origin {
		return key, nil
	}
	return "", nil
}

// firstOrigin returns the repository that an image was converted from; "" if it was
// imported or the repository is unknown.
func (pl *puller) firstOrigin(key string) string {
	f, err := os.Open(pl.cache.imagePath(key))
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }() // only read
	n, err := readNote(f)
	if err != nil || n.Kind != KindLayers || IsPath(n.Source) {
		return ""
	}
	r, err := parseReference(n.Source)
	if err != nil || r.String() != n.Source { // the source of an import is not a complete name
		return ""
	}
	return originOf(r)
}

// addOrigin records that a repository has sent all layers of an image.
func (pl *puller) addOrigin(ctx context.Context, key, origin string) error {
	pl.cache.limitRecords(originPrefix(key), originSuffix, maxOrigins)
	return pl.cache.writeRecord(ctx, originFile(key, origin), originRecord{key, origin})
}

// fetchRequest is a request to fetch an image for an owner, by a name, from a repository.
type fetchRequest struct{ owner, name, origin string }

// buildFetched returns the image of layers in a registry, converted once. A fetch of the same
// image from another repository downloads the layers and compares their digests, and does not
// wait for the first fetch.
func (pl *puller) buildFetched(ctx context.Context, l *layeredImage, from fetchRequest) (*os.File, string, error) {
	key := l.key()
	var rooms []reservation
	defer func() { // from now on the finished image counts
		for _, r := range rooms {
			r.release()
		}
	}()
	reserve := func(bytes int64) (reservation, error) {
		r, err := pl.space.reserve(from.owner, bytes)
		rooms = append(rooms, r)
		return r, err
	}
	return pl.builder.makeOnce(ctx, makeJob{
		lock: cacheKey("fetch", key, from.origin),
		find: func() (string, error) { return pl.finishedFrom(key, from.origin) },
		write: func(f *os.File) (makeResult, error) {
			packed := l.packedSize()
			if _, err := reserve(packed); err != nil {
				return makeResult{}, err
			}
			existing, err := pl.cache.existingKey(key)
			switch {
			case err != nil:
				return makeResult{}, err
			case existing != "":
				err = l.downloadLayers(ctx)
			default:
				var space reservation
				if space, err = reserve(unpackedFactor * packed); err == nil {
					err = pl.builder.unpackWith(func() error { return pl.builder.convertLayers(ctx, f, l, note{Source: from.name}, space) })
				}
				if err == nil { // a fetch from another repository may have finished; keep its note
					existing, err = pl.cache.existingKey(key)
				}
			}
			if err == nil && existing != "" {
				err = pl.addOrigin(ctx, key, from.origin)
			}
			return makeResult{key: key, inCache: existing != ""}, err
		},
	})
}

// unpackedFactor is the expected size of an image relative to its compressed layers. If the
// image is larger, the rest is reserved while it is unpacked.
const unpackedFactor = 2

// packedSize returns how many bytes are downloaded for all layers.
func (l *layeredImage) packedSize() int64 {
	var sum int64
	seen := make(map[string]bool, len(l.list))
	for _, d := range l.list {
		if !seen[d.Digest] {
			sum += d.Size
		}
		seen[d.Digest] = true
	}
	return sum
}

// downloadLayers fetches all layers and checks their digests. It keeps nothing.
func (l *layeredImage) downloadLayers(ctx context.Context) error {
	for i := range l.countLayers() {
		r, err := l.openLayer(ctx, i)
		if err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
		_ = r.Close() // only read
	}
	return nil
}

// errNoSuchID returns the error for an ID that does not exist or that the owner may not use.
func errNoSuchID(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "no image in the cache has the ID %s", quoteName(id))
}
