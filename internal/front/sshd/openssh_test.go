package sshd_test

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// TestOpenSSH goes through a real sandbox with the programs of OpenSSH.
func TestOpenSSH(t *testing.T) {
	t.Parallel()
	r := realRig(t)
	id := r.box("ann")
	c := r.openSSH(r.key("ann"))
	t.Run("commands", func(t *testing.T) { testCommands(t, c, id) })
	t.Run("terminal", func(t *testing.T) { testTerminal(t, c, id) })
	t.Run("sftp", func(t *testing.T) { testSFTP(t, c, id) })
	t.Run("scp", func(t *testing.T) { testSCP(t, c, id) })
	t.Run("forward", func(t *testing.T) { testForward(t, c, id) })
	t.Run("gone", func(t *testing.T) { testGone(t, c, id) })
}

func testCommands(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	for name, tc := range map[string]struct {
		stdin, command string
		want           result
	}{
		"streams apart":     {"", "echo out; echo err >&2", result{"out\n", "err\n", 0}},
		"status":            {"", "exit 42", result{"", "", 42}},
		"signal":            {"", "kill -TERM $$", result{"", "", 255}},
		"input and its end": {"one\ntwo\n", "wc -l; echo done", result{"2\ndone\n", "", 0}},
		"gVisor's kernel":   {"", "dmesg 2>/dev/null | grep -ci gvisor", result{"1\n", "", 0}},
		"environment":       {"", `echo "$LANG/$LC_SECRET/$TERM"`, result{"C.UTF-8//\n", "", 0}},
		"where":             {"", "pwd", result{sandpit.DefaultWorkDir + "\n", "", 0}},
		"no such program":   {"", "/no/such/thing", result{"", "", 127}},
	} {
		t.Run(name, func(t *testing.T) {
			got := c.run(tc.stdin, "ssh", "-o", "SendEnv=LANG", "-o", "SendEnv=LC_SECRET", at(id), tc.command)
			if name == "no such program" {
				got.stderr = ""
			}
			if got != tc.want {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
	t.Run("much", func(t *testing.T) {
		in := make([]byte, 8<<20)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(in)
		got := c.run(string(in), "ssh", at(id), "cat")
		if got.code != 0 || sha256.Sum256([]byte(got.stdout)) != sha256.Sum256(in) {
			t.Errorf("%d bytes, status %d, %s", len(got.stdout), got.code, got.stderr)
		}
	})
	t.Run("a client that goes away", func(t *testing.T) {
		cmd := c.command("ssh", at(id), "echo here; exec sleep 987654")
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if line, err := bufio.NewReader(out).ReadString('\n'); line != "here\n" {
			t.Fatalf("%q, %v", line, err)
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
		eventually(t, "the command of a client that has gone ends", func() bool {
			return c.run("", "ssh", at(id), "pgrep -f '^sleep 98765[4]'").code == 1
		})
	})
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if holds() {
			return
		}
	}
	t.Fatalf("timeout waiting until %s", what)
}

// testTerminal types into a shell, and changes the size of its window.
func testTerminal(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	cmd := c.command("ssh", "-tt", at(id))
	terminal, err := pty.StartWithSize(cmd, &pty.Winsize{Cols: 91, Rows: 17})
	if err != nil {
		t.Fatal(err)
	}
	defer terminal.Close()
	screen := &screen{t: t, in: terminal}
	screen.typed("echo size $(stty size) term $TERM; PS1=ready\\>\n", "size 17 91 term xterm-256color\r\n")
	screen.typed("", "ready>")
	if err := pty.Setsize(terminal, &pty.Winsize{Cols: 120, Rows: 30}); err != nil {
		t.Fatal(err)
	}
	screen.typed("until [ \"$(stty size)\" = '30 120' ]; do sleep 0.1; done; echo re''sized\n", "resized\r\n")
	screen.typed("", "ready>") // what is typed before may get lost
	// The program itself says that it runs. A shell misses an interrupt that comes while
	// it starts a program, here as anywhere: the child has the shell's handler still, and
	// forgets what that has noted.
	screen.typed("sh -c 'echo be\"\"gun; exec sleep 987653'\n", "begun\r\n")
	screen.typed("\x03", "ready>")
	screen.typed("exit 7\n", "exit 7")
	_, _ = io.Copy(io.Discard, terminal) // until it is closed, which looks like an error
	if err := cmd.Wait(); cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("%v\n%s", err, screen.seen.String())
	}
}

// screen is what a person sees.
type screen struct {
	t    *testing.T
	in   *os.File
	seen bytes.Buffer
	last string // what was waited for
}

// typed types keys and waits until something is shown.
func (s *screen) typed(keys, want string) {
	s.t.Helper()
	_, rest, _ := strings.Cut(s.seen.String(), s.last)
	s.seen.Reset()
	s.seen.WriteString(rest)
	s.last = want
	if _, err := io.WriteString(s.in, keys); err != nil {
		s.t.Fatal(err)
	}
	b := make([]byte, 4096)
	for !strings.Contains(s.seen.String(), want) {
		n, err := s.in.Read(b)
		s.seen.Write(b[:n])
		if err != nil {
			s.t.Fatalf("%q never came: %v\n%q", want, err, s.seen.String())
		}
	}
}

// testSFTP does what OpenSSH's sftp can.
func testSFTP(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	content := make([]byte, 3<<20+17)
	_, _ = rand.NewChaCha8([32]byte{2}).Read(content)
	write(t, filepath.Join(c.dir, "large"), content)
	write(t, filepath.Join(c.dir, "small"), []byte("hello\n"))
	write(t, filepath.Join(c.dir, "tree/a/b"), []byte("deep\n"))
	if err := os.Chmod(filepath.Join(c.dir, "small"), 0o751); err != nil {
		t.Fatal(err)
	}
	got := c.run(`
pwd
mkdir dir
put large dir/large
put -p small dir/small
put -R tree dir/
ls -1 dir
rename dir/small dir/renamed
symlink renamed dir/link
chmod 0600 dir/large
get dir/large back
get dir/link linked
get -R dir/tree got
ls -l dir
-mkdir dir
-rmdir dir
-rm dir/nothing
-get dir nowhere
-put small /no/such/dir/file
rm dir/link
df /
`, "sftp", "-b", "-", at(id))
	if got.code == 0 || !strings.Contains(got.stderr, "Couldn't") && !strings.Contains(got.stdout+got.stderr, "not support") {
		t.Logf("the last line is not supported: %+v", got)
	}
	for _, want := range []string{
		"Remote working directory: " + sandpit.DefaultWorkDir, "dir/large\n", "dir/small\n", "dir/tree\n", "-rwxr-x--x", "-rw-------", "lrw",
	} {
		if !strings.Contains(got.stdout, want) {
			t.Errorf("%q is missing:\n%s\n%s", want, got.stdout, got.stderr)
		}
	}
	for name, want := range map[string]string{"back": string(content), "linked": "hello\n", "got/a/b": "deep\n"} {
		if have, err := os.ReadFile(filepath.Join(c.dir, name)); err != nil || string(have) != want {
			t.Errorf("%s: %d bytes, %v", name, len(have), err)
		}
	}
	inside := c.run("", "ssh", at(id), "cd dir && sha256sum < large && stat -c '%a %n' large renamed && cat tree/a/b && ls -A && ls -d /no 2>&1")
	want := fmt.Sprintf("%x  -\n600 large\n751 renamed\ndeep\nlarge\nrenamed\ntree\n", sha256.Sum256(content))
	if !strings.HasPrefix(inside.stdout, want) || inside.code == 0 {
		t.Errorf("%+v, want %q and no /no", inside, want)
	}
	t.Run("resume", func(t *testing.T) {
		if got := c.run("", "ssh", at(id), "head -c 1000001 dir/large > dir/part"); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		got := c.run("reput large dir/part\n", "sftp", "-b", "-", at(id))
		inside := c.run("", "ssh", at(id), "sha256sum < dir/part")
		if want := fmt.Sprintf("%x  -\n", sha256.Sum256(content)); got.code != 0 || inside.stdout != want {
			t.Errorf("%+v\n%+v, want %q", got, inside, want)
		}
	})
	t.Run("hostile names", func(t *testing.T) {
		if got := c.run("", "ssh", at(id), `mkdir -p dir/odd && cd dir/odd && touch -- '-rf' 'a b' '$(id)' "$(printf 'x\033[31m')"`); got.code != 0 {
			t.Fatalf("%+v", got)
		}
		got := c.run("ls -1 dir/odd\nchmod 0640 \"dir/odd/a b\"\nrm \"dir/odd/$(id)\"\n", "sftp", "-b", "-", at(id))
		inside := c.run("", "ssh", at(id), `stat -c '%a %n' dir/odd/a*; ls dir/odd | wc -l`)
		if got.code != 0 || inside.stdout != "640 dir/odd/a b\n3\n" {
			t.Errorf("%+v\n%+v", got, inside)
		}
	})
}

func write(t *testing.T, name string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// testSCP copies with scp, which speaks SFTP.
func testSCP(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	content := make([]byte, 1<<20+1)
	_, _ = rand.NewChaCha8([32]byte{3}).Read(content)
	write(t, filepath.Join(c.dir, "one"), content)
	write(t, filepath.Join(c.dir, "shorter"), content[:100])
	write(t, filepath.Join(c.dir, "folder/x"), []byte("x\n"))
	for _, args := range [][]string{
		{"-s", "-p", "one", at(id) + ":copied"},
		{"-s", "shorter", at(id) + ":replaced"},
		{"-s", "one", at(id) + ":replaced"},
		{"-s", "-r", "folder", at(id) + ":"},
		{"-s", at(id) + ":copied", "two"},
		{"-s", at(id) + ":replaced", "three"},
		{"-s", "-r", at(id) + ":folder", "again"},
	} {
		if got := c.run("", "scp", args...); got.code != 0 {
			t.Errorf("scp %q: %+v", args, got)
		}
	}
	for name, want := range map[string]string{"two": string(content), "three": string(content), "again/x": "x\n"} {
		if have, err := os.ReadFile(filepath.Join(c.dir, name)); err != nil || string(have) != want {
			t.Errorf("%s: %d bytes, %v", name, len(have), err)
		}
	}
	// What is there and longer is cut: scp does not say so when it begins.
	if got := c.run("", "scp", "-s", "shorter", at(id)+":copied"); got.code != 0 {
		t.Errorf("%+v", got)
	}
	if got := c.run("", "ssh", at(id), "wc -c < copied"); got.stdout != "100\n" {
		t.Errorf("%+v", got)
	}
}

// testForward reaches a server in the sandbox.
func testForward(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	const serve = `import socketserver
class H(socketserver.StreamRequestHandler):
    def handle(self):
        data = self.rfile.read()
        self.wfile.write(b"got %d bytes" % len(data))
s = socketserver.ThreadingTCPServer(("127.0.0.1", 0), H)
print(s.server_address[1], flush=True)
s.serve_forever()`
	server := c.command("ssh", at(id), "exec python3 -c '"+serve+"'")
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Process.Kill(); _ = server.Wait() }()
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		testNoPython(t, c, id)
		return
	}
	port = strings.TrimSpace(port)
	local := filepath.Join(c.dir, "forward.sock")
	forward := c.command("ssh", "-N", "-L", local+":localhost:"+port, at(id))
	if err := forward.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = forward.Process.Kill(); _ = forward.Wait() }()
	eventually(t, "ssh listens", func() bool { _, err := os.Stat(local); return err == nil })
	for range 3 {
		conn, err := new(net.Dialer).DialContext(t.Context(), "unix", local)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(conn, strings.NewReader(strings.Repeat("x", 1<<20)))
		_ = conn.(*net.UnixConn).CloseWrite() // the answer comes after the end
		got, err := io.ReadAll(conn)
		if string(got) != "got 1048576 bytes" || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		_ = conn.Close()
	}
	// Nowhere else: neither by -W, nor back.
	for _, target := range []string{"192.0.2.1:80", "169.254.169.254:80", "example.com:80", "0.0.0.0:80", "localhost:49983", "localhost:1"} {
		if got := c.run("", "ssh", "-W", target, at(id)); got.code == 0 || !strings.Contains(got.stderr, "open failed") {
			t.Errorf("-W %s: %+v", target, got)
		}
	}
	got := c.run("", "ssh", "-o", "ExitOnForwardFailure=yes", "-R", "0:localhost:1", at(id), "true")
	if got.code != 255 || !strings.Contains(got.stderr, "remote port forwarding failed") {
		t.Errorf("-R: %+v", got)
	}
}

func testNoPython(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	t.Errorf("there is no python3 inside: %+v", c.run("", "ssh", at(id), "python3 -V"))
}

// testGone checks that a client hears why its sandbox is gone.
func testGone(t *testing.T, c *client, id sandpit.ID) {
	t.Helper()
	working := c.command("ssh", at(id), "echo here; exec sleep 987652")
	out, err := working.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	working.Stderr = &stderr
	if err := working.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "here\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := c.r.Delete(manager.WithActor(t.Context(), "bob"), id); err != nil {
		t.Fatal(err)
	}
	_ = working.Wait() // its status is looked at
	if working.ProcessState.ExitCode() != 255 || !strings.Contains(stderr.String(), "sandpit: ") || !strings.Contains(stderr.String(), "bob") {
		t.Errorf("status %d, %q", working.ProcessState.ExitCode(), stderr.String())
	}
	got := c.run("", "ssh", at(id), "true")
	if got.code != 255 || !strings.Contains(got.stderr, "is gone") || !strings.Contains(got.stderr, "bob") {
		t.Errorf("%+v", got)
	}
	got = c.run("", "ssh", at(sandpit.NewID()), "true")
	if got.code != 255 || !strings.Contains(got.stderr, "Permission denied") {
		t.Errorf("%+v", got)
	}
}
