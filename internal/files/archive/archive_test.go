package archive_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openDir(tb testing.TB) *archive.Dir {
	tb.Helper()
	d, err := archive.OpenDir(filepath.Join(tb.TempDir(), "archive"))
	if err != nil {
		tb.Fatal(err)
	}
	return d
}

func wantCode(tb testing.TB, what string, err error, want sandpit.Code) {
	tb.Helper()
	if got := sandpit.CodeOf(err); got != want {
		tb.Errorf("%s: %v (%s), want %s", what, err, got, want)
	}
}

func get(tb testing.TB, s archive.Store, key string) []byte {
	tb.Helper()
	from, err := s.Get(tb.Context(), key)
	if err != nil {
		tb.Fatal(err)
	}
	data, err := io.ReadAll(from)
	if err := errors.Join(err, from.Close()); err != nil {
		tb.Fatal(err)
	}
	return data
}

// broken fails after so many bytes.
type broken struct {
	n   int
	err error
}

func (b *broken) Read(p []byte) (int, error) {
	if b.n <= 0 {
		return 0, b.err
	}
	n := min(len(p), b.n)
	b.n -= n
	return n, nil
}

// check is what every Store must do. Large is enough for several parts.
func check(t *testing.T, s archive.Store, large int) {
	t.Helper()
	ctx := t.Context()
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Fatalf("at first there is %v, %v", list, err)
	}
	_, err := s.Get(ctx, "none")
	wantCode(t, "get what is not there", err, sandpit.NotFound)
	if err := s.Remove(ctx, "none"); err != nil {
		t.Errorf("remove what is not there: %v", err)
	}
	objects := map[string][]byte{"a": {}, "b.tar.zst": []byte("hello"), "c-1": bytes.Repeat([]byte("0123456789abcdef"), large/16)}
	for key, data := range objects {
		if err := s.Put(ctx, key, bytes.NewReader(data)); err != nil {
			t.Fatalf("put %s: %v", key, err)
		}
		if !bytes.Equal(get(t, s, key), data) {
			t.Errorf("%s is something else now", key)
		}
	}
	if err := s.Put(ctx, "a", strings.NewReader("more")); err != nil || string(get(t, s, "a")) != "more" {
		t.Errorf("put it again: %v", err)
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 3 || list[0].Key != "a" || list[2].Key != "c-1" || list[2].Size != int64(large) || time.Since(list[0].CreatedAt) > time.Hour {
		t.Errorf("list: %+v, %v", list, err)
	}
	for _, key := range []string{"", "../evil", "a/b", "A", ".half-1", strings.Repeat("x", 201)} {
		wantCode(t, "put "+key, s.Put(ctx, key, strings.NewReader("x")), sandpit.Invalid)
		_, err := s.Get(ctx, key)
		wantCode(t, "get "+key, err, sandpit.Invalid)
		wantCode(t, "remove "+key, s.Remove(ctx, key), sandpit.Invalid)
	}
	away := sandpit.Errorf(sandpit.Exhausted, "the source has run dry")
	for name, n := range map[string]int{"at once": 0, "in the middle": large * 3 / 4} {
		wantCode(t, "a source that fails "+name, s.Put(ctx, "half", &broken{n, away}), sandpit.Exhausted)
		_, err := s.Get(ctx, "half")
		wantCode(t, "get what was put in half", err, sandpit.NotFound)
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	wantCode(t, "put for a caller that is gone", s.Put(stopped, "half", &broken{large, io.EOF}), sandpit.Canceled)
	for key := range objects {
		if err := s.Remove(ctx, key); err != nil {
			t.Error(err)
		}
	}
	if err := s.Remove(ctx, "half"); err != nil {
		t.Error(err)
	}
	if list, err := s.List(ctx); err != nil || len(list) != 0 {
		t.Errorf("in the end there is %v, %v", list, err)
	}
}

func TestDir(t *testing.T) {
	t.Parallel()
	check(t, openDir(t), 1<<20)
}

// TestDirForgetsHalves opens a directory in which a process that was killed has left
// something.
func TestDirForgetsHalves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	half := filepath.Join(dir, ".half-123")
	if err := os.WriteFile(half, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := archive.OpenDir(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(half); !os.IsNotExist(err) {
		t.Errorf("it is there still: %v", err)
	}
}

// gateway is a real store that speaks S3.
type gateway struct {
	URL    string `json:"url"`
	CA     string `json:"ca"`
	Access string `json:"access"`
	Secret string `json:"secret"`
	dir    string
}

// startGateway builds and starts one. To build it takes minutes at the first time, so it
// is done only on request.
func startGateway(t *testing.T) *gateway {
	t.Helper()
	if os.Getenv("SANDPIT_TEST_S3") == "" {
		t.Skip("SANDPIT_TEST_S3=1 builds a store that speaks S3, and works with it")
	}
	program := filepath.Join(t.TempDir(), "s3")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = filepath.Join("..", "..", "..", "tools", "s3")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly")
	if out, err := build.CombinedOutput(); err != nil {
		testengine.Skip(t, "the gateway cannot be built: %v\n%s", err, out)
	}
	g := &gateway{dir: t.TempDir()}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-dir", g.dir)
	stdin, err := cmd.StdinPipe() // it ends when this does
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = t.Output()
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_ = cmd.Wait() // the kill is its end
	})
	if err := json.NewDecoder(io.LimitReader(stdout, 1<<20)).Decode(g); err != nil {
		t.Fatal(err)
	}
	return g
}

func (g *gateway) open(t *testing.T, change func(*archive.S3Options)) *archive.S3 {
	t.Helper()
	o := archive.S3Options{URL: g.URL + "/boxes/here/there", Access: g.Access, Secret: g.Secret, Roots: []byte(g.CA)}
	if change != nil {
		change(&o)
	}
	s, err := archive.OpenS3(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// TestS3 works with a real store, and with one that refuses, or is not there.
func TestS3(t *testing.T) {
	t.Parallel()
	g := startGateway(t)
	s := g.open(t, nil)
	check(t, s, 70<<20) // three parts
	if err := s.Put(t.Context(), "one", strings.NewReader("1")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(g.dir, "buckets", "boxes", "here", "there", "one")); err != nil {
		t.Errorf("it is not below the prefix: %v", err)
	}
	if list, err := g.open(t, func(o *archive.S3Options) { o.URL = g.URL + "/boxes/other" }).List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("below another prefix: %v, %v", list, err)
	}
	for name, tc := range map[string]struct {
		change func(*archive.S3Options)
		want   sandpit.Code
	}{
		"wrong secret": {func(o *archive.S3Options) { o.Secret = "another-secret-of-the-tests" }, sandpit.PermissionDenied},
		"no bucket":    {func(o *archive.S3Options) { o.URL = g.URL + "/nowhere" }, sandpit.Unavailable},
		"not trusted":  {func(o *archive.S3Options) { o.Roots = nil }, sandpit.Unavailable},
		"no server":    {func(o *archive.S3Options) { o.URL = "https://" + freeAddress(t) + "/boxes" }, sandpit.Unavailable},
	} {
		other := g.open(t, tc.change)
		_, getErr := other.Get(t.Context(), "one")
		_, listErr := other.List(t.Context())
		for what, err := range map[string]error{"get": getErr, "list": listErr, "put": other.Put(t.Context(), "two", strings.NewReader("2"))} {
			wantCode(t, name+", "+what, err, tc.want)
			if err != nil && (strings.Contains(err.Error(), g.Secret) || strings.Contains(err.Error(), "another-secret")) {
				t.Errorf("%s: the secret is in the error: %v", name, err)
			}
		}
	}
	if err := s.Remove(t.Context(), "one"); err != nil {
		t.Error(err)
	}
}

// freeAddress returns an address without a listener.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestS3Options(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]archive.S3Options{
		"no URL":       {},
		"no bucket":    {URL: "https://host/"},
		"a password":   {URL: "https://user:hunter2@host/bucket"},
		"no TLS":       {URL: "http://example.com/bucket"},
		"another kind": {URL: "ftp://host/bucket"},
		"a query":      {URL: "https://host/bucket?x=y"},
		"no keys":      {URL: "https://host/bucket", Access: "only"},
		"no roots":     {URL: "https://host/bucket", Roots: []byte("nonsense")},
	} {
		if name != "no keys" {
			o.Access, o.Secret = "a", "hunter2"
		}
		_, err := archive.OpenS3(o)
		wantCode(t, name, err, sandpit.Invalid)
		if err != nil && strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: the error tells a secret: %v", name, err)
		}
	}
	s, err := archive.OpenS3(archive.S3Options{URL: "http://127.0.0.1:9000/bucket", Access: "a", Secret: "b"})
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
}
