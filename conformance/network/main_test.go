package network_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testengine"
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
	if err := furnish(); err != nil {
		testengine.Skip(t, "a network namespace cannot be set up: %v", err)
	}
	l := newLab(t)
	t.Run("rules", l.rules)
	t.Run("limits", l.limits)
	t.Run("names", l.names)
	t.Run("tricks", l.tricks)
	t.Run("tunnels", l.tunnels)
	t.Run("neighbours", l.neighbours)
}

// The machine's own addresses, besides its loopback ones.
const (
	own4 = "93.184.216.1"
	own6 = "2606:2800:1::1"
)

// furnish has every address lead to this namespace, without being its own: so what a
// gateway lets out arrives at servers of the test, wherever it goes.
func furnish() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return err
	}
	for _, text := range []string{own4 + "/32", own6 + "/128"} {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(lo, addr); err != nil {
			return fmt.Errorf("add %s: %w", text, err)
		}
	}
	for _, text := range []string{"0.0.0.0/0", "::/0"} {
		_, all, err := net.ParseCIDR(text)
		if err != nil {
			return err
		}
		route := netlink.Route{LinkIndex: lo.Attrs().Index, Dst: all, Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: unix.RT_SCOPE_HOST}
		if err := netlink.RouteAdd(&route); err != nil {
			return fmt.Errorf("route %s: %w", text, err)
		}
	}
	// Programs without rights, and so gateways, may ping.
	return os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 2147483647"), 0o644)
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

// listen listens at a port of all addresses.
func listen(ctx context.Context, tb testing.TB, port int) net.Listener {
	tb.Helper()
	config := anywhere()
	ln, err := config.Listen(ctx, "tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		tb.Fatal(err)
	}
	return ln
}
