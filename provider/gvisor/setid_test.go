package gvisor_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// noPassword lets every user with a program for it become root, and makes that
// program at /tmp/su.
const noPassword = `mkdir -p /etc; echo 'root::0:0::/:/bin/sh' > /etc/passwd; echo 'other::1000:1000::/:/bin/sh' >> /etc/passwd
busybox cp "$(busybox which busybox)" /tmp/su; busybox chmod 4755 /tmp/su
[ -e /bin/su ] || busybox ln -s busybox /bin/su`

// TestSetUserID has a program of a sandbox's image give its owner's rights, as sudo and
// su do, but none of the machine's.
func TestSetUserID(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	for name, tt := range map[string]struct {
		image   sandpit.Image
		program string
		counts  bool
	}{
		"an image":              {busyboxImage(t), "/tmp/su", true},
		"the machine's":         {sandpit.HostImage, "/tmp/su", false},
		"a shared directory's":  {busyboxImage(t), "/shown/su", false},
		"not set, in the image": {busyboxImage(t), "/bin/su", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			box := create(t, p, sandpit.Spec{Image: tt.image, Mounts: []sandpit.Mount{{Source: setIDDir(t), Target: "/shown", ReadOnly: true}}})
			output(t, box, noPassword)
			var out bytes.Buffer
			run, err := box.Guest().Start(t.Context(), sandpit.Command{
				Args: []string{tt.program, "-c", "busybox id -u", "root"}, User: "1000:1000", Stdout: &out, Stderr: &out,
			})
			if err != nil {
				t.Fatal(err)
			}
			status, err := run.Wait(t.Context())
			if err != nil || (status.Code == 0 && strings.TrimSpace(out.String()) == "0") != tt.counts {
				t.Errorf("%v, %v: %s", status, err, &out)
			}
		})
	}
}

// setIDDir returns a directory with a set-user-ID program.
func setIDDir(tb testing.TB) string {
	tb.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(tb, "there is no busybox; install busybox-static")
	}
	content, err := os.ReadFile(program)
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "su"), content, 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "su"), 0o755|os.ModeSetuid); err != nil {
		tb.Fatal(err)
	}
	return dir
}
