package tree_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/files/tree"
)

const smallFiles = 10_000

// benchDir is a directory in memory, where there is one.
func benchDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "tree") //nolint:usetesting // the disk is not what is measured
	if err != nil {
		return b.TempDir()
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func smallTree(b *testing.B) string {
	b.Helper()
	top := benchDir(b)
	for i := range smallFiles {
		write(b, filepath.Join(top, fmt.Sprintf("package-%02d", i/100), fmt.Sprintf("module-%04d.js", i)), strings.Repeat("x", 1000+i%1000), 0o644)
	}
	return top
}

func bigTree(b *testing.B) string {
	b.Helper()
	top := benchDir(b)
	must(b, os.WriteFile(filepath.Join(top, "big"), bytes.Repeat([]byte("0123456789abcdef"), 100<<20/16), 0o600))
	return top
}

func benchPack(b *testing.B, top string) {
	b.Helper()
	root := openRoot(b, top)
	b.SetBytes(int64(len(pack(b, top, "."))))
	for b.Loop() {
		must(b, tree.Pack(b.Context(), io.Discard, root, "."))
	}
}

func benchUnpack(b *testing.B, top string) {
	b.Helper()
	data := pack(b, top, ".")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		b.StopTimer()
		target := benchDir(b)
		root := openRoot(b, target)
		b.StartTimer()
		_, err := tree.Unpack(b.Context(), bytes.NewReader(data), root, tree.Options{})
		must(b, err)
		b.StopTimer()
		must(b, os.RemoveAll(target))
		b.StartTimer()
	}
}

func BenchmarkPackSmall(b *testing.B)   { benchPack(b, smallTree(b)) }
func BenchmarkUnpackSmall(b *testing.B) { benchUnpack(b, smallTree(b)) }
func BenchmarkPackBig(b *testing.B)     { benchPack(b, bigTree(b)) }
func BenchmarkUnpackBig(b *testing.B)   { benchUnpack(b, bigTree(b)) }

// BenchmarkUnpackOver replaces what is there.
func BenchmarkUnpackOver(b *testing.B) {
	top := smallTree(b)
	data, root := pack(b, top, "."), openRoot(b, top)
	for b.Loop() {
		_, err := tree.Unpack(b.Context(), bytes.NewReader(data), root, tree.Options{})
		must(b, err)
	}
}
