// Package testdocker gives tests a Docker engine: the one in a variable, otherwise a private one of
// the test binary, which has all of its files below one temporary directory, has no network, and does
// not change the machine.
package testdocker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// HostVariable is the address of an engine in the form of DOCKER_HOST. Tests may fill it with
// anything.
const HostVariable = "SANDPIT_TEST_DOCKER_HOST"

// Main runs the tests and ends the engine, if one was started. It is for TestMain.
func Main(m *testing.M) int {
	status := m.Run()
	if err := shared.stop(); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "testdocker:", err)
		return max(status, 1)
	}
	return status
}

// Host returns the engine's address, and skips the test without an engine.
func Host(tb testing.TB) string {
	tb.Helper()
	if host := os.Getenv(HostVariable); host != "" {
		return host
	}
	if os.Geteuid() != 0 {
		testengine.Skip(tb, "a private docker engine needs root; name one by %s", HostVariable)
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		testengine.Skip(tb, "dockerd not found; install docker.io, or set %s to the address of an engine", HostVariable)
	}
	host, err := shared.start()
	if err != nil {
		testengine.Skip(tb, "dockerd does not start here: %v", err)
	}
	return host
}

// Client returns a client of the engine, which is closed when the test ends.
func Client(tb testing.TB) *client.Client {
	tb.Helper()
	c, err := client.New(client.WithHost(Host(tb)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

// engine is a dockerd that this process started.
type engine struct {
	before  []string // the command that runs dockerd
	prepare func()   // called when the directory exists; may be nil
	args    []string // additional arguments of dockerd

	mu    sync.Mutex
	dir   string
	err   error
	keep  io.Closer // dockerd ends when it is closed
	ended chan struct{}
	log   *os.File
}

var shared engine //nolint:gochecknoglobals // one for all tests of a package, ended by Main

const startTime = 2 * time.Minute

// keeper runs an engine until its input ends, which also happens when this process is killed, and then
// removes its files. Rootless Podman leaves a process that holds its namespaces, and sometimes the
// service itself, so the keeper ends its whole process group.
const keeper = `dir=$1; shift; "$@" </dev/null & pid=$!; cat >/dev/null; kill $pid; wait $pid
[ ! -e "$dir/` + pauseFile + `" ] || kill -9 $(cat "$dir/` + pauseFile + `"); rm -rf --one-file-system "$dir"; kill -9 0`

// pauseFile contains the ID of Podman's process.
const pauseFile = "tmp/pause.pid"

func (e *engine) start() (host string, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dir != "" || e.err != nil {
		return "unix://" + e.socket(), e.err
	}
	defer func() { e.err = err }()
	if e.dir, err = os.MkdirTemp("", "sandpit-docker-"); err != nil {
		return "", err
	}
	if e.log, err = os.Create(filepath.Join(e.dir, "log")); err != nil {
		return "", err
	}
	if e.prepare != nil {
		e.prepare()
	}
	args := append([]string{"-c", keeper, "keeper", e.dir}, e.before...)
	args = append(args, "dockerd", "--host=unix://"+e.socket(), "--data-root="+filepath.Join(e.dir, "data"), "--exec-root="+filepath.Join(e.dir, "exec"),
		"--pidfile="+filepath.Join(e.dir, "pid"), "--config-file="+filepath.Join(e.dir, "none.json"),
		"--iptables=false", "--ip6tables=false", "--bridge=none")
	cmd := exec.CommandContext(context.Background(), "sh", append(args, e.args...)...)
	if err := os.WriteFile(filepath.Join(e.dir, "none.json"), []byte("{}"), 0o600); err != nil {
		return "", err
	}
	cmd.Stdout, cmd.Stderr = e.log, e.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // signals from the keyboard are for the tests
	if e.keep, err = cmd.StdinPipe(); err != nil {
		return "", err
	}
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan struct{})
	e.ended = ended
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its exit status does not matter
	}()
	return "unix://" + e.socket(), awaitPing("unix://"+e.socket(), e.log.Name(), ended)
}

func (e *engine) socket() string { return filepath.Join(e.dir, "sock") }

// stop removes the containers, ends the engine and removes its files.
func (e *engine) stop() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.dir == "" {
		return nil
	}
	var errs []error
	if e.keep != nil {
		errs = append(errs, removeContainers("unix://"+e.socket()), e.keep.Close())
		select {
		case <-e.ended:
		case <-time.After(time.Minute):
			errs = append(errs, errors.New("dockerd does not end"))
		}
	}
	if e.log != nil {
		errs = append(errs, e.log.Close())
	}
	return errors.Join(append(errs, unmountBelow(e.dir), os.RemoveAll(e.dir))...)
}

// removeContainers removes all containers of an engine.
func removeContainers(host string) error {
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	list, err := c.ContainerList(ctx, client.ContainerListOptions{All: true})
	if err != nil {
		return err
	}
	var errs []error
	for _, one := range list.Items {
		_, err := c.ContainerRemove(ctx, one.ID, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// unmountBelow unmounts everything below a directory, the latest first.
func unmountBelow(dir string) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	var points []string
	for line := range bytes.Lines(table) {
		if fields := strings.Fields(string(line)); len(fields) > 4 && strings.HasPrefix(fields[4], dir+"/") {
			points = append(points, fields[4])
		}
	}
	var errs []error
	for _, point := range slices.Backward(points) {
		if err := syscall.Unmount(point, syscall.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
		}
	}
	return errors.Join(errs...)
}

var guest = sync.OnceValues(buildGuest) //nolint:gochecknoglobals // built once for all tests of a package

// Guest returns the path of a guest program, built from the current sources.
func Guest(tb testing.TB) string {
	tb.Helper()
	path, err := guest()
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

func buildGuest() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sandpit-test")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "guest.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	// The name depends on the content, because another checkout may build another one.
	fresh := filepath.Join(dir, "guest.new")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", fresh, "github.com/sandpit-dev/sandpit/cmd/sandpit-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the guest: %w\n%s", err, out)
	}
	sum, err := digest(fresh)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "guest-"+sum)
	return path, os.Rename(fresh, path)
}
