package testdocker

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// importTime bounds the import of an image.
const importTime = 2 * time.Minute

func digest(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// File is a member of a root file system.
type File struct {
	Name    string
	Mode    int64
	Content []byte
	Link    string // target of a symbolic link
}

// Tar returns a root file system.
func Tar(tb testing.TB, files []File) []byte {
	tb.Helper()
	var packed bytes.Buffer
	w := tar.NewWriter(&packed)
	for _, f := range files {
		h := &tar.Header{Name: f.Name, Mode: f.Mode, Size: int64(len(f.Content)), Typeflag: tar.TypeReg}
		switch {
		case f.Link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		case strings.HasSuffix(f.Name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			tb.Fatal(err)
		}
		if _, err := w.Write(f.Content); err != nil {
			tb.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return packed.Bytes()
}

// Busybox returns the path of the statically linked busybox of BusyboxFiles.
func Busybox(tb testing.TB) []byte {
	tb.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(tb, "busybox not found; install busybox-static")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

// BusyboxFiles returns a small root file system with a shell and the usual programs.
func BusyboxFiles(tb testing.TB) []File {
	tb.Helper()
	program := Busybox(tb)
	out, err := exec.CommandContext(tb.Context(), "busybox", "--list").Output()
	if err != nil {
		tb.Fatal(err)
	}
	files := []File{
		{Name: "bin/", Mode: 0o755},
		{Name: "bin/busybox", Mode: 0o755, Content: program},
		{Name: "etc/", Mode: 0o755},
		{Name: "etc/passwd", Mode: 0o644, Content: []byte("root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:/bin/sh\n")},
		{Name: "etc/group", Mode: 0o644, Content: []byte("root:x:0:\napp:x:1000:\n")},
		{Name: "root/", Mode: 0o700},
	}
	for name := range strings.Lines(string(out)) {
		if name = strings.TrimSpace(name); name != "busybox" && name != "" {
			files = append(files, File{Name: "bin/" + name, Link: "busybox"})
		}
	}
	return files
}

// Import creates an image in the engine from a root file system. The changes are lines of a
// Dockerfile.
func Import(tb testing.TB, name string, files []File, changes ...string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), importTime)
	defer cancel()
	res, err := Client(tb).ImageImport(ctx,
		client.ImageImportSource{Source: bytes.NewReader(Tar(tb, files)), SourceName: "-"}, name, client.ImageImportOptions{Changes: changes})
	if err != nil {
		tb.Fatal(err)
	}
	defer res.Close()
	if _, err := io.Copy(io.Discard, res); err != nil {
		tb.Fatal(err)
	}
}
