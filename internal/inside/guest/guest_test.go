package guest

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const testToken = "the key"

func newTestServer(t *testing.T) *httptest.Server {
	t.Helper()
	g := New()
	server := httptest.NewServer(g.Handler())
	t.Cleanup(func() {
		server.Close()
		g.Close()
	})
	initTestServer(t, server)
	return server
}

func initTestServer(t *testing.T, server *httptest.Server) {
	t.Helper()
	res := send(t, server, http.MethodPost, "/init", "application/json",
		fmt.Sprintf(`{"accessToken":%q,"envVars":{"A":"1"},"defaultUser":"%d:%d"}`, testToken, os.Getuid(), os.Getgid()))
	if res.status != http.StatusNoContent {
		t.Fatalf("init: %+v", res)
	}
}

type answer struct {
	status int
	body   string
	header http.Header
}

// send makes a call whose content is a type and a body, and then the names and values
// of headers.
func send(t *testing.T, s *httptest.Server, method, path string, content ...string) answer {
	t.Helper()
	kind, body := "", ""
	if len(content) >= 2 {
		kind, body = content[0], content[1]
	}
	req, err := http.NewRequestWithContext(t.Context(), method, s.URL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	req.Header.Set(TokenHeader, testToken)
	for i := 2; i+1 < len(content); i += 2 {
		req.Header.Set(content[i], content[i+1])
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

// frames sends one Connect frame of JSON and returns those of the answer.
func frames(t *testing.T, s *httptest.Server, path, message string, headers ...string) []string {
	t.Helper()
	var list []string
	for rest := sendFrame(t, s, path, message, headers...).body; len(rest) >= 5; {
		n := int(binary.BigEndian.Uint32([]byte(rest[1:5])))
		list = append(list, fmt.Sprintf("%d %s", rest[0], compact(t, rest[5:5+n])))
		rest = rest[5+n:]
	}
	return list
}

func sendFrame(t *testing.T, s *httptest.Server, path, message string, headers ...string) answer {
	t.Helper()
	return send(t, s, http.MethodPost, path, append([]string{"application/connect+json", frame(message)}, headers...)...)
}

func frame(message string) string {
	return string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message)))) + message
}

// compact undoes the random spaces that the protobuf library puts into JSON.
func compact(t *testing.T, s string) string {
	t.Helper()
	var buf bytes.Buffer
	if err := json.Compact(&buf, []byte(s)); err != nil {
		t.Fatalf("%v: %q", err, s)
	}
	return buf.String()
}

// TestWire holds the exact bytes that E2B's clients were seen to receive.
func TestWire(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	for name, tc := range map[string]struct {
		request string
		want    []string // a "*" stands for the pid
	}{
		"exit status 3": {
			`{"process":{"cmd":"sh","args":["-c","exit 3"]},"stdin":false}`,
			[]string{
				`0 {"event":{"start":{"pid":*}}}`,
				`0 {"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}`,
				`2 {}`,
			},
		},
		"killed": {
			`{"process":{"cmd":"sh","args":["-c","kill -9 $$"]}}`,
			[]string{
				`0 {"event":{"start":{"pid":*}}}`,
				`0 {"event":{"end":{"exitCode":-1,"status":"signal: killed","error":"signal: killed"}}}`,
				`2 {}`,
			},
		},
		"output": {
			`{"process":{"cmd":"sh","args":["-c","printf hi; printf $A$B >&2"],"envs":{"B":"2"}}}`,
			[]string{
				`0 {"event":{"start":{"pid":*}}}`,
				`0 {"event":{"data":{"stdout":"aGk="}}}`,
				`0 {"event":{"data":{"stderr":"MTI="}}}`,
				`0 {"event":{"end":{"exited":true,"status":"exit status 0"}}}`,
				`2 {}`,
			},
		},
		"no directory": {
			`{"process":{"cmd":"true","cwd":"/no/dir"}}`,
			[]string{`2 {"error":{"code":"invalid_argument","message":"cwd '/no/dir' does not exist"}}`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := frames(t, s, "/process.Process/Start", tc.request)
			if len(got) > 0 && strings.HasPrefix(tc.want[0], `0 {"event":{"start"`) {
				got[0] = tc.want[0]
			}
			// The two streams are independent: either may come first.
			if name == "output" && len(got) > 2 && strings.Contains(got[1], "stderr") {
				got[1], got[2] = got[2], got[1]
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
		})
	}
}

func TestLateConnectHearsOfTheEnd(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	started := frames(t, s, "/process.Process/Start", `{"process":{"cmd":"sh","args":["-c","exit 4"]}}`)
	var pid int
	if _, err := fmt.Sscanf(started[0], `0 {"event":{"start":{"pid":%d}}}`, &pid); err != nil {
		t.Fatal(err)
	}
	got := frames(t, s, "/process.Process/Connect", fmt.Sprintf(`{"process":{"pid":%d}}`, pid))
	if len(got) != 3 || !strings.Contains(got[0], `"start"`) || !strings.Contains(got[1], `"exitCode":4`) {
		t.Errorf("got %q", got)
	}
	res := send(t, s, http.MethodPost, "/process.Process/SendSignal", "application/json", `{"process":{"pid":999999999},"signal":"SIGNAL_SIGKILL"}`)
	if want := `{"code":"not_found","message":"process with pid 999999999 not found"}`; compact(t, res.body) != want {
		t.Errorf("got %s, want %s", res.body, want)
	}
}

func TestUploadForms(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	dir := t.TempDir()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	for _, name := range []string{"a/b.txt", "c.txt"} {
		part, err := w.CreatePart(textproto.MIMEHeader{
			"Content-Disposition": {fmt.Sprintf(`form-data; name="file"; filename="%s"`, filepath.Join(dir, name))},
		})
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, "in "+name)
	}
	_ = w.Close()
	res := send(t, s, http.MethodPost, "/files", w.FormDataContentType(), body.String())
	want := fmt.Sprintf(`[{"name":"b.txt","path":"%[1]s/a/b.txt","type":"file"},{"name":"c.txt","path":"%[1]s/c.txt","type":"file"}]`, dir)
	if res.status != http.StatusOK || compact(t, res.body) != want {
		t.Errorf("got %d %s, want %s", res.status, res.body, want)
	}
	data, err := os.ReadFile(filepath.Join(dir, "a", "b.txt"))
	if err != nil || string(data) != "in a/b.txt" {
		t.Errorf("%q, %v", data, err)
	}
	res = send(t, s, http.MethodPost, "/files?path="+dir+"/once", w.FormDataContentType(), body.String())
	if res.status != http.StatusBadRequest || !strings.Contains(res.body, "twice") {
		t.Errorf("the same path twice: %d %s", res.status, res.body)
	}
	res = send(t, s, http.MethodGet, "/files?path="+dir+"/c.txt")
	if res.status != http.StatusOK || res.body != "in c.txt" || !strings.HasPrefix(res.header.Get("Content-Disposition"), "inline") {
		t.Errorf("got %+v", res)
	}
}

func TestErrorsHaveACode(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	for path, want := range map[string]string{
		"/files?path=/no/such":            `{"code":404,"message":"open /no/such: file not found"}`,
		"/files?path=/":                   `{"code":400,`,
		"/files?path=/x&username=unheard": `{"code":401,"message":"invalid username: 'unheard'"}`,
	} {
		if res := send(t, s, http.MethodGet, path); !strings.HasPrefix(res.body, want) {
			t.Errorf("%s: %q, want %q", path, res.body, want)
		}
	}
	if res := send(t, s, http.MethodPost, "/init", "application/json", `{"defaultWorkdir":"here"}`); res.status != http.StatusBadRequest {
		t.Errorf("a relative working directory: %+v", res)
	}
	if res := send(t, s, http.MethodPost, "/init", "application/json", `{"envVars":{"A=":"x"}}`); res.status != http.StatusBadRequest {
		t.Errorf("a bad variable: %+v", res)
	}
	if res := send(t, s, http.MethodGet, "/envs"); compact(t, res.body) != `{"A":"1"}` {
		t.Errorf("got %+v", res)
	}
	if res := send(t, s, http.MethodGet, "/health"); res.status != http.StatusNoContent {
		t.Errorf("got %+v", res)
	}
}

// TestConduit opens connections the way an engine does.
func TestConduit(t *testing.T) {
	t.Parallel()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	outside := os.NewFile(uintptr(fds[0]), "outside")
	c, err := openConduit(os.NewFile(uintptr(fds[1]), "inside"), new(Guest))
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		for {
			conn, err := c.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "guest")
			_ = conn.Close()
		}
	}()
	ln, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // closed below
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		_, _ = io.Copy(conn, conn)
		_ = conn.Close()
	}()

	if got := through(t, outside, Port, ""); got != "\x00guest" {
		t.Errorf("the guest's own port: %q", got)
	}
	big := strings.Repeat("x", 3<<20)
	if got := through(t, outside, ln.Addr().(*net.TCPAddr).Port, big); got != "\x00"+big {
		t.Errorf("another port: %d bytes, want %d", len(got), len(big)+1)
	}
	if got := through(t, outside, 1, ""); got != "\x01" {
		t.Errorf("a closed port: %q", got)
	}
	for _, message := range [][]byte{{}, {1}, {1, 2, 3}, {0, 80}} { // without a descriptor, or too long
		_ = syscall.Sendmsg(fds[0], message, nil, nil, syscall.MSG_NOSIGNAL)
	}
	if got := through(t, outside, Port, ""); got != "\x00guest" && got != "" {
		t.Errorf("after nonsense: %q", got)
	}
	_ = outside.Close()
	_ = ln.Close()
	c.waitForRelays()
	<-served
}

// through sends a connection for port, writes text, and returns all that comes
// back.
func through(t *testing.T, conduit *os.File, port int, text string) string {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	message := binary.BigEndian.AppendUint16(nil, uint16(port))
	err = syscall.Sendmsg(int(conduit.Fd()), message, syscall.UnixRights(fds[1]), nil, 0)
	_ = syscall.Close(fds[1])
	ours := os.NewFile(uintptr(fds[0]), "ours")
	defer ours.Close()
	if err != nil {
		return ""
	}
	conn, err := net.FileConn(ours)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		_, _ = io.WriteString(conn, text)
		_ = conn.(*net.UnixConn).CloseWrite()
	}()
	data, err := io.ReadAll(conn)
	if err != nil {
		t.Errorf("port %d: %v", port, err)
	}
	return string(data)
}

func TestLookupUser(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		"":          "root 0 0 /root",
		"root":      "root 0 0 /root",
		"0":         "root 0 0 /root",
		"4242":      "4242 4242 4242 /",
		"4242:17":   "4242 4242 17 /",
		"root:4242": "root 0 4242 /root",
	} {
		u, err := newAccounts().lookupUser(spec)
		if got := fmt.Sprintf("%s %d %d %s", u.name, u.uid, u.gid, u.home); err != nil || got != want {
			t.Errorf("lookupUser(%q) = %q, %v, want %q", spec, got, err, want)
		}
	}
	for _, spec := range []string{"no-such-user", "-1", "4294967296", "root:no-such-group", ":", ":0", "a\x00b", "root:0:0"} {
		if u, err := newAccounts().lookupUser(spec); err == nil {
			t.Errorf("lookupUser(%q) = %+v, want an error", spec, u)
		}
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	u := user{home: "/home/user"}
	for p, want := range map[string]string{
		"": "/home/user", ".": "/home/user", "a": "/home/user/a", "~": "/home/user", "~/a/../b": "/home/user/b",
		"/a/../../b": "/b", "../x": "/home/x", "~other": "/home/user/~other", "//a": "/a",
	} {
		if got := u.resolvePath(p); got != want {
			t.Errorf("resolve(%q) = %q, want %q", p, got, want)
		}
	}
}

func FuzzResolve(f *testing.F) {
	for _, p := range []string{"", "~", "../..", "/a/./b//c", "~/../..", "\x00"} {
		f.Add("/home/user", p)
	}
	f.Fuzz(func(t *testing.T, home, p string) {
		if !strings.HasPrefix(home, "/") {
			return
		}
		if got := (user{home: home}).resolvePath(p); !filepath.IsAbs(got) || filepath.Clean(got) != got {
			t.Errorf("resolve(%q) with home %q = %q", p, home, got)
		}
	})
}

// FuzzMessage feeds the calls that parse what a client sends.
func FuzzMessage(f *testing.F) {
	testuser.Drop(f)
	g := New()
	f.Cleanup(g.Close)
	h := g.Handler()
	f.Add("/init", "application/json", []byte(`{"envVars":{"A":"1"}}`))
	f.Add("/files?path=/nonexistent/x", "multipart/form-data; boundary=b", []byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"/nonexistent/y\"\r\n\r\nx\r\n--b--\r\n"))
	f.Add("/filesystem.Filesystem/Stat", "application/json", []byte(`{"path":"~"}`))
	f.Add("/process.Process/SendInput", "application/json", []byte(`{"process":{"tag":"x"},"input":{"stdin":"eA=="}}`))
	f.Add("/process.Process/StreamInput", "application/connect+json", []byte{0, 0, 0, 0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, path, kind string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://guest"+path, bytes.NewReader(body))
		if err != nil || !strings.HasPrefix(path, "/") {
			return
		}
		// As the handler sees it, however it is written in the request.
		for _, real := range []string{"Start", "Remove", "Move", "MakeDir", "/files", "/tree"} {
			if strings.Contains(req.URL.Path, real) {
				return // it starts programs, or writes files for real
			}
		}
		req.Header.Set("Content-Type", kind)
		req.Header.Set(TokenHeader, g.currentSettings().token)
		h.ServeHTTP(httptest.NewRecorder(), req)
	})
}

// TestMarks looks for the files that tell programs of E2B's where they are.
func TestMarks(t *testing.T) {
	t.Parallel()
	g := New()
	g.markerDir = filepath.Join(t.TempDir(), "run", "e2b")
	server := httptest.NewServer(g.Handler())
	defer g.Close()
	defer server.Close()
	initTestServer(t, server)
	if _, err := os.Stat(g.markerDir); !os.IsNotExist(err) {
		t.Errorf("a sandbox not created by E2B is marked: %v", err)
	}
	elsewhere := filepath.Join(t.TempDir(), "elsewhere")
	for _, id := range []string{"first", "second"} {
		body := fmt.Sprintf(`{"envVars":{"E2B_SANDBOX":"true","E2B_SANDBOX_ID":%q,"OTHER":"x"}}`, id)
		if res := send(t, server, http.MethodPost, "/init", "application/json", body); res.status != http.StatusNoContent {
			t.Fatalf("init: %+v", res)
		}
		for name, want := range map[string]string{".E2B_SANDBOX": "true", ".E2B_SANDBOX_ID": id, ".OTHER": "", ".E2B_TEMPLATE_ID": ""} {
			if got, err := os.ReadFile(filepath.Join(g.markerDir, name)); string(got) != want || (want == "") != os.IsNotExist(err) {
				t.Errorf("%s: %q, %v, want %q", name, got, err, want)
			}
		}
		if err := os.Remove(filepath.Join(g.markerDir, ".E2B_SANDBOX_ID")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(elsewhere, filepath.Join(g.markerDir, ".E2B_SANDBOX_ID")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Lstat(elsewhere); !os.IsNotExist(err) {
		t.Errorf("a link was followed: %v", err)
	}
}
