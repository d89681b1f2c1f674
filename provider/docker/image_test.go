package docker_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// long is how long anything may take.
const long = 3 * time.Minute

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	t.Cleanup(cancel)
	return ctx
}

func create(t *testing.T, p *docker.Provider, spec sandpit.Spec) *docker.Instance {
	t.Helper()
	box, err := p.Create(within(t), sandpit.NewID(), spec)
	if err != nil {
		t.Fatalf("create: %v (%s; hint: %s)", err, sandpit.CodeOf(err), sandpit.HintOf(err))
	}
	return own(t, box)
}

func own(t *testing.T, box sandpit.Instance) *docker.Instance {
	t.Helper()
	inst, ok := box.(*docker.Instance)
	if !ok {
		t.Fatalf("an instance of another kind: %T", box)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := inst.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return inst
}

// run runs a program and returns what it prints and its exit code.
func run(t *testing.T, box sandpit.Instance, args ...string) (string, int) {
	t.Helper()
	var out bytes.Buffer
	p, err := box.Guest().Start(within(t), sandpit.Command{Args: args, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("start %q: %v (%s)", args, err, sandpit.CodeOf(err))
	}
	status, err := p.Wait(within(t))
	if err != nil {
		t.Fatalf("wait for %q: %v (%s)", args, err, sandpit.CodeOf(err))
	}
	return out.String(), status.Code
}

func shell(t *testing.T, box sandpit.Instance, script string) string {
	t.Helper()
	out, code := run(t, box, "sh", "-c", script)
	if code != 0 {
		t.Fatalf("script %s: exit code %d\n%s", script, code, out)
	}
	return out
}

func wantCode(t *testing.T, err error, want sandpit.Code) {
	t.Helper()
	if got := sandpit.CodeOf(err); got != want {
		t.Errorf("error %v: code %q, want %q", err, got, want)
	}
}

// TestBareImage runs in an image that holds one program and nothing else.
func TestBareImage(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	testdocker.Import(t, "sandpit-test/bare:1", []testdocker.File{{Name: "busybox", Mode: 0o755, Content: testdocker.Busybox(t)}},
		`ENTRYPOINT ["/no/such/program"]`, "ENV GREETING=hello", "WORKDIR /data", "USER 1000:1000", "HEALTHCHECK CMD false")
	box := create(t, p, sandpit.Spec{Image: "sandpit-test/bare:1"})
	for args, want := range map[string]string{
		"/busybox id -u": "1000\n", "/busybox pwd": "/data\n", "/busybox ls /.sandpit": "complete\nsandpit-guest\n",
	} {
		if got, _ := run(t, box, strings.Fields(args)...); got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
	other := create(t, p, sandpit.Spec{Image: "sandpit-test/bare:1", User: "0", WorkDir: "/made", Env: map[string]string{"GREETING": "bye"}})
	for args, want := range map[string]string{"/busybox id -u": "0\n", "/busybox pwd": "/made\n"} {
		if got, _ := run(t, other, strings.Fields(args)...); got != want {
			t.Errorf("%s: got %q, want %q", args, got, want)
		}
	}
	for inst, want := range map[*docker.Instance]string{box: "hello\n", other: "bye\n"} {
		if got, _ := run(t, inst, "/busybox", "sh", "-c", "echo $GREETING"); got != want {
			t.Errorf("environment: got %q, want %q", got, want)
		}
	}
	if _, code := run(t, other, "/busybox", "touch", "/.sandpit/sandpit-guest"); code == 0 {
		t.Error("the guest's directory can be written")
	}
}

func TestImageErrors(t *testing.T) {
	t.Parallel()
	o := options(t)
	o.Pull = image.PullNever
	p := open(t, o)
	for ref, want := range map[sandpit.Image]sandpit.Code{
		"": sandpit.Unsupported, sandpit.HostImage: sandpit.Unsupported, "/no/such.tar": sandpit.NotFound,
		"/tmp": sandpit.Unsupported, "Upper/Case": sandpit.Invalid, "sandpit-test/none:1": sandpit.NotFound,
		"template:none": sandpit.Unsupported, "template:none:v1": sandpit.Unsupported, "docker.io/library/template:none": sandpit.NotFound,
	} {
		_, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: ref})
		if wantCode(t, err, want); want != sandpit.NotFound && sandpit.HintOf(err) == "" {
			t.Errorf("image %q: the error has no hint: %v", ref, err)
		}
	}
}

func TestArchives(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	dir := t.TempDir()
	plain := filepath.Join(dir, "root.tar")
	if err := os.WriteFile(plain, testdocker.Tar(t, testdocker.BusyboxFiles(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := shell(t, create(t, p, sandpit.Spec{Image: sandpit.Image(plain)}), "echo plain"); got != "plain\n" {
		t.Errorf("got %q", got)
	}
	saved := filepath.Join(dir, "saved.tar")
	r, err := testdocker.Client(t).ImageSave(within(t), []string{busybox})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	f, err := os.Create(saved)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(f, r); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time it is there
		if got := shell(t, create(t, p, sandpit.Spec{Image: sandpit.Image(saved)}), "echo saved"); got != "saved\n" {
			t.Errorf("got %q", got)
		}
	}
	damaged := filepath.Join(dir, "damaged.tar")
	if err := os.WriteFile(damaged, []byte("this is no tar"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(damaged)})
	wantCode(t, err, sandpit.Invalid)
}

func small(t *testing.T) []testdocker.File {
	t.Helper()
	unique := testdocker.File{Name: "id", Mode: 0o644, Content: []byte(sandpit.NewID())} // no layer is there already
	return append(testdocker.BusyboxFiles(t), unique)
}

func TestPull(t *testing.T) {
	t.Parallel()
	o := options(t)
	var mu sync.Mutex
	var total int64
	o.Progress = func(_, all int64) {
		mu.Lock()
		defer mu.Unlock()
		total = all
	}
	p := open(t, o)
	r := testdocker.NewRegistry(t)
	tagged, _ := r.Push(t, "public", "1", small(t), func(c *testdocker.Config) { c.Env = []string{"FROM=registry"} })
	const waiters = 5
	var wg sync.WaitGroup
	boxes := make([]sandpit.Instance, waiters)
	errs := make([]error, waiters)
	ctx := within(t)
	for i := range waiters {
		wg.Go(func() {
			boxes[i], errs[i] = p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(tagged)})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
		if got := shell(t, own(t, boxes[i]), "echo $FROM"); got != "registry\n" {
			t.Errorf("got %q", got)
		}
	}
	if n := r.Manifests(); n > 2 { // one by the tag, one by the digest
		t.Errorf("manifests were read %d times for %d waiters, want one pull", n, waiters)
	}
	mu.Lock()
	defer mu.Unlock()
	if total == 0 {
		t.Error("nothing was told of the progress")
	}

	_, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(r.Host() + "/public:none")})
	wantCode(t, err, sandpit.NotFound)
	_, err = p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(r.Host() + "/public@sha256:" + strings.Repeat("0", 64))})
	wantCode(t, err, sandpit.NotFound)
}

// TestPullPinned asks for an image by its digest, ahead of the first sandbox.
func TestPullPinned(t *testing.T) {
	t.Parallel()
	p := open(t, options(t))
	r := testdocker.NewRegistry(t)
	_, pinned := r.Push(t, "pinned", "1", small(t), nil)
	if err := p.PrepareImage(within(t), sandpit.Image(pinned)); err != nil {
		t.Fatal(err)
	}
	fetched := r.Manifests()
	if got := shell(t, create(t, p, sandpit.Spec{Image: sandpit.Image(pinned)}), "echo pinned"); got != "pinned\n" {
		t.Errorf("got %q", got)
	}
	if n := r.Manifests(); n != fetched || n == 0 {
		t.Errorf("manifests were read %d times ahead, and %d times in all", fetched, n)
	}
	wantCode(t, p.PrepareImage(within(t), sandpit.Image(r.Host()+"/pinned:none")), sandpit.NotFound)
	wantCode(t, p.PrepareImage(within(t), sandpit.HostImage), sandpit.Unsupported)
}

func TestPullLogin(t *testing.T) {
	t.Parallel()
	r := testdocker.NewRegistry(t)
	r.User, r.Password = "somebody", "hush-hush-52"
	tagged, _ := r.Push(t, "private", "1", small(t), nil)
	for _, who := range []image.Credential{
		{}, {User: "somebody", Password: "wrong"}, {User: "somebody", Password: r.Password}, // then the engine has it
	} {
		refused := who.Password != r.Password
		o := options(t)
		o.Credentials = func(_ context.Context, registry string) (image.Credential, error) {
			if registry != r.Host() {
				return image.Credential{}, errors.New("asked for another registry: " + registry)
			}
			return who, nil
		}
		box, err := open(t, o).Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(tagged)})
		if !refused {
			wantCode(t, err, "")
			own(t, box)
			continue
		}
		// Engines before version 23 do not tell a refusal from other failures.
		if code := sandpit.CodeOf(err); code != sandpit.PermissionDenied && code != sandpit.Unavailable && code != sandpit.NotFound {
			t.Errorf("error %v: code %q", err, code)
		}
		if !strings.Contains(sandpit.HintOf(err), "docker login") {
			t.Errorf("the hint is %q", sandpit.HintOf(err))
		}
		if strings.Contains(err.Error(), r.Password) || strings.Contains(err.Error(), "wrong") {
			t.Errorf("the error tells the password: %v", err)
		}
	}
}

// TestPullSlow gives up waiting, and lets a registry be too slow.
func TestPullSlow(t *testing.T) {
	t.Parallel()
	r := testdocker.NewRegistry(t)
	r.Hold = make(chan struct{})
	tagged, _ := r.Push(t, "slow", "1", small(t), nil)
	p := open(t, options(t))
	ctx, cancel := context.WithCancel(within(t))
	given := make(chan error, 1)
	go func() {
		_, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(tagged)})
		given <- err
	}()
	select {
	case <-r.Reached():
	case <-within(t).Done():
		t.Fatal("the registry was never asked")
	}
	cancel()
	wantCode(t, <-given, sandpit.Canceled)

	o := options(t)
	o.PullTimeout = 2 * time.Second
	_, err := open(t, o).Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(tagged)})
	wantCode(t, err, sandpit.Timeout)
	close(r.Hold)
	if got := shell(t, create(t, p, sandpit.Spec{Image: sandpit.Image(tagged)}), "echo at last"); got != "at last\n" {
		t.Errorf("got %q", got)
	}
}

// TestPullCut has a registry break off in the middle of a layer.
func TestPullCut(t *testing.T) {
	t.Parallel()
	r := testdocker.NewRegistry(t)
	r.Cut = true
	tagged, _ := r.Push(t, "cut", "1", small(t), nil)
	o := options(t)
	o.PullTimeout = 10 * time.Second // else the engine tries again for a minute
	p := open(t, o)
	_, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(tagged)})
	if code := sandpit.CodeOf(err); code != sandpit.Unavailable && code != sandpit.Timeout {
		t.Errorf("error %v: code %q, want that it can be tried again", err, code)
	}
	list, err := p.List(within(t))
	if err != nil || len(list) != 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}
