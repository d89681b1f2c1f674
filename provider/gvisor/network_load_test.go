package gvisor_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// networkLoadVariable says how many connections TestNetworkLoad opens.
const networkLoadVariable = "SANDPIT_TEST_NETWORK_CONNECTIONS"

// TestNetworkLoad measures the network of a sandbox while everything competes for the
// processors. Of all connections none may take a second: that is how long a lost packet
// would hold one up.
func TestNetworkLoad(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv(networkLoadVariable))
	if err != nil {
		t.Skipf("only with a number of connections in %s", networkLoadVariable)
	}
	const size = 1 << 30
	server := serveLoad(t, machineAddr(t), size)
	box := loadBox(t, server)
	for _, way := range []string{"down", "up"} {
		t.Log(output(t, box, fmt.Sprintf("/netclient %s %s %d", way, server, size)))
	}
	t.Log(output(t, box, fmt.Sprintf("for i in 1 2 3 4; do /netclient up %s %d & done; wait; for i in 1 2 3 4; do /netclient down %s %d & done; wait", server, size/4, server, size)))
	busy(t)
	if slowest := connectMany(t, box, server, count); slowest > time.Second {
		t.Errorf("the slowest connection took %v", slowest)
	}
}

// TestManyConnections opens connections of which none may fail, and tells how long they
// took.
func TestManyConnections(t *testing.T) {
	t.Parallel()
	server := serveLoad(t, machineAddr(t), 1)
	connectMany(t, loadBox(t, server), server, 400)
}

// loadBox has the client in it, and may reach the server.
func loadBox(tb testing.TB, server netip.AddrPort) sandpit.Instance {
	tb.Helper()
	dir := tb.TempDir()
	client := filepath.Join(dir, "netclient")
	build := exec.CommandContext(tb.Context(), "go", "build", "-o", client, "./testdata/netclient")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		tb.Fatalf("build the client: %v\n%s", err, out)
	}
	return create(tb, newProvider(tb, filepath.Join(dir, "state")), sandpit.Spec{
		Network:   sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}, Inside: everywhere()},
		Mounts:    []sandpit.Mount{{Source: client, Target: "/netclient", ReadOnly: true}},
		Resources: sandpit.Resources{CPUs: 2, Memory: 1 << 30},
	})
}

// connectMany returns how long the slowest connection took.
func connectMany(tb testing.TB, box sandpit.Instance, server netip.AddrPort, count int) time.Duration {
	tb.Helper()
	figures, histogram, _ := strings.Cut(output(tb, box, fmt.Sprintf("/netclient connect %s %d", server, count)), "\n")
	var made int
	var p50, p99, most int64
	if _, err := fmt.Sscan(figures, &made, &p50, &p99, &most); err != nil || made != count {
		tb.Fatalf("got %q, want figures of %d connections", figures, count)
	}
	tb.Logf("%d connections with an echo, 8 at a time: p50 %d us, p99 %d us, max %d us; %s", made, p50, p99, most, histogram)
	return time.Duration(most) * time.Microsecond
}

// busy keeps all processors busy until the test ends, twice over.
func busy(tb testing.TB) {
	tb.Helper()
	for range 2 * runtime.NumCPU() {
		cmd := exec.CommandContext(tb.Context(), "sh", "-c", "while :; do :; done")
		if err := cmd.Start(); err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			_ = cmd.Process.Kill() // fails only if it has ended with the test
			_ = cmd.Wait()
		})
	}
}

// serveLoad has a server that does what the first byte says: echo, send size bytes,
// or take everything and answer then.
func serveLoad(tb testing.TB, host netip.Addr, size int64) netip.AddrPort {
	tb.Helper()
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		tb.Fatal(err)
	}
	var tasks sync.WaitGroup
	serve := func(conn net.Conn) {
		stop := context.AfterFunc(tb.Context(), func() { _ = conn.Close() })
		defer stop()
		defer conn.Close()
		first := make([]byte, 1)
		if _, err := io.ReadFull(conn, first); err != nil {
			return
		}
		switch first[0] {
		case 'e':
			_, _ = conn.Write(first)
		case 'd':
			block := make([]byte, 256<<10)
			for left := size; left > 0; left -= int64(len(block)) {
				if _, err := conn.Write(block); err != nil {
					return
				}
			}
		case 'u':
			_, _ = io.Copy(io.Discard, conn)
			_, _ = conn.Write(first)
		}
	}
	tasks.Go(func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() { serve(conn) })
		}
	})
	tb.Cleanup(func() { _ = ln.Close(); tasks.Wait() })
	return netip.MustParseAddrPort(ln.Addr().String())
}
