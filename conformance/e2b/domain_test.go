package e2b_test

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

// TestDomain has the SDK find a server and its sandboxes by names below a domain, over
// HTTPS, with a certificate of the server's own authority, and receive the errors of a server that has
// no room for another sandbox.
func TestDomain(t *testing.T) {
	t.Parallel()
	testsdk.Need(t, "node", "npm")
	server, dir := newServer(t, "SANDPIT_SERVER_TLS=local", "SANDPIT_MANAGER_MAX_SANDBOXES=2"), testsdk.Install(t, ".")
	pem := []byte(server.Output(t, "tls", "ca"))
	trusted, ca := x509.NewCertPool(), filepath.Join(dir, "ca.pem")
	if !trusted.AppendCertsFromPEM(pem) {
		t.Fatalf("no certificate: %s", pem)
	}
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	vars := server.With("SANDPIT_CA="+ca, "SANDPIT_API_KEY="+server.key).Output(t, "--server", server.URL, "env", "e2b", "--owner", "e2b", "--domain", server.domain)
	if !strings.Contains(vars, "export E2B_DOMAIN='"+server.domain+"'\n") || !strings.Contains(vars, "unset E2B_SANDBOX_URL\n") {
		t.Errorf("env e2b prints\n%s", vars)
	}
	// Not every machine knows names below localhost.
	environ := []string{"E2B_DOMAIN=" + server.domain, "E2B_API_KEY=" + server.key, "NODE_EXTRA_CA_CERTS=" + ca, "NODE_OPTIONS=--import=./localhost.mjs"}
	for _, r := range testsdk.Run(t, dir, append(withoutE2B(os.Environ()), environ...), patience, "domain.mjs") {
		t.Run(r.Name, r.Report)
	}
}
