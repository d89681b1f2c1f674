package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandpit-dev/sandpit/internal/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testengine"
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
	provider, err := docker.New(docker.Options{
		Endpoint: docker.Endpoint{Host: engineHost(t)}, StateDir: t.TempDir(), Guest: testdocker.Guest(t),
	})
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

// TestDockerServerKilled kills a server below a command in a container, which goes on,
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
