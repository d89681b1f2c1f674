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

// seenSuffix ends files that say how new a release was that was seen.
const seenSuffix = ".seen"

// maxUnpackedIndex bounds an index without its compression, in bytes.
const maxUnpackedIndex = 1 << 30

// candidate is a version of a package that can be chosen.
type candidate struct {
	Package
	needs     []string // Pre-Depends and Depends, one relation each
	provides  []string
	essential bool // every system has it
	rank      int  // the smaller, the rather it is taken of several that provide a thing
}

// index is what there is in a suite.
type index struct {
	versions map[string][]*candidate // the newest first
	provided map[string][]provider
}

// provider is a package that stands for another.
type provider struct {
	*candidate
	version string // of the other; "" says nothing
}

// releasePart is one release that belongs to a suite.
type releasePart struct{ base, suite string }

// releaseParts are the releases in which packages of a suite are. Those that are still
// worked at are complete in themselves.
func releaseParts(suite string) []releasePart {
	parts := []releasePart{{"debian", suite}}
	if slices.Contains([]string{"sid", "unstable", "testing", "forky"}, suite) {
		return parts
	}
	return append(parts, releasePart{"debian", suite + "-updates"}, releasePart{"debian-security", suite + "-security"})
}

// loadIndex asks what there is.
func (c *client) loadIndex(ctx context.Context, suite, arch string) (*index, error) {
	x := &index{versions: map[string][]*candidate{}, provided: map[string][]provider{}}
	for _, p := range releaseParts(suite) {
		if err := c.addRelease(ctx, x, p, arch); err != nil {
			return nil, fmt.Errorf("%s: %w", p.suite, err)
		}
	}
	for _, list := range x.versions {
		slices.SortStableFunc(list, func(a, b *candidate) int { return compareVersions(b.Version, a.Version) })
		for _, name := range list[0].provides { // older ones are not chosen for that
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
		return sandpit.Errorf(sandpit.NotFound, "it has no packages for %s", arch)
	}
	if want.Size > maxIndex {
		return sandpit.Errorf(sandpit.Exhausted, "its list of packages has %d bytes, more than %d", want.Size, maxIndex)
	}
	// By its digest, for the name may mean a newer one a moment later.
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
		return sandpit.Errorf(sandpit.Exhausted, "its list of packages is too long")
	}
	return unpacked.Close()
}

// contextReader ends reading with a context.
type contextReader struct {
	ctx context.Context //nolint:containedctx // a reader has no other way to hear of it
	io.Reader
}

func (e *contextReader) Read(p []byte) (int, error) {
	if err := e.ctx.Err(); err != nil {
		return 0, err
	}
	return e.Reader.Read(p)
}

// releaseRecord is how new a release was.
type releaseRecord struct {
	Date time.Time `json:"date"`
}

// checkNotOlder refuses a release that is older than one that was seen before, by which
// a mirror would bring known weaknesses back.
func (c *client) checkNotOlder(p releasePart, date time.Time) error {
	name := fileKey("seen", p.base, p.suite) + seenSuffix
	var last releaseRecord
	if err := c.readRecord(name, &last); err != nil {
		return err
	}
	if date.Before(last.Date) {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "it is of %s, and one of %s was seen before", date.Format(time.RFC3339), last.Date.Format(time.RFC3339)),
			"the mirror is behind: try again later, or another one")
	}
	return c.writeRecord(name, releaseRecord{date})
}

// newUnpacker removes the compression that the name tells of.
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
	return nil, errors.New("it is packed in a way that is not known")
}

// maxDictionary bounds the memory that unpacking takes, in bytes.
const maxDictionary = 128 << 20

var ranks = map[string]int{"required": 0, "important": 1, "standard": 2, "optional": 3}

// addPackage takes one paragraph of a list of packages.
func (x *index) addPackage(from releasePart, p paragraph, text string) error {
	name, file := p["package"], p["filename"]
	if !packagePattern.MatchString(name+"="+p["version"]) || strings.Contains(name, "=") || !isBelow(file) {
		return sandpit.Errorf(sandpit.Invalid, "it lists %.60q, version %.60q, at %.200q", name, p["version"], file)
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

// isBelow is true of a path that leads nowhere else.
func isBelow(file string) bool {
	return file != "" && path.Clean(file) == file && !path.IsAbs(file) && file != ".." && !strings.HasPrefix(file, "../") &&
		!strings.ContainsAny(file, "?#%\\ \n")
}

// splitList splits a field at its commas.
func splitList(field string) []string {
	var items []string
	for item := range strings.SplitSeq(field, ",") {
		if item = strings.TrimSpace(item); item != "" {
			items = append(items, item)
		}
	}
	return items
}
