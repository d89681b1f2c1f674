package network_test

import (
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

// TestRates measures that bytes pass no faster than they may. Only too fast is a
// failure: a busy machine is slow by itself.
func TestRates(t *testing.T) {
	t.Parallel()
	const perSecond, size = 256 << 10, 1 << 20
	const least = 3 * time.Second // (size - what passes at once) / perSecond is 3.9 s
	n := newInternet()
	n.serve(t, func(conn net.Conn) {
		_, _ = conn.Write(make([]byte, size))
		closeWrite(conn)
		_, _ = io.Copy(io.Discard, conn)
	}, "93.184.215.14:7")
	n.serve(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn); _, _ = conn.Write([]byte("x")) }, "93.184.215.14:8")
	for name, tc := range map[string]struct {
		limits sandpit.NetworkLimits
		carry  func(*box) error
		slow   bool
	}{
		"received": {sandpit.NetworkLimits{Receive: perSecond}, receiveAll, true},
		"sent":     {sandpit.NetworkLimits{Send: perSecond}, func(b *box) error { return sendAll(b, size) }, true},
		// The other direction is not slowed down: it would take a quarter of an hour.
		"not received": {sandpit.NetworkLimits{Send: 1 << 10}, receiveAll, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Limits: tc.limits}})
			begin := time.Now()
			if err := tc.carry(b); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); tc.slow && took < least {
				t.Errorf("%d bytes took %v, want at least %v", size, took, least)
			}
			if s := b.Stats(); max(s.Received, s.Sent) < size || s.Allowed != 1 || s.Denied != 0 {
				t.Errorf("counted: %+v", s)
			}
		})
	}
}

func receiveAll(b *box) error {
	conn, err := b.dial("93.184.215.14:7")
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, conn)
	return err
}

func sendAll(b *box, size int) error {
	conn, err := b.dial("93.184.215.14:8")
	if err != nil {
		return err
	}
	if _, err := conn.Write(make([]byte, size)); err != nil {
		return err
	}
	closeWrite(conn)
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err
}

// TestRateOfDatagrams loses what is too much.
func TestRateOfDatagrams(t *testing.T) {
	t.Parallel()
	const perSecond, size, count = 64 << 10, 8 << 10, 100
	n := newInternet()
	n.servePackets(t, public4)
	b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Limits: sandpit.NetworkLimits{Send: perSecond}}})
	conn := b.dialPackets(public4)
	begin := time.Now()
	for range count {
		if _, err := conn.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
	}
	got := 0
	_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second)) // for those that are not lost
	for buf := make([]byte, 1<<16); ; got++ {
		if _, err := conn.Read(buf); err != nil {
			break
		}
	}
	// What passes at once, and what passed since.
	if most := (16<<10+perSecond*time.Since(begin).Seconds())/size + 1; float64(got) > most {
		t.Errorf("%d of %d datagrams passed, want at most %.0f", got, count, most)
	}
	if got == 0 {
		t.Error("no datagram passed")
	}
}

// TestConnectionLimits opens more connections than there may be, at a time and each
// second. Replacing the policy lifts both.
func TestConnectionLimits(t *testing.T) {
	t.Parallel()
	n := newInternet()
	n.serve(t, echo, public4)
	n.servePackets(t, public4)
	t.Run("at a time", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Limits: sandpit.NetworkLimits{Connections: 3}}})
		for range 2 {
			if _, err := b.dial(public4); err != nil {
				t.Fatal(err)
			}
		}
		if !answers(t, b.dialPackets(public4)) {
			t.Error("a conversation by UDP was refused")
		}
		if b.reaches(public4) {
			t.Error("one too many was opened")
		}
		if got := b.last(); got.Reason != "the sandbox has too many connections" {
			t.Errorf("decision: %+v", got)
		}
		if got := b.Stats().Connections; got != 3 {
			t.Errorf("%d are counted, want 3", got)
		}
		if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true}); err != nil {
			t.Fatal(err)
		}
		if !b.reaches(public4) {
			t.Error("the limit stays when it is taken away")
		}
	})
	t.Run("each second", func(t *testing.T) {
		t.Parallel()
		b := newBox(t, n, network.Config{Policy: sandpit.NetworkPolicy{Limits: sandpit.NetworkLimits{ConnectionRate: 1}}})
		var mu sync.Mutex
		opened, refused := 0, 0
		begin := time.Now()
		var all sync.WaitGroup
		for range 20 {
			all.Go(func() {
				_, err := b.dial(public4)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					opened++
				case strings.Contains(err.Error(), "refused"):
					refused++
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if most := int(time.Since(begin).Seconds()) + 2; opened > most || opened == 0 {
			t.Errorf("%d were opened and %d refused, want at most %d opened", opened, refused, most)
		}
		if err := b.SetPolicy(sandpit.NetworkPolicy{Online: true}); err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if !b.reaches(public4) {
				t.Error("the limit stays when it is taken away")
			}
		}
	})
}

// TestExplain says of targets what happens when they are tried.
func TestExplain(t *testing.T) {
	t.Parallel()
	names := newNameServer(t)
	names.set("good.example", address("good.example", "93.184.215.14", 60), address("good.example", "10.0.0.1", 60))
	names.set("bad.example", address("bad.example", "93.184.215.15", 60))
	names.set("alias.good.example", alias("alias.good.example", "bad.example"), address("bad.example", "93.184.215.15", 60))
	b := newBox(t, newInternet(), network.Config{Resolvers: resolvers(names), Policy: sandpit.NetworkPolicy{
		Allow: []string{"good.example", "*.good.example", "198.41.0.4:53", "10.9.0.0/16"}, Deny: []string{"bad.example"}, Inside: []string{"10.9.0.0/16"},
	}})
	for target, want := range map[string]string{
		"good.example:443":       "true allow good.example|false a private or special address in a DNS response",
		"good.example:22":        "true allow good.example|false a private or special address in a DNS response",
		"bad.example:443":        "false deny bad.example",
		"alias.good.example:443": "false deny bad.example",
		"nobody.example:443":     "false no rule allows it",
		"no.good.example:443":    "false it has no address",
		"198.41.0.4:53":          "true allow 198.41.0.4:53",
		"198.41.0.4:54":          "false no rule allows it",
		"10.9.8.7:1":             "true allow 10.9.0.0/16",
		"10.8.8.7:1":             "false a private or special address",
		"[::1]:80":               "false a private or special address",
		"10.0.2.2:80":            "false the gateway answers DNS only",
	} {
		list, err := b.Explain(t.Context(), target)
		if err != nil {
			t.Fatalf("%s: %v", target, err)
		}
		var got []string
		for _, d := range list {
			text := "false "
			if d.Allowed {
				text = "true "
			}
			got = append(got, text+d.Reason)
		}
		if strings.Join(got, "|") != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
	for _, target := range []string{"", "good.example", "good.example:0", "good.example:x", "a b:1", "*.good.example:1", "http://good.example:80"} {
		if _, err := b.Explain(t.Context(), target); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%q: %v, want invalid", target, err)
		}
	}
	// Having been explained opens nothing.
	if got := b.ask("udp", "bad.example", dnsmessage.TypeA); len(got.Answers) != 0 {
		t.Error("a denied name is answered")
	}
	if b.reaches("93.184.215.14:22") {
		t.Error("an address can be reached that only Explain has resolved")
	}
	if s := b.Stats(); s.Allowed != 0 {
		t.Errorf("counted: %+v", s)
	}
}
