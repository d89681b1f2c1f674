package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// busybox is an image of the docker engine with a shell.
const busybox = "sandpit-test/cli-busybox:1"

var importBusybox sync.Once

// engineHost is a docker engine that has busybox.
func engineHost(t *testing.T) string {
	t.Helper()
	host := testdocker.Host(t)
	importBusybox.Do(func() { testdocker.Import(t, busybox, testdocker.BusyboxFiles(t), `CMD ["echo","from the image"]`) })
	return host
}

// TestServerScriptsInDocker uses a server whose sandboxes are containers.
func TestServerScriptsInDocker(t *testing.T) {
	t.Parallel()
	provider, err := docker.New(testoptions.Docker(docker.Options{
		Endpoint: docker.Endpoint{Host: engineHost(t)}, StateDir: t.TempDir(), Guest: testdocker.Guest(t),
	}))
	if err != nil {
		t.Fatal(err)
	}
	runServerScripts(t, filepath.Join("testdata", "docker"), newServer(t, "docker", provider), "IMAGE="+busybox)
}

// TestScriptsInDocker uses containers without a server, and finds none of them left.
func TestScriptsInDocker(t *testing.T) {
	t.Parallel()
	host, engine := engineHost(t), testengine.Path(t)
	t.Run("scripts", func(t *testing.T) {
		testscript.Run(t, testscript.Params{
			Dir: filepath.Join("testdata", "dockerlocal"), RequireExplicitExec: true, RequireUniqueNames: true,
			Setup: func(env *testscript.Env) error {
				env.Vars = append(env.Vars, testengine.Environ(env.WorkDir)...)
				env.Setenv(testengine.Variable, engine)
				env.Setenv("DOCKER_HOST", host)
				env.Setenv("IMAGE", busybox)
				return nil
			},
			Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": statusIs},
		})
	})
	testdocker.ExpectNone(t, "dev.sandpit.ephemeral")
}

// TestDockerServerKilled kills a server below a command in a container, which continues to run,
// and a run, whose container ends.
func TestDockerServerKilled(t *testing.T) {
	t.Parallel()
	host, program := engineHost(t), testengine.Path(t)
	dir, err := os.MkdirTemp("", "sp") //nolint:usetesting // t.TempDir is too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := "SANDPIT_URL=unix://" + filepath.Join(dir, "run", "sandpit.sock")
	command := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = append(testengine.Environ(dir), "SANDBOX_PROVIDER=docker", "DOCKER_HOST="+host, "SANDPIT_DOCKER_IMAGE="+busybox,
			"SANDPIT_SERVER_LISTEN=none")
		return cmd
	}
	ask := func(args ...string) string {
		t.Helper()
		var stderr bytes.Buffer
		cmd := command(args...)
		cmd.Stderr, cmd.Env = &stderr, append(cmd.Env, socket)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%q: %v\n%s", args, err, &stderr)
		}
		return strings.TrimSpace(string(out))
	}
	serve := func() (kill func()) {
		t.Helper()
		cmd := command("serve")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill = sync.OnceFunc(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed
		})
		t.Cleanup(kill)
		ask("check", "--wait", long.String())
		return kill
	}
	kill := serve()
	id := ask("create", "-q", "--label", "test=killed")
	cmd := ask("exec", "-d", id, "--", "sh", "-c", "i=0; while [ $i -lt 30 ]; do echo line $i; i=$((i+1)); sleep 0.1; done; exit 0")
	kill()
	kill = serve()
	if got := ask("logs", "-f", id, cmd); strings.Count(got, "line ") != 30 || !strings.HasSuffix(got, "line 29") {
		t.Errorf("log: %q, want 30 lines", got)
	}
	ask("rm", id)
	testdocker.ExpectNone(t, "dev.sandpit.id="+id)
	kill()
	testRunKilled(t, command)
}

// TestImagesElsewhere works with the images of a server and of a docker engine, and
// leaves the cache of its own machine alone.
func TestImagesElsewhere(t *testing.T) {
	t.Parallel()
	host, program := engineHost(t), testengine.Path(t)
	registry := testdocker.NewRegistry(t)
	files := append(testdocker.BusyboxFiles(t), testdocker.File{Name: "etc/unique", Mode: 0o644, Content: []byte(sandpit.NewID())})
	tagged, _ := registry.Push(t, "team/box", "1", files, nil)
	dir, err := os.MkdirTemp("", "sp") //nolint:usetesting // t.TempDir is too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	command := func(environ []string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), program, args...)
		cmd.Env = slices.Concat(environ, []string{"DOCKER_HOST=" + host})
		return cmd
	}
	served := testengine.Environ(dir)
	server := command(append(served, "SANDBOX_PROVIDER=docker", "SANDPIT_DOCKER_IMAGE="+busybox, "SANDPIT_SERVER_LISTEN=none"), "serve")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it was killed
	})
	socket := "--server=unix://" + filepath.Join(dir, "run", "sandpit.sock")
	mine := testengine.Environ(t.TempDir())
	if out, err := command(mine, "check", "--wait", long.String(), socket).CombinedOutput(); err != nil {
		t.Fatalf("the server does not start: %v\n%s", err, out)
	}
	for _, tc := range []struct {
		args   string
		status int
		want   string
	}{
		{"image ls -a", 0, "NAME +DIGEST"},
		{"image pull --provider docker " + tagged, 0, tagged},
		{"image ls --provider docker", 0, tagged},
		{"image rm --provider docker " + tagged, 125, "hint: docker image rm"},
		{"image pull --provider nobody " + tagged, 125, "Unsupported provider type"},
		{"image pull --provider docker " + registry.Host() + "/team/none:1", 125, "hint: check the name"},
		{"image ls " + socket, 0, tagged},
		{"image pull " + socket + " " + tagged, 0, tagged},
		{"image rm " + socket + " " + tagged, 125, "hint: docker image rm"},
		{"image pull --provider gvisor " + socket + " " + tagged, 0, tagged},
		{"image ls --provider gvisor " + socket, 0, tagged},
		{"image ls --json --provider gvisor " + socket, 0, `"kind": "layers"`},
		{"image rm --provider gvisor " + socket + " " + tagged, 0, tagged},
		{"image rm --provider gvisor " + socket + " " + tagged, 3, "not in the cache"},
		{"image pull " + socket + " /etc", 2, "image of a registry"},
		{"image import " + socket + " " + dir, 125, "hint: run this on the server's machine"},
		{"image prune " + socket, 125, "the image cache of this machine"},
		{"image update " + socket, 125, "the image cache of this machine"},
		{"image ls --server=unix:///nowhere.sock", 4, "nowhere"},
		{"image ls", 0, "NAME +DIGEST"},
	} {
		cmd := command(mine, strings.Fields(tc.args)...)
		out, err := cmd.CombinedOutput()
		if status := cmd.ProcessState.ExitCode(); status != tc.status || !regexp.MustCompile(tc.want).Match(out) {
			t.Errorf("sandpit %s: %v, status %d, want %d and %q:\n%s", tc.args, err, status, tc.status, tc.want, out)
		}
	}
	out, err := command(mine, "image", "ls").Output()
	if err != nil || strings.Contains(string(out), tagged) {
		t.Errorf("this machine's cache: %v\n%s", err, out)
	}
}

// testRunKilled kills a run in the middle of its command.
func testRunKilled(t *testing.T, command func(...string) *exec.Cmd) {
	t.Helper()
	run := command("run", "--", "sh", "-c", "echo begun; sleep 1000")
	out, err := run.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Errorf("the command does not begin: %v", err)
	}
	_ = run.Process.Kill()
	_ = run.Wait() // it was killed
	testdocker.ExpectNone(t, "dev.sandpit.ephemeral")
}
