package ownguest_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/internal/reach/ownguest"
)

// foreign is a root directory with the programs of this machine, in place of a foreign computer.
type foreign struct {
	root string
	port int
}

// enter runs a script in that root directory: mounts end with the script.
const enter = `set -e
cd "$1"
for d in bin sbin lib lib64 usr etc; do
	[ -e "/$d" ] || continue
	mkdir -p "$d"; mount --rbind -o ro "/$d" "$d"
done
mkdir -p proc dev tmp var/lib
mount -t proc proc proc; mount --rbind /dev dev
exec chroot . sh -c "$2"`

func newForeign(t *testing.T) foreign {
	t.Helper()
	if os.Geteuid() != 0 || !guestbin.Has(runtime.GOARCH) {
		t.Skip("needs root, and a guest that is built in: go generate ./internal/inside/guestbin")
	}
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := foreign{root: t.TempDir(), port: ln.Addr().(*net.TCPAddr).Port}
	_ = ln.Close()
	if err := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", enter, "sh", f.root, "true").Run(); err != nil {
		t.Skipf("mounts are not permitted here: %v", err)
	}
	t.Cleanup(func() { f.end(t) })
	return f
}

// end kills the processes in the root directory, and waits for their end.
func (f foreign) end(t *testing.T) {
	t.Helper()
	for late := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		roots, err := filepath.Glob("/proc/[0-9]*/root")
		if err != nil {
			t.Fatal(err)
		}
		left := 0
		for _, link := range roots {
			if to, err := os.Readlink(link); err == nil && to == f.root {
				left++
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(link)))
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("%d processes do not end", left)
		}
	}
}

func (f foreign) computer() ownguest.Computer {
	return ownguest.Computer{
		Port: f.port,
		WriteFile: func(_ context.Context, path string, content io.Reader, size int64) error {
			data, err := io.ReadAll(content)
			if err == nil && int64(len(data)) != size {
				err = errors.New("the size is wrong")
			}
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(f.root, path), data, 0o600)
		},
		Run: func(ctx context.Context, script string) (ownguest.Result, error) {
			var stdout, stderr bytes.Buffer
			cmd := exec.CommandContext(ctx, "unshare", "-m", "sh", "-c", enter, "sh", f.root, script)
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			if _, exited := errors.AsType[*exec.ExitError](err); exited {
				err = nil
			}
			return ownguest.Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: cmd.ProcessState.ExitCode()}, err
		},
		HTTP: roundTrip(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.URL.Host = net.JoinHostPort("127.0.0.1", strconv.Itoa(f.port))
			r.Close = true
			return http.DefaultTransport.RoundTrip(r)
		}),
	}
}

// TestInstall copies the guest into a computer without it, starts it, and finds it again.
func TestInstall(t *testing.T) {
	t.Parallel()
	f := newForeign(t)
	g, err := ownguest.Start(t.Context(), f.computer(), ownguest.Settings{Env: map[string]string{"GREETING": "hello"}, WorkDir: "/work"})
	if err != nil {
		t.Fatal(err)
	}
	if !g.Started {
		t.Error("it has run before")
	}
	var out bytes.Buffer
	p, err := g.Start(t.Context(), sandpit.Command{ID: "first", Args: []string{"sh", "-c", `echo "$GREETING from $(pwd)"`}, Stdout: &out})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 0 || out.String() != "hello from /work\n" {
		t.Errorf("%q, %v, %v", &out, status, err)
	}
	left, err := filepath.Glob(filepath.Join(f.root, "tmp", ".sandpit*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
	info, err := os.Stat(filepath.Join(f.root, sandpit.GuestProgram))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the program: %v, %v", info, err)
	}
	again, err := ownguest.Start(t.Context(), f.computer(), ownguest.Settings{})
	if err != nil || again.Started || again.Key != g.Key {
		t.Fatalf("again: started %t, %v", again.Started, err)
	}
	if _, err := again.GetCommand(t.Context(), "first"); err != nil {
		t.Errorf("the command log: %v", err)
	}
	if err := os.WriteFile(filepath.Join(f.root, sandpit.GuestProgram), []byte("another version"), 0o755); err == nil {
		t.Error("the program of a running guest can be written") // text file busy
	}
	f.end(t)
	if err := os.WriteFile(filepath.Join(f.root, sandpit.GuestProgram), []byte("another version"), 0o755); err != nil {
		t.Fatal(err)
	}
	third, err := ownguest.Start(t.Context(), f.computer(), ownguest.Settings{})
	if err != nil || !third.Started || third.Key != g.Key {
		t.Fatalf("another version of the program: %+v, %v", third, err)
	}
}
