package main

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// staticDir is the directory of static programs in the root file system. Starting them measures the
// sandbox and not a dynamic linker.
const staticDir = "/opt/static"

// applets are the names of busybox in staticDir.
var applets = []string{"cat", "dd", "echo", "rm", "sh", "sleep", "true"}

// rootFS is the root file system all contestants use.
type rootFS struct {
	path string
	what string // one line for the report
}

// recipe creates a Debian with Python and a C compiler. As in the template base, it has the account
// user, bash needs no dynamic linker, and login shells start no programs and find their locale in one
// file. It is also the key of the cached result.
var recipe = []string{
	"mmdebstrap", "--quiet", "--variant=minbase", "--include=python3,gcc,libc6-dev,bash-static",
	`--customize-hook=rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*`,
	`--customize-hook=chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash user`,
	`--customize-hook=sed -i 's/"$(id -u)"/"${EUID:-$(id -u)}"/' "$1/etc/profile"`,
	`--customize-hook=chroot "$1" localedef --add-to-archive /usr/lib/locale/C.utf8`,
	`--customize-hook=chroot "$1" dpkg-divert --quiet --local --no-rename --add --divert /bin/bash.dynamic /bin/bash`,
	`--customize-hook=mv "$1/bin/bash" "$1/bin/bash.dynamic"; ln -s bash-static "$1/bin/bash"`,
	"bookworm",
}

// busyboxAlone describes a root file system with nothing else.
const busyboxAlone = "busybox alone"

// makeRootFS creates the tar file: a Debian if mmdebstrap is available, otherwise busybox alone.
// Debian takes two minutes and is kept in the user's cache.
func makeRootFS(ctx context.Context, dir string, quick bool, note func(string)) (rootFS, error) {
	busybox, err := staticBusybox()
	if err != nil {
		return rootFS{}, err
	}
	if quick {
		return busyboxRoot(dir, busybox)
	}
	if _, err := exec.LookPath(recipe[0]); err != nil {
		note("no " + recipe[0] + " here: a root file system of busybox alone, without Python and a compiler")
		return busyboxRoot(dir, busybox)
	}
	path, err := debianRoot(ctx, busybox, note)
	if err != nil {
		note("a root file system of busybox alone, for Debian's cannot be made: " + err.Error())
		return busyboxRoot(dir, busybox)
	}
	return rootFS{path, "Debian bookworm with Python and gcc, and busybox"}, nil
}

// staticBusybox finds a statically linked busybox.
func staticBusybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", errors.New("the kit needs busybox-static, or a root file system by -rootfs")
	}
	return filepath.EvalSymlinks(path)
}

func debianRoot(ctx context.Context, busybox string, note func(string)) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sandpit-bench")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	script := append([]string(nil), recipe[:len(recipe)-1]...)
	script = append(script, "--customize-hook="+installHook(busybox), recipe[len(recipe)-1])
	sum := sha256.Sum256([]byte(strings.Join(script, "\x00")))
	path := filepath.Join(dir, hex.EncodeToString(sum[:8])+".tar")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	note("making a root file system with " + recipe[0] + ", which takes some minutes the first time")
	unfinished := fmt.Sprintf("%s.%d.tar", path, os.Getpid())
	defer func() { _ = os.Remove(unfinished) }() // it exists only after a failure
	if err := run(exec.CommandContext(ctx, script[0], append(script[1:], unfinished)...)); err != nil {
		return "", err
	}
	return path, os.Rename(unfinished, path)
}

// installHook is the shell command with which mmdebstrap installs the static programs.
func installHook(busybox string) string {
	var b strings.Builder
	fmt.Fprintf(&b, `mkdir -p "$1%s" && cp %s "$1%s/busybox"`, staticDir, busybox, staticDir)
	for _, name := range applets {
		fmt.Fprintf(&b, ` && ln -s busybox "$1%s/%s"`, staticDir, name)
	}
	return b.String()
}

// busyboxRoot creates a root file system with one program.
func busyboxRoot(dir, busybox string) (rootFS, error) {
	path := filepath.Join(dir, "rootfs.tar")
	f, err := os.Create(path)
	if err != nil {
		return rootFS{}, err
	}
	w := tar.NewWriter(f)
	if err = writeBusybox(w, busybox); err == nil {
		err = w.Close()
	}
	return rootFS{path, busyboxAlone}, errors.Join(err, f.Close())
}

func writeBusybox(w *tar.Writer, busybox string) error {
	for _, name := range []string{"./", "bin/", "dev/", "etc/", "opt/", "opt/static/", "proc/", "sys/", "tmp/", "workspace/"} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: 0o755}); err != nil {
			return err
		}
	}
	f, err := os.Open(busybox)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	static := strings.TrimPrefix(staticDir, "/") + "/"
	err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: static + "busybox", Mode: 0o755, Size: info.Size()})
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, f); err != nil {
		return err
	}
	for _, name := range applets {
		for path, target := range map[string]string{static + name: "busybox", "bin/" + name: ".." + staticDir + "/busybox"} {
			if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: path, Linkname: target, Mode: 0o777}); err != nil {
				return err
			}
		}
	}
	return nil
}
