package testtools

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// The working directory, which is not in the image, and the user of Image.
const (
	ImageDir  = "/srv/app/work"
	ImageUser = "app"
	imageUID  = 1000
)

// Image writes the archive of an image with a working directory and an ordinary user, without
// programs. Mounts adds the machine's programs.
func Image(tb testing.TB) sandpit.Image {
	tb.Helper()
	return save(tb, skeleton(tb, nil))
}

// SmallImage is Image with busybox, and needs no Mounts. It skips the test on a machine without
// busybox.
func SmallImage(tb testing.TB) sandpit.Image {
	tb.Helper()
	path, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(tb, "no busybox: %v", err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		tb.Fatal(err)
	}
	return save(tb, skeleton(tb, data))
}

// save writes the archive of an image with one layer.
func save(tb testing.TB, layer []byte) sandpit.Image {
	tb.Helper()
	sum := sha256.Sum256(layer)
	config := encode(tb, map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"User": ImageUser, "WorkingDir": ImageDir, "Env": []string{"PATH=/usr/local/bin:/usr/bin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + hex.EncodeToString(sum[:])}},
	})
	list := encode(tb, []any{map[string]any{"Config": "config.json", "RepoTags": []string{"app:1"}, "Layers": []string{"layer.tar"}}})
	path := filepath.Join(tb.TempDir(), "app.tar")
	data := archive(tb, []entry{{"config.json", config}, {"layer.tar", layer}, {"manifest.json", list}})
	if err := os.WriteFile(path, data, 0o600); err != nil {
		tb.Fatal(err)
	}
	return sandpit.Image(path)
}

// Mounts returns the mounts of the machine's programs for a sandbox of Image.
func Mounts() []sandpit.Mount {
	var mounts []sandpit.Mount
	for _, dir := range []string{"/usr", "/etc/alternatives", "/etc/fonts", "/etc/ssl"} {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			mounts = append(mounts, sandpit.Mount{Source: real, Target: dir, ReadOnly: true})
		}
	}
	return mounts
}

func encode(tb testing.TB, value any) []byte {
	tb.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		tb.Fatal(err)
	}
	return data
}

type entry struct {
	name string
	data []byte
}

func archive(tb testing.TB, entries []entry) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		add(tb, w, tar.Header{Name: e.name, Mode: 0o644, Size: int64(len(e.data)), Typeflag: tar.TypeReg}, e.data)
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func add(tb testing.TB, w *tar.Writer, h tar.Header, data []byte) {
	tb.Helper()
	if err := w.WriteHeader(&h); err != nil {
		tb.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		tb.Fatal(err)
	}
}

// skeleton returns a layer with directories, links to the machine's programs, accounts, and busybox
// unless it is nil.
func skeleton(tb testing.TB, busybox []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"usr/", "etc/", "etc/alternatives/", "etc/fonts/", "etc/ssl/", "home/", "root/", "srv/", "var/", "run/"} {
		add(tb, w, tar.Header{Name: dir, Mode: 0o755, Typeflag: tar.TypeDir}, nil)
	}
	add(tb, w, tar.Header{Name: "tmp/", Mode: 0o1777, Typeflag: tar.TypeDir}, nil)
	add(tb, w, tar.Header{Name: "home/app/", Mode: 0o755, Uid: imageUID, Gid: imageUID, Typeflag: tar.TypeDir}, nil)
	for _, name := range []string{"bin", "sbin", "lib", "lib64", "lib32"} {
		if info, err := os.Lstat("/" + name); err == nil && info.Mode()&os.ModeSymlink != 0 {
			add(tb, w, tar.Header{Name: name, Linkname: "usr/" + name, Typeflag: tar.TypeSymlink}, nil)
		}
	}
	if busybox != nil {
		add(tb, w, tar.Header{Name: "usr/bin/", Mode: 0o755, Typeflag: tar.TypeDir}, nil)
		add(tb, w, tar.Header{Name: "usr/bin/busybox", Mode: 0o755, Size: int64(len(busybox)), Typeflag: tar.TypeReg}, busybox)
		for _, name := range []string{"sh", "pwd", "ls", "cat", "sleep", "mkdir", "env", "kill", "stty"} {
			add(tb, w, tar.Header{Name: "usr/bin/" + name, Linkname: "busybox", Typeflag: tar.TypeSymlink}, nil)
		}
	}
	for name, text := range map[string]string{ //nolint:gosec // accounts without passwords
		"etc/passwd": "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000:app:/home/app:/bin/sh\n", "etc/group": "root:x:0:\napp:x:1000:\n",
	} {
		add(tb, w, tar.Header{Name: name, Mode: 0o644, Size: int64(len(text)), Typeflag: tar.TypeReg}, []byte(text))
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}
