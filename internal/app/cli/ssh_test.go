package cli_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// program is the real one, with directories of its own.
type program struct {
	t       *testing.T
	path    string
	environ []string
}

// run runs it to its end.
func (p *program) run(stdin string, args ...string) (stdout, stderr string, code int) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), 2*long)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, args...)
	cmd.Env, cmd.WaitDelay = p.environ, 10*time.Second
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err := cmd.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		p.t.Fatalf("%q: %v", args, err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// want runs it and wants what it prints.
func (p *program) want(stdout string, args ...string) {
	p.t.Helper()
	if out, errs, code := p.run("", args...); out != stdout || code != 0 {
		p.t.Errorf("sandpit %q: status %d, %q, want %q\n%s", args, code, out, stdout, errs)
	}
}

// serve starts a server, and returns its URL.
func (p *program) serve(args ...string) string {
	p.t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(p.t.Context()), p.path, append([]string{"serve"}, args...)...)
	cmd.Env, cmd.Stderr, cmd.WaitDelay = p.environ, p.t.Output(), 10*time.Second
	out, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		timer := time.AfterFunc(2*long, func() { _ = cmd.Process.Kill() })
		defer timer.Stop()
		if err := cmd.Wait(); err != nil {
			p.t.Errorf("serve: %v", err)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	at := regexp.MustCompile(`https?://\S+`).FindString(line)
	if at == "" {
		p.t.Fatalf("serve: %q, %v", line, err)
	}
	return at
}

// TestTLSAndSSH serves with an authority of its own, and goes into a real sandbox by the
// machine's ssh, with a token and with a key.
func TestTLSAndSSH(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(name); err != nil {
			testengine.Skip(t, "there is no %s on this machine", name)
		}
	}
	dir, err := os.MkdirTemp("", "sp") //nolint:usetesting // t.TempDir is too long a name for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	tmp := filepath.Join(dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, path: testengine.Path(t), environ: append(testengine.Environ(dir), "LANG=C.UTF-8", "TMPDIR="+tmp)}
	if _, errs, code := p.run("", "tls", "ca"); code == 0 || !strings.Contains(errs, "--tls=local") {
		t.Errorf("tls ca without one: %d, %s", code, errs)
	}
	url := p.serve("--listen", "127.0.0.1:0", "--tls=local", "--ssh", "127.0.0.1:0", "--log-level", "warn")
	out, errs, code := p.run("", "create", "-q", "--name", "work")
	id := strings.TrimSpace(out)
	if code != 0 {
		t.Fatalf("create: %s", errs)
	}
	t.Cleanup(func() { p.run("", "rm", "work") })

	// The certificate, and a client that does not know it.
	out, errs, code = p.run("", "tls", "ca")
	if code != 0 || !strings.HasPrefix(out, "-----BEGIN CERTIFICATE-----") || strings.Contains(out, "PRIVATE") {
		t.Fatalf("tls ca: %d, %q, %s", code, out, errs)
	}
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	key, errs, code := p.run("", "key", "create", "-q", "--owner", "local", "--admin")
	if code != 0 {
		t.Fatalf("key create: %s", errs)
	}
	remote := &program{t: t, path: p.path, environ: append(testengine.Environ(filepath.Join(dir, "r")), "SANDPIT_URL="+url, "SANDPIT_API_KEY="+strings.TrimSpace(key))}
	if _, errs, code := remote.run("", "ls", "-q"); code == 0 || !strings.Contains(errs, "SANDPIT_CA") {
		t.Errorf("without the certificate: %d, %s", code, errs)
	}
	remote.environ = append(remote.environ, "SANDPIT_CA="+ca)
	remote.want(id+"\n", "ls", "-q")

	// A token.
	for _, p := range []*program{p, remote} {
		p.want("x\n"+id+"\n", "ssh", "work", "echo x; echo "+id)
		if out, errs, code := p.run("in", "ssh", "work", "cat; echo err >&2; exit 3"); out != "in" || errs != "err\n" || code != 3 {
			t.Errorf("ssh: %d, %q, %q", code, out, errs)
		}
	}
	if left, err := filepath.Glob(filepath.Join(tmp, "sandpit-ssh-*")); err != nil || len(left) > 0 {
		t.Errorf("a token is left behind: %q, %v", left, err)
	}

	// A key.
	file := filepath.Join(dir, "id")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "mine", "-f", file).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, errs, code := p.run("", "ssh-key", "add", file); code == 0 || !strings.Contains(errs, "private key") {
		t.Errorf("a private key: %d, %s", code, errs)
	}
	keyID, errs, code := p.run("", "ssh-key", "add", "-q", file+".pub")
	if code != 0 {
		t.Fatalf("ssh-key add: %s", errs)
	}
	if out, _, _ := p.run("", "ssh-key", "ls"); !strings.Contains(out, "mine") || !strings.Contains(out, "SHA256:") {
		t.Errorf("ssh-key ls: %q", out)
	}
	p.want(keyID, "ssh-key", "ls", "-q")
	p.want("in\n", "ssh", "work", "-o", "PubkeyAuthentication=yes", "-i", file, "echo in")
	p.want(keyID, "ssh-key", "rm", strings.TrimSpace(keyID))
}
