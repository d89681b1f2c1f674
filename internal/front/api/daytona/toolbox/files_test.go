package toolbox_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"io"
	"math/rand/v2"
	"mime"
	"mime/multipart"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// info is what clients decode of a file.
type info struct {
	Name, Path          string
	IsDir               bool
	Size                int64
	Mode, Permissions   string
	Owner, Group        string
	ModTime, ModifiedAt string
}

// TestFiles goes through the calls on files of one sandbox.
func TestFiles(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	dir := strings.TrimSpace(i.run("pwd"))

	i.call(http.MethodPost, "/files/folder", nil, "path", "a/b", "mode", "750").want(http.StatusCreated, nil)
	i.call(http.MethodPost, "/files/folder", nil, "path", "a/b", "mode", "755").want(http.StatusCreated, nil)
	i.upload([2]string{"a/one.txt", "first\nTODO(x) one\n"}, [2]string{dir + "/a/b/two ü.txt", "second"}).want(http.StatusOK, nil)
	if got := i.run("cat a/one.txt 'a/b/two ü.txt'"); got != "first\nTODO(x) one\nsecond" {
		t.Errorf("%q", got)
	}

	var list []info
	i.get("/files", "path", "a").want(http.StatusOK, &list)
	if len(list) != 2 {
		t.Fatalf("%+v", list)
	}
	i.get("/files", "path", "a", "depth", "2").want(http.StatusOK, &list)
	if len(list) != 3 {
		t.Fatalf("%+v", list)
	}
	i.get("/files", "path", "a", "depth", "0").wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.get("/files", "path", "nothing").wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
	i.get("/files").want(http.StatusOK, &list)
	if len(list) == 0 {
		t.Error("the working directory is empty")
	}

	var f info
	i.get("/files/info", "path", "a/b").want(http.StatusOK, &f)
	if f.Name != "b" || f.Path != dir+"/a/b" || !f.IsDir || f.Permissions != "0755" || f.Mode != "drwxr-xr-x" || f.ModifiedAt == "" || f.ModTime == "" {
		t.Errorf("%+v", f)
	}
	i.get("/files/info", "path", "a/three").wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
	i.get("/files/info").wantCode(http.StatusBadRequest, "INVALID_FILE_PATH")

	i.call(http.MethodPost, "/files/permissions", nil, "path", "a/one.txt", "mode", "600", "owner", "65534", "group", "65534").want(http.StatusOK, nil)
	if got := i.run("stat -c '%a %u %g' a/one.txt"); got != "600 65534 65534\n" {
		t.Errorf("%q", got)
	}
	i.call(http.MethodPost, "/files/permissions", nil, "path", "a/one.txt", "mode", "000").want(http.StatusOK, nil)
	if got := i.run("stat -c %a a/one.txt"); got != "0\n" {
		t.Errorf("%q", got)
	}
	i.call(http.MethodPost, "/files/permissions", nil, "path", "a/one.txt", "mode", "9").wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.call(http.MethodPost, "/files/permissions", nil, "path", "nothing", "mode", "600").wantCode(http.StatusNotFound, "FILE_NOT_FOUND")

	i.call(http.MethodPost, "/files/move", nil, "source", "a/one.txt", "destination", "c/one.txt").want(http.StatusOK, nil)
	i.call(http.MethodPost, "/files/move", nil, "source", "a/one.txt", "destination", "c/one.txt").wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
	if got := i.get("/files/download", "path", "~/../"+dir+"/c/one.txt").want(http.StatusOK, nil); got.body != "first\nTODO(x) one\n" ||
		got.header.Get("Content-Disposition") != "attachment; filename=one.txt" {
		t.Errorf("%q, %v", got.body, got.header)
	}
	i.get("/files/download", "path", "c").wantCode(http.StatusBadRequest, "INVALID_FILE_PATH")
	i.get("/files/download", "path", "/proc/version").want(http.StatusOK, nil)

	i.call(http.MethodDelete, "/files", nil, "path", "a").wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.call(http.MethodDelete, "/files", nil, "path", "a", "recursive", "true").want(http.StatusNoContent, nil)
	i.call(http.MethodDelete, "/files", nil, "path", "a").wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
}

// TestSearch searches and replaces text.
func TestSearch(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	dir := strings.TrimSpace(i.run("pwd"))
	i.upload([2]string{"s/one.txt", "first\nTODO(x) one\nword 12\n"}, [2]string{"s/.hidden/two.md", "TODO(x)\n"}).want(http.StatusOK, nil)

	var matches []struct {
		File    string
		Line    int
		Content string
	}
	i.get("/files/find", "path", "s", "pattern", "TODO(x)").want(http.StatusOK, &matches)
	if len(matches) != 2 {
		t.Fatalf("%+v", matches)
	}
	i.get("/files/find", "path", "s", "pattern", `word \d+`).want(http.StatusOK, &matches)
	if len(matches) != 1 || matches[0].File != dir+"/s/one.txt" || matches[0].Line != 3 || matches[0].Content != "word 12" {
		t.Errorf("%+v", matches)
	}
	i.get("/files/find", "path", "s/one.txt", "pattern", "(").want(http.StatusOK, &matches)
	if len(matches) != 1 || matches[0].File != dir+"/s/one.txt" || matches[0].Line != 2 {
		t.Errorf("%+v", matches)
	}
	i.get("/files/find", "path", "s").wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.get("/files/find", "path", "nothing", "pattern", "x").wantCode(http.StatusNotFound, "FILE_NOT_FOUND")

	var found struct{ Files []string }
	i.get("/files/search", "path", "s", "pattern", "*.md").want(http.StatusOK, &found)
	if len(found.Files) != 1 || found.Files[0] != dir+"/s/.hidden/two.md" {
		t.Errorf("%+v", found)
	}

	i.run("chmod 640 s/one.txt")
	var results []struct {
		File    string
		Success bool
		Error   string
	}
	body := map[string]any{"files": []string{"s/one.txt", "s/nothing"}, "pattern": "TODO(x)", "newValue": ""}
	i.call(http.MethodPost, "/files/replace", body).want(http.StatusOK, &results)
	if len(results) != 2 || !results[0].Success || results[1].Success || results[1].Error == "" || results[1].File != "s/nothing" {
		t.Errorf("%+v", results)
	}
	if got := i.run("cat s/one.txt; stat -c %a s/one.txt"); got != "first\n one\nword 12\n640\n" {
		t.Errorf("%q", got)
	}
}

// TestBulkDownload downloads files and failures in one response.
func TestBulkDownload(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	const odd = `d/"o" ü\.txt`
	i.upload([2]string{"d/empty", ""}, [2]string{odd, "odd"}).want(http.StatusOK, nil)
	names := []string{"d/empty", "d/nothing", odd, "d"}
	got := i.call(http.MethodPost, "/files/bulk-download", map[string]any{"paths": names}).want(http.StatusOK, nil)
	kind, params, err := mime.ParseMediaType(got.header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		t.Fatalf("%q, %v", got.header.Get("Content-Type"), err)
	}
	parts := multipart.NewReader(strings.NewReader(got.body), params["boundary"])
	for n, want := range []struct{ field, content, code string }{
		{"file", "", ""}, {"error", "", "FILE_NOT_FOUND"}, {"file", "odd", ""}, {"error", "", "INVALID_FILE_PATH"},
	} {
		part, err := parts.NextRawPart()
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(part)
		if err != nil {
			t.Fatal(err)
		}
		_, named, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
		if err != nil && !errors.Is(err, mime.ErrInvalidMediaParameter) || !strings.Contains(part.Header.Get("Content-Disposition"), "filename=") {
			t.Errorf("%q: %v", part.Header.Get("Content-Disposition"), err)
		}
		if named["name"] != want.field && part.FormName() != want.field {
			t.Errorf("part %d: %q, want %q", n, part.FormName(), want.field)
		}
		var problem struct{ Code string }
		if want.field == "error" && (json.Unmarshal(text, &problem) != nil || problem.Code != want.code) {
			t.Errorf("%s, want %s", text, want.code)
		}
		if want.field == "file" && string(text) != want.content {
			t.Errorf("%q, want %q", text, want.content)
		}
	}
	if _, err := parts.NextPart(); !errors.Is(err, io.EOF) {
		t.Errorf("%v, want the end", err)
	}
	i.call(http.MethodPost, "/files/bulk-download", map[string]any{}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
}

// TestUploadForms uploads with forms that are incomplete or fail in part.
func TestUploadForms(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	i.run("mkdir taken")
	i.upload([2]string{"taken", "x"}, [2]string{"good", "y"}).want(http.StatusBadRequest, nil)
	if got := i.run("cat good"); got != "y" {
		t.Errorf("%q", got)
	}
	form := func(fields ...[3]string) (string, io.Reader) {
		var b bytes.Buffer
		w := multipart.NewWriter(&b)
		for _, f := range fields {
			create := func(name, _ string) (io.Writer, error) { return w.CreateFormField(name) }
			if f[1] != "" {
				create = w.CreateFormFile
			}
			part, err := create(f[0], f[1])
			if err == nil {
				_, err = io.WriteString(part, f[2])
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return w.FormDataContentType(), &b
	}
	kind, body := form([3]string{"files[0].file", "a", "x"})
	i.send(http.MethodPost, "/files/bulk-upload", kind, body).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	kind, body = form([3]string{"files[0].path", "", "x"})
	i.send(http.MethodPost, "/files/bulk-upload", kind, body).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.send(http.MethodPost, "/files/bulk-upload", "text/plain", strings.NewReader("x")).wantCode(http.StatusBadRequest, "BAD_REQUEST")

	kind, body = form([3]string{"file", "a", "content"})
	if got := i.send(http.MethodPost, "/files/upload?path=up/one", kind, body).want(http.StatusOK, nil); got.body != "{}" {
		t.Errorf("%q", got.body)
	}
	kind, body = form([3]string{"other", "", "x"}, [3]string{"file", "a", "more"})
	var uploaded struct{ Name, Path, Type string }
	i.send(http.MethodPost, "/files/upload-v2?path=/tmp/two", kind, body).want(http.StatusOK, &uploaded)
	if uploaded.Name != "two" || uploaded.Path != "/tmp/two" {
		t.Errorf("%+v", uploaded)
	}
	if got := i.run("cat up/one /tmp/two"); got != "contentmore" {
		t.Errorf("%q", got)
	}
	kind, body = form([3]string{"other", "", "x"})
	i.send(http.MethodPost, "/files/upload?path=up/one", kind, body).wantCode(http.StatusBadRequest, "BAD_REQUEST")
}

// TestLargeFile transfers a file that is larger than the memory that transfers may take.
func TestLargeFile(t *testing.T) { //nolint:paralleltest // it measures the memory of this process
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	const size = 96 << 20
	sum := sha256.New()
	pr, pw := io.Pipe()
	w := multipart.NewWriter(pw)
	go func() {
		err := w.WriteField("files[0].path", "/tmp/large")
		if err == nil {
			var part io.Writer
			if part, err = w.CreateFormFile("files[0].file", "large"); err == nil {
				_, err = io.Copy(io.MultiWriter(part, sum), io.LimitReader(rand.NewChaCha8([32]byte{1}), size))
			}
		}
		pw.CloseWithError(errors.Join(err, w.Close()))
	}()
	most := peakHeap(t, func() {
		i.send(http.MethodPost, "/files/bulk-upload", w.FormDataContentType(), pr).want(http.StatusOK, nil)
		for _, call := range []struct{ method, target, body string }{
			{http.MethodGet, "/files/download?path=/tmp/large", ""},
			{http.MethodPost, "/files/bulk-download", `{"paths":["/tmp/large"]}`},
		} {
			got := i.readLarge(call.method, call.target, call.body)
			if !bytes.Equal(got, sum.Sum(nil)) {
				t.Errorf("%s: another content", call.target)
			}
		}
	})
	if most > size/2 {
		t.Errorf("the transfers took %d MiB of memory", most>>20)
	}
}

// readLarge returns the hash of a file in a response.
func (i *inside) readLarge(method, target, body string) []byte {
	i.Helper()
	r, err := http.NewRequestWithContext(i.Context(), method, i.url+target, strings.NewReader(body))
	if err != nil {
		i.Fatal(err)
	}
	r.Header.Set(rigOwner, alice)
	res, err := i.client.Do(r)
	if err != nil {
		i.Fatal(err)
	}
	defer res.Body.Close()
	content := io.Reader(res.Body)
	if _, params, err := mime.ParseMediaType(res.Header.Get("Content-Type")); err == nil && params["boundary"] != "" {
		if content, err = multipart.NewReader(res.Body, params["boundary"]).NextPart(); err != nil {
			i.Fatal(err)
		}
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, content); err != nil {
		i.Fatal(err)
	}
	return sum.Sum(nil)
}

// peakHeap returns by how many bytes the heap grew at most while f ran.
func peakHeap(t *testing.T, f func()) (most uint64) {
	t.Helper()
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			if now.HeapAlloc > before.HeapAlloc {
				most = max(most, now.HeapAlloc-before.HeapAlloc)
			}
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	<-stopped
	return most
}

// TestForeignSandbox has another owner and a request without a key fail as for an unknown sandbox.
func TestForeignSandbox(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	for _, path := range []string{"/files?path=/", "/files/download?path=/etc/passwd", "/git/status?path=/", "/work-dir", "/port", "/proxy/80/", "/lsp/workspacesymbols"} {
		var texts []string
		for _, id := range []sandpit.ID{i.id, sandpit.NewID()} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, strings.ReplaceAll(i.url, string(i.id), string(id))+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set(rigOwner, bob)
			got := i.do(r)
			got.wantCode(http.StatusNotFound, "NOT_FOUND")
			var problem struct{ Message string }
			if err := json.Unmarshal([]byte(got.body), &problem); err != nil {
				t.Fatal(err)
			}
			texts = append(texts, strings.ReplaceAll(problem.Message, string(id), "ID"))
			r.Header.Del(rigOwner)
			i.do(r).wantCode(http.StatusUnauthorized, "UNAUTHORIZED")
		}
		if texts[0] != texts[1] {
			t.Errorf("%q", texts)
		}
	}
}
