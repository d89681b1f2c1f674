package route

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace calls f on a thread in a network namespace of its own, after the ip commands
// have set that up.
func inNamespace(t *testing.T, commands []string, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root may make a network namespace")
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			for _, c := range commands {
				if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(c)...).CombinedOutput(); err != nil {
					return fmt.Errorf("ip %s: %w: %s", c, err, out)
				}
			}
			f()
			return nil
		}()
	}()
	err := <-done
	if errors.Is(err, unix.EPERM) || errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	}
	if err != nil {
		t.Error(err)
	}
}

// TestLookup has a namespace with every type of route.
func TestLookup(t *testing.T) {
	t.Parallel()
	inNamespace(t, []string{
		"link set lo up",
		"link add v0 type veth peer name v1", "link set v0 up", "link set v1 up",
		"addr add 93.184.216.2/24 dev v0", "addr add 2606:2800:1::2/64 dev v0 nodad",
		"route add default via 93.184.216.1", "-6 route add default via 2606:2800:1::1",
		"route add local 198.41.99.0/24 dev lo", "-6 route add local 2606:2800:99::/64 dev lo",
		"route add blackhole 198.41.98.0/24", "route add unreachable 198.41.97.0/24", "route add prohibit 198.41.96.0/24",
		"-6 route add anycast 2606:2800:98::/64 dev v0",
		"rule add ipproto tcp dport 4443 lookup 77", "route add local 198.41.95.0/24 dev lo table 77",
	}, func() {
		k, err := Open()
		if err != nil {
			t.Fatal(err)
		}
		defer k.Close()
		for addr, want := range map[string]Kind{
			"127.0.0.1": Local, "127.9.9.9": Local, "::1": Local, "93.184.216.2": Local, "::ffff:93.184.216.2": Local, "2606:2800:1::2": Local,
			"198.41.99.5": Local, "198.41.99.255": Local, "2606:2800:99::5": Local, "2606:2800:98::5": Local,
			"93.184.216.255": Local, "255.255.255.255": Local, "224.0.0.1": Local, "127.255.255.255": Local,
			"8.8.8.8": Remote, "93.184.216.3": Remote, "2606:4700::1111": Remote, "198.41.100.5": Remote,
			"198.41.97.1": Nowhere, "198.41.96.1": Nowhere, "198.41.95.1": Remote,
		} {
			got, err := k.Lookup(Destination{Addr: netip.MustParseAddr(addr)})
			if err != nil || got != want {
				t.Errorf("%s: kind %d, %v, want %d", addr, got, err, want)
			}
			if k.IsLocal(netip.MustParseAddr(addr)) != (want == Local) {
				t.Errorf("%s: local %v", addr, want != Local)
			}
		}
		// What the kernel cannot say counts as the machine's own.
		for _, addr := range []netip.Addr{{}, netip.MustParseAddr("fe80::1%v0"), netip.MustParseAddr("198.41.98.1")} {
			if !k.IsLocal(addr) {
				t.Errorf("%q is not local", addr)
			}
		}
		// A rule may be for one protocol and port.
		for _, d := range []Destination{
			{netip.MustParseAddr("198.41.95.1"), unix.IPPROTO_TCP, 4443},
			{netip.MustParseAddr("198.41.95.1"), unix.IPPROTO_TCP, 4444},
			{netip.MustParseAddr("198.41.95.1"), unix.IPPROTO_UDP, 4443},
		} {
			want := Remote
			if d.Protocol == unix.IPPROTO_TCP && d.Port == 4443 {
				want = Local
			}
			if got, err := k.Lookup(d); err != nil || got != want {
				t.Errorf("%+v: kind %d, %v, want %d", d, got, err, want)
			}
		}
	})
}

// TestNoNetwork has no interface up: then nothing is reached, the namespace itself included.
func TestNoNetwork(t *testing.T) {
	t.Parallel()
	inNamespace(t, nil, func() {
		for _, addr := range []string{"8.8.8.8", "2606:4700::1111"} {
			if IsLocal(netip.MustParseAddr(addr)) {
				t.Errorf("%s is local", addr)
			}
		}
	})
}

func TestIsOwnConnection(t *testing.T) {
	t.Parallel()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if !IsOwnConnection(conn) {
		t.Error("a connection to this machine is not")
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if IsOwnConnection(a) {
		t.Error("a pipe is a connection to this machine")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte{}, uint32(1))
	f.Add(make([]byte, 64), uint32(0))
	f.Fuzz(func(t *testing.T, m []byte, seq uint32) {
		if kind, mine, err := decodeAnswer(m, seq); err != nil && kind != Local || !mine && kind != Local {
			t.Errorf("kind %d, %v, %v: what is not understood is not local", kind, mine, err)
		}
	})
}

func BenchmarkLookup(b *testing.B) {
	k, err := Open()
	if err != nil {
		b.Fatal(err)
	}
	defer k.Close()
	d := Destination{Addr: netip.MustParseAddr("198.41.0.4"), Protocol: unix.IPPROTO_TCP, Port: 443}
	for b.Loop() {
		if _, err := k.Lookup(d); err != nil {
			b.Fatal(err)
		}
	}
}
