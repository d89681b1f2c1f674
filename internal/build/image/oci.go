package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"runtime"

	"github.com/sandpit-dev/sandpit"
)

// layerSource provides the parts of an image: a registry, a directory, an archive.
type layerSource interface {
	// readManifest and readConfig return small parts. The caller checks the digest.
	readManifest(ctx context.Context, d descriptor) ([]byte, error)
	readConfig(ctx context.Context, d descriptor) ([]byte, error)
	// openLayer opens one layer.
	openLayer(ctx context.Context, d descriptor) (io.ReadCloser, error)
}

// layeredImage is an image whose layers are not merged yet.
type layeredImage struct {
	content layerSource
	digest  string // of its manifest, or of its configuration if it has none
	list    []descriptor
	raw     rawConfig
	config  Config
}

func (l *layeredImage) countLayers() int      { return len(l.list) }
func (l *layeredImage) digestAt(i int) string { return l.list[i].Digest }

func (l *layeredImage) openLayer(ctx context.Context, i int) (io.ReadCloser, error) {
	return l.content.openLayer(ctx, l.list[i])
}

// key returns the image's key in the cache.
func (l *layeredImage) key() string { return cacheKey("oci", l.digest) }

// thisMachine returns the platform that images must have.
func thisMachine() platform { return platform{OS: "linux", Architecture: runtime.GOARCH} }

func sha256Of(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// checkContents returns data if it has the digest of d.
func checkContents(data []byte, err error, d descriptor) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	if got := sha256Of(data); got != d.Digest {
		return nil, errWrongDigest(d.Digest, got)
	}
	return data, nil
}

// chooseImage returns the image for this machine from a manifest or an index.
func chooseImage(ctx context.Context, from layerSource, data []byte) (*layeredImage, error) {
	const deepest = 4
	for range deepest {
		doc, err := parseDocument(data)
		if err != nil {
			return nil, err
		}
		if doc.Config != nil {
			return newLayeredImage(ctx, from, doc, sha256Of(data))
		}
		next, err := doc.pickPlatform(thisMachine())
		if err != nil {
			return nil, err
		}
		data, err = from.readManifest(ctx, next)
		if data, err = checkContents(data, err, next); err != nil {
			return nil, fmt.Errorf("manifest: %w", err)
		}
	}
	return nil, errManifest("its indexes are nested too deeply")
}

func newLayeredImage(ctx context.Context, from layerSource, doc document, digest string) (*layeredImage, error) {
	data, err := from.readConfig(ctx, *doc.Config)
	if data, err = checkContents(data, err, *doc.Config); err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	l := &layeredImage{content: from, digest: digest, list: doc.Layers}
	if l.raw, l.config, err = parseConfig(data); err != nil {
		return nil, err
	}
	return l, l.checkMachine()
}

// checkMachine checks the platform and the number of layers in the configuration.
func (l *layeredImage) checkMachine() error {
	if p := l.raw.toPlatform(); p != (platform{}) && !p.runsOn(thisMachine()) {
		return errWrongPlatform(thisMachine(), []string{p.String()})
	}
	if n := len(l.raw.RootFS.DiffIDs); n > 0 && n != len(l.list) {
		return errConfig("it lists %d layers, but the image has %d", n, len(l.list))
	}
	return nil
}

// readDocument returns the contents of r, up to maxDocument bytes.
func readDocument(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err == nil && len(data) > maxDocument {
		err = sandpit.Errorf(sandpit.Exhausted, "the document has more than %d bytes", maxDocument)
	}
	return data, err
}
