package gvisor

import (
	"archive/tar"
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

// FuzzUnpack reads foreign archives: whatever they are, nothing but the
// files that are known gets into the directory, and none is larger than it may be.
func FuzzUnpack(f *testing.F) {
	testuser.Drop(f)
	sizes := map[string]int64{rootImage: 3}
	names := append([]string{layerDescription}, append(layerFileNames(), rootImage)...)
	f.Add(packed(f, names, 3))
	f.Add(packed(f, names[:3], 0))
	f.Add(packed(f, []string{layerDescription, "../evil"}, 3))
	f.Add([]byte("nonsense"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		create := func(name string) (*os.File, error) { return os.Create(filepath.Join(dir, name)) }
		_ = unpackLayer(create, bytes.NewReader(data), sizes) // it may be refused
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || info.Size() > sizes[e.Name()] {
				t.Errorf("%s has %d bytes, %v; at most %d were known", e.Name(), info.Size(), err, sizes[e.Name()])
			}
		}
		if outside, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "evil*")); len(outside) > 0 {
			t.Errorf("written outside: %q", outside)
		}
	})
}

func packed(tb testing.TB, names []string, last int) []byte {
	tb.Helper()
	var to bytes.Buffer
	z, err := zstd.NewWriter(&to)
	if err != nil {
		tb.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i, name := range names {
		data := make([]byte, 0, last)
		if i == len(names)-1 {
			data = data[:last]
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(data))}); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(data); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := z.Close(); err != nil {
		tb.Fatal(err)
	}
	return to.Bytes()
}
