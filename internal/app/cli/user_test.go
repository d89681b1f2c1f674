package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// ordinaryUser is the ID of an ordinary user on every machine.
const ordinaryUser = 65534

// TestOrdinaryUser does as a user without rights what the scripts do as
// the user that runs the tests.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("not root: the other tests run as an ordinary user already")
	}
	engine := testengine.Path(t)
	dir, err := os.MkdirTemp("", "sandpit-ordinary-") //nolint:usetesting // the test's own directory is closed to others
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if err := os.Mkdir(data, 0o755); err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(dir, "sandpit")
	copyFile(t, engine, program)
	for _, path := range []string{dir, data} {
		if err := os.Chown(path, ordinaryUser, ordinaryUser); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, int) {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = testengine.Environ(dir)
		cmd.Dir = dir
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // its exit status is what is asked for
		return out.String(), cmd.ProcessState.ExitCode()
	}
	for name, tc := range map[string]struct {
		args   []string
		want   string
		status int
	}{
		"a kernel of its own": {[]string{"run", "--", "uname", "-r"}, "gvisor", 0},
		"root inside":         {[]string{"run", "--", "id"}, "uid=0(root)", 0},
		"others inside":       {[]string{"run", "-u", "user", "--", "sh", "-c", "touch ~/x && id"}, "uid=1000(user)", 0},
		"exit status":         {[]string{"run", "--", "sh", "-c", "exit 9"}, "", 9},
		"a directory":         {[]string{"run", "-v", data + ":/data:rw", "--", "sh", "-c", "echo hi > /data/made; cat /data/made"}, "hi", 0},
		"read only":           {[]string{"run", "-v", data + ":/data:ro", "--", "touch", "/data/not"}, "Read-only", 1},
		"read only unasked":   {[]string{"run", "-v", data + ":/data", "--", "touch", "/data/not"}, "Read-only", 1},
		"a home":              {[]string{"run", "-v", "/root:/r", "--", "ls", "/r"}, "a home directory", 125},
		"not its own":         {[]string{"run", "-v", "/root:/r", "--allow-volume", "/root", "--", "ls", "/r"}, "permission denied", 2}, // by ls
		"doctor":              {[]string{"doctor"}, "Sandboxes work on this machine", 0},
	} {
		t.Run(name, func(t *testing.T) {
			out, status := run(tc.args...)
			if status != tc.status || !strings.Contains(strings.ToLower(out), strings.ToLower(tc.want)) {
				t.Errorf("exit status %d and %q, want %d and %q in it", status, out, tc.status, tc.want)
			}
		})
	}
	info, err := os.Stat(filepath.Join(data, "made"))
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != ordinaryUser {
		t.Error("what the sandbox's root made does not belong to the user")
	}
	expectGone(t, dir)
}

func expectGone(t *testing.T, dir string) {
	t.Helper()
	for _, sub := range []string{"run/engines", "state/scratch"} {
		if entries, err := os.ReadDir(filepath.Join(dir, sub)); err != nil || len(entries) > 0 {
			t.Errorf("left in %s: %v, %v", sub, entries, err)
		}
	}
}

// TestRootMapsOwners shows root's own files inside: they belong to root there,
// and what is made there belongs to root here.
func TestRootMapsOwners(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testengine.Skip(t, "only root's files are shown by another way")
	}
	engine := testengine.Path(t)
	dir := t.TempDir()
	data := filepath.Join(dir, "closed", "data")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, "secret"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), engine, "run", "-v", data+":/data:rw", "--", "sh", "-c",
		"cat /data/secret; stat -c %u /data/secret; echo x > /data/made; echo y > /data/given; chown 1234:4321 /data/given")
	cmd.Env = testengine.Environ(dir)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "text0\n" {
		t.Fatalf("%v: %q", err, out)
	}
	for name, want := range map[string]uint32{"made": 0, "given": 1234} {
		info, err := os.Stat(filepath.Join(data, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != want {
			t.Errorf("%s belongs to %d, want %d", name, st.Uid, want)
		}
	}
}

// TestRootWithoutCapabilities takes rights from root, as containers do.
func TestRootWithoutCapabilities(t *testing.T) {
	t.Parallel()
	engine := testengine.Path(t)
	setpriv, err := exec.LookPath("setpriv")
	if err != nil || os.Geteuid() != 0 {
		testengine.Skip(t, "it takes root and setpriv to be root with fewer rights")
	}
	for drop, want := range map[string]struct {
		status int
		text   string
	}{
		"-sys_admin":          {0, "made"},
		"-setuid,-setgid":     {0, "made"},
		"-sys_admin,-setfcap": {125, "hint: give it that capability"},
	} {
		t.Run(drop, func(t *testing.T) {
			t.Parallel()
			data := t.TempDir()
			cmd := exec.CommandContext(t.Context(), setpriv, "--bounding-set="+drop, engine,
				"run", "-v", data+":/data:rw", "--", "sh", "-c", "touch /data/made; ls /data")
			cmd.Env = testengine.Environ(t.TempDir())
			out, _ := cmd.CombinedOutput() // its exit status is what is asked for
			if got := cmd.ProcessState.ExitCode(); got != want.status || !strings.Contains(string(out), want.text) {
				t.Errorf("exit status %d and %q, want %d and %q in it", got, out, want.status, want.text)
			}
		})
	}
}

// TestOddNames keeps everything in directories whose names mean something to
// others.
func TestOddNames(t *testing.T) {
	t.Parallel()
	engine := testengine.Path(t)
	dir := filepath.Join(t.TempDir(), "a,size=1k b=c\"d'ü%s")
	data := filepath.Join(dir, "data, more")
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), engine, "run", "-v", data+":/da,ta 1:rw", "--", "sh", "-c",
		"head -c 100000 /dev/zero > /big && cp /big '/da,ta 1/copy' && echo fine")
	cmd.Env = testengine.Environ(dir)
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "fine\n" {
		t.Errorf("%v: %q", err, out)
	}
	if info, err := os.Stat(filepath.Join(data, "copy")); err != nil || info.Size() != 100000 {
		t.Errorf("the copy: %v", err)
	}
}
