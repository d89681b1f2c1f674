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
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// networkLoadVariable says how many connections TestNetworkLoad opens.
const networkLoadVariable = "SANDPIT_TEST_NETWORK_CONNECTIONS"

// TestNetworkLoad measures the network of a sandbox. Of all connections none may
// take a second: that is how long a lost packet would hold one up.
func TestNetworkLoad(t *testing.T) {
	count, err := strconv.Atoi(os.Getenv(networkLoadVariable))
	if err != nil {
		t.Skipf("only with a number of connections in %s", networkLoadVariable)
	}
	const size = 1 << 30
	server := serveLoad(t, machineAddr(t), size)
	dir := t.TempDir()
	client := filepath.Join(dir, "netclient")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", client, "./testdata/netclient")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the client: %v\n%s", err, out)
	}
	state := filepath.Join(dir, "state")
	p := newProvider(t, state)
	box := create(t, p, sandpit.Spec{
		Network:   sandpit.NetworkPolicy{Online: true, Allow: []string{server.String()}},
		Mounts:    []sandpit.Mount{{Source: client, Target: "/netclient", ReadOnly: true}},
		Resources: sandpit.Resources{CPUs: 2, Memory: 1 << 30},
	})
	fields := strings.Fields(output(t, box, fmt.Sprintf("/netclient connect %s %d", server, count)))
	if len(fields) != 4 {
		t.Fatalf("got %q", fields)
	}
	t.Logf("%s connections with an echo, 8 at a time: p50 %s us, p99 %s us, max %s us", fields[0], fields[1], fields[2], fields[3])
	if slowest, err := strconv.Atoi(fields[3]); err != nil || slowest > 1_000_000 {
		t.Errorf("the slowest connection took %s us", fields[3])
	}
	for _, way := range []string{"down", "up"} {
		t.Log(output(t, box, fmt.Sprintf("/netclient %s %s %d", way, server, size)))
	}
	t.Log(output(t, box, fmt.Sprintf("for i in 1 2 3 4; do /netclient up %s %d & done; wait; for i in 1 2 3 4; do /netclient down %s %d & done; wait", server, size/4, server, size)))
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
