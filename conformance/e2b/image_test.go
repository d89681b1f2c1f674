package e2b_test

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// recipe makes a root file system as E2B's clients expect one: bash, and a user
// called user with uid 1000. As in the template base, login shells, by which E2B's
// clients run every command, need no dynamic linker, start no program to learn whose they
// are and find their locale in one file. It is also the key by which the result is kept.
var recipe = []string{
	"mmdebstrap", "--quiet", "--variant=minbase", "--include=procps,bash,python3,bash-static",
	`--customize-hook=chroot "$1" useradd --create-home --uid 1000 --shell /bin/bash user`,
	`--customize-hook=sed -i 's/"$(id -u)"/"${EUID:-$(id -u)}"/' "$1/etc/profile"`,
	`--customize-hook=chroot "$1" localedef --add-to-archive /usr/lib/locale/C.utf8`,
	`--customize-hook=chroot "$1" dpkg-divert --quiet --local --no-rename --add --divert /bin/bash.dynamic /bin/bash`,
	`--customize-hook=mv "$1/bin/bash" "$1/bin/bash.dynamic"; ln -s bash-static "$1/bin/bash"`,
	"bookworm",
}

// cacheDir is where files that take long to make are kept between runs.
func cacheDir(tb testing.TB) string {
	tb.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		tb.Fatal(err)
	}
	dir := filepath.Join(cache, "sandpit-test")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	return dir
}

// building is held by the test that makes the image, for which the others wait.
var building sync.Mutex

// buildImage returns the tar file that the recipe makes.
func buildImage(tb testing.TB) sandpit.Image {
	tb.Helper()
	building.Lock()
	defer building.Unlock()
	sum := sha256.Sum256([]byte(strings.Join(recipe, "\x00")))
	path := filepath.Join(cacheDir(tb), "e2b-"+hex.EncodeToString(sum[:8])+".tar")
	if _, err := os.Stat(path); err == nil {
		return sandpit.Image(path)
	}
	if _, err := exec.LookPath(recipe[0]); err != nil {
		testengine.Skip(tb, "this machine has no %s to make an image with", recipe[0])
	}
	// In the same directory, so that the finished file can be renamed, and of a
	// name of its own, so that only this run writes to it.
	unfinished := fmt.Sprintf("%s.%d.tar", path, os.Getpid())
	tb.Cleanup(func() {
		if err := os.Remove(unfinished); err != nil && !errors.Is(err, os.ErrNotExist) {
			tb.Error(err)
		}
	})
	cmd := exec.CommandContext(tb.Context(), recipe[0], append(recipe[1:len(recipe):len(recipe)], unfinished)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		testengine.Skip(tb, "the image cannot be made: %v\n%s", err, out)
	}
	if err := os.Rename(unfinished, path); err != nil {
		tb.Fatal(err)
	}
	return sandpit.Image(path)
}
