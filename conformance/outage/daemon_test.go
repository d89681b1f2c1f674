package outage_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// daemon is a Docker daemon of a test's own, that is killed and started again. All of
// its files are below one directory, by whose name its processes are found.
type daemon struct {
	t   *testing.T
	dir string
	// options go to dockerd besides those that name files.
	options []string
	cmd     *exec.Cmd
	ended   chan struct{}
}

// sweeper waits for the end of its input, be it that the test was killed, and then
// ends everything whose command line names the directory, and removes that.
const sweeper = `read -r dir; cat >/dev/null
for i in 1 2 3; do for p in /proc/[0-9]*; do
	tr '\0' ' ' <$p/cmdline 2>/dev/null | grep -q -F "$dir" && kill -9 ${p#/proc/}
done; sleep 0.2; done 2>/dev/null
awk -v dir="$dir/" 'index($5, dir) == 1 {print $5}' /proc/self/mountinfo | sort -r | while read -r m; do umount -l "$m"; done
rm -rf --one-file-system "$dir"`

// newDaemon starts a daemon, which is ended when the test ends.
func newDaemon(t *testing.T, options ...string) *daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		testengine.Skip(t, "a private docker engine needs root")
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		testengine.Skip(t, "dockerd not found; install docker.io")
	}
	dir, err := os.MkdirTemp("", "sandpit-outage-") //nolint:usetesting // short, for a socket's name, and removed by others
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, dir: dir, options: options}
	sweep := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", sweeper)
	sweep.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a key pressed is for the tests
	in, err := sweep.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := sweep.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		d.stop()
		if err := errors.Join(in.Close(), sweep.Wait()); err != nil {
			t.Errorf("sweep: %v", err)
		}
	})
	if _, err := in.Write([]byte(dir + "\n")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "none.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.start()
	return d
}

func (d *daemon) host() string { return "unix://" + filepath.Join(d.dir, "sock") }

// start starts the daemon and returns when it answers.
func (d *daemon) start() {
	d.t.Helper()
	// Of those that were killed. The containerd of a killed dockerd dies with it, but
	// where no parent waits for it, it seems to live.
	for _, name := range []string{"pid", "exec/containerd/containerd.pid"} {
		if err := os.Remove(filepath.Join(d.dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			d.t.Fatal(err)
		}
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.t.Fatal(err)
	}
	defer log.Close()
	args := append([]string{
		"--host=" + d.host(), "--data-root=" + filepath.Join(d.dir, "data"), "--exec-root=" + filepath.Join(d.dir, "exec"),
		"--pidfile=" + filepath.Join(d.dir, "pid"), "--config-file=" + filepath.Join(d.dir, "none.json"),
		"--iptables=false", "--ip6tables=false", "--bridge=none",
	}, d.options...)
	d.cmd = exec.CommandContext(context.WithoutCancel(d.t.Context()), "dockerd", args...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		d.t.Fatal(err)
	}
	ended := make(chan struct{})
	cmd := d.cmd
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ends is of no interest
	}()
	d.ended = ended
	api := d.client()
	for ctx := within(d.t); ; {
		if api.answers(ctx) {
			return
		}
		select {
		case <-ended:
			d.t.Fatalf("dockerd has ended:\n%s", d.log())
		case <-ctx.Done():
			d.t.Fatalf("dockerd does not answer:\n%s", d.log())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// log is the end of what the daemon says.
func (d *daemon) log() []byte {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log")) // best effort: it is for a person
	return text[max(0, len(text)-3000):]
}

func (d *daemon) signal(s syscall.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Fatal(err)
	}
}

// kill kills the daemon and returns when it has ended. Its children keep running.
func (d *daemon) kill() {
	d.t.Helper()
	d.signal(syscall.SIGKILL)
	<-d.ended
}

// stop ends the daemon in good order.
func (d *daemon) stop() {
	if d.cmd == nil || d.cmd.Process == nil {
		return
	}
	_ = d.cmd.Process.Signal(syscall.SIGCONT) // it may have ended
	_ = d.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.ended:
	case <-time.After(time.Minute):
		_ = d.cmd.Process.Kill()
		<-d.ended
	}
}

// guests lists the processes that are guests in containers of the daemon.
func (d *daemon) guests() (pids []string) {
	d.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		d.t.Fatal(err)
	}
	for _, file := range files {
		dir := filepath.Dir(file)
		name, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(name), "sandpit-guest") {
			continue // another's, or ended meanwhile
		}
		mounts, err := os.ReadFile(filepath.Join(dir, "mountinfo"))
		if err == nil && bytes.Contains(mounts, []byte(d.dir)) {
			pids = append(pids, filepath.Base(dir))
		}
	}
	return pids
}

// mounts lists the root file systems of containers that are mounted.
func (d *daemon) mounts() (points []string) {
	d.t.Helper()
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(table)) {
		if fields := strings.Fields(line); len(fields) > 4 && strings.HasPrefix(fields[4], d.dir) && strings.HasSuffix(fields[4], "/merged") {
			points = append(points, fields[4])
		}
	}
	slices.Sort(points)
	return points
}
