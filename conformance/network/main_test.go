package network_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// insideVariable says that this process has a network of its own.
const insideVariable = "SANDPIT_TEST_NETWORK_INSIDE"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestNetwork runs TestInside in a network namespace of its own.
func TestNetwork(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may make a network namespace")
	}
	testengine.Path(t) // is built once, by this process
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInside$", "-test.v", "-test.timeout=10m")
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		testengine.Skip(t, "no network namespace may be made here: %v", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: TestInside")):
		t.Skipf("%s", out)
	}
	t.Logf("%s", out)
}

// TestInside is what TestNetwork runs.
func TestInside(t *testing.T) {
	if os.Getenv(insideVariable) == "" {
		t.Skip("only run by another test")
	}
	outside, err := furnish(t)
	if err != nil {
		testengine.Skip(t, "a network namespace cannot be set up: %v", err)
	}
	l := newLab(t, outside)
	t.Run("rules", l.rules)
	t.Run("limits", l.limits)
	t.Run("names", l.names)
	t.Run("tricks", l.tricks)
	t.Run("tunnels", l.tunnels)
	t.Run("neighbours", l.neighbours)
}

// The machine's own addresses, besides its loopback ones, and the router's by which it
// reaches all others.
const (
	own4    = "93.184.216.1"
	own6    = "2606:2800:1::1"
	router4 = "93.184.216.254"
	router6 = "2606:2800:1::fe"
	// Of these no interface has one: a route delivers them to the machine.
	anyIP4 = "198.41.99.0/24"
	anyIP6 = "2606:2800:99::/64"
)

// place calls a function on a thread in some network namespace, and returns when that has
// returned.
type place func(f func())

// here is the namespace of this process.
func here(f func()) { f() }

// furnish makes this namespace a machine whose every packet goes to another namespace, in
// which every address is local: so what a gateway lets out arrives at servers of the test,
// wherever it goes. It returns that namespace.
func furnish(t *testing.T) (place, error) {
	t.Helper()
	outside, namespace, err := newNamespace(t)
	if err != nil {
		return nil, err
	}
	err = netlink.LinkAdd(&netlink.Veth{
		LinkAttrs: netlink.LinkAttrs{Name: "machine"}, PeerName: "router", PeerNamespace: netlink.NsFd(int(namespace.Fd())),
	})
	if err == nil {
		err = setUp("machine", []string{own4 + "/24", own6 + "/64"})
	}
	for _, via := range []string{router4, router6} {
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{Gw: net.ParseIP(via)})
		}
	}
	if err != nil {
		return nil, err
	}
	for _, text := range []string{anyIP4, anyIP6} {
		if err := routeLocal(text); err != nil {
			return nil, err
		}
	}
	outside(func() { err = furnishOutside() })
	if err != nil {
		return nil, err
	}
	// Programs without rights, and so those that dial for gateways, may ping.
	return outside, os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644)
}

// furnishOutside has all addresses but the machine's be of the namespace of the calling
// thread.
func furnishOutside() error {
	if err := setUp("router", []string{router4 + "/24", router6 + "/64"}); err != nil {
		return err
	}
	for _, all := range []string{"0.0.0.0/0", "::/0"} {
		if err := routeLocal(all); err != nil {
			return err
		}
	}
	router, err := netlink.LinkByName("router")
	if err != nil {
		return err
	}
	for text, route := range map[string]netlink.Route{ // in the same table, since that comes first
		own4 + "/32":  {LinkIndex: router.Attrs().Index, Scope: unix.RT_SCOPE_LINK},
		own6 + "/128": {LinkIndex: router.Attrs().Index},
	} {
		if _, route.Dst, err = net.ParseCIDR(text); err != nil {
			return err
		}
		route.Table = unix.RT_TABLE_LOCAL
		if err := netlink.RouteAdd(&route); err != nil {
			return fmt.Errorf("route %s: %w", text, err)
		}
	}
	return nil
}

// routeLocal makes addresses those of the namespace of the calling thread.
func routeLocal(text string) error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	route := netlink.Route{LinkIndex: lo.Attrs().Index, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL}
	if _, route.Dst, err = net.ParseCIDR(text); err != nil {
		return err
	}
	if err := netlink.RouteAdd(&route); err != nil {
		return fmt.Errorf("route %s: %w", text, err)
	}
	return nil
}

// setUp gives a link, and loopback, to the namespace of the calling thread.
func setUp(name string, addresses []string) error {
	for _, up := range []string{"lo", name} {
		link, err := netlink.LinkByName(up)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			return fmt.Errorf("set %s up: %w", up, err)
		}
	}
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, text := range addresses {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(link, addr); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	return nil
}

// newNamespace makes a network namespace that lasts as long as the test.
func newNamespace(t *testing.T) (place, *os.File, error) {
	t.Helper()
	calls := make(chan func())
	type made struct {
		namespace *os.File
		err       error
	}
	ready := make(chan made)
	var thread sync.WaitGroup
	thread.Go(func() {
		runtime.LockOSThread() // and never unlocked: the thread ends here
		err := unix.Unshare(unix.CLONE_NEWNET)
		var namespace *os.File
		if err == nil {
			namespace, err = os.Open("/proc/thread-self/ns/net")
		}
		ready <- made{namespace, err}
		for f := range calls {
			f()
		}
	})
	t.Cleanup(func() { close(calls); thread.Wait() })
	got := <-ready
	if got.err != nil {
		return nil, nil, got.err
	}
	t.Cleanup(func() { _ = got.namespace.Close() })
	return func(f func()) {
		done := make(chan struct{})
		calls <- func() { defer close(done); f() }
		<-done
	}, got.namespace, nil
}

// anywhere lets a server answer from addresses that are not the namespace's own.
func anywhere() net.ListenConfig {
	return net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var set error
		err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		if err != nil {
			return err
		}
		return set
	}}
}

// listen listens at a port of all addresses of a namespace.
func listen(ctx context.Context, tb testing.TB, in place, port int) net.Listener {
	tb.Helper()
	config := anywhere()
	var ln net.Listener
	var err error
	in(func() { ln, err = config.Listen(ctx, "tcp", fmt.Sprintf("[::]:%d", port)) })
	if err != nil {
		tb.Fatal(err)
	}
	return ln
}

// listenPackets is listen for datagrams; network is "udp4" or "udp6".
func listenPackets(ctx context.Context, tb testing.TB, in place, network string, port int) net.PacketConn {
	tb.Helper()
	config := anywhere()
	host := "[::]"
	if network == "udp4" {
		host = "0.0.0.0"
	}
	var conn net.PacketConn
	var err error
	in(func() { conn, err = config.ListenPacket(ctx, network, fmt.Sprintf("%s:%d", host, port)) })
	if err != nil {
		tb.Fatal(err)
	}
	return conn
}
