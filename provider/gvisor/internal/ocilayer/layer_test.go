package ocilayer

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"
	manifestpb "gvisor.dev/gvisor/pkg/sentry/fscheckpoint/fscheckpoint_proto_go_proto"
	memorypb "gvisor.dev/gvisor/pkg/sentry/pgalloc/pgalloc_metadata_go_proto"
)

// savedParts are the four files of a layer with one file, of 10,000 bytes in memory
// between two holes.
func savedParts(tb testing.TB) [4][]byte {
	tb.Helper()
	const page = 4096
	le := binary.LittleEndian
	contents := le.AppendUint64(nil, 5*page)
	for _, n := range []uint64{page, 4 * page, 8 * page} {
		contents = le.AppendUint64(contents, n)
	}
	var tree bytes.Buffer
	w := tar.NewWriter(&tree)
	for _, h := range []*tar.Header{
		{Name: "./", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "./d/", Typeflag: tar.TypeDir, Mode: 0o755, PAXRecords: map[string]string{opaqueAttribute: "y"}},
		{Name: "./d/f", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(contents)), PAXRecords: map[string]string{"SCHILY.xattr.user.a": "b"}},
		{Name: "./gone", Typeflag: tar.TypeChar},
	} {
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write(contents); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	memory := marshal(tb, &memorypb.MemoryFileMetadataProto{Version: layerVersion, MemAcct: []*memorypb.MemAcctRangeProto{
		{Start: 0, End: 9 * page, KnownCommitted: true}, {Start: 9 * page, End: 10 * page}, {Start: 10 * page, End: 12 * page, KnownCommitted: true},
	}})
	memory = append(le.AppendUint64(nil, uint64(len(memory))), memory...)
	root := &manifestpb.ResourceID{Path: "/"}
	manifest := marshal(tb, &manifestpb.Manifest{
		Version:     layerVersion,
		Tmpfs:       []*manifestpb.Tmpfs{{ResourceId: root, TarEnd: uint64(tree.Len())}},
		MemoryFiles: []*manifestpb.MemoryFile{{ResourceId: root, PagesMetadataEnd: uint64(len(memory))}},
	})
	pages := bytes.Repeat([]byte("x"), 8*page)
	pages = append(pages, bytes.Repeat([]byte("A"), page)...)
	return [4][]byte{manifest, tree.Bytes(), memory, append(pages, bytes.Repeat([]byte("C"), 2*page)...)}
}

func marshal(tb testing.TB, m proto.Message) []byte {
	tb.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// openParts makes files of parts.
func openParts(tb testing.TB, parts [4][]byte) []*os.File {
	tb.Helper()
	var files []*os.File
	for _, data := range parts {
		f, err := os.Create(filepath.Join(tb.TempDir(), "part"))
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = f.Close() })
		if _, err := f.Write(data); err != nil {
			tb.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func TestLayerPutsContentsTogether(t *testing.T) {
	t.Parallel()
	saved, err := openSavedLayer(openParts(t, savedParts(t)))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := saved.convert(&out, "/own"); err != nil {
		t.Fatal(err)
	}
	var names []string
	r := tar.NewReader(&out)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
		if h.Name != "d/f" {
			continue
		}
		want := bytes.Repeat([]byte{0}, 4096)
		for _, c := range []byte{'A', 0, 'C', 0} {
			want = append(want, bytes.Repeat([]byte{c}, 4096)...)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, want) || h.PAXRecords["SCHILY.xattr.user.a"] != "b" {
			t.Errorf("%+v, %d bytes, %v", h, len(got), err)
		}
	}
	if got := len(names); got != 5 || names[2] != "d/.wh..wh..opq" || names[4] != ".wh.gone" {
		t.Errorf("names: %q", names)
	}
}

// bounded takes a number of bytes and then no more.
type bounded int

func (b *bounded) Write(p []byte) (int, error) {
	if *b -= bounded(len(p)); *b < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

// FuzzSavedLayer reads what a kernel that was taken over may write.
func FuzzSavedLayer(f *testing.F) {
	parts := savedParts(f)
	f.Add(parts[0], parts[1], parts[2], parts[3])
	f.Fuzz(func(t *testing.T, manifest, tree, memory, pages []byte) {
		saved, err := openSavedLayer(openParts(t, [4][]byte{manifest, tree, memory, pages}))
		if err != nil {
			return
		}
		room := bounded(4 << 20)
		_ = saved.convert(&room, "/own") // whatever it says, it ends and breaks nothing
	})
}
