package guest

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// call is a request with every detail.
type call struct {
	method, path, body string
	header             map[string]string
	noKey              bool
}

func (c call) send(t *testing.T, s *httptest.Server) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), c.method, s.URL+c.path, strings.NewReader(c.body))
	if err != nil {
		t.Fatal(err)
	}
	if !c.noKey {
		req.Header.Set(TokenHeader, testToken)
	}
	req.Header.Set("Accept-Encoding", "identity") // else Go unpacks what it asked for itself
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{res.StatusCode, string(data), res.Header}
}

func writeFile(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEncodingsAndRanges(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	file := filepath.Join(t.TempDir(), "f")
	writeFile(t, file, "0123456789")
	unpack := func(s string) string {
		z, err := gzip.NewReader(strings.NewReader(s))
		if err != nil {
			return err.Error()
		}
		data, err := io.ReadAll(z)
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	for name, tc := range map[string]struct {
		header             map[string]string
		status             int
		encoding, contains string
	}{
		"whole":             {nil, 200, "", "0123456789"},
		"gzip":              {map[string]string{"Accept-Encoding": "gzip"}, 200, "gzip", "0123456789"},
		"gzip among others": {map[string]string{"Accept-Encoding": "br, gzip;q=1.0, *;q=0.1"}, 200, "gzip", "0123456789"},
		"gzip refused":      {map[string]string{"Accept-Encoding": "gzip;q=0"}, 200, "", "0123456789"},
		"identity wanted":   {map[string]string{"Accept-Encoding": "gzip;q=0.5, identity"}, 200, "", "0123456789"},
		"nothing we have":   {map[string]string{"Accept-Encoding": "br, identity;q=0"}, 406, "", "encoding"},
		"nothing at all":    {map[string]string{"Accept-Encoding": "*;q=0"}, 406, "", "encoding"},
		"range":             {map[string]string{"Range": "bytes=2-4"}, 206, "", "234"},
		"range and gzip":    {map[string]string{"Range": "bytes=-3", "Accept-Encoding": "gzip"}, 206, "", "789"},
		"range beyond":      {map[string]string{"Range": "bytes=10-20"}, 416, "", ""},
		"other file's tag":  {map[string]string{"Range": "bytes=2-4", "If-Range": `"other"`}, 200, "", "0123456789"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := call{method: http.MethodGet, path: "/files?path=" + file, header: tc.header}.send(t, s)
			body := res.body
			if res.header.Get("Content-Encoding") == "gzip" {
				body = unpack(body)
			}
			if res.status != tc.status || res.header.Get("Content-Encoding") != tc.encoding || !strings.Contains(body, tc.contains) {
				t.Errorf("got %d, encoding %q, %q", res.status, res.header.Get("Content-Encoding"), body)
			}
		})
	}
}

func TestCompressedUpload(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	file := filepath.Join(t.TempDir(), "f")
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	_, _ = io.WriteString(z, "unpacked")
	_ = z.Close()
	up := call{
		method: http.MethodPost, path: "/files?path=" + file, body: packed.String(),
		header: map[string]string{"Content-Encoding": "gzip", "Content-Type": "application/octet-stream"},
	}
	if res := up.send(t, s); res.status != http.StatusOK {
		t.Fatalf("got %+v", res)
	}
	up.body = up.body[:len(up.body)-6]
	if res := up.send(t, s); res.status != http.StatusBadRequest {
		t.Errorf("cut off: %+v", res)
	}
	up.body = "not gzip"
	if res := up.send(t, s); res.status != http.StatusBadRequest {
		t.Errorf("not gzip: %+v", res)
	}
	up.header["Content-Encoding"] = "br"
	if res := up.send(t, s); res.status != http.StatusUnsupportedMediaType {
		t.Errorf("another encoding: %+v", res)
	}
	if data, err := os.ReadFile(file); err != nil || string(data) != "unpacked" {
		t.Errorf("%q, %v", data, err)
	}
}

// sign returns the query of a file call that is signed with the test's key.
func sign(path, operation, user string, expires time.Time) string {
	text := path + ":" + operation + ":" + user + ":" + testToken
	query := url.Values{"path": {path}}
	if user != "" {
		query.Set("username", user)
	}
	if !expires.IsZero() {
		text += fmt.Sprintf(":%d", expires.Unix())
		query.Set("signature_expiration", strconv.FormatInt(expires.Unix(), 10))
	}
	sum := sha256.Sum256([]byte(text))
	query.Set("signature", "v1_"+strings.TrimRight(base64.StdEncoding.EncodeToString(sum[:]), "="))
	return "/files?" + query.Encode()
}

func TestSignatures(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	writeFile(t, file, "signed")
	self := fmt.Sprintf("%d:%d", os.Getuid(), os.Getgid())
	later := time.Now().Add(time.Hour)
	for name, tc := range map[string]struct {
		method, path string
		status       int
		text         string
	}{
		"read":                   {http.MethodGet, sign(file, "read", "", time.Time{}), 200, "signed"},
		"read as a user":         {http.MethodGet, sign(file, "read", self, later), 200, "signed"},
		"write":                  {http.MethodPost, sign(dir+"/w", "write", "", later), 200, "[{"},
		"no signature":           {http.MethodGet, "/files?path=" + file, 401, "unauthorized access, please provide"},
		"expired":                {http.MethodGet, sign(file, "read", "", time.Now().Add(-time.Minute)), 401, `{"code":401,"message":"signature is already expired"}`},
		"of reading for writing": {http.MethodPost, sign(file, "read", "", later), 401, "invalid signature"},
		"of another path":        {http.MethodGet, strings.Replace(sign(file, "read", "", later), "f&", "g&", 1), 401, "invalid signature"},
		"of another user":        {http.MethodGet, sign(file, "read", "", later) + "&username=root", 401, "invalid signature"},
		"longer than allowed":    {http.MethodGet, strings.Replace(sign(file, "read", "", later), "signature_expiration=", "signature_expiration=1", 1), 401, "invalid signature"},
		"for another call":       {http.MethodGet, strings.Replace(sign(file, "read", "", later), "/files", "/envs", 1), 401, "unauthorized access"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res := call{method: tc.method, path: tc.path, noKey: true}.send(t, s)
			if res.status != tc.status || !strings.Contains(res.body, tc.text) {
				t.Errorf("got %d %s, want %d %s", res.status, res.body, tc.status, tc.text)
			}
		})
	}
}

// entryOf returns what the guest tells about a file.
func entryOf(t *testing.T, s *httptest.Server, path string) map[string]any {
	t.Helper()
	res := send(t, s, http.MethodPost, "/filesystem.Filesystem/Stat", "application/json", fmt.Sprintf(`{"path":%q}`, path))
	var got struct {
		Entry map[string]any `json:"entry"`
	}
	if err := json.Unmarshal([]byte(res.body), &got); err != nil {
		t.Fatalf("%v: %+v", err, res)
	}
	return got.Entry
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	file := filepath.Join(t.TempDir(), "f")
	up := call{
		method: http.MethodPost, path: "/files?path=" + file, body: "x",
		header: map[string]string{"X-Metadata-Author": "somebody", "X-Metadata-Purpose": "a test", "Content-Type": "application/octet-stream"},
	}
	res := up.send(t, s)
	if res.status == http.StatusNotImplemented {
		t.Skip("the file system of this machine's temporary directory has no user attributes")
	}
	want := fmt.Sprintf(`[{"name":"f","path":%q,"type":"file","metadata":{"author":"somebody","purpose":"a test"}}]`, file)
	if res.status != http.StatusOK || compact(t, res.body) != want {
		t.Errorf("got %+v, want %s", res, want)
	}
	marks := map[string]any{"author": "somebody", "purpose": "a test"}
	if got, _ := entryOf(t, s, file)["metadata"].(map[string]any); !maps.Equal(got, marks) {
		t.Errorf("stat: %v", got)
	}
	list := send(t, s, http.MethodPost, "/filesystem.Filesystem/ListDir", "application/json", fmt.Sprintf(`{"path":%q,"depth":1}`, filepath.Dir(file)))
	if !strings.Contains(list.body, "somebody") {
		t.Errorf("list: %+v", list)
	}
	up.header = map[string]string{"Content-Type": "application/octet-stream"}
	if res := up.send(t, s); res.status != http.StatusOK {
		t.Fatalf("got %+v", res)
	}
	if got := entryOf(t, s, file)["metadata"]; got != nil {
		t.Errorf("after it was replaced: %v", got)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	file := filepath.Join(t.TempDir(), "deep", "f")
	for _, tc := range []struct {
		given  string
		status int
		want   os.FileMode
	}{
		{"", 200, 0o644},
		{"755", 200, 0o755},
		{"", 200, 0o755}, // the file keeps what it has
		{"8", 400, 0o755},
		{"7777", 400, 0o755},
		{"0", 400, 0o755},
	} {
		up := call{
			method: http.MethodPost, path: "/files?path=" + file, body: "x",
			header: map[string]string{"Content-Type": "application/octet-stream", ModeHeader: tc.given},
		}
		res := up.send(t, s)
		info, err := os.Stat(file)
		if err != nil || res.status != tc.status || info.Mode().Perm() != tc.want {
			t.Errorf("mode %q: %d, %v, %v; want %d and %v", tc.given, res.status, info, err, tc.status, tc.want)
		}
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	dir := t.TempDir()
	compose := func(destination string, sources ...string) answer {
		body, err := json.Marshal(map[string]any{"source_paths": sources, "destination": destination})
		if err != nil {
			t.Fatal(err)
		}
		return call{method: http.MethodPost, path: "/files/compose", body: string(body)}.send(t, s)
	}
	for i, text := range []string{"one,", "", "two"} {
		writeFile(t, fmt.Sprintf("%s/%d", dir, i), text)
	}
	res := compose(dir+"/new/all", dir+"/0", dir+"/1", dir+"/2")
	want := fmt.Sprintf(`{"name":"all","path":"%s/new/all","type":"file"}`, dir)
	if res.status != http.StatusOK || compact(t, res.body) != want {
		t.Errorf("got %+v, want %s", res, want)
	}
	if data, err := os.ReadFile(dir + "/new/all"); err != nil || string(data) != "one,two" {
		t.Errorf("%q, %v", data, err)
	}
	if _, err := os.Stat(dir + "/0"); !os.IsNotExist(err) {
		t.Errorf("a source is still there: %v", err)
	}
	writeFile(t, dir+"/3", "three")
	for name, res := range map[string]answer{
		"no source":      compose(dir + "/x"),
		"no destination": compose("", dir+"/3"),
		"missing source": compose(dir+"/x", dir+"/3", dir+"/4"),
	} {
		if res.status != http.StatusBadRequest && res.status != http.StatusNotFound {
			t.Errorf("%s: %+v", name, res)
		}
	}
	if _, err := os.Stat(dir + "/3"); err != nil {
		t.Errorf("a source of what failed is gone: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("left behind: %v", entries)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	var m metrics
	res := send(t, s, http.MethodGet, "/metrics")
	if err := json.Unmarshal([]byte(res.body), &m); err != nil {
		t.Fatalf("%v: %+v", err, res)
	}
	if m.CPUCount < 1 || m.MemTotal == 0 || m.MemUsed == 0 || m.MemUsed > m.MemTotal || m.DiskTotal == 0 || m.DiskUsed > m.DiskTotal ||
		time.Since(time.Unix(m.Timestamp, 0)) > time.Minute || m.MemTotalMiB != m.MemTotal>>20 {
		t.Errorf("got %s", res.body)
	}
}

// TestConfinement leads confined calls out in every way there is.
func TestConfinement(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in, out := base+"/in", base+"/out"
	for _, dir := range []string{in, in + "/sub", out} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, out+"/secret", "secret")
	writeFile(t, in+"/file", "file")
	for link, target := range map[string]string{
		"absolute": out, "relative": "../out", "chain": "absolute", "file-link": out + "/secret", "inside": in + "/sub", "dangling": out + "/new",
	} {
		if err := os.Symlink(target, filepath.Join(in, link)); err != nil {
			t.Fatal(err)
		}
	}
	confined := func(method, path, body string) answer {
		return call{method: method, path: path, body: body, header: map[string]string{WithinHeader: in, "Content-Type": "application/json"}}.send(t, s)
	}
	for _, leading := range []string{
		out + "/secret", in + "/../out/secret", in + "/absolute/secret", in + "/relative/secret", in + "/chain/secret", in + "/file-link",
		"/", base, in + "x",
	} {
		if res := confined(http.MethodGet, "/files?path="+url.QueryEscape(leading), ""); res.status != http.StatusForbidden {
			t.Errorf("read %s: %d %s", leading, res.status, res.body)
		}
	}
	for _, leading := range []string{out + "/new", in + "/absolute/new", in + "/chain/deep/new", in + "/dangling"} {
		query := url.QueryEscape(leading)
		for name, res := range map[string]answer{
			"write": confined(http.MethodPost, "/files?path="+query, "x"),
			"mkdir": confined(http.MethodPost, "/filesystem.Filesystem/MakeDir", fmt.Sprintf(`{"path":%q}`, leading)),
			"move":  confined(http.MethodPost, "/filesystem.Filesystem/Move", fmt.Sprintf(`{"source":%q,"destination":%q}`, in+"/file", leading+"/x")),
		} {
			if res.status != http.StatusForbidden {
				t.Errorf("%s %s: %d %s", name, leading, res.status, res.body)
			}
		}
	}
	for name, res := range map[string]answer{
		"remove":  confined(http.MethodPost, "/filesystem.Filesystem/Remove", fmt.Sprintf(`{"path":%q}`, in+"/absolute/secret")),
		"list":    confined(http.MethodPost, "/filesystem.Filesystem/ListDir", fmt.Sprintf(`{"path":%q}`, in+"/relative")),
		"stat":    confined(http.MethodPost, "/filesystem.Filesystem/Stat", fmt.Sprintf(`{"path":%q}`, in+"/chain/secret")),
		"compose": confined(http.MethodPost, "/files/compose", fmt.Sprintf(`{"source_paths":[%q],"destination":%q}`, in+"/file", out+"/new")),
	} {
		if res.status != http.StatusForbidden {
			t.Errorf("%s: %d %s", name, res.status, res.body)
		}
	}
	for name, res := range map[string]answer{
		"read":           confined(http.MethodGet, "/files?path="+in+"/file", ""),
		"by a link":      confined(http.MethodPost, "/files?path="+in+"/inside/new", "x"),
		"list":           confined(http.MethodPost, "/filesystem.Filesystem/ListDir", fmt.Sprintf(`{"path":%q,"depth":9}`, in)),
		"remove a link":  confined(http.MethodPost, "/filesystem.Filesystem/Remove", fmt.Sprintf(`{"path":%q}`, in+"/absolute")),
		"move in a tree": confined(http.MethodPost, "/filesystem.Filesystem/Move", fmt.Sprintf(`{"source":%q,"destination":%q}`, in+"/file", in+"/a/b")),
	} {
		if res.status != http.StatusOK || strings.Contains(res.body, "FILE_TYPE_FILE\",\"path\":\""+in+"/file-link") {
			t.Errorf("%s: %d %s", name, res.status, res.body)
		}
	}
	if entries, _ := os.ReadDir(out); len(entries) != 1 {
		t.Errorf("outside has changed: %v", entries)
	}
	if res := (call{method: http.MethodGet, path: "/files?path=/x", header: map[string]string{WithinHeader: "here"}}).send(t, s); res.status != http.StatusBadRequest {
		t.Errorf("a relative directory: %+v", res)
	}
}

// TestConfinementRace exchanges a directory for a link to outside while files
// are written through it.
func TestConfinementRace(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	base, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in, out := base+"/in", base+"/out"
	for _, dir := range []string{in + "/dir", out} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.Rename(in+"/dir", in+"/away")
			_ = os.Symlink(out, in+"/dir")
			_ = os.Remove(in + "/dir")
			_ = os.Rename(in+"/away", in+"/dir")
		}
	}()
	for i := range 500 {
		call{
			method: http.MethodPost, path: fmt.Sprintf("/files?path=%s/dir/sub/%d", in, i), body: "x",
			header: map[string]string{WithinHeader: in, "Content-Type": "application/octet-stream"},
		}.send(t, s)
	}
	close(stop)
	<-stopped
	if entries, _ := os.ReadDir(out); len(entries) != 0 {
		t.Errorf("written outside: %v", entries)
	}
}

func FuzzRealPath(f *testing.F) {
	for _, p := range []string{"/", "/a/../b", "/./x//y/", "/proc/self/cwd", "/dev/stdin", "a", ""} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		got, err := realPath(filepath.Clean("/"+p), true)
		if err == nil && (!filepath.IsAbs(got) || filepath.Clean(got) != got) {
			t.Errorf("realPath(%q) = %q", p, got)
		}
	})
}

func FuzzSignature(f *testing.F) {
	f.Add(sign("/f", "read", "", time.Unix(1<<40, 0)))
	f.Add("/files?signature=v1_&path=x")
	f.Fuzz(func(t *testing.T, target string) {
		u, err := url.Parse(target)
		if err != nil {
			t.Skip()
		}
		// The key is one that no input was signed with.
		if err := checkSignature(&http.Request{Method: http.MethodGet, URL: u}, "another key", time.Now()); err == nil {
			t.Errorf("%s is accepted", target)
		}
	})
}

func FuzzParseStat(f *testing.F) {
	f.Add("1 (sh) S 0 1 1 0")
	f.Add("7 (a) b) R) S 1 7 7")
	f.Fuzz(func(t *testing.T, stat string) {
		if group, _, alive := parseStat(stat); alive && group <= 1 {
			t.Errorf("parseStat(%q): group %d would include every user", stat, group)
		}
	})
}
