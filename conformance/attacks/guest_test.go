package attacks_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// guestPort is the port of the guest for clients; it has no listener inside.
const guestPort = 49983

func guestAttacks() []attack {
	return []attack{
		{name: "guest-port", as: anybody, in: everybox, count: 2000, long: 65535, judge: refused("abstract names"), proves: "The guest listens nowhere inside."},
		{name: "pretend-guest", as: anybody, in: imageBox, play: playPretend, proves: "A program that listens on the guest's port gets none of the guest's clients."},
		{name: "first-memory", as: anybody, in: everybox, judge: refusedToUser("open maps", "open exe", "open syscall", "open auxv", "open stack", "open pagemap"), proves: "An ordinary user can neither read nor write the guest's memory."},
		{name: "first-descriptors", as: anybody, in: everybox, judge: judgeFirst, proves: "An ordinary user cannot take the guest's descriptors; root can, and no path leads to them even so."},
		{name: "conduit-thief", as: root, in: everybox, play: playThief, proves: "Root that takes the conduit away from the guest gets its own sandbox's connections, and can neither send descriptors out nor harm the engine."},
		{name: "trace-first", as: anybody, in: imageBox, mortal: true, judge: refusedToUser(), proves: "A program that debugs the guest harms its own sandbox only, and an ordinary user cannot."},
		{name: "inject-first", as: anybody, in: imageBox, mortal: true, judge: refusedToUser(), proves: "Shutting down the conduit from within the guest ends one sandbox's connections, and no more."},
		{name: "kill-first", as: anybody, in: everybox, mortal: true, judge: refusedToUser(), proves: "Killing the guest ends the sandbox, with a reason, and an ordinary user cannot."},
		{name: "kill-everything", as: anybody, in: imageBox, mortal: true, proves: "A signal to everything goes to the sandbox's processes only."},
		{name: "freeze-first", as: anybody, in: imageBox, play: playFreeze, proves: "A guest that is stopped keeps callers no longer than they wait, and the sandbox can be destroyed."},
		{name: "rekey", as: client, in: imageBox, play: playRekey, proves: "The guest accepts neither a new key nor any other request from a client that does not know its key."},
		{name: "malformed-http", as: client, in: imageBox, play: playMalformed, proves: "Malformed and oversized requests with the right token end their connection, and no more."},
		{name: "slow-clients", as: client, in: imageBox, play: playSlow, proves: "Two hundred clients that never finish their request, or never read the response, delay no other client."},
		{name: "endless-server", as: client, in: imageBox, play: playEndless, proves: "A server inside that answers with endless headers ends the request."},
		{name: "hostile-names", as: root, in: everybox, play: playNames, proves: "File names of any kind are listed as they are, and no listing fails or leads outside because of them."},
		{name: "hostile-tree", as: client, in: imageBox, play: playTree, proves: "A tar stream that says `..`, links and devices writes nothing outside of its directory."},
		{name: "hostile-image", as: client, in: imageBox, play: playImage, proves: "An image whose own directories are links, or whose user list is rubbish, becomes a sandbox or an error, and reads nothing of the machine."},
	}
}

func readAll(path string) ([]byte, error) { return os.ReadFile(path) }

// judgeFirst allows what the sandbox's own root can do with a path; none of it
// opens the conduit.
func judgeFirst(t *testing.T, s scene) {
	t.Helper()
	if s.who == user {
		refused("pidfd_open")(t, s)
		return
	}
	refused("pidfd_", "mount over")(t, s)
}

// playPretend has the attacker listen where the guest is expected.
func playPretend(t *testing.T, s scene) {
	t.Helper()
	s.whileHeld(t, "pretend-guest", func(ctx context.Context) {
		for range 5 {
			if got, err := output(ctx, s.box, "echo the guest"); err != nil || got != "the guest" {
				t.Errorf("the guest answers %q, %v", got, err)
			}
		}
		conn := s.dial(ctx, t, guestPort)
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET /health HTTP/1.0\r\n\r\n")
		if got, err := io.ReadAll(conn); err != nil || !bytes.HasPrefix(got, []byte("HTTP/1.0 ")) || bytes.Contains(got, []byte("pretended")) {
			t.Errorf("the port answers %q, %v", got, err)
		}
	})
}

// playFreeze stops the first process. Linux protects it from that, gVisor need
// not.
func playFreeze(t *testing.T, s scene) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	var out bounded
	p, err := s.box.Guest().Start(ctx, sandpit.Command{
		Args: []string{programPath, "freeze-first", s.params(t)}, User: s.user(), Stdout: &out, Stderr: &out, Dir: "/tmp",
	})
	if err == nil {
		_, err = p.Wait(ctx)
	}
	t.Logf("the attacker: %v %s", err, &out)
	short, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	started := time.Now()
	got, err := output(short, s.box, "echo alive")
	if took := time.Since(started); took > 6*time.Second {
		t.Errorf("a call took %v", took)
	}
	t.Logf("after that: %q, %v", got, err)
	if s.who == user && (err != nil || got != "alive") {
		t.Errorf("an ordinary user stopped the guest: %q, %v", got, err)
	}
	delete(s.lab.boxes, s.place)
	end, stopEnd := context.WithTimeout(t.Context(), aliveTime)
	defer stopEnd()
	if err := s.box.Destroy(end); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// playThief lets root of the sandbox have the conduit for a while. Callers hear
// what the thief says, and no longer than they care to wait.
func playThief(t *testing.T, s scene) {
	t.Helper()
	before := resourcesOf(s.lab.engines)
	s.mortal = true
	steps := s.whileHeld(t, "conduit-thief", func(ctx context.Context) {
		for range 20 {
			short, stop := context.WithTimeout(ctx, 200*time.Millisecond)
			got, err := output(short, s.box, "echo alive")
			stop()
			if err == nil && got != "alive" {
				t.Errorf("a call: %q", got)
			}
		}
	})
	for _, step := range steps {
		t.Logf("%s: %s %s", step.Try, step.Err, step.Got)
		if step.Try == "send descriptors out" && step.Got != "" {
			t.Error(step.Got)
		}
	}
	delete(s.lab.boxes, s.place)
	end, stop := context.WithTimeout(t.Context(), aliveTime)
	defer stop()
	if err := s.box.Destroy(end); err != nil {
		t.Errorf("destroy: %v", err)
	}
	s.lab.expectHeld(t, before)
}

// playRekey talks to the guest without its token.
func playRekey(t *testing.T, s scene) {
	t.Helper()
	client := &http.Client{Transport: s.box.HTTP(guestPort), Timeout: aliveTime}
	others := s.lab.tokens(t)
	delete(others, s.box.ID())
	guesses := []string{"", "0", "null", strings.Repeat("x", 10000)}
	for _, token := range others {
		guesses = append(guesses, token)
	}
	for _, guess := range guesses {
		for _, order := range []struct{ method, path, body string }{
			{"POST", "/init", `{"accessToken":"stolen"}`},
			{"POST", "/init", `{"accessToken":"stolen","envVars":{"LD_PRELOAD":"/tmp/x"}}`},
			{"GET", "/envs", ""},
			{"GET", "/files?path=/etc/passwd", ""},
			{"POST", "/files?path=/tmp/x", "x"},
			{"GET", "/metrics", ""},
			{"POST", "/process.Process/List", "{}"},
			{"POST", "/filesystem.Filesystem/ListDir", `{"path":"/"}`},
			{"POST", "//init", `{"accessToken":"stolen"}`},
			{"POST", "/init/", `{"accessToken":"stolen"}`},
			{"POST", "/health/../init", `{"accessToken":"stolen"}`},
		} {
			req, err := http.NewRequestWithContext(t.Context(), order.method, "http://guest"+order.path, strings.NewReader(order.body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			if guess != "" {
				req.Header.Set("X-Access-Token", guess)
			}
			res, err := client.Do(req)
			if err != nil {
				t.Errorf("%s: %v", order.path, err)
				continue
			}
			_ = res.Body.Close()
			if res.StatusCode < 300 || res.StatusCode >= 500 {
				t.Errorf("%s %s with token %.20q: %s", order.method, order.path, guess, res.Status)
			}
		}
	}
	client.CloseIdleConnections()
	if got, err := output(t.Context(), s.box, "echo $LD_PRELOAD"); err != nil || got != "" {
		t.Errorf("the guest's clients afterwards: %q, %v", got, err)
	}
}

// playMalformed sends what no client sends, after a head with the right token.
func playMalformed(t *testing.T, s scene) {
	t.Helper()
	token := s.lab.tokens(t)[s.box.ID()]
	head := "Host: guest\r\nX-Access-Token: " + token + "\r\n"
	start := "POST /process.Process/Start HTTP/1.1\r\n" + head + "Content-Type: application/connect+json\r\n"
	chunked := start + "Transfer-Encoding: chunked\r\n\r\n"
	for name, request := range map[string]string{
		"rubbish":             "\x00\xff\x16\x03\x01rubbish\r\n\r\n",
		"no end":              "GET /health HTTP/1.1\r\n" + head,
		"large head":          "GET /health HTTP/1.1\r\n" + head + "X: " + strings.Repeat("x", 1<<20) + "\r\n\r\n",
		"many headers":        "GET /health HTTP/1.1\r\n" + head + strings.Repeat("X: y\r\n", 100000) + "\r\n",
		"two lengths":         "POST /init HTTP/1.1\r\n" + head + "Content-Length: 5\r\nContent-Length: 50\r\n\r\nhello",
		"smuggled":            "POST /init HTTP/1.1\r\n" + head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nPOST /init HTTP/1.1\r\n\r\n",
		"negative length":     "POST /init HTTP/1.1\r\n" + head + "Content-Length: -1\r\n\r\n",
		"length of 1 EiB":     "POST /init HTTP/1.1\r\n" + head + "Content-Length: 1152921504606846976\r\n\r\n{",
		"large body":          "POST /init HTTP/1.1\r\n" + head + "Content-Length: 20000000\r\n\r\n" + strings.Repeat("[", 20000000),
		"bad chunk":           chunked + "ffffffffffffffff\r\nx\r\n",
		"frame of 4 GiB":      chunked + "5\r\n\x00\xff\xff\xff\xff\r\n0\r\n\r\n",
		"frame that is short": chunked + "6\r\n\x00\x00\x00\xff\xff{\r\n0\r\n\r\n",
		"compressed frame":    chunked + "7\r\n\x01\x00\x00\x00\x02xx\r\n0\r\n\r\n",
		"unknown frame":       chunked + "7\r\n\xff\x00\x00\x00\x02{}\r\n0\r\n\r\n",
		"deep json":           chunked + "f4245\r\n\x00\x00\x0f\x42\x40" + strings.Repeat("[", 1000000) + "\r\n0\r\n\r\n",
		"http2 rubbish":       "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\xff", 10000),
		"http2 settings":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + strings.Repeat("\x00\x00\x00\x04\x00\x00\x00\x00\x00", 20000),
		"http2 pings":         "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + strings.Repeat("\x00\x00\x08\x06\x00\x00\x00\x00\x00abcdefgh", 20000),
		"http2 resets":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00" + strings.Repeat("\x00\x00\x04\x03\x00\x00\x00\x00\x01\x00\x00\x00\x08", 20000),
		"long path":           "GET /" + strings.Repeat("a/", 100000) + " HTTP/1.1\r\n" + head + "\r\n",
		"path of nulls":       "GET /files?path=%00%00/etc HTTP/1.1\r\n" + head + "\r\n",
		"upgrade":             "GET / HTTP/1.1\r\n" + head + "Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n",
		"odd multipart":       "POST /files?path=/tmp/x HTTP/1.1\r\n" + head + "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 30\r\n\r\n--x\r\nContent-Disposition: form",
	} {
		conn := s.dial(t.Context(), t, guestPort)
		_ = conn.SetDeadline(time.Now().Add(600 * time.Millisecond))
		var wg sync.WaitGroup
		wg.Go(func() {
			_, _ = io.WriteString(conn, request)
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
		})
		answer, _ := io.ReadAll(io.LimitReader(conn, 4<<20))
		_ = conn.Close()
		wg.Wait()
		if bytes.Contains(answer, []byte(token)) {
			t.Errorf("%s: the token comes back: %.300q", name, answer)
		}
		if got, err := output(t.Context(), s.box, "echo alive"); err != nil || got != "alive" {
			t.Fatalf("after %s the guest answers %q, %v", name, got, err)
		}
	}
}

// playSlow opens connections that stay in the middle of something.
func playSlow(t *testing.T, s scene) {
	t.Helper()
	token := s.lab.tokens(t)[s.box.ID()]
	head := "Host: guest\r\nX-Access-Token: " + token + "\r\nContent-Type: application/connect+json\r\n"
	yes := `{"process":{"cmd":"/bin/yes"}}`
	body := string([]byte{0, 0, 0, 0, byte(len(yes))}) + yes
	requests := []string{
		"", "POST /init HT", "POST /init HTTP/1.1\r\n" + head, "POST /init HTTP/1.1\r\n" + head + "Content-Length: 100\r\n\r\n{",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
	}
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	for i := range 200 {
		conn := s.dial(t.Context(), t, guestPort)
		conns = append(conns, conn)
		request := requests[i%len(requests)]
		if i%20 == 0 { // an endless response that is not read
			request = fmt.Sprintf("POST /process.Process/Start HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
		}
		if _, err := io.WriteString(conn, request); err != nil {
			t.Errorf("connection %d: %v", i, err)
		}
	}
	for range 5 {
		started := time.Now()
		if got, err := output(t.Context(), s.box, "echo alive"); err != nil || got != "alive" {
			t.Errorf("meanwhile the guest answers %q, %v", got, err)
		}
		if took := time.Since(started); took > 5*time.Second {
			t.Errorf("a command took %v", took)
		}
	}
	processes, err := s.box.Guest().ListProcesses(t.Context())
	for end := time.Now().Add(aliveTime); err == nil && len(processes) < 10 && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		processes, err = s.box.Guest().ListProcesses(t.Context()) // the guest may still read the requests
	}
	if err != nil || len(processes) < 10 {
		t.Errorf("%d endless processes, want 10: %v", len(processes), err)
	}
	for _, p := range processes {
		if _, err := output(t.Context(), s.box, fmt.Sprint("kill -9 ", p.PID)); err != nil {
			t.Errorf("kill: %v", err)
		}
	}
}

// playEndless asks a server that never stops answering.
func playEndless(t *testing.T, s scene) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s.count = 8765
	said := &signalBuffer{said: make(chan struct{})}
	p, err := s.box.Guest().Start(ctx, sandpit.Command{Args: []string{programPath, "listen-and-shout", s.params(t)}, Stdout: said, Stderr: said})
	if err != nil {
		t.Fatal(err)
	}
	<-said.said
	client := &http.Client{Transport: s.box.HTTP(s.count), Timeout: aliveTime}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil)
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	res, err := client.Do(req)
	if err == nil {
		_ = res.Body.Close()
		t.Errorf("the answer is %s", res.Status)
	}
	if took := time.Since(started); took > 10*time.Second || len(err.Error()) > 4<<10 {
		t.Errorf("after %v: %.1000v", took, err)
	}
	if err := p.Signal(ctx, sandpit.SIGKILL); err != nil {
		t.Error(err)
	}
	_, _ = p.Wait(ctx)
}

// playNames lists and copies what the attacker has made.
func playNames(t *testing.T, s scene) {
	t.Helper()
	s.steps = s.attempt(t, attack{name: "hostile-files"})
	const dir = "/tmp/hostile-names"
	files, err := s.box.Guest().ListDir(t.Context(), "", dir, 3)
	if err != nil {
		t.Fatalf("list: %v", err)
	}
	names := make(map[string]bool)
	for _, f := range files {
		names[f.Name] = true
		if strings.ContainsAny(f.Name, "/\x00") || !strings.HasPrefix(f.Path, dir+"/") {
			t.Errorf("a file %q at %q", f.Name, f.Path)
		}
		if !utf8.ValidString(f.Name) {
			t.Logf("a name that is no text: %q", f.Name)
		}
	}
	for _, want := range []string{"plain", "\x1b[2J\x1b]0;owned\x07", "new\nline", "-rf", "..hidden"} {
		if !names[want] {
			t.Errorf("%q is not listed", want)
		}
		got, err := s.box.Guest().Stat(t.Context(), "", dir+"/"+want)
		if err != nil || got.Name != want {
			t.Errorf("stat %q: %+v, %v", want, got, err)
		}
	}
	if len(files) < 20 {
		t.Errorf("%d files are listed", len(files))
	}
	stream, err := s.box.Guest().ReadTree(t.Context(), "", dir)
	if err != nil {
		t.Fatalf("tree: %v", err)
	}
	defer stream.Close()
	s.expectMembers(t, stream)
	for _, link := range []string{"canary", "endless", "itself"} {
		if r, err := s.box.Guest().ReadFile(t.Context(), "", dir+"/"+link); err == nil {
			got, _ := io.ReadAll(r)
			_ = r.Close()
			s.expectNoSecret(t, step{Try: "read " + link, Got: string(got)})
		}
	}
}

// expectMembers reads a tree and looks for what should not be in it.
func (s scene) expectMembers(t *testing.T, stream io.Reader) {
	t.Helper()
	archive := tar.NewReader(stream)
	for {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Errorf("tree: %v", err)
			return
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		default:
			t.Errorf("%q is of type %q", h.Name, h.Typeflag)
		}
		got, _ := io.ReadAll(archive)
		s.expectNoSecret(t, step{Try: "member " + h.Name, Got: string(got)})
	}
}

// playTree unpacks a stream that wants to write elsewhere.
func playTree(t *testing.T, s scene) {
	t.Helper()
	if _, err := output(t.Context(), s.box, "echo original >/tmp/victim"); err != nil {
		t.Fatal(err)
	}
	for _, members := range [][]*tar.Header{
		{{Name: "../victim", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}},
		{{Name: "/tmp/victim", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}},
		{{Name: "link", Typeflag: tar.TypeSymlink, Linkname: "/tmp"}, {Name: "link/victim", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}},
		{{Name: "hard", Typeflag: tar.TypeLink, Linkname: "../victim"}, {Name: "hard", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}},
		{{Name: "device", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 1, Mode: 0o666}},
		{{Name: "a/../../victim", Typeflag: tar.TypeReg, Size: 1, Mode: 0o644}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range members {
			if err := w.WriteHeader(h); err != nil {
				t.Fatal(err)
			}
			if h.Size > 0 {
				_, _ = w.Write([]byte("x"))
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		err := s.box.Guest().WriteTree(t.Context(), "", "/tmp/tree", &b)
		t.Logf("%s: %v", members[0].Name, err)
		if got, err := output(t.Context(), s.box, "cat /tmp/victim; test ! -c /tmp/tree/device"); err != nil || got != "original" {
			t.Errorf("%s: the victim holds %q, %v", members[0].Name, got, err)
		}
	}
}

// playImage makes sandboxes of images that are not what one expects.
func playImage(t *testing.T, s scene) {
	t.Helper()
	secret := filepath.Join(s.lab.dir, "secret")
	for name, spoil := range map[string]func(dir string) error{
		"proc is a link":    func(dir string) error { return os.Symlink(secret, filepath.Join(dir, "proc")) },
		"guest is a link":   func(dir string) error { return os.Symlink(secret, filepath.Join(dir, ".sandpit")) },
		"dev is a file":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "dev"), nil, 0o644) },
		"tmp is a link":     func(dir string) error { return os.Symlink(secret, filepath.Join(dir, "tmp")) },
		"work is a link":    func(dir string) error { return os.Symlink(secret, filepath.Join(dir, "workspace")) },
		"up and up":         func(dir string) error { return os.Symlink("../../../.."+secret, filepath.Join(dir, "sys")) },
		"users are rubbish": func(dir string) error { return etc(dir, "passwd", strings.Repeat("\x1b[2J:\x00::\xff\n", 10000)) },
		"users have links": func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "etc"), 0o755), os.Symlink(s.lab.canaryPath(), filepath.Join(dir, "etc", "passwd")))
		},
		"one long user":   func(dir string) error { return etc(dir, "passwd", strings.Repeat("x", 8<<20)) },
		"odd names":       func(dir string) error { return os.WriteFile(filepath.Join(dir, "\x1b[2J\n\xff"), nil, 0o644) },
		"shell is a link": func(dir string) error { return os.Symlink(s.lab.canaryPath(), filepath.Join(dir, "bin", "secret")) },
	} {
		dir := filepath.Join(t.TempDir(), "image")
		if err := errors.Join(os.CopyFS(dir, os.DirFS(string(s.lab.image))), spoil(dir)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), attackTime)
		box, err := s.lab.provider.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: sandpit.Image(dir)})
		if err != nil {
			if len(err.Error()) > 4<<10 {
				t.Errorf("%s: %.500v", name, err)
			}
			t.Logf("%s: %.300v (%s)", name, err, sandpit.CodeOf(err))
			cancel()
			continue
		}
		got, err := output(ctx, box, "echo alive; cat /etc/passwd /bin/secret /proc/canary.txt /.sandpit/canary.txt /tmp/canary.txt /workspace/canary.txt /sys/canary.txt 2>/dev/null; true")
		if err != nil || !strings.HasPrefix(got, "alive") {
			t.Errorf("%s: %.200q, %v", name, got, err)
		}
		s.expectNoSecret(t, step{Try: name, Got: got})
		if err := box.Destroy(ctx); err != nil {
			t.Errorf("%s: destroy: %v", name, err)
		}
		cancel()
	}
}

func etc(dir, name, content string) error {
	err := os.Mkdir(filepath.Join(dir, "etc"), 0o755)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "etc", name), []byte(content), 0o644)
}
