package gvisor_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/dialer"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// readProcessStatus returns the fields of /proc/PID/status.
func readProcessStatus(tb testing.TB, pid int) map[string]string {
	tb.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		tb.Fatal(err)
	}
	fields := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		fields[name] = strings.TrimSpace(value)
	}
	return fields
}

// onlyOne waits until there is one process with a role.
func onlyOne(tb testing.TB, dir, role string) int {
	tb.Helper()
	var list []int
	await(tb, "one "+role+" runs", func() bool { list = childrenOf(tb, dir, role); return len(list) == 1 })
	return list[0]
}

// TestWallProcesses looks at what gateway and dialer have of the machine.
func TestWallProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := serveEcho(t, machineAddr(t))
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: everywhere()}})
	wantReached(t, box, server) // so both are up
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for role, inMachine := range map[string]bool{"sandpit-gateway": false, "sandpit-dialer": true} {
		pid := onlyOne(t, dir, role)
		status := readProcessStatus(t, pid)
		for field, want := range map[string]string{"Seccomp": "2", "NoNewPrivs": "1", "CapEff": "0000000000000000", "CapPrm": "0000000000000000"} {
			if status[field] != want {
				t.Errorf("%s: %s is %q, want %q", role, field, status[field], want)
			}
		}
		if uid, _, _ := strings.Cut(status["Uid"], "\t"); os.Geteuid() == 0 && uid == "0" {
			t.Errorf("%s runs as root", role)
		}
		for _, kind := range []string{"user", "mnt", "pid", "ipc", "uts", "net"} {
			ours, theirs := namespaces(t, kind, pid)
			if same := ours == theirs; same != (kind == "net" && inMachine) {
				t.Errorf("%s: namespace %s is %s, ours is %s", role, kind, theirs, ours)
			}
		}
		if list, err := os.ReadDir(fmt.Sprintf("/proc/%d/root", pid)); err == nil && len(list) > 0 {
			t.Errorf("%s sees files: %v", role, list)
		}
	}
	interfaces, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", onlyOne(t, dir, "sandpit-gateway")))
	if err != nil || strings.Count(string(interfaces), ":") != 1 || !strings.Contains(string(interfaces), " lo:") {
		t.Errorf("the gateway's interfaces: %v\n%s", err, interfaces)
	}
	if now, err := os.Readlink("/proc/self/ns/net"); err != nil || now != own {
		t.Errorf("this test has changed its namespace: %v", err)
	}
}

func namespaces(tb testing.TB, kind string, pid int) (ours, theirs string) {
	tb.Helper()
	ours, err := os.Readlink("/proc/self/ns/" + kind)
	if err == nil {
		theirs, err = os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, kind))
	}
	if err != nil {
		tb.Fatal(err)
	}
	return ours, theirs
}

// dialerSocket duplicates the only connected socket of packets that a gateway has.
func dialerSocket(tb testing.TB, pid, process int) int {
	tb.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, e := range list {
		number, err := strconv.Atoi(e.Name())
		if err != nil {
			tb.Fatal(err)
		}
		fd, err := unix.PidfdGetfd(process, number, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
			testengine.Skip(tb, "descriptors of other processes cannot be had here: %v", err)
		}
		if err != nil {
			continue // closed meanwhile
		}
		kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
		if _, err := unix.Getpeername(fd); err == nil && kind == unix.SOCK_SEQPACKET {
			return fd
		}
		_ = unix.Close(fd)
	}
	tb.Fatal("the gateway has no way to the dialer")
	return -1
}

// takeOver stops a gateway and returns its way to the dialer: what this test asks for then,
// a compromised gateway could request.
func takeOver(tb testing.TB, pid int) *net.UnixConn {
	tb.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		tb.Fatal(err)
	}
	defer unix.Close(process)
	fd := dialerSocket(tb, pid, process)
	if err := unix.Kill(pid, unix.SIGSTOP); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = unix.Kill(pid, unix.SIGCONT) }) // unless it has ended
	f := os.NewFile(uintptr(fd), "dial")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	return conn.(*net.UnixConn) //nolint:forcetypeassert // it is one
}

// TestWallHolds has a gateway that allows everything ask for the machine's inside.
func TestWallHolds(t *testing.T) {
	t.Parallel()
	host, loopback := machineAddr(t), netip.MustParseAddr("127.0.0.1")
	granted, closed, local := serveEcho(t, host), serveEcho(t, host), serveEcho(t, loopback)
	names := serveNames(t, host)
	dir := t.TempDir()
	p := newProviderWith(t, dir, func(c *gvisor.Config) { c.Resolvers = []netip.AddrPort{names} })
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Inside: []string{granted.String()}}})
	wantRefused(t, box, local) // the gateway is up
	c := dialer.NewClient(takeOver(t, onlyOne(t, dir, "sandpit-gateway")))
	refused := []netip.AddrPort{closed, local, netip.AddrPortFrom(host, 22)}
	for _, text := range []string{
		"127.0.0.1:22", "127.1.2.3:80", "[::1]:80", "169.254.169.254:80", "10.0.0.1:80", "192.168.1.1:80", "172.17.0.1:2375", "100.64.0.1:80", "[fe80::1]:80",
		"[fd00:ec2::254]:80", "168.63.129.16:80", "[64:ff9b::7f00:1]:80", "[64:ff9b::a9fe:a9fe]:80", "[2002:7f00:1::]:80", "0.1.2.3:80",
	} {
		refused = append(refused, netip.MustParseAddrPort(text))
	}
	for _, to := range refused {
		for _, kind := range []string{"tcp", "udp"} {
			if conn, err := c.Dial(t.Context(), kind, to); !errors.Is(err, sandpit.PermissionDenied) {
				t.Errorf("%s %s: %v, %v", kind, to, conn, err)
			}
			if conn, err := c.DialResolver(t.Context(), kind, to); !errors.Is(err, sandpit.PermissionDenied) {
				t.Errorf("%s %s as a resolver: %v, %v", kind, to, conn, err)
			}
		}
		if conn, err := c.Dial(t.Context(), "icmp", netip.AddrPortFrom(to.Addr(), 0)); !errors.Is(err, sandpit.PermissionDenied) {
			t.Errorf("ping %s: %v, %v", to.Addr(), conn, err)
		}
	}
	for _, text := range []string{"0.0.0.0:80", "[::]:80", "224.0.0.1:80", "255.255.255.255:80", "8.8.8.8:0"} {
		if conn, err := c.Dial(t.Context(), "tcp", netip.MustParseAddrPort(text)); err == nil {
			t.Errorf("%s: %v", text, conn.RemoteAddr())
		}
	}
	if conn, err := c.Dial(t.Context(), "udp", names); !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("the resolver as a peer: %v, %v", conn, err)
	}
	if conn, err := c.DialResolver(t.Context(), "udp", names); err != nil {
		t.Errorf("the resolver: %v", err)
	} else {
		_ = conn.Close()
	}
	wantEchoOf(t, c, granted)
}

// wantEchoOf has a dialer connect to a server that sends lines back.
func wantEchoOf(tb testing.TB, c *dialer.Client, server netip.AddrPort) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), onlinePatience)
	defer cancel()
	conn, err := c.Dial(ctx, "tcp", server)
	if err != nil {
		tb.Errorf("%s: %v", server, err)
		return
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("hello\n")); err != nil {
		tb.Error(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "hello\n" {
		tb.Errorf("%s answers %q, %v", server, line, err)
	}
}

// TestWallForgery has a gateway send what is no request, and descriptors of its own.
func TestWallForgery(t *testing.T) {
	t.Parallel()
	server := serveEcho(t, machineAddr(t))
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Inside: []string{server.String()}}})
	wantRefused(t, box, server)
	conn := takeOver(t, onlyOne(t, dir, "sandpit-gateway"))
	random := make([]byte, 64)
	for i := range 2000 {
		for j := range random {
			random[j] = byte(i * (j + 7) >> (j % 5))
		}
		if _, err := conn.Write(random[:1+i%40]); err != nil {
			t.Fatal(err)
		}
		rights := make([]byte, 100)
		_, rn, _, _, err := conn.ReadMsgUnix(make([]byte, 100), rights)
		if err != nil || rn != 0 {
			t.Fatalf("forgery %d: %d bytes of rights, %v", i, rn, err)
		}
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, _, err := conn.WriteMsgUnix([]byte("take it"), unix.UnixRights(int(null.Fd())), nil); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	wantEchoOf(t, dialer.NewClient(conn), server)
	keeper := onlyOne(t, dir, "sandpit-dialer")
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", keeper))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && to == os.DevNull && filepath.Base(l) > "2" {
			t.Errorf("the dialer has taken %s as %s", to, l)
		}
	}
}

// TestWallFlood has a gateway ask for connections without end and take none: its neighbour
// gets its own meanwhile, and the dialer holds nothing of it.
func TestWallFlood(t *testing.T) {
	t.Parallel()
	server := serveEcho(t, machineAddr(t))
	dir := t.TempDir()
	p := newProvider(t, dir)
	policy := sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: []string{server.String()}}
	evil := create(t, p, sandpit.Spec{Network: policy})
	wantReached(t, evil, server)
	conn := takeOver(t, onlyOne(t, dir, "sandpit-gateway"))
	good := create(t, p, sandpit.Spec{Network: policy})
	wantReached(t, good, server)
	keeper := onlyOne(t, dir, "sandpit-dialer")
	before := descriptors(t, keeper)
	request := []byte{0, 0, 0, 1, 1, 1, 4, 0, byte(server.Port() >> 8), byte(server.Port()), 0, 0}
	request = append(request, server.Addr().AsSlice()...)
	request = append(request, make([]byte, 12)...)
	sent := 0
	for end := time.Now().Add(2 * time.Second); time.Now().Before(end); sent++ {
		if err := conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write(request); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	wantReached(t, good, server)
	t.Logf("%d requests; the neighbour connected in %v", sent, time.Since(begin))
	if after := descriptors(t, keeper); after > before+3 {
		t.Errorf("the dialer has %d descriptors, %d before", after, before)
	}
}

func descriptors(tb testing.TB, pid int) int {
	tb.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		tb.Fatal(err)
	}
	return len(list)
}

// TestWallFollowsRules has the wall go by rules that are replaced, and by none that are
// refused.
func TestWallFollowsRules(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	first, second := serveEcho(t, host), serveEcho(t, host)
	dir := t.TempDir()
	p := newProvider(t, dir)
	only := func(a netip.AddrPort) sandpit.NetworkPolicy {
		return sandpit.NetworkPolicy{Online: true, Allow: []string{a.String()}, Inside: []string{a.String()}}
	}
	box := create(t, p, sandpit.Spec{Network: only(first)})
	wantReached(t, box, first)
	policer, ok := box.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("rules cannot be replaced")
	}
	if err := policer.SetNetworkPolicy(t.Context(), only(second)); err != nil {
		t.Fatal(err)
	}
	wantReached(t, box, second)
	bad := only(first)
	bad.Deny = []string{"not a rule"}
	if err := policer.SetNetworkPolicy(t.Context(), bad); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("an invalid rule: %v", err)
	}
	claimed := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
	claimer, ok := claimed.(sandpit.Claimer)
	if !ok {
		t.Fatal("it cannot be claimed")
	}
	if err := claimer.Claim(t.Context(), sandpit.Spec{Network: only(first)}); err != nil {
		t.Fatal(err)
	}
	wantReached(t, claimed, first)
	gateways := gatewaysOf(t, dir)
	if len(gateways) != 2 {
		t.Fatalf("gateways %v, want 2", gateways)
	}
	// Each reaches its own alone, whatever its gateway decides.
	reached := make(map[netip.AddrPort]int)
	for _, pid := range gateways {
		c := dialer.NewClient(takeOver(t, pid))
		for _, to := range []netip.AddrPort{first, second} {
			conn, err := c.Dial(t.Context(), "tcp", to)
			if err == nil {
				reached[to]++
				_ = conn.Close()
			}
		}
	}
	if reached[first] != 1 || reached[second] != 1 {
		t.Errorf("reached %v, want each by one", reached)
	}
}

// TestDialerKilled kills the dialer: connections go on, new ones are made by the next one,
// with the rules that were set last.
func TestDialerKilled(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	server, closed := serveEcho(t, host), serveEcho(t, host)
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{host.String()}, Inside: []string{closed.String()}}})
	policer, ok := box.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("rules cannot be replaced")
	}
	if err := policer.SetNetworkPolicy(t.Context(), sandpit.NetworkPolicy{Online: true, Allow: []string{host.String()}, Inside: []string{server.String()}}); err != nil {
		t.Fatal(err)
	}
	held := holdConnection(t, box, server)
	for range 4 {
		victim := onlyOne(t, dir, "sandpit-dialer")
		if err := unix.Kill(victim, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		wantReached(t, box, server)
		wantRefused(t, box, closed)
		if next := onlyOne(t, dir, "sandpit-dialer"); next == victim {
			t.Error("it is the same process")
		}
	}
	if got := held(); got != "hello" {
		t.Errorf("the connection from before answers %q", got)
	}
	if err := unix.Kill(onlyOne(t, dir, "sandpit-gateway"), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	await(t, "the next gateway connects", func() bool { return says(t, box, server) == "hello" })
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	await(t, "all processes end", func() bool {
		return len(childrenOf(t, dir, "sandpit-dialer"))+len(gatewaysOf(t, dir)) == 0
	})
}

// holdConnection opens a connection inside that answers one line when it is called.
func holdConnection(tb testing.TB, box sandpit.Instance, server netip.AddrPort) func() string {
	tb.Helper()
	in, input := io.Pipe()
	output, out := io.Pipe()
	script := fmt.Sprintf(`exec 3<>/dev/tcp/%s/%d; echo open; read -r line; echo "$line" >&3; read -r -t 100 line <&3; echo "$line"`, server.Addr(), server.Port())
	p, err := box.Guest().Start(tb.Context(), sandpit.Command{Args: []string{"bash", "-c", script}, Stdin: in, Stdout: out, Stderr: out})
	if err != nil {
		tb.Fatal(err)
	}
	lines := bufio.NewScanner(output)
	if !lines.Scan() || lines.Text() != "open" {
		tb.Fatalf("no connection: %q, %v", lines.Text(), lines.Err())
	}
	return func() string {
		if _, err := io.WriteString(input, "hello\n"); err != nil {
			tb.Error(err)
		}
		lines.Scan()
		_ = input.Close() // a pipe
		if _, err := p.Wait(tb.Context()); err != nil {
			tb.Error(err)
		}
		return lines.Text()
	}
}

// TestReaperKilledWithDialer kills the reaper: nothing is left.
func TestReaperKilledWithDialer(t *testing.T) {
	t.Parallel()
	server := serveEcho(t, machineAddr(t))
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: everywhere()}})
	wantReached(t, box, server)
	processes := append(gatewaysOf(t, dir), onlyOne(t, dir, "sandpit-dialer"))
	reaper, ok := parentOf(processes[0])
	if !ok || reaper < 2 {
		t.Fatalf("the reaper is %d", reaper)
	}
	if err := unix.Kill(reaper, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for _, pid := range processes {
		await(t, "process "+strconv.Itoa(pid)+" ends", func() bool {
			_, err := os.Lstat("/proc/" + strconv.Itoa(pid))
			return err != nil
		})
	}
}
