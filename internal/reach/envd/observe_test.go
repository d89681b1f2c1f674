package envd_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process/processconnect"
)

// recorder records observed calls.
type recorder struct {
	mu    sync.Mutex
	calls []sandpit.GuestCall
	ends  []string
}

func (r *recorder) observer() sandpit.GuestObserver {
	return sandpit.GuestObserver{
		Called: func(_ context.Context, c sandpit.GuestCall) {
			r.mu.Lock()
			defer r.mu.Unlock()
			c.Took = 0
			r.calls = append(r.calls, c)
		},
		Ended: func(_ context.Context, took time.Duration, status sandpit.ExitStatus, err error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.ends = append(r.ends, fmt.Sprintf("%d %v %v", status.Code, sandpit.CodeOf(err), took > 0))
		},
	}
}

// take returns what was told since the last time.
func (r *recorder) take() (calls, ends string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var b strings.Builder
	for _, c := range r.calls {
		fmt.Fprintf(&b, "%s|%s|%d|%.8s|%v|%v|%s|%s|%d|%d|%s;", c.Action, c.Program, c.Args, c.Digest, c.PID != 0, c.Signal, filepath.Base(c.Path), c.To, c.Files, c.Bytes, sandpit.CodeOf(c.Err))
	}
	calls, ends = b.String(), strings.Join(r.ends, ";")
	r.calls, r.ends = nil, nil
	return calls, ends
}

func digest(args ...string) string { return sandpit.DigestArgs(args)[:8] }

func TestDigestArgs(t *testing.T) {
	t.Parallel()
	// printf 'sh\0-c\0ls\0' | sha256sum
	if got := sandpit.DigestArgs([]string{"sh", "-c", "ls"}); got != "330554ba1f168e14052caeb6ff14ded1a8f697f17b094aea72a7b238f86ebdb3" {
		t.Error(got)
	}
	if sandpit.DigestArgs([]string{"a", "b"}) == sandpit.DigestArgs([]string{"a b"}) {
		t.Error("two command lines look alike")
	}
}

// TestObserve does everything that is observed by the Go interface.
func TestObserve(t *testing.T) {
	t.Parallel()
	c, r := newGuest(t), &recorder{}
	c.Observe(r.observer())
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	run := func(cmd sandpit.Command) error {
		p, err := c.Start(t.Context(), cmd)
		if err == nil {
			_, err = p.Wait(t.Context())
		}
		return err
	}
	for _, tc := range []struct {
		name        string
		do          func() error
		calls, ends string
	}{
		{
			"command", func() error { return run(sandpit.Command{Args: []string{"sh", "-c", "echo x; exit 3"}}) },
			"run command|sh|2|" + digest("sh", "-c", "echo x; exit 3") + "|false|0|.||0|0|;", "3  true",
		},
		{
			"large output", func() error {
				return run(sandpit.Command{Args: []string{"head", "-c", "1000000", "/dev/zero"}, Stdout: io.Discard})
			},
			"run command|head|3|" + digest("head", "-c", "1000000", "/dev/zero") + "|false|0|.||0|0|;", "0  true",
		},
		{
			"terminal", func() error {
				return run(sandpit.Command{Args: []string{"true"}, Terminal: &sandpit.TerminalSize{Cols: 80, Rows: 24}})
			},
			"open terminal|true|0|" + digest("true") + "|false|0|.||0|0|;", "0  true",
		},
		{
			"no program", func() error { _ = run(sandpit.Command{Args: []string{"/nowhere"}}); return nil },
			"run command|/nowhere|0|" + digest("/nowhere") + "|false|0|.||0|0|not_found;", "0 not_found true",
		},
		{
			"write", func() error {
				return c.WriteFile(t.Context(), "", at("f"), strings.NewReader("12345"), sandpit.WriteOptions{})
			},
			"write file||0||false|0|f||0|5|;", "",
		},
		{
			"read", func() error {
				f, err := c.ReadFile(t.Context(), "", at("f"))
				if err != nil {
					return err
				}
				defer f.Close()
				_, err = io.Copy(io.Discard, f)
				return err
			},
			"read file||0||false|0|f||0|5|;", "",
		},
		{
			"read what is not there", func() error { _, _ = c.ReadFile(t.Context(), "", at("none")); return nil },
			"read file||0||false|0|none||0|0|not_found;", "",
		},
		{"make", func() error { return c.MakeDir(t.Context(), "", at("d")) }, "make directory||0||false|0|d||0|0|;", ""},
		{"move", func() error { return c.Move(t.Context(), "", at("f"), "/tmp/"+filepath.Base(dir)) }, "move file||0||false|0|f|/tmp/" + filepath.Base(dir) + "|0|0|;", ""},
		{"remove", func() error { return c.Remove(t.Context(), "", "/tmp/"+filepath.Base(dir)) }, "remove file||0||false|0|" + filepath.Base(dir) + "||0|0|;", ""},
		{"look", func() error { _, err := c.ListDir(t.Context(), "", dir, 1); return err }, "", ""},
	} {
		if err := tc.do(); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		deadline := time.Now().Add(10 * time.Second)
		for {
			r.mu.Lock()
			enough := len(r.ends) > 0 || tc.ends == ""
			r.mu.Unlock()
			if enough || time.Now().After(deadline) {
				break
			}
			time.Sleep(time.Millisecond)
		}
		if calls, ends := r.take(); calls != tc.calls || ends != tc.ends {
			t.Errorf("%s:\n got %q, ended %q\nwant %q, ended %q", tc.name, calls, ends, tc.calls, tc.ends)
		}
	}
}

// TestObserveForms starts a command in every form that a guest accepts, like clients that use
// its protocol directly.
func TestObserveForms(t *testing.T) {
	t.Parallel()
	c, r := newGuest(t), &recorder{}
	c.Observe(r.observer())
	m := &process.StartRequest{Process: &process.ProcessConfig{Cmd: "sh", Args: []string{"-c", "exit 5"}}}
	binaryForm, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, kind, encoding string
		message              []byte
	}{
		{"proto", "application/connect+proto", "", binaryForm},
		{"json", "application/connect+json", "", text},
		{"json, compressed", "application/connect+json", "Connect-Content-Encoding", text},
		{"grpc-web", "application/grpc-web+proto", "", binaryForm},
		{"grpc-web, compressed", "application/grpc-web", "Grpc-Encoding", binaryForm},
		{"with a charset", "application/connect+json; charset=utf-8", "", text},
	} {
		flags, message := byte(0), tc.message
		if tc.encoding != "" {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, _ = z.Write(message)
			_ = z.Close()
			flags, message = 1, b.Bytes()
		}
		frame := append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(message))), message...)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://guest"+processconnect.ProcessStartProcedure, bytes.NewReader(frame))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", tc.kind)
		req.Header.Set("Connect-Protocol-Version", "1")
		if tc.encoding != "" {
			req.Header.Set(tc.encoding, "gzip")
			req.Header.Set(strings.Replace(tc.encoding, "Content-Encoding", "Accept-Encoding", 1), "gzip")
		}
		res, err := c.HTTP().RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, _ := io.ReadAll(res.Body)
		_ = res.Body.Close()
		calls, ends := r.take()
		want := "run command|sh|2|" + digest("sh", "-c", "exit 5") + "|false|0|.||0|0|;"
		if calls != want || ends != "5  true" {
			t.Errorf("%s: got %q, ended %q, want %q; the answer %d %q", tc.name, calls, ends, want, res.StatusCode, answer)
		}
	}
}

// TestObserveForm uploads files whose names are among their contents.
func TestObserveForm(t *testing.T) {
	t.Parallel()
	c, r := newGuest(t), &recorder{}
	c.Observe(r.observer())
	dir := t.TempDir()
	var body bytes.Buffer
	form := multipart.NewWriter(&body)
	for _, name := range []string{"a", "b"} {
		part, err := form.CreateFormFile("file", filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(part, "content")
	}
	_ = form.Close()
	size := body.Len()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://guest/files", &body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", form.FormDataContentType())
	res, err := c.HTTP().RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if calls, _ := r.take(); calls != fmt.Sprintf("write file||0||false|0|a||2|%d|;", size) {
		t.Errorf("got %q; the answer is %s", calls, answer)
	}
}

// TestObserveNonsense shows that unreadable requests are reported as such, and that a hostile
// guest's responses end.
func TestObserveNonsense(t *testing.T) {
	t.Parallel()
	end := func(flags byte, text string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(text))), text...)
	}
	for name, tc := range map[string]struct {
		answer []byte
		want   string
	}{
		"nothing":      {nil, "gone"},
		"half a frame": {[]byte{0, 0, 0, 0, 200, 1, 2}, "gone"},
		"huge frame":   {append(binary.BigEndian.AppendUint32([]byte{0}, 1<<31), make([]byte, 100_000)...), "gone"},
		"zeros":        {make([]byte, 100_000), "gone"},
		"an error":     {end(2, `{"error":{"code":"permission_denied","message":"no"}}`), "permission_denied"},
		"bad error":    {end(2, `{"error":{"code":7}}`), "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				_, _ = io.Copy(io.Discard, req.Body)
				w.Header().Set("Content-Type", "application/connect+proto")
				_, _ = w.Write(tc.answer)
			}), token)
			r := &recorder{}
			c.Observe(r.observer())
			req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, processconnect.ProcessStartProcedure, strings.NewReader("\x00\x00\x00\x00\x03\xff\xff\xff"))
			req.Header.Set("Content-Type", "application/connect+proto")
			req.RequestURI, req.URL = "", &url.URL{Scheme: "http", Host: "guest", Path: req.URL.Path}
			res, err := c.HTTP().RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			_ = res.Body.Close()
			calls, ends := r.take()
			if want := "run command|(unreadable)|0||false|0|.||0|0|" + tc.want + ";"; calls != want || ends != "0 "+tc.want+" true" {
				t.Errorf("got %q, ended %q, want %q", calls, ends, want)
			}
		})
	}
}
