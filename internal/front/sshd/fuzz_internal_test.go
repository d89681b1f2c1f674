package sshd

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"testing"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// said is a channel on which a client has said something, and hears nothing.
type said struct {
	ssh.Channel
	io.Reader
}

func (s said) Read(b []byte) (int, error)  { return s.Reader.Read(b) }
func (s said) Write(b []byte) (int, error) { return len(b), nil }
func (s said) Close() error                { return nil }

// packet is one of SFTP.
func packet(kind byte, body ...any) []byte {
	var b bytes.Buffer
	b.WriteByte(kind)
	for _, part := range body {
		switch part := part.(type) {
		case string:
			_ = binary.Write(&b, binary.BigEndian, uint32(len(part))) // never fails
			b.WriteString(part)
		case int:
			_ = binary.Write(&b, binary.BigEndian, uint32(part)) // never fails
		}
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(b.Len())), b.Bytes()...)
}

// isolated returns a real sandbox: what clients make up would change this machine's files
// in one of the fake world, and by root's rights any of them.
func isolated(tb testing.TB) sandpit.Instance {
	tb.Helper()
	engine := testengine.Path(tb)
	images, err := image.Open(tb.TempDir(), image.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	runtime, err := os.MkdirTemp("", "sandpit-") //nolint:usetesting // a short path: it holds sockets
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(runtime) })
	provider, err := gvisor.New(gvisor.Config{RuntimeDir: runtime, ScratchDir: tb.TempDir(), Images: images, Engine: engine, Defaults: testengine.Limits()})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = provider.Close() })
	box, err := provider.Create(tb.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		tb.Fatal(err)
	}
	return box
}

// FuzzSFTP survives whatever a client sends: its server has goroutines of its own, whose
// panics that no caller could catch.
func FuzzSFTP(f *testing.F) {
	box := isolated(f)
	hello := packet(1, 3)
	for _, text := range [][]byte{
		hello,
		append(append(append(hello, packet(3, 1, "/tmp/f", 0x1a, 4, 0o644)...), packet(6, 2, "1", 0, 0, "data")...), packet(4, 3, "1")...),
		append(append(hello, packet(3, 1, "/etc/passwd", 1, 0)...), packet(5, 2, "1", 0, 0, 100)...),
		append(append(hello, packet(11, 1, "/")...), packet(12, 2, "1")...),
		append(hello, packet(9, 1, "/tmp/f", 0xf, 0, 0, 0, 0, 0, 0, 0)...),
		append(hello, packet(10, 1, "1", 4, 0o600)...),
		append(hello, packet(16, 1, "../..")...),
		append(hello, packet(200, 1, "posix-rename@openssh.com", "/a", "/b")...),
		append(hello, packet(20, 1, "a", "b")...),
		{0, 0, 0, 0},
		{0xff, 0xff, 0xff, 0xff, 1},
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		h := &files{ctx: t.Context(), guest: box.Guest(), uploads: make(map[string]*upload)}
		server := sftp.NewRequestServer(newOrderly(said{Reader: bytes.NewReader(text)}), sftp.Handlers{FileGet: h, FilePut: h, FileCmd: h, FileList: h})
		_ = server.Serve() // it is mostly nonsense
		if h.open != 0 || len(h.uploads) != 0 {
			t.Errorf("%d files are left open", h.open)
		}
	})
}

// FuzzForward opens connections to the sandbox's own loopback interface, and to no other.
func FuzzForward(f *testing.F) {
	f.Add("localhost", uint32(80))
	f.Add("127.0.0.1", uint32(guestPort))
	f.Add("::ffff:10.0.0.1", uint32(1<<16+80))
	f.Fuzz(func(t *testing.T, host string, port uint32) {
		got, err := forwarded{Host: host, Port: port}.targetPort()
		if err == nil && (got < 1 || got > 65535 || got == guestPort || got != int(port)) {
			t.Errorf("%q %d: %d", host, port, got)
		}
		// What it is read from is as little to be trusted.
		_ = ssh.Unmarshal([]byte(host), &forwarded{}) // it may be nonsense
	})
}

// FuzzRequest survives whatever a client asks for in a session, and starts one thing at
// most.
func FuzzRequest(f *testing.F) {
	for _, kind := range []string{"env", "pty-req", "window-change", "signal", "shell", "exec", "subsystem", "x11-req"} {
		f.Add(kind, ssh.Marshal(struct{ Text string }{"sftp"}))
		f.Add(kind, ssh.Marshal(struct {
			Term                      string
			Cols, Rows, Width, Height uint32
			Modes                     string
		}{"xterm", 80, 24, 0, 0, ""}))
		f.Add(kind, []byte{0xff, 0xff, 0xff, 0xff})
	}
	f.Fuzz(func(t *testing.T, kind string, payload []byte) {
		s := &session{connection: &connection{}, env: make(map[string]string)}
		ways := 0
		for range 2 {
			run, ok := s.handleRequest(t.Context(), &ssh.Request{Type: kind, Payload: payload})
			if run != nil {
				if ways++; !ok {
					t.Errorf("%s is refused and done", kind)
				}
			}
		}
		if ways > 1 {
			t.Errorf("%s was started %d times", kind, ways)
		}
		for name, value := range s.env {
			if name != "LANG" && name != "TERM" || !isPlain(value) {
				t.Errorf("%s=%q", name, value)
			}
		}
		if s.terminal != nil && (s.terminal.Cols == 0 || s.terminal.Rows == 0) {
			t.Errorf("a terminal of %+v", *s.terminal)
		}
	})
}
