package debian

import (
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"

	"github.com/sandpit-dev/sandpit"
)

// seenSuffix is the suffix of files that record the date of the newest release seen.
const seenSuffix = ".seen"

// maxUnpackedIndex bounds an uncompressed index, in bytes.
const maxUnpackedIndex = 1 << 30

// candidate is a version of a package that can be chosen.
type candidate struct {
	Package
	needs     []string // Pre-Depends and Depends, one relation each
	provides  []string
	essential bool // every system needs it
	rank      int  // among several providers the one with the smallest rank is chosen
}

// index lists the packages in a suite.
type index struct {
	versions map[string][]*candidate // the newest first
	provided map[string][]provider
}

// provider is a package that provides another one.
type provider struct {
	*candidate
	version string // of the provided package; "" if not given
}

// releasePart is one of the releases of a suite.
type releasePart struct{ base, suite string }

// releaseParts returns the releases with packages of a suite. Suites in development have only
// one.
func releaseParts(suite string) []releasePart {
	parts := []releasePart{{"debian", suite}}
	if slices.Contains([]string{"sid", "unstable", "testing", "forky"}, suite) {
		return parts
	}
	return append(parts, releasePart{"debian", suite + "-updates"}, releasePart{"debian-security", suite + "-security"})
}

// loadIndex reads the lists of packages of a suite.
func (c *client) loadIndex(ctx context.Context, suite, arch string) (*index, error) {
	x := &index{versions: map[string][]*candidate{}, provided: map[string][]provider{}}
	for _, p := range releaseParts(suite) {
		if err := c.addRelease(ctx, x, p, arch); err != nil {
			return nil, fmt.Errorf("%s: %w", p.suite, err)
		}
	}
	for _, list := range x.versions {
		slices.SortStableFunc(list, func(a, b *candidate) int { return compareVersions(b.Version, a.Version) })
		for _, name := range list[0].provides { // only the newest version is chosen as a provider
			target, version := parseProvided(name)
			x.provided[target] = append(x.provided[target], provider{list[0], version})
		}
	}
	for _, list := range x.provided {
		slices.SortFunc(list, func(a, b provider) int { return cmp.Or(cmp.Compare(a.rank, b.rank), strings.Compare(a.Name, b.Name)) })
	}
	return x, nil
}

func (c *client) addRelease(ctx context.Context, x *index, p releasePart, arch string) error {
	root := p.base + "/dists/" + p.suite + "/"
	data, err := c.Get(ctx, root+"InRelease", maxInRelease)
	if err != nil {
		return err
	}
	r, err := openRelease(data, c.keys, p.suite, c.now())
	if err != nil {
		return err
	}
	if err := c.checkNotOlder(p, r.date); err != nil {
		return err
	}
	name := "main/binary-" + arch + "/Packages.xz"
	want, ok := r.files[name]
	if !ok {
		return sandpit.Errorf(sandpit.NotFound, "the release has no packages for %s", arch)
	}
	if want.Size > maxIndex {
		return sandpit.Errorf(sandpit.Exhausted, "the list of packages has %d bytes, more than %d", want.Size, maxIndex)
	}
	// By digest, because the file of that name may be replaced at any time.
	f, err := c.File(ctx, root+path.Dir(name)+"/by-hash/SHA256/"+want.Digest, want)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		f, err = c.File(ctx, root+name, want)
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	unpacked, err := newUnpacker(name, f)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%s: %w", name, err)
	}
	limited := &io.LimitedReader{R: &contextReader{ctx, unpacked}, N: maxUnpackedIndex}
	if err := readParagraphs(limited, func(q paragraph, text string) error { return x.addPackage(p, q, text) }); err != nil {
		return err
	}
	if limited.N == 0 {
		return sandpit.Errorf(sandpit.Exhausted, "the uncompressed list of packages is too large")
	}
	return unpacked.Close()
}

// contextReader is a reader that fails when a context ends.
type contextReader struct {
	ctx context.Context //nolint:containedctx // Read has no context parameter
	io.Reader
}

func (e *contextReader) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.Reader.Read(p)
}

// releaseRecord records the date of a release.
type releaseRecord struct {
	Date time.Time `json:"date"`
}

// checkNotOlder returns an error for a release that is older than one seen before: a mirror
// could otherwise serve packages with known vulnerabilities.
func (c *client) checkNotOlder(p releasePart, date time.Time) error {
	name := fileKey("seen", p.base, p.suite) + seenSuffix
	var last releaseRecord
	if err := c.readRecord(name, &last); err != nil {
		return err
	}
	if date.Before(last.Date) {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "the release is from %s, older than one from %s that was seen before", date.Format(time.RFC3339), last.Date.Format(time.RFC3339)),
			"the mirror is out of date: try again later, or use another one")
	}
	return c.writeRecord(name, releaseRecord{date})
}

// newUnpacker returns a reader of uncompressed bytes. The suffix of name selects the compression.
func newUnpacker(name string, r io.Reader) (io.ReadCloser, error) {
	switch path.Ext(name) {
	case ".xz":
		z, err := xz.ReaderConfig{DictCap: maxDictionary}.NewReader(r)
		return io.NopCloser(z), err
	case ".gz":
		return gzip.NewReader(r)
	case ".zst":
		z, err := zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxDictionary))
		if err != nil {
			return nil, err
		}
		return z.IOReadCloser(), nil
	case ".tar":
		return io.NopCloser(r), nil
	}
	return nil, errors.New("unknown compression")
}

// maxDictionary bounds the memory for decompression, in bytes.
const maxDictionary = 128 << 20

var ranks = map[string]int{"required": 0, "important": 1, "standard": 2, "optional": 3}

// addPackage adds a package from a paragraph of a list of packages.
func (x *index) addPackage(from releasePart, p paragraph, text string) error {
	name, file := p["package"], p["filename"]
	if !packagePattern().MatchString(name+"="+p["version"]) || strings.Contains(name, "=") || !isBelow(file) {
		return sandpit.Errorf(sandpit.Invalid, "invalid package %.60q, version %.60q, at %.200q", name, p["version"], file)
	}
	pin, err := newPin(p["size"], p["sha256"])
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if pin.Size > maxDeb {
		return sandpit.Errorf(sandpit.Exhausted, "the package %s has %d bytes, more than %d", name, pin.Size, int64(maxDeb))
	}
	rank, ok := ranks[p["priority"]]
	if !ok {
		rank = len(ranks)
	}
	x.versions[name] = append(x.versions[name], &candidate{
		Package: Package{
			Name: name, Version: p["version"], Size: pin.Size, SHA256: pin.Digest, Path: from.base + "/" + file, Control: text,
		},
		needs:     append(splitList(p["pre-depends"]), splitList(p["depends"])...),
		provides:  splitList(p["provides"]),
		essential: p["essential"] == "yes" || rank == 0,
		rank:      rank,
	})
	return nil
}

// isBelow reports whether a path is clean, relative, and not outside of its directory.
func isBelow(file string) bool {
	return file != "" && path.Clean(file) == file && !path.IsAbs(file) && file != ".." && !strings.HasPrefix(file, "../") &&
		!strings.ContainsAny(file, "?#%\\ \n")
}

// splitList splits a field at commas.
func splitList(field string) []string {
	var items []string
	for item := range strings.SplitSeq(field, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
