package image

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// descriptor identifies a part of an image by its digest. URLs in it are ignored: nothing is
// fetched from addresses in an image.
type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform"`
	Annotations map[string]string `json:"annotations"`
}

// platform is an operating system and a machine architecture.
type platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	Variant      string `json:"variant"`
}

func (p platform) String() string {
	text := p.OS + "/" + p.Architecture
	if p.Variant != "" {
		text += "/" + p.Variant
	}
	if len(text) > 40 || strings.ContainsFunc(text, func(r rune) bool { return r < '!' || r > '~' }) {
		return quoteName(text)
	}
	return text
}

// runsOn reports whether programs for p run on a machine of platform m.
func (p platform) runsOn(m platform) bool {
	return p.OS == m.OS && p.Architecture == m.Architecture && (p.Variant == m.Variant || isUsualVariant(p) && isUsualVariant(m))
}

// isUsualVariant reports whether a variant is the default of its architecture.
func isUsualVariant(p platform) bool {
	return p.Variant == "" || p.Architecture == "arm64" && p.Variant == "v8" || p.Architecture == "amd64" && p.Variant == "v1"
}

// document is a manifest or an index of several.
type document struct {
	MediaType string       `json:"mediaType"`
	Manifests []descriptor `json:"manifests"`
	Config    *descriptor  `json:"config"`
	Layers    []descriptor `json:"layers"`
	Old       []any        `json:"fsLayers"`
}

const (
	maxLayers    = 512
	maxManifests = 4096
)

var digestPattern = pattern.New(`^sha256:[0-9a-f]{64}$`)

func checkDigest(digest string) error {
	if digestPattern().MatchString(digest) {
		return nil
	}
	if strings.HasPrefix(digest, "sha512:") {
		return sandpit.Errorf(sandpit.Unsupported, "digest %s: only sha256 is supported", quoteName(digest))
	}
	return sandpit.Errorf(sandpit.Invalid, "%s is not a digest", quoteName(digest))
}

func (d descriptor) checkSize(most int64) error {
	if err := checkDigest(d.Digest); err != nil {
		return err
	}
	if d.Size < 0 {
		return sandpit.Errorf(sandpit.Invalid, "%s claims a size of %d bytes", d.Digest, d.Size)
	}
	if d.Size > most {
		return sandpit.Errorf(sandpit.Exhausted, "%s claims a size of %d bytes, more than the limit of %d", d.Digest, d.Size, most)
	}
	return nil
}

// parseDocument parses and checks a manifest or an index.
//
// Invalid: it is neither. Unsupported: another type of manifest. Exhausted: it lists too
// much.
func parseDocument(data []byte) (document, error) {
	var d document
	if err := json.Unmarshal(data, &d); err != nil {
		return d, errManifest("invalid JSON: %s", quoteName(err.Error()))
	}
	isIndex, isManifest := d.Manifests != nil, d.Config != nil || d.Layers != nil
	switch {
	case isIndex && isManifest: // programs would interpret it differently
		return d, errManifest("it is both a manifest and an index")
	case isIndex:
		return d, d.checkIndex()
	case isManifest:
		return d, d.checkManifest()
	case d.Old != nil:
		return d, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "the image has an obsolete manifest of version 1"),
			"pull and push it again with a current version of Docker")
	}
	return d, errManifest("it lists neither layers nor manifests")
}

func errManifest(format string, args ...any) error {
	return sandpit.Errorf(sandpit.Invalid, "the image's manifest: "+format, args...)
}

func (d document) checkIndex() error {
	if len(d.Manifests) > maxManifests {
		return sandpit.Errorf(sandpit.Exhausted, "the image's manifest lists %d others", len(d.Manifests))
	}
	for _, m := range d.Manifests {
		if err := m.checkSize(maxDocument); err != nil {
			return fmt.Errorf("the image's manifest: %w", err)
		}
	}
	return nil
}

func (d document) checkManifest() error {
	switch {
	case d.Config == nil:
		return errManifest("it has no configuration")
	case len(d.Layers) > maxLayers:
		return sandpit.Errorf(sandpit.Exhausted, "the image has %d layers; the limit is %d", len(d.Layers), maxLayers)
	}
	if err := d.Config.checkSize(maxDocument); err != nil {
		return fmt.Errorf("the image's configuration: %w", err)
	}
	left := defaultLimits.bytes
	for _, l := range d.Layers {
		if err := l.checkSize(left); err != nil {
			return fmt.Errorf("the image's layers: %w", err)
		}
		left -= l.Size
		if err := checkLayerType(l.MediaType); err != nil {
			return err
		}
	}
	return nil
}

// checkLayerType returns an error if a media type is not that of a layer. Its first bytes, not
// the type, determine the compression.
func checkLayerType(mediaType string) error {
	switch {
	case strings.Contains(mediaType, "foreign"), strings.Contains(mediaType, "encrypted"):
	case mediaType == "", strings.Contains(mediaType, ".rootfs.diff"), strings.Contains(mediaType, ".layer."):
		return nil
	}
	return sandpit.Errorf(sandpit.Unsupported, "the image has a layer of the unsupported type %s", quoteName(mediaType))
}

// pickPlatform returns the manifest for a machine.
//
// Unsupported: no manifest is for this machine.
func (d document) pickPlatform(m platform) (descriptor, error) {
	var there []string
	var plain []descriptor
	for _, c := range d.Manifests {
		switch {
		case c.Annotations["vnd.docker.reference.type"] != "": // an attestation
		case c.Platform == nil:
			plain = append(plain, c)
		case c.Platform.runsOn(m):
			return c, nil
		case c.Platform.OS != "unknown":
			there = append(there, c.Platform.String())
		}
	}
	if len(plain) > 0 { // its configuration is checked later
		return plain[0], nil
	}
	return descriptor{}, errWrongPlatform(m, there)
}

func errWrongPlatform(m platform, there []string) error {
	slices.Sort(there)
	there = slices.Compact(there)
	const most = 20
	if len(there) > most {
		there = append(there[:most], "...")
	}
	err := sandpit.Errorf(sandpit.Unsupported, "the image is not for %s", m)
	if len(there) > 0 {
		err = sandpit.Errorf(sandpit.Unsupported, "the image is not for %s but for %s", m, strings.Join(there, ", "))
	}
	return sandpit.WithHint(err, "use another tag, or build the image for "+m.String())
}
