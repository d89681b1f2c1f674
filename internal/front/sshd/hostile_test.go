package sshd_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/sshd"
)

// TestWhoMayEnter lets owners in, by their keys and tokens, and tells all others the same.
func TestWhoMayEnter(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.FailedBurst = 1000 })
	mine, others := r.box("ann"), r.box("bob")
	ann, stranger := ssh.PublicKeys(r.signer(r.key("ann"))), ssh.PublicKeys(r.signer(r.key("")))
	if got := output(t, r.enter(mine, ann), "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
	if got := output(t, r.enter(others, r.token(others)), "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
	used := r.token(mine)
	r.enter(mine, used)
	var texts []string
	for name, tc := range map[string]struct {
		id   sandpit.ID
		auth ssh.AuthMethod
	}{
		"another owner's sandbox": {others, ann},
		"no such sandbox":         {sandpit.NewID(), ann},
		"no sandbox at all":       {"root", ann},
		"an unknown key":          {mine, stranger},
		"a token that was used":   {mine, used},
		"a token for another":     {mine, r.token(others)},
		"a wrong token":           {mine, ssh.Password("x")},
		"an empty token":          {mine, ssh.Password("")},
		"nothing":                 {mine, ssh.Password(strings.Repeat("x", 100_000))},
	} {
		c, err := r.dial(tc.id, tc.auth)
		if err == nil {
			_ = c.Close()
			t.Errorf("%s: they are in", name)
			continue
		}
		text := strings.ReplaceAll(err.Error(), "publickey", "password")
		if texts = append(texts, text); text != texts[0] {
			t.Errorf("%s: %q, others hear %q", name, text, texts[0])
		}
	}
	// A key that is removed is good for nothing.
	list, err := r.keys.List(t.Context(), "ann")
	if err != nil || len(list) != 1 || list[0].LastUsedAt.IsZero() || list[0].Name != "of ann" {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := r.keys.Delete(t.Context(), "ann", list[0].ID); err != nil {
		t.Fatal(err)
	}
	if c, err := r.dial(mine, ann); err == nil {
		_ = c.Close()
		t.Error("a removed key lets a client in")
	}
	r.wantEvent(store.EventFilter{Action: "ssh log in"}, "unauthenticated")
	r.wantEvent(store.EventFilter{Action: "ssh", Sandbox: mine}, "ok")
	r.wantEvent(store.EventFilter{Action: "ssh exec", Sandbox: mine}, "ok")
}

// wantEvent waits for an event in the trail.
func (r *rig) wantEvent(f store.EventFilter, result string) {
	r.t.Helper()
	eventually(r.t, "there is an event "+f.Action, func() bool {
		list, err := r.store.Events().ListEvents(r.t.Context(), f)
		if err != nil {
			r.t.Fatal(err)
		}
		for _, e := range list {
			if e.Result == result {
				return true
			}
		}
		return false
	})
}

// output runs a command.
func output(t *testing.T, c *ssh.Client, command string) string {
	t.Helper()
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	out, err := s.Output(command)
	if err != nil {
		t.Errorf("%s: %v", command, err)
	}
	return string(out)
}

// TestBruteForce makes refusals slow for an address that fails again and again, and lets
// in valid clients all the same.
func TestBruteForce(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.FailedRate, o.FailedBurst = 0.001, 3 })
	id := r.box("ann")
	fail := func() time.Duration {
		begin := time.Now()
		if c, err := r.dial(id, ssh.Password("x")); err == nil {
			_ = c.Close()
			t.Fatal("they are in")
		}
		return time.Since(begin)
	}
	for range 3 {
		fail()
	}
	eventually(t, "refusals are slow", func() bool { return fail() >= 500*time.Millisecond })
	for range 5 { // that do not even say anything
		c := r.connect()
		defer c.Close()
	}
	if got := output(t, r.enter(id, r.token(id)), "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
}

// TestTries ends a connection that shows too many keys.
func TestTries(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, nil)
	id := r.box("ann")
	var signers []ssh.Signer
	for range 20 {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		s, err := ssh.NewSignerFromKey(key)
		if err != nil {
			t.Fatal(err)
		}
		signers = append(signers, s)
	}
	signers = append(signers, r.signer(r.key("ann")))
	c, err := r.dial(id, ssh.PublicKeys(signers...))
	if err == nil {
		_ = c.Close()
		t.Fatal("they are in after 20 keys")
	}
}

// TestSlowLogins have their time, and leave room for others.
func TestSlowLogins(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.LoginTime, o.MaxLoginsOf = 15*time.Second, 4 })
	id := r.box("ann")
	var silent []net.Conn
	for i := range 10 {
		c := r.connect()
		defer c.Close()
		if i%2 == 0 {
			_, _ = io.WriteString(c, "SSH-2.0-slow\r\n\x00\x00") // and no more
		}
		silent = append(silent, c)
	}
	for i, c := range silent {
		_ = c.SetReadDeadline(time.Now().Add(long))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("connection %d is still there: %v", i, err)
		}
	}
	if got := output(t, r.enter(id, r.token(id)), "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
}

// TestOwnersShareConnections has one owner connect as often as it can.
func TestOwnersShareConnections(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.MaxConnections = 4 })
	anns, bobs := r.box("ann"), r.box("bob")
	ann, bob := ssh.PublicKeys(r.signer(r.key("ann"))), ssh.PublicKeys(r.signer(r.key("bob")))
	first := r.enter(anns, ann)
	r.enter(anns, ann)
	if c, err := r.dial(anns, ann); err == nil { // it hears why, and ends
		if hasSession(c) {
			t.Error("there is one more connection than an owner may have")
		}
		_ = c.Close()
	}
	for range 2 {
		if got := output(t, r.enter(bobs, bob), "echo in"); got != "in\n" {
			t.Errorf("%q", got)
		}
	}
	_ = first.Close()
	eventually(t, "there is room again", func() bool {
		c, err := r.dial(anns, ann)
		if err != nil {
			return false
		}
		defer c.Close()
		return hasSession(c)
	})
}

// TestGarbage survives what is no SSH.
func TestGarbage(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, nil)
	id := r.box("ann")
	huge := append([]byte("SSH-2.0-x\r\n"), binary.BigEndian.AppendUint32(nil, 0xfffffff0)...)
	for _, text := range [][]byte{
		{},
		[]byte("GET / HTTP/1.1\r\n\r\n"), bytes.Repeat([]byte("x"), 1<<20), huge, append([]byte("SSH-2.0-x\r\n"), make([]byte, 4096)...),
		bytes.Repeat([]byte("line\r\n"), 100_000),
	} {
		c := r.connect()
		_, _ = c.Write(text) // it may be closed in the middle
		_ = c.(*net.TCPConn).CloseWrite()
		_ = c.SetReadDeadline(time.Now().Add(long))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%.20q: %v", text, err)
		}
		_ = c.Close()
	}
	if got := output(t, r.enter(id, r.token(id)), "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
}

// TestManyChannels has a bound, and no effect on others.
func TestManyChannels(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.MaxChannels = 5 })
	id := r.box("ann")
	c := r.enter(id, r.token(id))
	refused := 0
	for range 50 {
		ch, requests, err := c.OpenChannel("session", nil)
		if err != nil {
			refused++
			continue
		}
		go ssh.DiscardRequests(requests)
		t.Cleanup(func() { _ = ch.Close() })
	}
	if refused != 45 {
		t.Errorf("%d of 50 were refused, want 45", refused)
	}
	if got := output(t, r.enter(id, r.token(id)), "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
}

// TestRefused is what there is not.
func TestRefused(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, nil)
	id := r.box("ann")
	c := r.enter(id, r.token(id))
	for _, kind := range []string{"x11", "forwarded-tcpip", "direct-streamlocal@openssh.com", "auth-agent@openssh.com", "tun@openssh.com", ""} {
		if _, _, err := c.OpenChannel(kind, bytes.Repeat([]byte{0xff}, 1000)); err == nil {
			t.Errorf("a channel %q is open", kind)
		}
	}
	for _, payload := range [][]byte{nil, {0xff}, bytes.Repeat([]byte{0xff}, 30_000)} {
		if _, _, err := c.OpenChannel("direct-tcpip", payload); err == nil {
			t.Errorf("a connection is open by %d bytes", len(payload))
		}
	}
	for _, kind := range []string{"tcpip-forward", "cancel-tcpip-forward", "streamlocal-forward@openssh.com", "no-more-sessions@openssh.com", "x"} {
		if ok, _, err := c.SendRequest(kind, true, bytes.Repeat([]byte{0xff}, 1000)); ok || err != nil {
			t.Errorf("request %q: %v, %v", kind, ok, err)
		}
	}
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	for kind, payload := range map[string][]byte{
		"env":                        ssh.Marshal(struct{ Name, Value string }{"LD_PRELOAD", "/x.so"}),
		"exec":                       bytes.Repeat([]byte{0xff}, 10),
		"subsystem":                  ssh.Marshal(struct{ Name string }{"netconf"}),
		"pty-req":                    {1, 2, 3},
		"window-change":              {1},
		"signal":                     ssh.Marshal(struct{ Name string }{"TERM"}), // of nothing that runs
		"x11-req":                    nil,
		"auth-agent-req@openssh.com": nil,
	} {
		if ok, err := s.SendRequest(kind, true, payload); ok || err != nil {
			t.Errorf("request %q in a session: %v, %v", kind, ok, err)
		}
	}
	if err := s.Setenv("LANG", "$(id)"); err == nil {
		t.Error("LANG is taken that is no language")
	}
	if err := s.Setenv("LANG", "de_DE.UTF-8"); err != nil {
		t.Errorf("LANG: %v", err)
	}
	out, err := s.Output("echo $LANG")
	if string(out) != "de_DE.UTF-8\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := s.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"true"})); err == nil {
		t.Log("a second command is refused") // by the protocol: the channel is closed
	}
}

// TestUnreadOutput ends when the server does, though no client reads.
func TestUnreadOutput(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, nil)
	id := r.box("ann")
	c := r.enter(id, r.token(id))
	ch, requests, err := c.OpenChannel("session", nil)
	if err != nil {
		t.Fatal(err)
	}
	go ssh.DiscardRequests(requests)
	if ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{"yes"})); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := io.ReadFull(ch, make([]byte, 10)); err != nil { // and no more
		t.Fatal(err)
	}
	r.stop()
}

// TestInUse keeps a sandbox from being idle while a client is connected, but not for ever.
func TestInUse(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.KeepAlive, o.IdleTimeout = 8*time.Second, time.Second })
	box, err := r.Create(t.Context(), manager.CreateRequest{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	c := r.enter(box.ID, r.token(box.ID))
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	s.Stderr = &stderr
	if err := s.Run("sleep 10000"); err == nil {
		t.Error("it ended well")
	}
	if !strings.Contains(stderr.String(), "this connection has carried nothing for 1s, and ends") {
		t.Errorf("%q", stderr.String())
	}
	if err := c.Wait(); err == nil {
		t.Error("the connection ended well")
	}
}

// TestDeadClient is noticed.
func TestDeadClient(t *testing.T) {
	t.Parallel()
	r := fakeRig(t, func(o *sshd.Options) { o.KeepAlive = 5 * time.Second })
	id := r.box("ann")
	raw := r.connect()
	stuck := &stuck{Conn: raw}
	conn, channels, requests, err := ssh.NewClientConn(stuck, "sandpit", &ssh.ClientConfig{
		User: string(id), Auth: []ssh.AuthMethod{r.token(id)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		t.Fatal(err)
	}
	c := ssh.NewClient(conn, channels, requests)
	defer c.Close()
	if got := output(t, c, "echo in"); got != "in\n" {
		t.Errorf("%q", got)
	}
	stuck.hold()
	_ = raw.SetReadDeadline(time.Now().Add(long))
	eventually(t, "the server hangs up", func() bool {
		_, err := raw.Write([]byte{0})
		return err != nil
	})
}

// stuck is a connection on which nothing is sent once it is held.
type stuck struct {
	net.Conn

	mu   sync.Mutex
	held bool
}

func (s *stuck) hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held = true
}

func (s *stuck) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held {
		return len(b), nil
	}
	return s.Conn.Write(b)
}
