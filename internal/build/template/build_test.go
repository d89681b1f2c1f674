package template_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
	"github.com/sandpit-dev/sandpit/internal/build/template"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
		}
	}
}

func write(tb testing.TB, dir, name, text string) {
	tb.Helper()
	path := filepath.Join(dir, name)
	must(tb, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644))
}

// bench is everything that a build needs.
type bench struct {
	*template.Builder
	dir string // where templates copy from
	out bytes.Buffer
	ran []string
}

func newBench(tb testing.TB) *bench {
	tb.Helper()
	dir := tb.TempDir()
	for _, sub := range []string{"run", "scratch", "images", "context"} {
		must(tb, os.Mkdir(filepath.Join(dir, sub), 0o700))
	}
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	must(tb, err)
	p, err := gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), Images: images, Engine: testengine.Path(tb),
		Defaults: testengine.Limits(),
	})
	must(tb, err)
	b := &bench{dir: filepath.Join(dir, "context")}
	tb.Cleanup(func() {
		list, err := p.List(context.WithoutCancel(tb.Context()))
		if err != nil || len(list) > 0 {
			tb.Errorf("left: %+v, %v", list, err)
		}
		must(tb, p.Close())
	})
	b.Builder = &template.Builder{Provider: p, Images: images, Dir: b.dir, Output: &b.out}
	b.Ran = func(number int, _ time.Duration) { b.ran = append(b.ran, strconv.Itoa(number)) }
	return b
}

// base is a directory with BusyBox, whose programs are all there.
func base(tb testing.TB) string {
	tb.Helper()
	program, err := exec.LookPath("busybox")
	if err != nil {
		testengine.Skip(tb, "no busybox on this machine")
	}
	content, err := os.ReadFile(program)
	must(tb, err)
	dir := tb.TempDir()
	write(tb, dir, "etc/passwd", "root:x:0:0::/:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n")
	must(tb, os.Mkdir(filepath.Join(dir, "bin"), 0o755), os.WriteFile(filepath.Join(dir, "bin/busybox"), content, 0o755))
	for _, name := range []string{"sh", "cat", "ls", "mkdir", "rm", "sleep", "id", "pwd", "env", "true"} {
		must(tb, os.Symlink("busybox", filepath.Join(dir, "bin", name)))
	}
	return dir
}

func (b *bench) build(tb testing.TB, text string) image.Entry {
	tb.Helper()
	t, err := template.Parse([]byte(text), nil)
	must(tb, err)
	return b.make(tb, t)
}

func (b *bench) make(tb testing.TB, t template.Template) image.Entry {
	tb.Helper()
	b.out.Reset()
	b.ran = nil
	e, err := b.Build(tb.Context(), t)
	must(tb, err)
	return e
}

// output runs a script in a sandbox of an image.
func (b *bench) output(tb testing.TB, e image.Entry, script string) string {
	tb.Helper()
	box, err := b.Provider.Create(tb.Context(), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(e.ID)})
	must(tb, err)
	var out bytes.Buffer
	result, err := workspace.Execute(tb.Context(), box.Guest(), sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out}, nil)
	must(tb, err, box.Destroy(tb.Context()))
	if result.ExitCode != 0 {
		tb.Errorf("%s: exit status %d", script, result.ExitCode)
	}
	return strings.TrimSpace(out.String())
}

const whole = `
from = %q
workdir = "/app"
user = "me"
env = { GREETING = "hello" }
ports = [8080]
command = ["sh", "start.sh"]

[[step]]
copy = ["src"]
to = "./"

[[step]]
run = "cat tool.txt; echo $GREETING > /tmp/made; echo done >&2; exit 0"

[[step]]
copy = ["late.txt"]
to = "/late/"
uid = 1000

[[step]]
run = "cat /late/late.txt /tmp/made"
`

// TestBuild builds a template, and again after files and steps have changed.
func TestBuild(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	write(t, b.dir, "src/tool.txt", "a tool\n")
	write(t, b.dir, "src/start.sh", "echo started\n")
	write(t, b.dir, "src/secret.key", "not for images\n")
	write(t, b.dir, "late.txt", "late\n")
	write(t, b.dir, ".dockerignore", "**/*.key\n")
	text := fmt.Sprintf(whole, base(t))

	e := b.build(t, text)
	if diff := cmp.Diff([]string{"5", "7"}, b.ran); diff != "" {
		t.Errorf("steps that ran: %s", diff)
	}
	if got := b.out.String(); !strings.Contains(got, "a tool\n") || !strings.Contains(got, "done\n") || !strings.Contains(got, "late\nhello\n") {
		t.Errorf("output: %q", got)
	}
	if got := b.output(t, e, "id -u; pwd; echo $GREETING; cat tool.txt /late/late.txt; ls /app; busybox stat -c %u /late/late.txt"); got !=
		"1000\n/app\nhello\na tool\nlate\nstart.sh\ntool.txt\n1000" {
		t.Errorf("inside: %q", got)
	}
	root, err := b.Images.Resolve(t.Context(), sandpit.Image(e.ID), nil)
	must(t, err, root.File.Close())
	if diff := cmp.Diff(image.Config{
		Env: map[string]string{"GREETING": "hello"}, User: "me", WorkDir: "/app", Cmd: []string{"sh", "start.sh"}, ExposedPorts: []string{"8080/tcp"},
	}, root.Config); diff != "" {
		t.Errorf("configuration: %s", diff)
	}

	if again := b.build(t, text); again.ID != e.ID || len(b.ran) > 0 {
		t.Errorf("the same again: %s after %s, ran %v", again.ID, e.ID, b.ran)
	}
	write(t, b.dir, "late.txt", "later\n")
	b.build(t, text)
	if diff := cmp.Diff([]string{"7"}, b.ran); diff != "" {
		t.Errorf("after a late file has changed: %s", diff)
	}
	parsed, err := template.Parse([]byte(text), nil)
	must(t, err)
	parsed.Steps[6].Fresh = true
	b.ran = nil
	_, err = b.Build(t.Context(), parsed)
	must(t, err)
	if diff := cmp.Diff([]string{"7"}, b.ran); diff != "" {
		t.Errorf("one step afresh: %s", diff)
	}
	b.Fresh = true
	b.build(t, text)
	if len(b.ran) != 2 {
		t.Errorf("afresh: %v", b.ran)
	}
}

// TestSecretsStayOut gives a step a secret and looks for it everywhere.
func TestSecretsStayOut(t *testing.T) {
	t.Parallel()
	const secret = "xyzzy-0123456789-plugh"
	b := newBench(t)
	b.Secrets = map[string]string{"TOKEN": secret}
	dir := base(t)
	e := b.build(t, fmt.Sprintf("from = %q\n[[step]]\nrun = 'test -n \"$TOKEN\"; echo \"it is $TOKEN\"; echo \"${#TOKEN}\" > /length'\nsecrets = [\"TOKEN\"]\n"+
		"[[step]]\nrun = 'echo \"then:$TOKEN.\"'\n", dir))
	if got := b.out.String(); got != "it is ***\nthen:.\n" {
		t.Errorf("output: %q", got)
	}
	if got := b.output(t, e, "cat /length; env"); !strings.HasPrefix(got, strconv.Itoa(len(secret))+"\n") || strings.Contains(got, secret) {
		t.Errorf("inside: %q", got)
	}
	must(t, filepath.WalkDir(filepath.Dir(b.dir), func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, []byte(secret)) {
			t.Errorf("the secret is in %s", path)
		}
		return err
	}))

	leak, err := template.Parse([]byte(fmt.Sprintf("from = %q\n[[step]]\nrun = 'echo \"password=$TOKEN\" > /etc/netrc'\nsecrets = [\"TOKEN\"]\n", dir)), nil)
	must(t, err)
	if _, err := b.Build(t.Context(), leak); sandpit.CodeOf(err) != sandpit.PermissionDenied || strings.Contains(err.Error(), secret) {
		t.Errorf("a step that writes it down: %v", err)
	}
	b.Secrets = nil
	if _, err := b.Build(t.Context(), leak); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("without it: %v", err)
	}
}

// TestStepsAreTheirOwners builds one recipe for several owners, and with other secrets,
// limits and networks: each has its own results.
func TestStepsAreTheirOwners(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := base(t)
	write(t, b.dir, "f", "x")
	b.SecretsKey = []byte("a key of 32 bytes, or about that")
	text := func(build string) string {
		return fmt.Sprintf("from = %q\n%s\n[[step]]\nrun = 'echo \"$INDEX\" | busybox wc -c > /size'\nsecrets = [\"INDEX\"]\n[[step]]\ncopy = [\"f\"]\nto = \"/f\"\n", dir, build)
	}
	images := map[string]string{}
	for _, tc := range []struct {
		name, owner, secret, build string
		known                      bool
	}{
		{name: "first", owner: "alice", secret: "https://evil.example"},
		{name: "again", owner: "alice", secret: "https://evil.example", known: true},
		{name: "another value", owner: "alice", secret: "https://good.example"},
		{name: "another owner", owner: "bob", secret: "https://evil.example"},
		{name: "the administrator", secret: "https://evil.example"},
		{name: "less disk", owner: "alice", secret: "https://evil.example", build: "[build]\ndisk_mb = 100"},
		{name: "a network", owner: "alice", secret: "https://evil.example", build: "[build]\nallow = [\"192.0.2.1\"]"},
		{name: "another network", owner: "alice", secret: "https://evil.example", build: "[build]\nallow = [\"192.0.2.2\"]"},
		{name: "the administrator again", secret: "https://evil.example", known: true},
	} {
		b.Owner, b.Secrets = tc.owner, map[string]string{"INDEX": tc.secret}
		e := b.build(t, text(tc.build))
		if ran := len(b.ran) > 0; ran == tc.known {
			t.Errorf("%s: the step ran: %v", tc.name, ran)
		}
		for other, id := range images {
			if id == e.ID && !tc.known {
				t.Errorf("%s has the image of %s", tc.name, other)
			}
		}
		images[tc.name] = e.ID
	}
	b.SecretsKey = nil
	b.build(t, text(""))
	if b.build(t, text("")); len(b.ran) == 0 {
		t.Error("without a key a step with secrets is taken for known")
	}
}

// TestBuildFailures has builds fail, and looks at what is left.
func TestBuildFailures(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	dir := base(t)
	write(t, b.dir, "f", "x")
	must(t, os.Symlink("/etc/passwd", filepath.Join(b.dir, "out")))
	for name, tc := range map[string]struct {
		text string
		want sandpit.Code
		says string
	}{
		"exit status":    {`run = "exit 3"`, sandpit.Invalid, "step 1: the command failed with exit status 3"},
		"no such file":   {"copy = [\"nothing\"]\nto = \"/x\"", sandpit.NotFound, "nothing"},
		"above":          {"copy = [\"../f\"]\nto = \"/x\"", sandpit.Invalid, "outside of the directory"},
		"a link outside": {"copy = [\"out\"]\nto = \"/x\"", sandpit.Internal, "escapes"},
	} {
		tpl, err := template.Parse([]byte(fmt.Sprintf("from = %q\n[[step]]\n%s\n", dir, tc.text)), nil)
		must(t, err)
		if _, err := b.Build(t.Context(), tpl); sandpit.CodeOf(err) != tc.want || !strings.Contains(fmt.Sprint(err), tc.says) {
			t.Errorf("%s: %v, a %s error", name, err, sandpit.CodeOf(err))
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun := make(chan struct{})
	b.Output = writerFunc(func(p []byte) (int, error) {
		if bytes.Contains(p, []byte("begun")) {
			close(begun)
		}
		return len(p), nil
	})
	go func() {
		<-begun
		cancel()
	}()
	long, err := template.Parse([]byte(fmt.Sprintf("from = %q\n[[step]]\nrun = \"echo begun; sleep 1000\"\n", dir)), nil)
	must(t, err)
	if _, err := b.Build(ctx, long); sandpit.CodeOf(err) != sandpit.Canceled {
		t.Errorf("given up: %v", err)
	}
	list, err := b.Images.List()
	must(t, err)
	for _, e := range list {
		if e.Kind == image.KindTemplate {
			t.Errorf("left: %+v", e)
		}
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestNPM builds a template with a package of npm, whose registry is there once.
func TestNPM(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	const script = "#!/bin/sh\necho a tool\n"
	must(t, w.WriteHeader(&tar.Header{Name: "package/tool.sh", Mode: 0o644, Size: int64(len(script))}))
	_, err := w.Write([]byte(script))
	must(t, err, w.Close(), z.Close())
	asked := 0
	registry := httptest.NewServer(http.HandlerFunc(func(a http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/tool/-/tool-1.2.3.tgz" {
			t.Errorf("asked for %s", r.URL.Path)
		}
		asked++
		_, _ = a.Write(b.Bytes()) // the client may have gone
	}))
	defer registry.Close()
	sum := sha512.Sum512(b.Bytes())
	dir, from := t.TempDir(), base(t)
	write(t, dir, "package-lock.json", fmt.Sprintf(`{"lockfileVersion": 3, "packages": {"node_modules/tool": {"version": "1.2.3", "integrity": "sha512-%s", "bin": {"tool": "tool.sh"}}}}`,
		base64.StdEncoding.EncodeToString(sum[:])))
	text := fmt.Sprintf("from = %q\n[[step]]\nnpm = \"package-lock.json\"\nto = \"/opt/x\"\n", from)
	tpl, err := template.Parse([]byte(text), os.DirFS(dir))
	must(t, err)
	bench := newBench(t)
	if _, err := bench.Build(t.Context(), tpl); sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("without a registry: %v", err)
	}
	bench.NPM = &npm.Source{Dir: t.TempDir(), Registries: []string{registry.URL}}
	for range 2 {
		if got := bench.output(t, bench.make(t, tpl), "/opt/x/node_modules/.bin/tool"); got != "a tool" {
			t.Errorf("it says %q", got)
		}
	}
	if asked != 1 {
		t.Errorf("the registry was asked %d times", asked)
	}
	for _, name := range []string{"nothing.json", "../package-lock.json"} {
		if _, err := template.Parse([]byte(strings.Replace(text, "package-lock.json", name, 1)), os.DirFS(dir)); sandpit.CodeOf(err) != sandpit.NotFound {
			t.Errorf("%s: %v", name, err)
		}
	}
}
