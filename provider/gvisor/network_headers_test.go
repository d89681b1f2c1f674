package gvisor_test

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

const apiSecret = "hunter2-hunter2"

// apiServer is a host by HTTPS. It says in its answer, encoded, what authorization it
// was sent, so that the answer does not give the secret away.
type apiServer struct {
	addr  netip.AddrPort
	roots []byte // PEM

	mu   sync.Mutex
	seen []string
}

func newAPIServer(tb testing.TB, host netip.Addr) *apiServer {
	tb.Helper()
	s := &apiServer{}
	ln, err := (&net.ListenConfig{}).Listen(tb.Context(), "tcp", netip.AddrPortFrom(host, 0).String())
	if err != nil {
		tb.Fatal(err)
	}
	server := httptest.NewUnstartedServer(s)
	_ = server.Listener.Close()
	server.Listener = ln
	server.EnableHTTP2 = true
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	server.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	server.StartTLS() // its certificate is for example.com, and its own authority
	tb.Cleanup(server.Close)
	s.addr = netip.MustParseAddrPort(ln.Addr().String())
	s.roots = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return s
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, r.Header.Get("Authorization"))
	fmt.Fprintln(w, "welcome by", r.Proto)
}

func (s *apiServer) last() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.seen) == 0 {
		return ""
	}
	return s.seen[len(s.seen)-1]
}

// TestHeadersInside has curl and Python in a real sandbox use a host whose token they
// never see.
func TestHeadersInside(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	api := newAPIServer(t, host)
	dir := t.TempDir()
	p := newProviderWith(t, dir, func(c *gvisor.Config) {
		c.Resolvers, c.Roots = []netip.AddrPort{serveNames(t, host)}, api.roots
	})
	port := strconv.Itoa(int(api.addr.Port()))
	policy := sandpit.NetworkPolicy{
		Online: true, Allow: []string{api.addr.String(), "example.com", "bad.example"}, Inside: everywhere(),
		Headers: []sandpit.NetworkHeader{
			{Host: "example.com:" + port, Name: "Authorization", Value: "Bearer ${TOKEN}"},
			{Host: "bad.example:" + port, Name: "Authorization", Value: "Bearer ${TOKEN}"},
		},
	}
	box := create(t, p, sandpit.Spec{Network: policy, Env: map[string]string{"PIP_CERT": "/mine"}})
	get := "curl -sS https://example.com:" + port + "/ 2>&1 || true"
	if out := output(t, box, get); strings.Contains(out, "not found") {
		testengine.Skip(t, "there is no curl: %s", out)
	} else if !strings.HasPrefix(out, "sandpit: header Authorization needs the unknown secret TOKEN") {
		t.Errorf("without the secret: %q", out)
	}
	keeper, ok := box.(sandpit.NetworkSecreter)
	if !ok {
		t.Fatal("not a NetworkSecreter")
	}
	if err := keeper.SetNetworkSecrets(t.Context(), map[string]string{"TOKEN": apiSecret}); err != nil {
		t.Fatal(err)
	}
	for name, command := range map[string]string{
		"curl":                     get,
		"curl by HTTP/1.1":         strings.Replace(get, "curl", "curl --http1.1", 1),
		"curl with its own":        strings.Replace(get, "curl", "curl -H 'Authorization: mine'", 1),
		"curl without environment": "env -i " + get,
		"python":                   `python3 -c 'import urllib.request; print(urllib.request.urlopen("https://example.com:` + port + `/").read().decode())' 2>&1`,
	} {
		if out := output(t, box, command); strings.Contains(out, "python3: not found") {
			testengine.Skip(t, "there is no python: %s", out)
		} else if !strings.HasPrefix(out, "welcome by HTTP/") {
			t.Errorf("%s: %q", name, out)
		}
		if got := api.last(); got != "Bearer "+apiSecret {
			t.Errorf("%s: the host was sent %q", name, got)
		}
	}
	// The host's certificate is for another name.
	before := api.last()
	if out := output(t, box, strings.Replace(get, "example.com", "bad.example", 1)); !strings.Contains(out, "not trusted") {
		t.Errorf("a host with another's certificate: %q", out)
	}
	if api.last() != before {
		t.Error("a host with another's certificate was sent something")
	}
	if out := output(t, box, "echo $PIP_CERT $NODE_EXTRA_CA_CERTS; (env; cat /etc/sandpit/* /proc/self/environ) | grep -ac "+apiSecret+" || true"); out != "/mine /etc/sandpit/authority.pem\n0" {
		t.Errorf("the environment: %q", out)
	}
	secretNowhere(t, p, box, dir)
	againAfterBreakdown(t, box, dir, get)
	liveHeaders(t, p, policy, get, api)
}

// secretNowhere looks for the secret in all responses and on the disk.
func secretNowhere(t *testing.T, p *gvisor.Provider, box sandpit.Instance, dir string) {
	t.Helper()
	list, err := p.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if text := fmt.Sprintf("%+v %+v %s", list, decisions(t, box), box.Handle()); strings.Contains(text, apiSecret) {
		t.Errorf("the secret is shown: %s", text)
	}
	out, err := exec.CommandContext(t.Context(), "grep", "-rlIa", apiSecret, dir).Output()
	if len(out) > 0 || err == nil {
		t.Errorf("the secret is in %s", out)
	}
	for _, pid := range gatewaysOf(t, dir) {
		for _, name := range []string{"cmdline", "environ"} {
			if data, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), name)); bytes.Contains(data, []byte(apiSecret)) {
				t.Errorf("the secret is in the %s of a gateway", name)
			}
		}
	}
}

// againAfterBreakdown kills the gateway: the next one has the same secrets, and is
// trusted like the first.
func againAfterBreakdown(t *testing.T, box sandpit.Instance, dir, get string) {
	t.Helper()
	for _, pid := range gatewaysOf(t, dir) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the gateway comes back with its secrets", func() bool { return strings.HasPrefix(output(t, box, get), "welcome by") })
}

// liveHeaders sets headers in a sandbox that runs already, and takes them away.
func liveHeaders(t *testing.T, p *gvisor.Provider, policy sandpit.NetworkPolicy, get string, api *apiServer) {
	t.Helper()
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: policy.Allow, Inside: everywhere()}})
	if out := output(t, box, "ls /etc/sandpit 2>/dev/null; echo $NODE_EXTRA_CA_CERTS"); out != "" {
		t.Errorf("a sandbox without headers trusts an authority: %q", out)
	}
	if out := output(t, box, get); !strings.HasPrefix(out, "curl: ") {
		t.Errorf("the test's own authority is trusted inside: %q", out)
	}
	policer, ok := box.(sandpit.NetworkPolicer)
	keeper, ok2 := box.(sandpit.NetworkSecreter)
	if !ok || !ok2 {
		t.Fatal("the network cannot be set")
	}
	if err := keeper.SetNetworkSecrets(t.Context(), map[string]string{"TOKEN": "second"}); err != nil {
		t.Fatal(err)
	}
	if err := policer.SetNetworkPolicy(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if out := output(t, box, get); !strings.HasPrefix(out, "welcome by") || api.last() != "Bearer second" {
		t.Errorf("set while it runs: %q, %q", out, api.last())
	}
	policy.Headers = nil
	if err := policer.SetNetworkPolicy(t.Context(), policy); err != nil {
		t.Fatal(err)
	}
	if out := output(t, box, get); !strings.HasPrefix(out, "curl: ") {
		t.Errorf("taken away: %q", out)
	}
}

// TestNetworkTold counts and explains the network of real sandboxes.
func TestNetworkTold(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	server := serveEcho(t, host)
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Network: sandpit.NetworkPolicy{
		Online: true, Allow: []string{server.String()}, Inside: everywhere(), Limits: sandpit.NetworkLimits{Connections: 2},
	}})
	inspector, ok := box.(sandpit.NetworkInspector)
	if !ok {
		t.Fatal("not a NetworkInspector")
	}
	wantReached(t, box, server)
	wantRefused(t, box, netip.MustParseAddrPort("169.254.169.254:80"))
	s, err := inspector.NetworkStats(t.Context())
	if err != nil || s.Allowed != 1 || s.Denied != 1 || s.Received == 0 || s.Sent == 0 {
		t.Errorf("counted: %+v, %v", s, err)
	}
	statser, ok := box.(sandpit.Statser)
	if !ok {
		t.Fatal("not a Statser")
	}
	if measured, err := statser.Stats(t.Context()); err != nil || measured.Received < s.Received || measured.Sent < s.Sent {
		t.Errorf("measured: %+v, %v", measured, err)
	}
	for target, allowed := range map[string]bool{server.String(): true, "169.254.169.254:80": false, "10.0.2.2:80": false} {
		if list, err := inspector.TestNetwork(t.Context(), target); err != nil || len(list) != 1 || list[0].Allowed != allowed || list[0].Reason == "" {
			t.Errorf("%s: %+v, %v", target, list, err)
		}
	}
	// Two connections, and no more.
	out := output(t, box, fmt.Sprintf(`bash -c 'for i in 3 4 5; do eval "exec $i<>/dev/tcp/%s/%d" 2>/dev/null && echo open || echo refused; done'`, server.Addr(), server.Port()))
	if got := strings.Fields(out); !slices.Equal(got, []string{"open", "open", "refused"}) {
		t.Errorf("three connections: %q", out)
	}
	offline := create(t, p, sandpit.Spec{})
	inspector, _ = offline.(sandpit.NetworkInspector)
	if s, err := inspector.NetworkStats(t.Context()); err != nil || s != (sandpit.NetworkStats{}) {
		t.Errorf("offline: %+v, %v", s, err)
	}
	if _, err := inspector.TestNetwork(t.Context(), server.String()); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("offline: %v, want a conflict", err)
	}
	keeper, _ := offline.(sandpit.NetworkSecreter)
	if err := keeper.SetNetworkSecrets(t.Context(), map[string]string{"A": "b"}); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("offline: %v, want a conflict", err)
	}
}
