package tempdir_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/tempdir"
)

// place returns a directory as Check wants it.
func place(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "temp")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	resolved, err := tempdir.Check(dir)
	if err != nil {
		t.Fatal(err)
	}
	return resolved
}

func wantNothing(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestLife makes a directory, twice, and removes it, twice, with what a sandbox may have
// left there to lead that astray.
func TestLife(t *testing.T) {
	t.Parallel()
	dir, outside := place(t), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	shown := tempdir.Name(dir, "/job/my space")
	want := regexp.MustCompile(`^` + regexp.QuoteMeta(dir) + `/sandbox_my_space_[0-9a-f]{16}/files$`)
	if !want.MatchString(shown) || shown == tempdir.Name(dir, "/job/my space") {
		t.Errorf("name %q", shown)
	}
	for range 2 {
		if err := tempdir.Make(shown); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(shown, "f"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for path, mode := range map[string]os.FileMode{filepath.Dir(shown): 0o700, shown: 0o777} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v; want mode %o", path, info, err, mode)
		}
	}
	if _, err := os.Stat(filepath.Join(shown, "f")); err != nil {
		t.Errorf("after it was made again: %v", err)
	}
	for link, target := range map[string]string{"link": outside, "up": "../../..", "d/link": outside} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(shown, link)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(shown, link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(shown, "d"), 0); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := tempdir.Remove(t.Context(), shown); err != nil {
			t.Fatal(err)
		}
	}
	wantNothing(t, dir)
	if _, err := os.Stat(filepath.Join(outside, "f")); err != nil {
		t.Errorf("outside: %v", err)
	}
}

// TestOthersPaths refuses to make or remove what Name would not have named, and what
// another user has put there.
func TestOthersPaths(t *testing.T) {
	t.Parallel()
	dir := place(t)
	const outer = "/sandbox_x_0123456789abcdef"
	for _, path := range []string{
		"", "/", dir, dir + outer, dir + outer + "/files/", dir + outer + "/other", dir + outer + "/files/../files",
		dir + "/sandbox_x_0123/files", dir + "/x" + outer[1:] + "/files", "." + outer + "/files", dir + "/sandbox_._0123456789abcdeg/files",
	} {
		for what, err := range map[string]error{"make": tempdir.Make(path), "remove": tempdir.Remove(t.Context(), path)} {
			if sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("%s %q: %v", what, path, err)
			}
		}
	}
	victim := filepath.Join(dir, "victim")
	if err := os.MkdirAll(filepath.Join(victim, "files"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, plant := range map[string]func(path string) error{
		"a link":         func(path string) error { return os.Symlink(victim, path) },
		"a file":         func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"an open one":    func(path string) error { return os.Mkdir(path, 0o755) },
		"another user's": func(path string) error { return mkdirAs(path, 12345) },
	} {
		if name == "another user's" && os.Geteuid() != 0 {
			continue // only root can make one
		}
		shown := tempdir.Name(dir, "/w")
		if err := plant(filepath.Dir(shown)); err != nil {
			t.Fatal(err)
		}
		for what, err := range map[string]error{"make": tempdir.Make(shown), "remove": tempdir.Remove(t.Context(), shown)} {
			if sandpit.CodeOf(err) != sandpit.PermissionDenied {
				t.Errorf("%s where there is %s: %v", what, name, err)
			}
		}
		if _, err := os.Lstat(filepath.Dir(shown)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(filepath.Join(victim, "files")); err != nil {
		t.Error(err)
	}
}

func mkdirAs(path string, uid int) error {
	if err := os.Mkdir(path, 0o700); err != nil {
		return err
	}
	return os.Chown(path, uid, uid)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, mode := range map[string]os.FileMode{"own": 0o700, "sticky": 0o777 | os.ModeSticky, "open": 0o777, "group": 0o770} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("own", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]sandpit.Code{
		"own": "", "sticky": "", "link": "", "open": sandpit.PermissionDenied, "group": sandpit.PermissionDenied,
		"none": sandpit.NotFound, "file": sandpit.Invalid,
	} {
		got, err := tempdir.Check(filepath.Join(dir, name))
		if sandpit.CodeOf(err) != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if name == "link" && filepath.Base(got) != "own" {
			t.Errorf("a link is %s", got)
		}
	}
}

// notesVariable makes TestSessionOfTheKilled the program that is killed.
const notesVariable = "SANDPIT_TEST_TEMPDIR_NOTES"

// TestSessionOfTheKilled kills a program that has a temporary directory. The next one
// removes that, and leaves those alone whose programs live.
func TestSessionOfTheKilled(t *testing.T) {
	if notes := os.Getenv(notesVariable); notes != "" {
		s, err := tempdir.Begin(notes)
		if err == nil {
			err = s.Make(tempdir.Name(filepath.Dir(notes), "/killed"))
		}
		_, _ = os.Stdout.WriteString("made\n")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // an endless wait alone would end the program as a deadlock
	}
	t.Parallel()
	dir := place(t)
	notes := filepath.Join(dir, "notes")
	if err := os.Mkdir(notes, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSessionOfTheKilled$")
	cmd.Env = append(os.Environ(), notesVariable+"="+notes)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	made := func() int { list, _ := filepath.Glob(filepath.Join(dir, "sandbox_*")); return len(list) }
	alive, err := tempdir.Begin(notes)
	if err != nil {
		t.Fatal(err)
	}
	if err := alive.Make(tempdir.Name(dir, "/alive")); err != nil {
		t.Fatal(err)
	}
	sweep(t, notes)
	if made() != 2 {
		t.Errorf("%d directories while both programs live, want 2", made())
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := tempdir.Sweep(canceled, notes); err == nil {
		t.Error("swept without any time")
	}
	sweep(t, notes)
	list, _ := filepath.Glob(filepath.Join(dir, "sandbox_*"))
	if len(list) != 1 || !strings.Contains(list[0], "alive") {
		t.Errorf("left: %q", list)
	}
	if err := alive.End(t.Context()); err != nil {
		t.Error(err)
	}
	wantNothing(t, notes)
	if made() != 0 {
		t.Errorf("%d directories after the end", made())
	}
}

func sweep(t *testing.T, notes string) {
	t.Helper()
	if err := tempdir.Sweep(t.Context(), notes); err != nil {
		t.Fatal(err)
	}
}

// TestForgedNotes sweeps notes that name what no session makes, and half a line.
func TestForgedNotes(t *testing.T) {
	t.Parallel()
	dir := place(t)
	victim := filepath.Join(dir, "victim", "files")
	if err := os.MkdirAll(victim, 0o700); err != nil {
		t.Fatal(err)
	}
	notes := t.TempDir()
	half := filepath.Join(notes, "session-half")
	if err := os.WriteFile(half, []byte("\""+victim), 0o600); err != nil {
		t.Fatal(err)
	}
	sweep(t, notes)
	if err := os.WriteFile(filepath.Join(notes, "session-1"), []byte("\""+victim+"\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := tempdir.Sweep(t.Context(), notes); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a note of something else: %v", err)
	}
	if _, err := os.Stat(victim); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(half); err == nil {
		t.Error("half a note is left")
	}
}
