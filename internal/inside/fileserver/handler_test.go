package fileserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/inside/fileserver"
	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// tree is a directory with what a hostile program could put there.
func tree(t *testing.T) (dir string, h http.Handler) {
	t.Helper()
	top := t.TempDir()
	dir = filepath.Join(top, "site")
	for _, name := range []string{"site/sub/deep", "site/page", "site/.git", "site/.well-known", "site/odd\n<b>\"&", "site/index.d/index.html", "other"} {
		if err := os.MkdirAll(filepath.Join(top, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range map[string]string{
		"site/page/index.html": "<p>page", "site/style.css": "b{}", "site/sub/a b?.txt": "text", "site/.env": "secret", "site/.git/config": "secret",
		"site/.well-known/x": "known", "site/sub/.hidden": "secret", "other/secret": "secret", "site/javascript:alert(1)": "js",
	} {
		if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"in": "style.css", "indir": "sub", "twice": "in", "sub/up": "../style.css", "out": "../other/secret", "outdir": "../other", "absolute": "/etc/passwd",
		"loop": "loop", "a": "b", "b": "a", "sub/far": "../../other/secret", "through": "indir/../../other/secret", "rootdir": "/", "dangling": "none", "self": ".",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "unix", filepath.Join(dir, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	root, err := beneath.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return dir, fileserver.Handler(root)
}

func ask(t *testing.T, h http.Handler, method, target string, pairs ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, "http://localhost/", nil)
	r.URL.Path, r.URL.RawPath = target, ""
	for i := 0; i+1 < len(pairs); i += 2 {
		r.Header.Set(pairs[i], pairs[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestFiles asks for everything in a hostile directory.
func TestFiles(t *testing.T) {
	t.Parallel()
	_, h := tree(t)
	for target, want := range map[string]struct {
		status int
		body   string
	}{
		"/style.css": {200, "b{}"}, "/page/": {200, "<p>page"}, "/page/index.html": {200, "<p>page"}, "/sub/a b?.txt": {200, "text"},
		"/.well-known/x": {200, "known"}, "/in": {200, "b{}"}, "/twice": {200, "b{}"}, "/indir/a b?.txt": {200, "text"}, "/sub/up": {200, "b{}"},
		"/self/self/style.css": {200, "b{}"}, "/a/../style.css": {200, "b{}"}, "//style.css": {200, "b{}"}, "/javascript:alert(1)": {200, "js"},
		"/page": {307, ""}, "/indir": {307, ""}, "/sub/..": {307, ""},
		"/none": {404, ""}, "/style.css/": {404, ""}, "/style.css/x": {404, ""}, "/.env": {404, ""}, "/.git/config": {404, ""}, "/.git/": {404, ""},
		"/sub/.hidden": {404, ""}, "/out": {404, ""}, "/outdir/secret": {404, ""}, "/outdir/": {404, ""}, "/absolute": {404, ""}, "/rootdir/etc/passwd": {404, ""},
		"/sub/far": {404, ""}, "/through": {404, ""}, "/loop": {404, ""}, "/a": {404, ""}, "/dangling": {404, ""}, "/fifo": {404, ""}, "/socket": {404, ""},
		"/../other/secret": {404, ""}, "/sub/../../other/secret": {404, ""}, "/style.css\x00": {404, ""},
		"/" + strings.Repeat("x/", 5000): {404, ""}, "/" + strings.Repeat("x", 300): {404, ""},
	} {
		got := ask(t, h, http.MethodGet, target)
		if got.Code != want.status || want.status == 200 && got.Body.String() != want.body || strings.Contains(got.Body.String(), "secret") {
			t.Errorf("%.80q: %d %q, want %d %q", target, got.Code, got.Body, want.status, want.body)
		}
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, "PROPFIND"} {
		if got := ask(t, h, method, "/style.css"); got.Code != http.StatusMethodNotAllowed || got.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: %d", method, got.Code)
		}
	}
	if got := ask(t, h, http.MethodGet, "/page"); got.Header().Get("Location") != "./page/" {
		t.Errorf("%v", got.Header())
	}
}

// TestList looks at lists: no name of a file is more than text, and no list has no end.
func TestList(t *testing.T) {
	t.Parallel()
	dir, h := tree(t)
	got := ask(t, h, http.MethodGet, "/")
	text := got.Body.String()
	for _, want := range []string{`href="./odd%0A%3Cb%3E%22&amp;/"`, "odd\n&lt;b&gt;&#34;&amp;/", `href="./javascript:alert%281%29"`, `href="./indir/"`, `>in<`} {
		if !strings.Contains(text, want) {
			t.Errorf("no %s in\n%s", want, text)
		}
	}
	for _, hidden := range []string{"<b>", ".env", ".git", "fifo", "socket", "absolute", "outdir", "loop", "dangling", "more than"} {
		if strings.Contains(text, hidden) {
			t.Errorf("%s is in\n%s", hidden, text)
		}
	}
	if got.Header().Get("Content-Security-Policy") == "" || got.Header().Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("%v", got.Header())
	}
	for i := range 1500 {
		if err := os.WriteFile(filepath.Join(dir, "sub/deep", strconv.Itoa(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text = ask(t, h, http.MethodGet, "/sub/deep/").Body.String()
	if n := strings.Count(text, "<li>"); n != 1001 || !strings.Contains(text, "more than") {
		t.Errorf("%d names", n)
	}
	if got := ask(t, h, http.MethodHead, "/"); got.Code != http.StatusOK || got.Body.Len() > 0 {
		t.Errorf("HEAD: %d", got.Code)
	}
}

// TestChanges has a browser ask again for what has changed within a second, and for parts.
func TestChanges(t *testing.T) {
	t.Parallel()
	dir, h := tree(t)
	first := ask(t, h, http.MethodGet, "/style.css")
	tag := first.Header().Get("Etag")
	if got := ask(t, h, http.MethodGet, "/style.css", "If-None-Match", tag); got.Code != http.StatusNotModified || tag == "" || first.Header().Get("Cache-Control") != "no-cache" {
		t.Errorf("%d, %v", got.Code, first.Header())
	}
	if got := ask(t, h, http.MethodGet, "/style.css", "Range", "bytes=1-1"); got.Code != http.StatusPartialContent || got.Body.String() != "{" {
		t.Errorf("%d %q", got.Code, got.Body)
	}
	if err := os.WriteFile(filepath.Join(dir, "style.css"), []byte("c{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := ask(t, h, http.MethodGet, "/style.css", "If-None-Match", tag); got.Code != http.StatusOK || got.Body.String() != "c{}" {
		t.Errorf("%d %q", got.Code, got.Body)
	}
}

// TestExchanged exchanges a directory for a link that leads outside all the
// time: no request ever sees what is there.
func TestExchanged(t *testing.T) {
	t.Parallel()
	dir, h := tree(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	if err := os.WriteFile(filepath.Join(dir, "sub/secret"), []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../other", filepath.Join(dir, "swap")); err != nil {
		t.Fatal(err)
	}
	go func() {
		for ctx.Err() == nil {
			if err := unix.Renameat2(unix.AT_FDCWD, filepath.Join(dir, "sub"), unix.AT_FDCWD, filepath.Join(dir, "swap"), unix.RENAME_EXCHANGE); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	seen := 0
	for end := time.Now().Add(500 * time.Millisecond); time.Now().Before(end); {
		got := ask(t, h, http.MethodGet, "/sub/secret")
		if strings.Contains(got.Body.String(), "secret") {
			t.Fatalf("%d %q", got.Code, got.Body)
		}
		if got.Code == http.StatusOK {
			seen++
		}
	}
	cancel()
	if err := <-ended; err != nil || seen == 0 {
		t.Errorf("%v, seen %d times", err, seen)
	}
}

// TestRun starts the program as a sandbox does.
func TestRun(t *testing.T) {
	t.Parallel()
	dir, _ := tree(t)
	for _, args := range [][]string{{"site"}, {"site", dir, "0"}, {"site", dir, "70000"}, {"site", dir + "/none", "1"}, {"site", dir + "/style.css", "1"}} {
		if err := fileserver.Run(t.Context(), args, io.Discard); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	if err := fileserver.Run(t.Context(), []string{"site", dir, port}, io.Discard); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a port that is taken: %v", err)
	}
	_ = ln.Close()
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- fileserver.Run(ctx, []string{"site", dir, port}, in) }()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != fileserver.Ready+"\n" {
		t.Fatalf("%q, %v", line, err)
	}
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", "127.0.0.1:"+port)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /page/../page/ HTTP/1.0\r\n\r\n")
	if text, err := io.ReadAll(conn); err != nil || !strings.HasSuffix(string(text), "\r\n\r\n<p>page") {
		t.Errorf("%q, %v", text, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// FuzzPath asks for whatever. Nothing but what is shown is ever answered with.
func FuzzPath(f *testing.F) {
	testuser.Drop(f)
	dir := f.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("shown"), 0o600); err != nil {
		f.Fatal(err)
	}
	root, err := beneath.Open(dir)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = root.Close() })
	h := fileserver.Handler(root)
	for _, seed := range []string{"/file", "/../file", "//", "/%2e%2e/\x00", "file", "/./", "/file/.."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		got := ask(t, h, http.MethodGet, target)
		ok := got.Code == http.StatusNotFound || got.Code == http.StatusTemporaryRedirect ||
			got.Code == http.StatusOK && (got.Body.String() == "shown" || strings.Contains(got.Body.String(), `href="./file"`))
		if location := got.Header().Get("Location"); !ok || location != "" && !strings.HasPrefix(location, "./") {
			t.Errorf("%q: %d %q %q", target, got.Code, got.Body, location)
		}
	})
}
