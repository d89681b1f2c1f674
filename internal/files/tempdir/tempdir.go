// Package tempdir makes directories of the machine that sandboxes are shown, and
// removes them when the sandboxes are gone.
//
// Each is two directories: the outer one, sandbox_NAME_RANDOM, is closed to all other
// users of the machine; the inner one, which is shown, is open to everybody, so that
// whoever programs run as in the sandbox can write there. What a sandbox leaves in it is
// hostile: links, modes and depths included.
package tempdir

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

const (
	// shownName is the name of the directory that is shown.
	shownName = "files"
	// maxName is how much of a target's name is in that of its directory, in bytes.
	maxName = 40
)

var (
	outerPattern = regexp.MustCompile(`^sandbox_[A-Za-z0-9_.-]{1,40}_[0-9a-f]{16}$`)
	unsafeChars  = regexp.MustCompile(`[^A-Za-z0-9_.-]`)
)

// Check returns the directory below which others can be made, links resolved.
//
// PermissionDenied: other users could exchange what is made there. NotFound.
func Check(parent string) (string, error) {
	resolved, err := filepath.EvalSymlinks(parent)
	if err != nil {
		return "", sandpit.Errorf(sandpit.CodeOf(err), "directory for temporary ones: %w", err)
	}
	info, err := os.Stat(resolved)
	if err != nil {
		return "", sandpit.Errorf(sandpit.CodeOf(err), "directory for temporary ones: %w", err)
	}
	if !info.IsDir() {
		return "", sandpit.Errorf(sandpit.Invalid, "directory for temporary ones: %s is none", resolved)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return "", sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "directory for temporary ones: other users may rename what is in %s", resolved),
			"chmod +t "+resolved+", or choose another with temp_dir")
	}
	return resolved, nil
}

// Name returns the path that is to be shown at target, below a directory that Check has
// returned. Nothing is made.
func Name(parent, target string) string {
	name := unsafeChars.ReplaceAllString(path.Base(target), "_")
	name = name[:min(len(name), maxName)]
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return filepath.Join(parent, "sandbox_"+name+"_"+hex.EncodeToString(raw), shownName)
}

// Make makes what Name has named. What is there already from an earlier call stays as it
// is.
//
// Invalid: Name would not say so. PermissionDenied: something else is there.
func Make(shown string) error {
	outer, err := outerOf(shown)
	if err != nil {
		return err
	}
	if err := os.Mkdir(outer, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return sandpit.Errorf(sandpit.CodeOf(err), "make a temporary directory: %w", err)
	}
	if err := checkOwn(outer); err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	root, err := beneath.Open(outer)
	if err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	defer root.Close()
	if err := root.Mkdir(shownName, 0o777); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	if err := root.Chmod(shownName, 0o777); err != nil { // whatever the umask is
		return fmt.Errorf("make a temporary directory: %w", err)
	}
	return nil
}

// Remove removes what Make has made, with all that is in it, and nothing else. What is
// not there is fine.
//
// Invalid: Name would not say so. PermissionDenied: something else is there, or somebody
// else's files are in it. The context's error: there was more than could be removed in
// time; the next call goes on.
func Remove(ctx context.Context, shown string) error {
	outer, err := outerOf(shown)
	if err != nil {
		return err
	}
	err = checkOwn(outer)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove a temporary directory: %w", err)
	}
	parent, err := beneath.Open(filepath.Dir(outer))
	if err != nil {
		return fmt.Errorf("remove a temporary directory: %w", err)
	}
	defer parent.Close()
	if err := parent.RemoveTree(ctx, filepath.Base(outer)); err != nil {
		return sandpit.Errorf(sandpit.CodeOf(err), "remove the temporary directory %s: %w", outer, err)
	}
	return nil
}

// outerOf returns the directory around one that is shown.
func outerOf(shown string) (string, error) {
	outer := filepath.Dir(shown)
	if !filepath.IsAbs(shown) || filepath.Clean(shown) != shown || filepath.Base(shown) != shownName || !outerPattern.MatchString(filepath.Base(outer)) {
		return "", sandpit.Errorf(sandpit.Invalid, "%.200q is no temporary directory of a sandbox", shown)
	}
	return outer, nil
}

// checkOwn makes sure that a directory is one of this user's, and closed to others.
func checkOwn(outer string) error {
	info, err := os.Lstat(outer)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || info.Mode().Perm()&0o077 != 0 || int(stat.Uid) != os.Geteuid() {
		return sandpit.Errorf(sandpit.PermissionDenied, "%s is not a directory of this user that is closed to others", outer)
	}
	return nil
}
