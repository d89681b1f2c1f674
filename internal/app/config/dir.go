package config

import (
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/sandpit-dev/sandpit"
)

// MakePrivate makes the directory and those above it that are missing, all
// with mode 0700, and checks that it belongs to uid and that no other
// user can read it. It does not change an existing directory.
//
// PermissionDenied: it belongs to another user, is accessible to others, is a symbolic
// link, or cannot be created; the hint names the remedy. Invalid: it is not a directory.
func MakePrivate(dir string, uid int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil && !isThere(dir) {
		return sandpit.WithHint(fmt.Errorf("make the directory %s: %w", dir, err), elsewhere)
	}
	return checkPrivate(dir, uid)
}

const elsewhere = "name another directory with SANDPIT_STATE_DIR, SANDPIT_CACHE_DIR or SANDPIT_RUNTIME_DIR"

// isThere is true of anything with that name, so that checkPrivate can say
// what is wrong with it.
func isThere(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// checkPrivate does not follow a link in the last element: the owner of the directory above
// could change it after the check.
func checkPrivate(dir string, uid int) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return fmt.Errorf("look at the directory: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		err = sandpit.Errorf(sandpit.PermissionDenied, "%s is a symbolic link", dir)
		return sandpit.WithHint(err, "name the directory it points to instead: "+elsewhere)
	case !info.IsDir():
		err = sandpit.Errorf(sandpit.Invalid, "%s is not a directory", dir)
		return sandpit.WithHint(err, elsewhere)
	case !ok || int(stat.Uid) != uid:
		err = sandpit.Errorf(sandpit.PermissionDenied, "%s does not belong to the user with uid %d", dir, uid)
		return sandpit.WithHint(err, elsewhere)
	case info.Mode().Perm()&0o077 != 0:
		err = sandpit.Errorf(sandpit.PermissionDenied, "%s is open to other users (mode %04o)", dir, info.Mode().Perm())
		return sandpit.WithHint(err, "chmod 700 "+dir)
	}
	return nil
}
