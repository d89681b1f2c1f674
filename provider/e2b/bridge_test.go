package e2b_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// frame returns a message of a stream of Connect's protocol.
func frame(flags byte, data []byte) []byte {
	out := make([]byte, 5, 5+len(data))
	out[0] = flags
	binary.BigEndian.PutUint32(out[1:], uint32(len(data)))
	return append(out, data...)
}

func zipped(t *testing.T, text string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// plainFrames returns the messages of a stream, some of which may be compressed.
func plainFrames(t *testing.T, stream []byte) (text string) {
	t.Helper()
	for len(stream) >= 5 {
		n := 5 + int(binary.BigEndian.Uint32(stream[1:]))
		if n > len(stream) {
			t.Fatalf("a message of %d bytes in a stream of %d", n, len(stream))
		}
		data := stream[5:n]
		if stream[0]&1 != 0 {
			r := must(gzip.NewReader(bytes.NewReader(data)))(t)
			data = must(io.ReadAll(r))(t)
		}
		text, stream = text+string(data), stream[n:]
	}
	return text
}

// testGuestProtocol sends requests of the guest's protocol, as a server's clients do, to a sandbox with E2B's guest whose
// default user and directory are others than the guest's.
func testGuestProtocol(t *testing.T, p sandpit.Provider) {
	t.Helper()
	box := create(t, p, sandpit.Spec{User: "nobody", WorkDir: "/tmp"})
	server, ok := sandpit.As[sandpit.GuestServer](box.Guest())
	if !ok {
		t.Fatal("the guest has no protocol")
	}
	send := func(path string, body []byte, headers ...string) (string, error) {
		t.Helper()
		r := must(http.NewRequestWithContext(soon(t), http.MethodPost, "http://guest"+path, bytes.NewReader(body)))(t)
		r.Header.Set("Content-Type", "application/connect+json")
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		res, err := server.HTTP().RoundTrip(r)
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		text, err := io.ReadAll(res.Body)
		if err == nil && strings.HasPrefix(res.Header.Get("Content-Type"), "application/connect+") {
			return plainFrames(t, text), nil
		}
		return string(text), err
	}
	const start, script = "/process.Process/Start", `"cmd":"sh","args":["-c","test \"$(id -un):$(pwd)\" = $WANT"],"envs":{"WANT":`
	for name, tc := range map[string]struct {
		body    []byte
		headers []string
	}{
		"the defaults": {frame(0, []byte(`{"process":{`+script+`"nobody:/tmp"}}}`)), nil},
		"compressed":   {frame(1, zipped(t, `{"process":{`+script+`"nobody:/tmp"}}}`)), []string{"Connect-Content-Encoding", "gzip"}},
		"others":       {frame(0, []byte(`{"process":{`+script+`"root:/usr"},"cwd":"/usr"}}`)), []string{"Authorization", "Basic cm9vdDo="}},
	} {
		if text, err := send(start, tc.body, tc.headers...); err != nil || !strings.Contains(text, `"exit status 0"`) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	refused := func(doing, path string, body []byte, headers ...string) {
		t.Helper()
		text, err := send(path, body, headers...)
		if err == nil && !strings.Contains(text, `"unimplemented"`) || err != nil && sandpit.CodeOf(err) != sandpit.Unsupported {
			t.Errorf("%s: %q, %v, want that it is unsupported", doing, text, err)
		}
	}
	refused("with an ID", start, frame(0, []byte(`{"process":{"cmd":"touch","args":["/tmp/ran"]}}`)), "Sandpit-Command-Id", "a")
	refused("confined", "/filesystem.Filesystem/MakeDir", []byte(`{"path":"/tmp/ran"}`), "Content-Type", "application/json", "Sandpit-Within", "/srv")
	refused("command log", "/sandpit.commands.Commands/ListCommands", []byte(`{}`), "Content-Type", "application/json")
	refused("compressed otherwise", start, frame(1, []byte("x")), "Connect-Content-Encoding", "zstd")
	if _, err := box.Guest().Stat(soon(t), "", "/tmp/ran"); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("what was refused has happened: %v", err)
	}
	_, err := send(start, []byte("no frame"))
	wantCode(t, "no frame", err, sandpit.Invalid)
	_, err = send("/files?path=/tmp/a", []byte("x"), "Content-Type", "application/octet-stream", "Sandpit-Mode", "9")
	wantCode(t, "invalid permissions", err, sandpit.Invalid)
	if text, err := send("/files?path=/tmp/a", []byte("x"), "Content-Type", "application/octet-stream", "Sandpit-Mode", "750"); err != nil {
		t.Errorf("write: %q, %v", text, err)
	}
	if got := shell(t, box, "stat -c '%U %a' /tmp/a"); got != "nobody 750\n" {
		t.Errorf("owner and permissions of the file: %q", got)
	}
}
