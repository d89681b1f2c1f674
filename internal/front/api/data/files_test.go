package data_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

func TestFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) {
		t.Helper()
		dir := t.TempDir()
		at := func(name string) string { return query("path", filepath.Join(dir, name)) }
		r.do(client, http.MethodPut, id, "/files"+at("a/b.txt")+"&mode=750", strings.NewReader("hello world")).want(t, http.StatusNoContent, nil)

		var entry wire.Entry
		r.do(client, http.MethodGet, id, "/files/stat"+at("a/b.txt"), nil).want(t, http.StatusOK, &entry)
		if entry.ModifiedAt.IsZero() {
			t.Error("no time of change")
		}
		want := wire.Entry{
			Name: "b.txt", Path: filepath.Join(dir, "a/b.txt"), Type: wire.TypeFile, Mode: "0750", Size: 11,
			Owner: entry.Owner, Group: entry.Group, ModifiedAt: entry.ModifiedAt,
		}
		if diff := cmp.Diff(want, entry); diff != "" {
			t.Error(diff)
		}

		got := r.do(client, http.MethodGet, id, "/files"+at("a/b.txt"), nil)
		got.want(t, http.StatusOK, nil)
		for name, value := range map[string]string{
			"Content-Type": "application/octet-stream", "Content-Disposition": "attachment; filename=b.txt", "Content-Length": "11",
			"X-Content-Type-Options": "nosniff", "Content-Security-Policy": "default-src 'none'; sandbox", "Accept-Ranges": "bytes",
			"Cache-Control": "no-store",
		} {
			if got.header.Get(name) != value {
				t.Errorf("%s: %q, want %q", name, got.header.Get(name), value)
			}
		}
		if got.body != "hello world" {
			t.Errorf("content %q", got.body)
		}
		head := r.do(client, http.MethodHead, id, "/files"+at("a/b.txt"), nil)
		head.want(t, http.StatusOK, nil)
		if head.header.Get("Content-Length") != "11" || head.header.Get("ETag") != got.header.Get("ETag") || head.body != "" {
			t.Errorf("head: %v, %q", head.header, head.body)
		}

		r.do(client, http.MethodPost, id, "/files/mkdir", asJSON(t, wire.MakeDir{Path: dir + "/x/y"})).want(t, http.StatusNoContent, nil)
		r.do(client, http.MethodPost, id, "/files/mkdir", asJSON(t, wire.MakeDir{Path: dir + "/x/y"})).wantProblem(t, sandpit.AlreadyExists)
		r.do(client, http.MethodPost, id, "/files/move", asJSON(t, wire.Move{From: dir + "/a/b.txt", To: dir + "/x/y/c"})).want(t, http.StatusNoContent, nil)
		var list wire.Page[wire.Entry]
		r.do(client, http.MethodGet, id, "/files/list"+at("")+"&depth=3", nil).want(t, http.StatusOK, &list)
		var names []string
		for _, e := range list.Items {
			names = append(names, strings.TrimPrefix(e.Path, dir)+" "+e.Type)
		}
		if diff := cmp.Diff([]string{"/a directory", "/x directory", "/x/y directory", "/x/y/c file"}, names); diff != "" {
			t.Error(diff)
		}
		r.do(client, http.MethodGet, id, "/files/list"+at("a"), nil).want(t, http.StatusOK, &list)
		if len(list.Items) != 0 {
			t.Errorf("an empty directory has %v", list.Items)
		}
		r.do(client, http.MethodDelete, id, "/files"+at("x"), nil).want(t, http.StatusNoContent, nil)
		r.do(client, http.MethodGet, id, "/files"+at("x/y/c"), nil).wantProblem(t, sandpit.NotFound)
	})
	r.idle()
}

// TestRanges compares parts of a file, of a link to it and of one that does not know
// its size with what they should be.
func TestRanges(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id, dir := r.box(), t.TempDir()
	content := "0123456789abcdef"
	if err := os.WriteFile(dir+"/f", []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"link": "f", "long": "link", "loop": "loop"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		ranges string
		status int
		want   string
	}{
		{"", 200, content},
		{"bytes=0-3", 206, "0123"},
		{"bytes=10-", 206, "abcdef"},
		{"bytes=-2", 206, "ef"},
		{"bytes=15-99", 206, "f"},
		{"bytes=16-", 416, ""},
		{"pages=1", 416, ""},
		{"bytes=" + strings.Repeat("0-0,", 8) + "0-0", 200, content},
	} {
		for _, name := range []string{"f", "link", "long"} {
			req := r.request(t.Context(), http.MethodGet, id, "/files"+query("path", filepath.Join(dir, name)), nil)
			if tc.ranges != "" {
				req.Header.Set("Range", tc.ranges)
			}
			got := r.send(r.client, req)
			if got.status != tc.status || tc.want != "" && got.body != tc.want {
				t.Errorf("%s %s: %d %q, want %d %q", name, tc.ranges, got.status, got.body, tc.status, tc.want)
			}
		}
	}
	req := r.request(t.Context(), http.MethodGet, id, "/files"+query("path", dir+"/f"), nil)
	req.Header.Set("Range", "bytes=0-1,4-5")
	got := r.send(r.client, req)
	if got.status != http.StatusPartialContent || !strings.Contains(got.body, "\r\n\r\n01\r\n") || !strings.Contains(got.body, "\r\n\r\n45\r\n") {
		t.Errorf("two ranges: %d %q", got.status, got.body)
	}
	if got := r.do(r.client, http.MethodGet, id, "/files"+query("path", "/proc/self/status"), nil); got.status != 200 || !strings.Contains(got.body, "Pid:") {
		t.Errorf("a file that the kernel makes up: %d %q", got.status, got.body)
	}
	r.do(r.client, http.MethodGet, id, "/files"+query("path", dir+"/loop"), nil).wantProblem(t, sandpit.NotFound)
}

func TestFileErrors(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id, dir := r.box(), t.TempDir()
	if err := os.WriteFile(dir+"/f", []byte("kept"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := query("path", dir+"/f")
	for _, tc := range []struct {
		name, method, target, body string
		want                       sandpit.Code
	}{
		{"no path", "GET", "/files", "", sandpit.Invalid},
		{"empty path", "DELETE", "/files?path=", "", sandpit.Invalid},
		{"NUL", "GET", "/files" + query("path", "/a\x00b"), "", sandpit.Invalid},
		{"long path", "GET", "/files" + query("path", strings.Repeat("/a", 2049)), "", sandpit.Invalid},
		{"path twice", "GET", "/files?path=/a&path=/b", "", sandpit.Invalid},
		{"misspelt", "GET", "/files" + file + "&usr=root", "", sandpit.Invalid},
		{"not a query", "GET", "/files?path=%zz", "", sandpit.Invalid},
		{"nobody", "GET", "/files" + file + "&user=nobody-known", "", sandpit.Invalid},
		{"nothing there", "GET", "/files" + query("path", dir+"/none"), "", sandpit.NotFound},
		{"directory", "GET", "/files" + query("path", dir), "", sandpit.Invalid},
		{"device", "GET", "/files" + query("path", "/dev/zero"), "", sandpit.Invalid},
		{"bad mode", "PUT", "/files" + file + "&mode=999", "x", sandpit.Invalid},
		{"mode 0", "PUT", "/files" + file + "&mode=0", "x", sandpit.Invalid},
		{"too much mode", "PUT", "/files" + file + "&mode=4755", "x", sandpit.Invalid},
		{"onto a directory", "PUT", "/files" + query("path", dir), "x", sandpit.Invalid},
		{"stat nothing", "GET", "/files/stat" + query("path", dir+"/none"), "", sandpit.NotFound},
		{"list a file", "GET", "/files/list" + file, "", sandpit.Invalid},
		{"bad depth", "GET", "/files/list" + query("path", dir, "depth", "0"), "", sandpit.Invalid},
		{"too deep", "GET", "/files/list" + query("path", dir, "depth", "1001"), "", sandpit.Invalid},
		{"mkdir nowhere", "POST", "/files/mkdir", `{}`, sandpit.Invalid},
		{"mkdir misspelt", "POST", "/files/mkdir", `{"paht":"/a"}`, sandpit.Invalid},
		{"mkdir twice", "POST", "/files/mkdir", `{"path":"/a"}{"path":"/b"}`, sandpit.Invalid},
		{"mkdir no JSON", "POST", "/files/mkdir", `path=/a`, sandpit.Invalid},
		{"mkdir huge", "POST", "/files/mkdir", strings.Repeat(" ", 16<<20+1), sandpit.Invalid},
		{"move nothing", "POST", "/files/move", fmt.Sprintf(`{"from":%q,"to":"/x"}`, dir+"/none"), sandpit.NotFound},
		{"move nowhere", "POST", "/files/move", `{"from":"/a"}`, sandpit.Invalid},
		{"no tree", "GET", "/tree" + query("path", dir+"/none"), "", sandpit.NotFound},
		{"not a tree", "PUT", "/tree" + query("path", dir+"/t"), strings.Repeat("x", 1024), sandpit.Invalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r.do(r.client, tc.method, id, tc.target, strings.NewReader(tc.body)).wantProblem(t, tc.want)
		})
	}
	if text, err := os.ReadFile(dir + "/f"); string(text) != "kept" {
		t.Errorf("the file holds %q, %v", text, err)
	}
	r.idle()
}

// TestLargeFile moves a file in and out whose parts are all different.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id, dir := r.box(), t.TempDir()
	const size = 48 << 20
	r.both(func(t *testing.T, client *http.Client) {
		t.Helper()
		target := "/files" + query("path", dir+"/large")
		sent := sha256.New()
		body := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
		r.do(client, http.MethodPut, id, target, body).want(t, http.StatusNoContent, nil)
		res, err := client.Do(r.request(t.Context(), http.MethodGet, id, target, nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		got := sha256.New()
		if n, err := io.Copy(got, res.Body); n != size || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		if !bytes.Equal(sent.Sum(nil), got.Sum(nil)) {
			t.Error("it came back as something else")
		}
	})
}

// TestUploadBrokenOff has a client go away while it sends a file: the file stays what
// it was.
func TestUploadBrokenOff(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id, dir := r.box(), t.TempDir()
	if err := os.WriteFile(dir+"/f", []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.both(func(t *testing.T, client *http.Client) {
		t.Helper()
		for _, target := range []string{"/files", "/tree"} {
			ctx, giveUp := context.WithCancel(t.Context())
			body, pipe := io.Pipe()
			failed := make(chan error, 1)
			go func() {
				res, err := client.Do(r.request(ctx, http.MethodPut, id, target+query("path", dir+"/f"), body))
				if err == nil {
					_ = res.Body.Close()
				}
				failed <- err
			}()
			if _, err := pipe.Write(bytes.Repeat([]byte("x"), 1<<20)); target == "/files" && err != nil {
				t.Fatal(err)
			}
			giveUp()
			_ = pipe.CloseWithError(context.Canceled) // its transport waits for what it reads
			if err := <-failed; target == "/files" && err == nil {
				t.Error("the upload succeeded")
			}
			r.idle()
			if text, err := os.ReadFile(dir + "/f"); string(text) != "before" {
				t.Errorf("the file holds %q, %v", text, err)
			}
			eventually(t, "nothing else is left of it", func() bool {
				left, err := os.ReadDir(dir)
				return err == nil && len(left) == 1
			})
		}
	})
}

func TestTrees(t *testing.T) {
	t.Parallel()
	r := newRig(t, data.Options{})
	id := r.box()
	r.both(func(t *testing.T, client *http.Client) {
		t.Helper()
		dir := t.TempDir()
		var packed bytes.Buffer
		w := tar.NewWriter(&packed)
		for _, h := range []*tar.Header{
			{Name: "d/", Typeflag: tar.TypeDir, Mode: 0o755},
			{Name: "d/f", Typeflag: tar.TypeReg, Mode: 0o640, Size: 3},
			{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "d/f"},
		} {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = io.WriteString(w, "abc")
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		target := "/tree" + query("path", dir+"/t")
		r.do(client, http.MethodPut, id, target, &packed).want(t, http.StatusNoContent, nil)
		got := r.do(client, http.MethodGet, id, target, nil)
		got.want(t, http.StatusOK, nil)
		if got.header.Get("Content-Type") != "application/x-tar" || got.header.Get("Content-Disposition") != "attachment; filename=t.tar" {
			t.Errorf("headers %v", got.header)
		}
		var names []string
		for reader := tar.NewReader(strings.NewReader(got.body)); ; {
			h, err := reader.Next()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			names = append(names, fmt.Sprintf("%s %o %s", h.Name, h.Mode, h.Linkname))
		}
		if diff := cmp.Diff([]string{"./ 755 ", "d/ 755 ", "d/f 640 ", "l 777 d/f"}, names); diff != "" {
			t.Error(diff)
		}
	})
}
