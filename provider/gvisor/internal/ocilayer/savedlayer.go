package ocilayer

import (
	"archive/tar"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sort"

	"google.golang.org/protobuf/proto"
	manifestpb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	memorypb "gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"

	"github.com/sandpit-dev/sandpit"
)

// savedLayer is what gVisor writes of a layer: an archive of the tree, which has for each file
// where its contents are in the layer's memory, and the used parts of that memory. A hostile
// kernel may have written anything.
type savedLayer struct {
	tree  *io.SectionReader
	pages *os.File
	// ranges are the parts, by their address in memory.
	ranges []memoryRange
}

// memoryRange is a part of the layer's memory.
type memoryRange struct {
	start, end uint64 // in memory
	at         int64  // offset in the file of pages
}

const (
	layerVersion     = 1
	maxLayerManifest = 1 << 20
	// maxLayerMemory bounds the list of parts: two million of them.
	maxLayerMemory = 32 << 20
	// maxSegments bounds the list of the segments of one file: four million.
	maxSegments = 96 << 20
)

func badLayer(format string, args ...any) error {
	return sandpit.Errorf(sandpit.Internal, "the sandbox's kernel wrote a layer that cannot be read: "+format, args...)
}

// openSavedLayer reads everything but the tree and the contents.
func openSavedLayer(files []*os.File) (*savedLayer, error) {
	if len(files) != len(FileNames()) {
		return nil, badLayer("%d files", len(files))
	}
	data, err := readPart(files[0], 0, -1, maxLayerManifest)
	if err != nil {
		return nil, err
	}
	var manifest manifestpb.Manifest
	if err := proto.Unmarshal(data, &manifest); err != nil {
		return nil, badLayer("parse the manifest: %w", err)
	}
	if manifest.GetVersion() != layerVersion {
		return nil, badLayer("version %d", manifest.GetVersion())
	}
	return readManifest(&manifest, files)
}

func readManifest(manifest *manifestpb.Manifest, files []*os.File) (*savedLayer, error) {
	isRoot := func(id *manifestpb.ResourceID) bool { return id.GetPath() == "/" }
	tree := slices.IndexFunc(manifest.GetTmpfs(), func(t *manifestpb.Tmpfs) bool { return isRoot(t.GetResourceId()) })
	memory := slices.IndexFunc(manifest.GetMemoryFiles(), func(m *manifestpb.MemoryFile) bool { return isRoot(m.GetResourceId()) })
	if tree < 0 || memory < 0 {
		return nil, badLayer("it has no root directory")
	}
	t, m := manifest.GetTmpfs()[tree], manifest.GetMemoryFiles()[memory]
	start, length := int64(t.GetTarStart()), int64(t.GetTarEnd()-t.GetTarStart()) //nolint:gosec // checked
	first := int64(m.GetPagesStart())                                             //nolint:gosec // checked
	if start < 0 || length < 0 || first < 0 {
		return nil, badLayer("a part has a negative offset or size")
	}
	from := int64(m.GetPagesMetadataStart())                           //nolint:gosec // checked
	size := int64(m.GetPagesMetadataEnd() - m.GetPagesMetadataStart()) //nolint:gosec // checked
	data, err := readPart(files[2], from, size, maxLayerMemory)
	if err != nil {
		return nil, err
	}
	saved := &savedLayer{tree: io.NewSectionReader(files[1], start, length), pages: files[3]}
	saved.ranges, err = readRanges(data, first)
	return saved, err
}

// readPart reads a part of a file, or all of it if length is negative.
func readPart(f *os.File, start, length, limit int64) ([]byte, error) {
	if length < 0 {
		info, err := f.Stat()
		if err != nil {
			return nil, err
		}
		length = info.Size()
	}
	if length > limit {
		return nil, sandpit.Errorf(sandpit.Exhausted, "the sandbox's files are too fragmented")
	}
	data := make([]byte, length)
	if _, err := f.ReadAt(data, start); err != nil && length > 0 {
		return nil, badLayer("%w", err)
	}
	return data, nil
}

// readRanges reads which parts of memory were written. They are contiguous in the file of pages,
// beginning at first.
func readRanges(data []byte, first int64) ([]memoryRange, error) {
	const prefix = 8                                                                              // the length of what follows
	if len(data) < prefix || int64(binary.LittleEndian.Uint64(data)) != int64(len(data)-prefix) { //nolint:gosec // compared only
		return nil, badLayer("the description of its memory is truncated")
	}
	var memory memorypb.MemoryFileMetadataProto
	if err := proto.Unmarshal(data[prefix:], &memory); err != nil {
		return nil, badLayer("parse the description of its memory: %w", err)
	}
	if memory.GetVersion() != layerVersion {
		return nil, badLayer("version %d of the description of its memory", memory.GetVersion())
	}
	var ranges []memoryRange
	var last uint64
	for _, r := range memory.GetMemAcct() {
		if r.GetStart() < last || r.GetEnd() <= r.GetStart() {
			return nil, badLayer("the parts of its memory are not in order")
		}
		last = r.GetEnd()
		if r.GetKnownCommitted() {
			ranges = append(ranges, memoryRange{start: r.GetStart(), end: r.GetEnd(), at: first})
			first += int64(r.GetEnd() - r.GetStart()) //nolint:gosec // checked
			if first < 0 {
				return nil, badLayer("the size of its memory overflows")
			}
		}
	}
	return ranges, nil
}

// segment is a part of a file that has contents.
type segment struct {
	start, end uint64 // in the file
	at         uint64 // address in memory
}

// readContents reads what the tree has for a file: its size and its segments.
func readContents(h *tar.Header, r io.Reader) (size int64, parts []segment, err error) {
	const sizeBytes, segmentBytes = 8, 24
	if h.Size < sizeBytes || (h.Size-sizeBytes)%segmentBytes != 0 {
		return 0, nil, badLayer("a file of %d bytes", h.Size)
	}
	if h.Size > maxSegments {
		return 0, nil, sandpit.Errorf(sandpit.Exhausted, "file %q is too fragmented", h.Name)
	}
	data := make([]byte, h.Size)
	if _, err := io.ReadFull(r, data); err != nil {
		return 0, nil, badLayer("%w", err)
	}
	total := binary.LittleEndian.Uint64(data)
	if int64(total) < 0 { //nolint:gosec // a negative size is what this checks for
		return 0, nil, badLayer("a file of %d bytes", total)
	}
	var last uint64
	for data = data[sizeBytes:]; len(data) > 0; data = data[segmentBytes:] {
		s := segment{
			start: binary.LittleEndian.Uint64(data), end: binary.LittleEndian.Uint64(data[8:]), at: binary.LittleEndian.Uint64(data[16:]),
		}
		if s.start < last || s.end <= s.start || s.at+(s.end-s.start) < s.at {
			return 0, nil, badLayer("the segments of a file are not in order")
		}
		last = s.end
		if s.end = min(s.end, total); s.start < s.end { // the last page may be longer than the file
			parts = append(parts, s)
		}
	}
	return int64(total), parts, nil //nolint:gosec // checked
}

// copySegment writes the contents of a segment.
func (l *savedLayer) copySegment(w io.Writer, s segment) error {
	at, remaining := s.at, s.end-s.start
	i := sort.Search(len(l.ranges), func(i int) bool { return l.ranges[i].end > at })
	for ; remaining > 0; i++ {
		zeros, bytes := remaining, uint64(0)
		if i < len(l.ranges) {
			zeros = min(remaining, l.ranges[i].start-min(at, l.ranges[i].start))
			bytes = min(remaining-zeros, l.ranges[i].end-max(at, l.ranges[i].start))
		}
		if err := writeZeros(w, int64(zeros)); err != nil { //nolint:gosec // at most the size of a file
			return err
		}
		at, remaining = at+zeros, remaining-zeros
		if bytes == 0 {
			continue
		}
		from := l.ranges[i].at + int64(at-l.ranges[i].start)                   //nolint:gosec // checked
		part := io.NewSectionReader(l.pages, from, int64(bytes))               //nolint:gosec // checked
		if _, err := io.CopyN(w, part, int64(bytes)); errors.Is(err, io.EOF) { //nolint:gosec // checked
			return badLayer("the file of pages is truncated")
		} else if err != nil {
			return err
		}
		at, remaining = at+bytes, remaining-bytes
	}
	return nil
}

var zeroBlock [64 << 10]byte

func writeZeros(w io.Writer, n int64) error {
	for n > 0 {
		written, err := w.Write(zeroBlock[:min(n, int64(len(zeroBlock)))])
		if n -= int64(written); err != nil {
			return fmt.Errorf("write zeros: %w", err)
		}
	}
	return nil
}
