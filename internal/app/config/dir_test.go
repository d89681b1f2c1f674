package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

func TestMakePrivate(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	for range 2 { // the second time it exists
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{dir, filepath.Dir(dir)} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, want 0700", name, info.Mode().Perm())
		}
	}
}

func TestMakePrivateRefuses(t *testing.T) {
	t.Parallel()
	me := os.Geteuid()
	for name, tc := range map[string]struct {
		prepare func(t *testing.T, dir string)
		uid     int
		code    sandpit.Code
		text    string
		hint    string
	}{
		"open to the group": {
			prepare: func(t *testing.T, dir string) { t.Helper(); mkdir(t, dir, 0o750) },
			uid:     me, code: sandpit.PermissionDenied, text: "is open to other users (mode 0750)", hint: "chmod 700 ",
		},
		"open to all": {
			prepare: func(t *testing.T, dir string) { t.Helper(); mkdir(t, dir, 0o701) },
			uid:     me, code: sandpit.PermissionDenied, text: "is open to other users (mode 0701)", hint: "chmod 700 ",
		},
		"directory of another user": {
			prepare: func(t *testing.T, dir string) { t.Helper(); mkdir(t, dir, 0o700) },
			uid:     me + 1, code: sandpit.PermissionDenied, text: "does not belong to the user with uid", hint: "SANDPIT_STATE_DIR",
		},
		"a link": {
			prepare: func(t *testing.T, dir string) {
				t.Helper()
				mkdir(t, dir+"-target", 0o700)
				if err := os.Symlink(dir+"-target", dir); err != nil {
					t.Fatal(err)
				}
			},
			uid: me, code: sandpit.PermissionDenied, text: "is a symbolic link", hint: "SANDPIT_STATE_DIR",
		},
		"a dangling link": {
			prepare: func(t *testing.T, dir string) {
				t.Helper()
				if err := os.Symlink(dir+"-nowhere", dir); err != nil {
					t.Fatal(err)
				}
			},
			uid: me, code: sandpit.PermissionDenied, text: "is a symbolic link", hint: "SANDPIT_STATE_DIR",
		},
		"a file": {
			prepare: func(t *testing.T, dir string) {
				t.Helper()
				if err := os.WriteFile(dir, nil, 0o600); err != nil {
					t.Fatal(err)
				}
			},
			uid: me, code: sandpit.Invalid, text: "is not a directory", hint: "SANDPIT_STATE_DIR",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "dir")
			tc.prepare(t, dir)
			err := config.MakePrivate(dir, tc.uid)
			if !errors.Is(err, tc.code) || !strings.Contains(err.Error(), tc.text) || !strings.Contains(sandpit.HintOf(err), tc.hint) {
				t.Errorf("error = %v (%s, hint %q), want %q (%s, hint %q)",
					err, sandpit.CodeOf(err), sandpit.HintOf(err), tc.text, tc.code, tc.hint)
			}
		})
	}
}

func TestMakePrivateBelowAFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	err := config.MakePrivate(filepath.Join(file, "dir"), os.Geteuid())
	if err == nil || !strings.Contains(sandpit.HintOf(err), "SANDPIT_STATE_DIR") {
		t.Errorf("error = %v, hint %q", err, sandpit.HintOf(err))
	}
}

// mkdir makes a directory whose mode no umask has changed.
func mkdir(t *testing.T, dir string, mode os.FileMode) {
	t.Helper()
	if err := os.Mkdir(dir, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
}
