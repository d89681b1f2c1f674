// Package tempdir creates directories of the machine that are mounted in sandboxes, and removes them when the
// sandboxes are gone.
//
// Each consists of two directories. The outer one, sandbox_NAME_RANDOM, is closed to all other users of the machine.
// The inner one, which is mounted, is open to all, so that programs can write there as any user of the sandbox. What
// a sandbox leaves in it is hostile: links, modes and depths included.
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
	"syscall"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

const (
	// shownName is the name of the inner directory.
	shownName = "files"
	// maxName is how much of a target's name becomes part of the directory's name, in bytes.
	maxName = 40
)

var (
	outerPattern = pattern.New(`^sandbox_[A-Za-z0-9_.-]{1,40}_[0-9a-f]{16}$`)
	unsafeChars  = pattern.New(`[^A-Za-z0-9_.-]`)
)

// Check returns the directory for temporary directories, with links resolved.
//
// PermissionDenied: other users could replace directories in it. NotFound.
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
		return "", sandpit.Errorf(sandpit.Invalid, "directory for temporary ones: %s is not a directory", resolved)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0 {
		return "", sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "directory for temporary ones: other users may rename what is in %s", resolved),
			"chmod +t "+resolved+", or choose another with temp_dir")
	}
	return resolved, nil
}

// Name returns a path to mount at target, below a directory that Check has returned. It creates nothing.
func Name(parent, target string) string {
	name := unsafeChars().ReplaceAllString(path.Base(target), "_")
	name = name[:min(len(name), maxName)]
	raw := make([]byte, 8)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return filepath.Join(parent, "sandbox_"+name+"_"+hex.EncodeToString(raw), shownName)
}

// Make creates the directories for a path that Name has returned. Directories from an earlier call stay.
//
// Invalid: not a path of Name. PermissionDenied: the path has something else.
func Make(shown string) error {
	outer, err := outerOf(shown)
	if err != nil {
		return err
	}
	if err := os.Mkdir(outer, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return sandpit.Errorf(sandpit.CodeOf(err), "create a temporary directory: %w", err)
	}
	if err := checkOwn(outer); err != nil {
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	root, err := beneath.Open(outer)
	if err != nil {
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	defer root.Close()
	if err := root.Mkdir(shownName, 0o777); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	if err := root.Chmod(shownName, 0o777); err != nil { // the umask may have removed bits
		return fmt.Errorf("create a temporary directory: %w", err)
	}
	return nil
}

// Remove removes the directories that Make has created, with everything in them. A missing directory is not an error.
//
// Invalid: not a path of Name. PermissionDenied: the path has something else, or contains files of other users. The
// context's error: not everything was removed in time; the next call continues.
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

// outerOf returns the outer directory of a mounted one.
func outerOf(shown string) (string, error) {
	outer := filepath.Dir(shown)
	if !filepath.IsAbs(shown) || filepath.Clean(shown) != shown || filepath.Base(shown) != shownName || !outerPattern().MatchString(filepath.Base(outer)) {
		return "", sandpit.Errorf(sandpit.Invalid, "%.200q is not a temporary directory of a sandbox", shown)
	}
	return outer, nil
}

// checkOwn returns an error unless the directory belongs to this user and is closed to others.
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
