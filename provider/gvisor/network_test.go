package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// onlinePatience bounds what happens on a busy machine.
const onlinePatience = 2 * time.Minute

// everywhere lets rules open every address that they name.
func everywhere() []string { return []string{"0.0.0.0/0", "::/0"} }

// machineAddr returns an address of this machine that is not a loopback one.
func machineAddr(tb testing.TB) netip.Addr {
	tb.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		tb.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			return p.Addr()
		}
	}
	testengine.Skip(tb, "the machine has no network interface with an IPv4 address")
	return netip.Addr{}
}

// serveEcho has a TCP server that sends each line back.
func serveEcho(tb testing.TB, host netip.Addr) netip.AddrPort {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		tb.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(tb.Context(), func() { _ = conn.Close() })
			tasks.Go(func() { defer stop(); defer conn.Close(); _, _ = io.Copy(conn, conn) })
		}
	})
	tb.Cleanup(func() { _ = ln.Close(); tasks.Wait() })
	return netip.MustParseAddrPort(ln.Addr().String())
}

// serveNames answers every question for an IPv4 address with addr.
func serveNames(tb testing.TB, addr netip.Addr) netip.AddrPort {
	tb.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(tb.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		buf := make([]byte, 4096)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
					Body:   &dnsmessage.AResource{A: addr.As4()},
				}}
			}
			if data, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(data, from)
			}
		}
	})
	tb.Cleanup(func() { _ = conn.Close(); tasks.Wait() })
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

// says has bash inside send a line to the address and returns what comes back, or
// what went wrong.
func says(tb testing.TB, box sandpit.Instance, addr netip.AddrPort) string {
	tb.Helper()
	script := fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/%s/%d && echo hello >&3 && read -r -t 100 line <&3 && echo "$line"' 2>&1 || true`, addr.Addr(), addr.Port())
	out := output(tb, box, script)
	if strings.Contains(out, "bash: not found") {
		testengine.Skip(tb, "there is no bash: %s", out)
	}
	return out
}

func wantReached(tb testing.TB, box sandpit.Instance, addr netip.AddrPort) {
	tb.Helper()
	if got := says(tb, box, addr); got != "hello" {
		tb.Errorf("%s is not reached: %s", addr, got)
	}
}

func wantRefused(tb testing.TB, box sandpit.Instance, addr netip.AddrPort) {
	tb.Helper()
	if got := says(tb, box, addr); !strings.Contains(got, "refused") {
		tb.Errorf("%s: %q, want it refused", addr, got)
	}
}

// TestOnline has real sandboxes reach what they may, and nothing else.
func TestOnline(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	open, closed, loopback := serveEcho(t, host), serveEcho(t, host), serveEcho(t, netip.MustParseAddr("127.0.0.1"))
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) { c.Resolvers = []netip.AddrPort{serveNames(t, host)} })

	t.Run("by rule", func(t *testing.T) {
		box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{open.String(), "good.example"}, Inside: everywhere()}})
		if got := output(t, box, "cat /etc/resolv.conf; getent ahostsv4 good.example | head -n 1 | cut -d' ' -f1; getent hosts bad.example || echo none"); got != "nameserver 10.0.2.2\n"+host.String()+"\nnone" {
			t.Errorf("names: %q", got)
		}
		wantReached(t, box, open)
		wantRefused(t, box, closed)
		wantRefused(t, box, loopback) // the sandbox's own
		wantRefused(t, box, netip.MustParseAddrPort("169.254.169.254:80"))
		wantRefused(t, box, netip.MustParseAddrPort("10.0.2.2:80"))
		wantRefused(t, box, netip.AddrPortFrom(netip.MustParseAddr("10.0.2.2"), loopback.Port()))
		logged(t, box, open.String(), true)
		logged(t, box, closed.String(), false)
		replaceRules(t, box, open, closed)
	})
	t.Run("by default", func(t *testing.T) {
		box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
		for _, addr := range []netip.AddrPort{open, netip.MustParseAddrPort("169.254.169.254:80"), netip.MustParseAddrPort("192.168.0.1:80")} {
			wantRefused(t, box, addr)
		}
		if got := output(t, box, "getent hosts good.example || echo none"); got != "none" {
			t.Errorf("a name stands for an address of the machine: %q", got)
		}
	})
	t.Run("each other", func(t *testing.T) {
		one := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{"10.0.2.0/24"}, Inside: everywhere()}})
		two := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
		// Both have this address; the second listens there, as far as it is its own.
		output(t, two, `sh -c 'exec 3<>/dev/null; sleep 1000' >/dev/null 2>&1 &`)
		wantRefused(t, one, netip.MustParseAddrPort("10.0.2.15:49983"))
		wantRefused(t, one, netip.MustParseAddrPort("10.0.2.16:49983"))
	})
	t.Run("claimed", func(t *testing.T) {
		box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
		claimer, ok := box.(sandpit.Claimer)
		if !ok {
			t.Fatal("it cannot be claimed")
		}
		if err := claimer.Claim(t.Context(), sandpit.Spec{}); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("claimed as an offline sandbox: %v, want invalid", err)
		}
		if err := claimer.Claim(t.Context(), sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{open.String()}, Inside: everywhere()}}); err != nil {
			t.Fatal(err)
		}
		wantReached(t, box, open)
	})
}

// logged wants a decision about an address in the log.
func logged(tb testing.TB, box sandpit.Instance, addr string, allowed bool) {
	tb.Helper()
	list := decisions(tb, box)
	for _, d := range list {
		if d.Address == addr && d.Protocol == "tcp" && d.Allowed == allowed && d.Count > 0 && d.Reason != "" {
			return
		}
	}
	tb.Errorf("no decision about %s in %+v", addr, list)
}

func decisions(tb testing.TB, box sandpit.Instance) []sandpit.NetworkDecision {
	tb.Helper()
	logger, ok := box.(sandpit.NetworkLogger)
	if !ok {
		tb.Fatal("there is no network log")
	}
	list, err := logger.NetworkLog(tb.Context(), 0)
	if err != nil {
		tb.Fatal(err)
	}
	return list
}

// replaceRules turns the rules of a running sandbox around while it has a
// connection open.
func replaceRules(t *testing.T, box sandpit.Instance, open, closed netip.AddrPort) {
	t.Helper()
	policer, ok := box.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("rules cannot be replaced")
	}
	output(t, box, fmt.Sprintf(`bash -c 'exec 3<>/dev/tcp/%s/%d; echo up >&3; read -r line <&3; echo $line >/tmp/up; cat <&3; echo over >/tmp/over' >/dev/null 2>&1 &
		until test -s /tmp/up; do sleep 0.1; done`, open.Addr(), open.Port()))
	for p, want := range map[*sandpit.NetworkPolicy]sandpit.Code{
		{}:                                       sandpit.Conflict,
		{Online: true, Deny: []string{"1.2.3"}}:  sandpit.Invalid,
		{Online: false, Deny: []string{"1.2.3"}}: sandpit.Invalid,
	} {
		if err := policer.SetNetworkPolicy(t.Context(), *p); sandpit.CodeOf(err) != want {
			t.Errorf("%+v: %v, want %s", p, err, want)
		}
	}
	wantReached(t, box, open)
	if err := policer.SetNetworkPolicy(t.Context(), sandpit.NetworkPolicy{Online: true, Allow: []string{closed.String()}, Inside: everywhere()}); err != nil {
		t.Fatal(err)
	}
	output(t, box, `until test -s /tmp/over; do sleep 0.1; done`)
	wantRefused(t, box, open)
	wantReached(t, box, closed)
}

// TestOffline has no network at all.
func TestOffline(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{})
	if got := output(t, box, "grep -c : /proc/net/dev; grep -c '^nameserver' /etc/resolv.conf 2>/dev/null || true"); !strings.HasPrefix(got, "1") || strings.Contains(got, "10.0.2.2") {
		t.Errorf("interfaces: %q, want the loopback one alone", got)
	}
	for _, addr := range []string{"10.0.2.2:53", "1.1.1.1:80"} {
		if got := says(t, box, netip.MustParseAddrPort(addr)); !strings.Contains(got, "unreachable") {
			t.Errorf("%s: %q, want it unreachable", addr, got)
		}
	}
	policer, ok := box.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("not a NetworkPolicer")
	}
	if err := policer.SetNetworkPolicy(t.Context(), sandpit.NetworkPolicy{Online: true}); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("put online: %v, want a conflict", err)
	}
	for _, n := range []sandpit.NetworkPolicy{{Allow: []string{"1.2.3.4"}}, {Online: true, Allow: []string{"10.0.0.1/8"}}} {
		if _, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Network: n}); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%+v: %v, want invalid", n, err)
		}
	}
	if list := gatewaysOf(t, dir); len(list) != 0 {
		t.Errorf("an offline sandbox has a gateway: %v", list)
	}
}

// gatewaysOf returns the processes of gateways whose reaper works below dir.
func gatewaysOf(tb testing.TB, dir string) []int {
	tb.Helper()
	return childrenOf(tb, dir, "sandpit-gateway")
}

// childrenOf returns the processes with a role whose reaper works below dir.
func childrenOf(tb testing.TB, dir, role string) []int {
	tb.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		tb.Fatal(err)
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		line, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if !bytes.HasPrefix(line, []byte(role+"\x00")) {
			continue
		}
		if parent, ok := parentOf(pid); ok {
			line, _ = os.ReadFile(filepath.Join("/proc", strconv.Itoa(parent), "cmdline"))
			if strings.Contains(string(line), dir+"/") {
				found = append(found, pid)
			}
		}
	}
	return found
}

func parentOf(pid int) (int, bool) {
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, false
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 2 {
		return 0, false
	}
	parent, err := strconv.Atoi(fields[1])
	return parent, err == nil
}

func await(tb testing.TB, what string, done func() bool) {
	tb.Helper()
	for end := time.Now().Add(onlinePatience); !done(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			tb.Fatalf("in vain: %s", what)
		}
	}
}

// TestGatewayKilled kills the gateway of a sandbox. It comes back with the rules
// that were set last, and another sandbox notices nothing.
func TestGatewayKilled(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := serveEcho(t, machineAddr(t))
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
	var first int
	await(t, "the gateway starts", func() bool {
		list := gatewaysOf(t, dir)
		if len(list) == 1 {
			first = list[0]
		}
		return len(list) == 1
	})
	other := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: everywhere()}})
	policer, ok := box.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("not a NetworkPolicer")
	}
	if err := policer.SetNetworkPolicy(t.Context(), sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: everywhere()}); err != nil {
		t.Fatal(err)
	}
	wantReached(t, box, server)
	var victims []int
	await(t, "both gateways run", func() bool { victims = gatewaysOf(t, dir); return len(victims) == 2 })
	victim := victims[0]
	if victim != first {
		victim = victims[1]
	}
	if err := unix.Kill(victim, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	wantReached(t, other, server)
	await(t, "the sandbox is online again", func() bool { return says(t, box, server) == "hello" })
	if list := decisions(t, box); len(list) == 0 || list[0].Protocol != "gateway" {
		t.Errorf("the log does not say that the gateway broke down: %+v", list)
	}
	if list := decisions(t, other); len(list) == 0 || list[0].Protocol == "gateway" {
		t.Errorf("the other sandbox's gateway broke down, too: %+v", list)
	}
	for _, b := range []sandpit.Instance{box, other} {
		if err := b.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
	await(t, "the gateways end", func() bool { return len(gatewaysOf(t, dir)) == 0 })
}

// onlineOwnerVariable has TestOnlineOwner be an owner: a directory and a rule.
const onlineOwnerVariable = "SANDPIT_TEST_ONLINE_OWNER"

// TestOnlineOwner is not a test by itself: it is the process that
// TestOnlineOutlivesItsOwner kills.
func TestOnlineOwner(t *testing.T) {
	dir, rule, ok := strings.Cut(os.Getenv(onlineOwnerVariable), " ")
	if !ok {
		t.Skip("only run by another test")
	}
	p := newProviderWith(t, dir, lasting)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{rule}, Inside: everywhere()}})
	if err := json.NewEncoder(os.Stderr).Encode(box.Handle()); err != nil {
		t.Fatal(err)
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
}

// TestOnlineOutlivesItsOwner kills the process that made an online sandbox: it
// stays online, and another process sets its rules.
func TestOnlineOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	host := machineAddr(t)
	first, second := serveEcho(t, host), serveEcho(t, host)
	owner := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestOnlineOwner$")
	owner.Env = append(os.Environ(), onlineOwnerVariable+"="+dir+" "+first.String())
	var words bytes.Buffer
	owner.Stderr = &words
	if err := owner.Run(); owner.ProcessState == nil || owner.ProcessState.Exited() {
		t.Fatalf("the owner was not killed: %v, %s", err, words.String())
	}
	var handle []byte
	if err := json.NewDecoder(&words).Decode(&handle); err != nil {
		t.Fatal(err)
	}
	p := newProviderWith(t, dir, lasting)
	box, err := p.Attach(t.Context(), handle)
	if err != nil {
		t.Fatal(err)
	}
	wantReached(t, box, first)
	wantRefused(t, box, second)
	policer, ok := box.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("not a NetworkPolicer")
	}
	if err := policer.SetNetworkPolicy(t.Context(), sandpit.NetworkPolicy{Online: true, Allow: []string{second.String()}, Inside: everywhere()}); err != nil {
		t.Fatal(err)
	}
	wantReached(t, box, second)
	if list, err := p.List(t.Context()); err != nil || len(list) != 1 || list[0].Spec.Network.Allow[0] != second.String() {
		t.Errorf("list: %+v, %v, want the new rules", list, err)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
	await(t, "the gateway ends", func() bool { return len(gatewaysOf(t, dir)) == 0 })
}
