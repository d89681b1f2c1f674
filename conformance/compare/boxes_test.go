package compare_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func networkProbes() []probe {
	return []probe{
		{
			name:   "interfaces",
			gvisor: "stderr: ls: /sys/class/net: No such file or directory\n", docker: "lo ",
			why: "gVisor has no `/sys/class/net`; its only interface is `lo`, too",
			do:  sh("ls /sys/class/net | tr '\\n' ' '"),
		},
		{
			name: "interfaces by ip",
			want: "lo: <LOOPBACK,UP,LOWER_UP>\n",
			do:   sh("ip -o link | awk '{print $2, $3}'"),
		},
		{
			name:   "addresses",
			gvisor: "127.0.0.1/8\n::1/128\n", docker: "127.0.0.1/8\n",
			why: "containers without a network have no `::1`",
			do:  sh("ip -o addr | awk '{print $4}'"),
		},
		{
			name:   "routes",
			gvisor: "2\n", docker: "0\n",
			why: "gVisor shows the routes of `lo`",
			do:  sh("ip route | wc -l"),
		},
		{
			name: "an address of the internet",
			want: "stderr: nc: can't connect to remote host (192.0.2.1): Network is unreachable\n[exit status 1, code 1]",
			do:   sh("nc -w 5 192.0.2.1 80 </dev/null"),
		},
		{
			name: "the address of clouds' metadata",
			want: "stderr: nc: can't connect to remote host (169.254.169.254): Network is unreachable\n[exit status 1, code 1]",
			do:   sh("nc -w 5 169.254.169.254 80 </dev/null"),
		},
		{
			name: "a name",
			want: "no answer\n",
			do:   sh("nslookup example.com >/dev/null 2>&1 || echo no answer"),
		},
		{
			name: "a connection of a sandbox to itself",
			want: "from the image\n",
			do:   sh("httpd -f -p 127.0.0.1:4001 -h /data & for i in $(seq 100); do wget -q -O - http://127.0.0.1:4001/text 2>/dev/null && break; sleep 0.05; done; kill $!"),
		},
		{
			name:   "localhost",
			gvisor: "stderr: nc: bad address 'localhost'\n[exit status 1, code 1]", docker: "stderr: nc: can't connect to remote host (127.0.0.1): Connection refused\n[exit status 1, code 1]",
			why: "the image has no `/etc/hosts`; Docker generates one",
			do:  sh("nc -w 5 localhost 4002 </dev/null"),
		},
		{
			name: "the whole of 127.0.0.0/8",
			want: "stderr: nc: can't connect to remote host (127.1.2.3): Connection refused\n[exit status 1, code 1]",
			do:   sh("nc -w 5 127.1.2.3 4002 </dev/null"),
		},
		{
			name:   "a connection to the other IP version",
			gvisor: "stderr: nc: can't connect to remote host: Connection refused\n[exit status 1, code 1]", docker: "stderr: nc: can't connect to remote host: Cannot assign requested address\n[exit status 1, code 1]",
			why: "the same as for addresses",
			do:  sh("nc -w 5 ::1 4002 </dev/null"),
		},
		{
			name: "a server asked by HTTP",
			want: "from the image\n404 Not Found",
			do:   httpd,
		},
		{
			name: "a server dialled",
			want: "from the image\n",
			do:   dialled,
		},
		{
			name: "a port without a listener",
			want: "refused: unavailable",
			do:   nobodyListens,
		},
		{
			name: "a server on all addresses",
			want: "from the image\n",
			do:   everywhere,
		},
	}
}

// serve starts a server on a port of the shared sandbox and returns when it answers.
func serve(t *testing.T, p *place, address string, port int) {
	t.Helper()
	proc, err := p.box.Guest().Start(within(t), sandpit.Command{
		Args: []string{"httpd", "-f", "-p", fmt.Sprint(address, ":", port), "-h", "/data"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		_ = proc.Signal(ctx, sandpit.SIGKILL) // it may have ended
		_, _ = proc.Wait(ctx)                 // by that signal
	})
	dialer, ok := p.box.(sandpit.Dialer)
	if !ok {
		t.Fatal("no dialler")
	}
	for ctx := within(t); ; time.Sleep(50 * time.Millisecond) {
		c, err := dialer.Dial(ctx, port)
		if err == nil {
			_ = c.Close()
			return
		}
		if sandpit.CodeOf(err) != sandpit.Unavailable || ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// get asks for a file of a server in the shared sandbox.
func get(t *testing.T, p *place, port int, path string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(within(t), http.MethodGet, "http://box"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := p.box.HTTP(port).RoundTrip(r)
	if err != nil {
		return failure(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return failure(err)
	}
	if res.StatusCode != http.StatusOK {
		return res.Status
	}
	return string(body)
}

func httpd(t *testing.T, p *place) string {
	t.Helper()
	serve(t, p, "127.0.0.1", 4010)
	return get(t, p, 4010, "/text") + get(t, p, 4010, "/none")
}

func everywhere(t *testing.T, p *place) string {
	t.Helper()
	serve(t, p, "0.0.0.0", 4011)
	return get(t, p, 4011, "/text")
}

func dialled(t *testing.T, p *place) string {
	t.Helper()
	serve(t, p, "127.0.0.1", 4012)
	dialer, ok := p.box.(sandpit.Dialer)
	if !ok {
		t.Fatal("no dialler")
	}
	c, err := dialer.Dial(within(t), 4012)
	if err != nil {
		return failure(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /text HTTP/1.0\r\n\r\n"); err != nil {
		return failure(err)
	}
	answer, err := io.ReadAll(c)
	if err != nil {
		return failure(err)
	}
	_, body, _ := strings.Cut(string(answer), "\r\n\r\n")
	return body
}

func nobodyListens(t *testing.T, p *place) string {
	t.Helper()
	return get(t, p, 4099, "/")
}

func limitProbes() []probe {
	return []probe{
		{
			name: "more memory than there may be",
			want: "code 137, signaled true, and then: still here\n",
			do:   memoryHog,
		},
		{
			name: "more processes than there may be",
			want: "it hears of it: true, bounded: true",
			do:   forkStorm,
		},
		{
			name: "more processors than there may be",
			want: "some: true, at most twice a quarter: true",
			do:   quarterProcessor,
		},
		{
			name: "a sandbox that is over",
			want: "a reason: true, a call refused: gone, attach refused: not_found",
			do:   afterTheEnd,
		},
		{
			name: "a limit that can never be",
			want: "refused: invalid",
			do:   refusedLimit,
		},
		{
			name:   "a sandbox of a template",
			gvisor: "refused: not_found", docker: "refused: unsupported",
			why: "gVisor's provider has templates, but none of this name; Docker's provider has none, and asks no registry for one",
			do:  template,
		},
	}
}

// memoryHog has a program take more memory than there may be, and asks whether the
// sandbox continues to run.
func memoryHog(t *testing.T, p *place) string {
	t.Helper()
	box := p.create(t, sandpit.Spec{Resources: sandpit.Resources{Memory: 96 << 20}})
	proc, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"tail", "-n", "1", "/dev/zero"}})
	if err != nil {
		return failure(err)
	}
	status, err := proc.Wait(within(t))
	if err != nil {
		return failure(err)
	}
	return fmt.Sprintf("code %d, signaled %v, and then: %s", status.Code, status.Signaled, run(t, box, sandpit.Command{Args: []string{"echo", "still here"}}))
}

// forkStorm has a program start more processes than there may be, and counts them.
func forkStorm(t *testing.T, p *place) string {
	t.Helper()
	box := p.create(t, sandpit.Spec{Resources: sandpit.Resources{PIDs: 40}})
	statser, ok := box.(sandpit.Statser)
	if !ok {
		t.Fatal("no figures")
	}
	out := run(t, box, sandpit.Command{Args: []string{"sh", "-c", "for i in $(seq 200); do sleep 60 & done"}})
	stats, err := statser.Stats(within(t))
	if err != nil {
		t.Fatal(err)
	}
	const guests = 32 // processes and threads
	return fmt.Sprint("it hears of it: ", strings.Contains(out, "an't fork"), ", bounded: ", stats.PIDs <= 40+guests)
}

// quarterProcessor has a program compute for a while, and compares the time of the
// processor with that of the clock.
func quarterProcessor(t *testing.T, p *place) string {
	t.Helper()
	box := p.create(t, sandpit.Spec{Resources: sandpit.Resources{CPUs: 0.25}})
	statser, ok := box.(sandpit.Statser)
	if !ok {
		t.Fatal("no figures")
	}
	before, err := statser.Stats(within(t))
	if err != nil {
		t.Fatal(err)
	}
	run(t, box, sandpit.Command{Args: []string{"timeout", "3", "sh", "-c", "while :; do :; done"}})
	after, err := statser.Stats(within(t))
	if err != nil {
		t.Fatal(err)
	}
	share := (after.CPU - before.CPU).Seconds() / after.At.Sub(before.At).Seconds()
	t.Logf("%s: %.2f of a processor", p.kind, share)
	return fmt.Sprint("some: ", share > 0.01, ", at most twice a quarter: ", share < 0.5)
}

func afterTheEnd(t *testing.T, p *place) string {
	t.Helper()
	box := p.create(t, sandpit.Spec{})
	if err := box.Destroy(within(t)); err != nil {
		t.Fatal(err)
	}
	exit, err := box.Wait(within(t))
	if err != nil {
		t.Fatal(err)
	}
	_, err = box.Guest().Stat(within(t), "", "/")
	_, attached := p.provider.Attach(within(t), box.Handle())
	return fmt.Sprint("a reason: ", exit.Reason != "", ", a call ", failure(err), ", attach ", failure(attached))
}

func template(t *testing.T, p *place) string {
	t.Helper()
	_, err := p.provider.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: "template:none"})
	return failure(err)
}

func refusedLimit(t *testing.T, p *place) string {
	t.Helper()
	_, err := p.provider.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: p.image, Resources: sandpit.Resources{Memory: 1}})
	return failure(err)
}

func mountProbes() []probe {
	return []probe{
		{
			name: "a mount to read and one to write",
			want: "outside\ninside\nstderr: sh: can't create /closed/x: Read-only file system\noutside: inside\n",
			do:   mounts,
		},
		{
			name: "a mounted file",
			want: "outside\nfrom the image\n",
			do:   mountedFile,
		},
		{
			name: "a mount below the guest's directory",
			want: "refused: invalid",
			do:   badMount("/.sandpit/x"),
		},
		{
			name: "a mount in place of /proc",
			want: "refused: invalid",
			do:   badMount("/proc"),
		},
		{
			name: "a mount in place of the root",
			want: "refused: invalid",
			do:   badMount("/"),
		},
	}
}

func mounts(t *testing.T, p *place) string {
	t.Helper()
	shown := t.TempDir()
	if err := os.WriteFile(filepath.Join(shown, "file"), []byte("outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	box := p.create(t, sandpit.Spec{Mounts: []sandpit.Mount{{Source: shown, Target: "/closed", ReadOnly: true}, {Source: shown, Target: "/open"}}})
	got := run(t, box, sandpit.Command{Args: []string{"sh", "-c", "cat /closed/file; echo x > /closed/x; echo inside > /open/new; cat /closed/new"}})
	data, err := os.ReadFile(filepath.Join(shown, "new"))
	if err != nil {
		return got + failure(err)
	}
	return got + "outside: " + string(data)
}

func mountedFile(t *testing.T, p *place) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("outside\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	box := p.create(t, sandpit.Spec{Mounts: []sandpit.Mount{{Source: file, Target: "/data/mounted", ReadOnly: true}}})
	return run(t, box, sandpit.Command{Args: []string{"sh", "-c", "cat /data/mounted /data/text"}})
}

func badMount(target string) func(*testing.T, *place) string {
	return func(t *testing.T, p *place) string {
		t.Helper()
		_, err := p.provider.Create(within(t), sandpit.NewID(), sandpit.Spec{
			Image: p.image, Mounts: []sandpit.Mount{{Source: t.TempDir(), Target: target}},
		})
		return failure(err)
	}
}
