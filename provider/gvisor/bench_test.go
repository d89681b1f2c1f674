package gvisor_test

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// busyboxImage returns a directory that holds one static program, known by
// enough names to work with.
func busyboxImage(tb testing.TB) sandpit.Image {
	tb.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(tb, "there is no busybox; install busybox-static")
	}
	content, err := os.ReadFile(program)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), content, 0o755); err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{"sh", "true", "cat", "find", "ls", "rm", "wc"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			tb.Fatal(err)
		}
	}
	return sandpit.Image(dir)
}

// BenchmarkCreateToFirstOutput measures what a caller in the same process waits
// for: from the request for a sandbox to the first byte of its first command,
// the sandbox's end included.
func BenchmarkCreateToFirstOutput(b *testing.B) {
	p := newProvider(b, b.TempDir())
	output(b, create(b, p, sandpit.Spec{}), "true") // images and engine are there from now on
	for b.Loop() {
		box := create(b, p, sandpit.Spec{})
		output(b, box, "echo first")
		b.StopTimer()
		if err := box.Destroy(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkCommand measures one command in a sandbox that is there, from the
// request to its exit status.
func BenchmarkCommand(b *testing.B) {
	for name, image := range map[string]sandpit.Image{"image": busyboxImage(b), "host": sandpit.HostImage} {
		b.Run(name, func(b *testing.B) {
			p := newProvider(b, b.TempDir())
			box := create(b, p, sandpit.Spec{Image: image})
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				process, err := box.Guest().Start(b.Context(), sandpit.Command{Args: []string{"true"}})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := process.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[0].Microseconds())/1000, "min-ms")
		})
	}
}

const big = 100 << 20

// BenchmarkOutput has a command write much, for a reader that reads at once.
func BenchmarkOutput(b *testing.B) {
	p := newProvider(b, b.TempDir())
	box := create(b, p, sandpit.Spec{Image: busyboxImage(b)})
	b.SetBytes(big)
	for b.Loop() {
		process, err := box.Guest().Start(b.Context(), sandpit.Command{
			Args: []string{"busybox", "head", "-c", strconv.Itoa(big), "/dev/zero"}, Stdout: io.Discard,
		})
		if err != nil {
			b.Fatal(err)
		}
		if status, err := process.Wait(b.Context()); err != nil || status.Code != 0 {
			b.Fatal(status, err)
		}
	}
}

// BenchmarkFile moves one large file into a sandbox and out of it.
func BenchmarkFile(b *testing.B) {
	p := newProvider(b, b.TempDir())
	box := create(b, p, sandpit.Spec{Image: busyboxImage(b)})
	content := bytes.Repeat([]byte("0123456789abcdef"), big/16)
	b.Run("up", func(b *testing.B) {
		b.SetBytes(big)
		for b.Loop() {
			if err := box.Guest().WriteFile(b.Context(), "", "/tmp/big", bytes.NewReader(content), sandpit.WriteOptions{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("down", func(b *testing.B) {
		b.SetBytes(big)
		for b.Loop() {
			f, err := box.Guest().ReadFile(b.Context(), "", "/tmp/big")
			if err != nil {
				b.Fatal(err)
			}
			n, err := io.Copy(io.Discard, f)
			if err != nil || n != big || f.Close() != nil {
				b.Fatal(n, err)
			}
		}
	})
}

// BenchmarkTree moves 10,000 small files into a sandbox and out of it, as one
// stream.
func BenchmarkTree(b *testing.B) {
	p := newProvider(b, b.TempDir())
	box := create(b, p, sandpit.Spec{Image: busyboxImage(b)})
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for i := range 10_000 {
		name := fmt.Sprintf("d%d/f%d", i/100, i)
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: 100}); err != nil {
			b.Fatal(err)
		}
		if _, err := w.Write(make([]byte, 100)); err != nil {
			b.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	n := 0
	b.Run("up", func(b *testing.B) {
		for b.Loop() {
			if err := box.Guest().WriteTree(b.Context(), "", fmt.Sprintf("/tmp/tree%d", n), bytes.NewReader(packed.Bytes())); err != nil {
				b.Fatal(err)
			}
			n++
		}
	})
	b.Run("down", func(b *testing.B) {
		for b.Loop() {
			f, err := box.Guest().ReadTree(b.Context(), "", "/tmp/tree0")
			if err != nil {
				b.Fatal(err)
			}
			if _, err := io.Copy(io.Discard, f); err != nil || f.Close() != nil {
				b.Fatal(err)
			}
		}
	})
}
