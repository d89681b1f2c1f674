package owners_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

const (
	// ownNetworkVariable says that this process has a network namespace of its own.
	ownNetworkVariable = "SANDPIT_TEST_OWNERS_NETWORK"
	// insideBanner is what the service of the machine says to all clients.
	insideBanner = "SERVICE-OF-THE-MACHINE"
	// routedRange is delivered to the machine by a route; no interface has it. It is public.
	routedRange, routedAddress = "198.41.99.0/24", "198.41.99.5"
)

// insideAddresses are a special address of the machine, its cloud's metadata service, and
// an address of a private network.
var insideAddresses = []string{"192.0.2.2", "169.254.169.254", "10.0.0.1"}

// TestInside runs TestInsideOfMachine in a network namespace of its own.
func TestInside(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root may create a network namespace")
	}
	testengine.Path(t) // this process builds it
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestInsideOfMachine$", "-test.v", "-test.timeout=5m")
	cmd.Env = append(os.Environ(), ownNetworkVariable+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	switch {
	case errors.Is(err, unix.EPERM):
		testengine.Skip(t, "a network namespace cannot be created: %v", err)
	case err != nil:
		t.Fatalf("%v\n%s", err, out)
	case bytes.Contains(out, []byte("--- SKIP: TestInsideOfMachine")):
		t.Skipf("%s", out)
	}
}

// TestInsideOfMachine has alice try all ways to open addresses that only the machine
// reaches. An administrator opens the same ones.
func TestInsideOfMachine(t *testing.T) {
	if os.Getenv(ownNetworkVariable) == "" {
		t.Skip("run by TestInside")
	}
	if err := setUpMachine(); err != nil {
		testengine.Skip(t, "the network namespace cannot be set up: %v", err)
	}
	port := serveBanner(t)
	l := newLab(t, labOptions{config: "[e2b]\ntemplates = { base = \"busybox:owners\" }\n"})
	rules := map[string]any{"online": true, "allow": insideAddresses}
	opened := l.admin.createWith(t, map[string]any{"image": l.image, "network": rules})
	for _, address := range insideAddresses {
		if out := l.admin.connect(t, opened, address, port); out != insideBanner {
			t.Fatalf("the administrator's sandbox reads %q from %s", out, address)
		}
	}
	plain := l.alice.createWith(t, map[string]any{"image": l.image, "network": map[string]any{"online": true}})
	t.Run("default rules", func(t *testing.T) { l.wantClosed(t, plain, port) })
	t.Run("native API", func(t *testing.T) {
		for name, network := range map[string]any{
			"addresses": rules,
			"with port": map[string]any{"online": true, "allow": []string{"192.0.2.2:" + port}},
			"ranges":    map[string]any{"online": true, "allow": []string{"192.0.2.0/24", "169.254.0.0/16", "10.0.0.0/8"}},
			"claimed":   map[string]any{"online": true, "allow": insideAddresses, "inside": insideAddresses},
			"routed":    map[string]any{"online": true, "allow": []string{routedRange, routedAddress}},
			"NAT64":     map[string]any{"online": true, "allow": []string{"64:ff9b::c000:202"}},
		} {
			l.attemptCreate(t, name, port, "/v1/sandboxes", map[string]any{"spec": map[string]any{"image": l.image, "network": network}})
		}
	})
	t.Run("E2B's API", func(t *testing.T) {
		l.attemptCreate(t, "allowOut", port, "/sandboxes", map[string]any{
			"templateID": "base", "network": map[string]any{"allowOut": insideAddresses, "denyOut": []string{"0.0.0.0/0"}},
		})
	})
	t.Run("new rules of a running sandbox", func(t *testing.T) {
		for _, allow := range [][]string{insideAddresses, {routedRange}} {
			l.alice.call(t, http.MethodPut, "/v1/sandboxes/"+plain+"/network", map[string]any{"allow": allow})
			l.wantClosed(t, plain, port)
			l.alice.call(t, http.MethodPut, "/sandboxes/"+plain+"/network", map[string]any{"allowOut": allow, "denyOut": []string{"0.0.0.0/0"}})
			l.wantClosed(t, plain, port)
		}
	})
	t.Run("AIO", func(t *testing.T) {
		host := l.alice.createWith(t, map[string]any{"network": map[string]any{"online": true}}) // has a bash
		for _, address := range insideAddresses {
			command := fmt.Sprintf("busybox nc -w 5 %s %s </dev/null 2>&1; echo tried", address, port)
			r := l.alice.call(t, http.MethodPost, "/aio/"+host+"/v1/shell/exec", map[string]any{"command": command})
			wantTried(t, "AIO", address, string(r.body))
		}
	})
	t.Run("MCP", func(t *testing.T) { l.attemptMCP(t, port) })
	t.Run("template", func(t *testing.T) { l.attemptTemplate(t, port, rules) })
	t.Run("fork", func(t *testing.T) { l.attemptFork(t, plain, port) })
}

// attemptCreate has alice request a sandbox. If one is created, it must not reach the
// machine's inside.
func (l *lab) attemptCreate(t *testing.T, name, port, path string, body any) {
	t.Helper()
	r := l.alice.call(t, http.MethodPost, path, body)
	switch {
	case r.status == http.StatusForbidden:
		return
	case r.status >= 300:
		t.Errorf("%s: %d, want 403\n%s", name, r.status, r.body)
		return
	}
	var box struct {
		ID        string `json:"id"`
		SandboxID string `json:"sandboxID"`
	}
	r.decode(t, &box)
	l.wantClosed(t, box.ID+box.SandboxID, port)
}

// attemptMCP has alice's agent open the addresses from a sandbox with a network.
func (l *lab) attemptMCP(t *testing.T, port string) {
	t.Helper()
	session := ""
	call := func(message map[string]any) string {
		message["jsonrpc"] = "2.0"
		header := http.Header{"Accept": {"application/json, text/event-stream"}}
		if session != "" {
			header.Set("Mcp-Session-Id", session)
		}
		r, err := l.alice.do(t.Context(), http.MethodPost, "/mcp?network=true", message, header)
		if err != nil {
			t.Fatal(err)
		}
		if session == "" {
			session = r.header.Get("Mcp-Session-Id")
		}
		return string(r.body)
	}
	call(map[string]any{"id": 1, "method": "initialize", "params": map[string]any{
		"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "test", "version": "1"},
	}})
	call(map[string]any{"method": "notifications/initialized"})
	for _, address := range insideAddresses {
		command := fmt.Sprintf("busybox nc -w 5 %s %s </dev/null 2>&1; echo tried", address, port)
		wantTried(t, "MCP", address, call(map[string]any{"id": 2, "method": "tools/call", "params": map[string]any{
			"name": "shell_exec", "arguments": map[string]any{"command": command},
		}}))
	}
}

// wantTried fails the test unless a command tried an address and reached nothing.
func wantTried(t *testing.T, by, address, answer string) {
	t.Helper()
	if strings.Contains(answer, insideBanner) || !strings.Contains(answer, "tried") || strings.Contains(answer, "not found") {
		t.Errorf("%s at %s: %s", by, address, answer)
	}
}

// attemptTemplate has alice build a template whose sandboxes open the machine's inside.
func (l *lab) attemptTemplate(t *testing.T, port string, rules map[string]any) {
	t.Helper()
	var created struct {
		Build struct {
			ID string `json:"id"`
		} `json:"build"`
	}
	l.alice.must(t, http.MethodPost, "/v1/templates", map[string]any{"name": "inside"}).decode(t, &created)
	script := "nc -w 5 " + insideAddresses[0] + " " + port + " </dev/null; true"
	r := l.alice.call(t, http.MethodPost, "/v1/builds/"+created.Build.ID, map[string]any{"recipe": map[string]any{
		"from": l.image, "network": rules, "build": map[string]any{"network": rules},
		"steps": []any{map[string]any{"run": []string{"sh", "-c", script}}},
	}})
	if r.status != http.StatusForbidden {
		t.Errorf("the build is accepted: %d, want 403\n%s", r.status, r.body)
	}
}

// attemptFork has alice fork a sandbox of hers to which an administrator has granted the
// machine's inside.
func (l *lab) attemptFork(t *testing.T, id, port string) {
	t.Helper()
	l.admin.must(t, http.MethodPut, "/v1/sandboxes/"+id+"/network", map[string]any{"allow": insideAddresses})
	if out := l.alice.connect(t, id, insideAddresses[0], port); out != insideBanner {
		t.Errorf("the granted sandbox reads %q", out)
	}
	if r := l.alice.call(t, http.MethodPost, "/v1/sandboxes/"+id+"/fork", map[string]any{}); r.status != http.StatusForbidden {
		t.Errorf("the fork: %d, want 403\n%s", r.status, r.body)
	}
}

// wantClosed fails the test for each address of the machine that a sandbox of alice's
// reaches.
func (l *lab) wantClosed(t *testing.T, id, port string) {
	t.Helper()
	for _, address := range append([]string{routedAddress, "127.0.0.1", "10.0.2.2"}, insideAddresses...) {
		if out := l.alice.connect(t, id, address, port); strings.Contains(out, insideBanner) {
			t.Errorf("alice's sandbox reads %q from %s", out, address)
		}
	}
}

// connect returns the first line that a sandbox reads from a server, or an empty one.
func (p party) connect(t *testing.T, id, address, port string) string {
	t.Helper()
	out, _ := p.run(t, id, fmt.Sprintf("nc -w 5 %s %s </dev/null 2>/dev/null", address, port))
	line, _, _ := strings.Cut(out, "\n")
	return line
}

// setUpMachine gives this network namespace the addresses that the attacks are aimed at.
func setUpMachine() error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("set the loopback interface up: %w", err)
	}
	for _, text := range insideAddresses {
		address, err := netlink.ParseAddr(text + "/32")
		if err == nil {
			err = netlink.AddrAdd(lo, address)
		}
		if err != nil {
			return fmt.Errorf("add the address %s: %w", text, err)
		}
	}
	_, destination, err := net.ParseCIDR(routedRange)
	if err != nil {
		return err
	}
	return netlink.RouteAdd(&netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: destination, Type: unix.RTN_LOCAL, Scope: unix.RT_SCOPE_HOST, Table: unix.RT_TABLE_LOCAL,
	})
}

// serveBanner serves a banner at all addresses of the machine and returns the port.
func serveBanner(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			tasks.Go(func() {
				defer conn.Close()
				_, _ = conn.Write([]byte(insideBanner + "\n"))
				_, _ = bufio.NewReader(conn).ReadByte() // until the client closes it
			})
		}
	})
	t.Cleanup(func() { _ = listener.Close(); tasks.Wait() })
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}
