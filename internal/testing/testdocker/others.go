package testdocker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// Start starts a dockerd for the test with additional arguments, and returns its address. It ends with
// the test. The test is skipped if dockerd cannot run.
func Start(tb testing.TB, args ...string) string {
	tb.Helper()
	return "unix://" + start(tb, &engine{args: args}).socket()
}

func start(tb testing.TB, e *engine) *engine {
	tb.Helper()
	if os.Geteuid() != 0 {
		testengine.Skip(tb, "a private docker engine needs root")
	}
	if _, err := exec.LookPath("dockerd"); err != nil {
		testengine.Skip(tb, "dockerd not found; install docker.io")
	}
	tb.Cleanup(func() {
		if err := e.stop(); err != nil {
			tb.Errorf("end the engine: %v", err)
		}
	})
	if _, err := e.start(); err != nil {
		testengine.Skip(tb, "dockerd %s does not start here: %v", strings.Join(e.args, " "), err)
	}
	return e
}

var listening = regexp.MustCompile(`API listen on (127\.0\.0\.1:[0-9]+)`)

// StartTCP starts a dockerd that also listens on a port of this machine, and returns host and port.
func StartTCP(tb testing.TB, args ...string) string {
	tb.Helper()
	e := start(tb, &engine{args: append([]string{"--host=tcp://127.0.0.1:0"}, args...)})
	for begin := time.Now(); time.Since(begin) < startTime; time.Sleep(50 * time.Millisecond) {
		text, err := os.ReadFile(e.log.Name())
		if err != nil {
			tb.Fatal(err)
		}
		if found := listening.FindSubmatch(text); found != nil {
			return string(found[1])
		}
	}
	tb.Fatal("dockerd does not say where it listens")
	return ""
}

// unprivilegedUser is the user of the IDs 65534 of Debian.
const unprivilegedUser = "nobody"

// remapped runs a program with its own /etc, in which unprivilegedUser has subordinate IDs.
const remapped = `cp -a /etc "$1/etc" && echo ` + unprivilegedUser + `:1652000:65536 | tee "$1/etc/subuid" >"$1/etc/subgid" && chmod 711 "$1" &&
mount --bind "$1/etc" /etc && shift && exec "$@"`

// StartRemapped starts a dockerd whose containers have user namespaces and can use the network
// "bridge". It runs in its own network namespace and does not change the machine's.
func StartRemapped(tb testing.TB) string {
	tb.Helper()
	e := &engine{args: []string{"--userns-remap=" + unprivilegedUser + ":nogroup", "--bridge="}}
	e.prepare = func() { e.before = []string{"unshare", "--mount", "--net", "sh", "-c", remapped, "sh", e.dir} }
	return "unix://" + start(tb, e).socket()
}

// unprivileged runs a program as an unprivileged user in a directory that it owns. The program has its
// own /etc, in which the user has subordinate IDs.
const unprivileged = `cp -a /etc "$1/etc" && echo ` + unprivilegedUser + `:1718000:65536 | tee "$1/etc/subuid" >"$1/etc/subgid" &&
mount --bind "$1/etc" /etc && mkdir -m 700 "$1/home" "$1/home/run" && chown -R 65534:65534 "$1"/[!e]* && chown 65534:65534 "$1" && chmod 711 "$1" &&
dir=$1 && shift && cd / && exec setpriv --reuid=65534 --regid=65534 --clear-groups env -i PATH="$PATH" HOME="$dir/home" XDG_RUNTIME_DIR="$dir/home/run" "$@"`

// asNobody returns the command that runs a program with unprivileged.
func asNobody(dir string) []string {
	return []string{"unshare", "--mount", "sh", "-c", unprivileged, "sh", dir}
}

func needRootless(tb testing.TB, programs ...string) {
	tb.Helper()
	for _, program := range append(programs, "newuidmap", "unshare", "setpriv") {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(tb, "there is no %s; install rootlesskit, uidmap and util-linux", program)
		}
	}
}

// StartRootless starts a dockerd of an unprivileged user. RootlessKit creates its user namespace, as in
// Docker's own script.
func StartRootless(tb testing.TB) string {
	tb.Helper()
	needRootless(tb, "rootlesskit")
	e := &engine{args: []string{"--rootless"}}
	e.prepare = func() {
		e.before = append(asNobody(e.dir), "rootlesskit", "--net=host", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave",
			"--state-dir="+filepath.Join(e.dir, "home/kit"), "sh", "-c", `rm -f /run/docker /run/containerd /run/xtables.lock; exec "$@"`, "sh")
	}
	return "unix://" + start(tb, e).socket()
}

// podmanRuntime is runc with a limit of processes that a process without CAP_SYS_RESOURCE can set.
// Podman requests a million.
const podmanRuntime = `#!/bin/sh
before=
for arg; do
	[ "$before" = --bundle ] && sed -i -E 's/("RLIMIT_NPROC","hard":)[0-9]+(,"soft":)[0-9]+/\14096\24096/' "$arg/config.json"
	before=$arg
done
exec runc "$@"
`

const podmanConfig = `[engine]
runtime = "test"
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
[engine.runtimes]
test = ["%s"]
`

// Podman starts a Podman service, which is compatible with Docker, for the test, and returns its
// address. It ends with the test. The test is skipped if Podman cannot run.
func Podman(tb testing.TB) string {
	tb.Helper()
	return podman(tb, func(string) []string { return nil })
}

// PodmanRootless is Podman as an unprivileged user.
func PodmanRootless(tb testing.TB) string {
	tb.Helper()
	needRootless(tb)
	return podman(tb, asNobody)
}

func podman(tb testing.TB, before func(dir string) []string) string {
	tb.Helper()
	if os.Geteuid() != 0 {
		testengine.Skip(tb, "a private podman service needs root here")
	}
	for _, program := range []string{"podman", "runc", "conmon"} {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(tb, "there is no %s; install podman and runc", program)
		}
	}
	dir, err := os.MkdirTemp("", "sandpit-podman-") //nolint:usetesting // short, for a socket's name
	if err != nil {
		tb.Fatal(err)
	}
	for name, text := range map[string]string{"runtime": podmanRuntime, "containers.conf": fmt.Sprintf(podmanConfig, filepath.Join(dir, "runtime"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil { //nolint:gosec // one is a program
			tb.Fatal(err)
		}
	}
	host := "unix://" + filepath.Join(dir, "sock")
	log := filepath.Join(dir, "log")
	args := append([]string{"-c", keeper, "keeper", dir}, before(dir)...) // it ends with its input
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), "sh", append(args,
		"env", "CONTAINERS_CONF="+filepath.Join(dir, "containers.conf"),
		"podman", "--root="+filepath.Join(dir, "root"), "--runroot="+filepath.Join(dir, "run"), "--tmpdir="+filepath.Join(dir, "tmp"),
		"system", "service", "--time=0", host)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	logFile, err := os.Create(log)
	if err != nil {
		tb.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = logFile, logFile
	keep, err := cmd.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // its exit status does not matter
	}()
	tb.Cleanup(func() {
		errs := []error{removeContainers(host)}
		pause, _ := os.ReadFile(filepath.Join(dir, pauseFile)) // with rights it does not exist
		errs = append(errs, keep.Close())
		select {
		case <-ended:
		case <-time.After(time.Minute):
			errs = append(errs, errors.New("it does not end"))
		}
		if name := strings.TrimSpace(string(pause)); name != "" {
			if args, _ := os.ReadFile(filepath.Join("/proc", name, "cmdline")); len(args) > 0 { //nolint:gosec // a number of Podman's; it has none when it has ended
				errs = append(errs, fmt.Errorf("its process %s is left: %s", name, args))
			}
		}
		if err := errors.Join(append(errs, logFile.Close(), unmountBelow(dir), os.RemoveAll(dir))...); err != nil {
			tb.Errorf("end podman: %v", err)
		}
	})
	if err := awaitPing(host, log, ended); err != nil {
		testengine.Skip(tb, "podman does not start here: %v", err)
	}
	return host
}

// awaitPing waits until an engine answers.
func awaitPing(host, log string, ended <-chan struct{}) error {
	c, err := client.New(client.WithHost(host))
	if err != nil {
		return err
	}
	defer c.Close()
	for begin := time.Now(); time.Since(begin) < startTime; {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err = c.Ping(ctx, client.PingOptions{})
		cancel()
		if err == nil {
			return nil
		}
		select {
		case <-ended:
			text, _ := os.ReadFile(log) // best effort, for people
			return fmt.Errorf("it has ended: %s", text[max(0, len(text)-2000):])
		case <-time.After(100 * time.Millisecond):
		}
	}
	text, _ := os.ReadFile(log) // as above
	return fmt.Errorf("it does not answer: %w: %s", err, text[max(0, len(text)-2000):])
}
