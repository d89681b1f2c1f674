package daytona_test

import (
	"os"
	"testing"
)

// packages are those with which versions/compat.mjs runs, as versions/package.json names them.
var packages = []string{
	"@daytonaio/sdk", "@daytona/sdk", "daytona-0.205.1", "daytona-0.190.1", "daytona-0.171.0", "daytona-0.150.0",
	"daytona-0.128.1",
}

// versionsVariable, set to 1, enables the test of all versions, which takes minutes.
const versionsVariable = "SANDPIT_TEST_DAYTONA_VERSIONS"

// TestVersions uses a server by each version of the SDK.
func TestVersions(t *testing.T) {
	t.Parallel()
	if os.Getenv(versionsVariable) != "1" {
		t.Skipf("it takes minutes; set %s=1", versionsVariable)
	}
	needPrograms(t, "node", "npm", "python3")
	server, dir := newServer(t), install(t, "versions")
	for _, name := range packages {
		t.Run(name, func(t *testing.T) {
			for _, r := range runNode(t, dir, append(server.clientEnviron(), "SDK="+name), "compat.mjs") {
				t.Run(r.Name, r.report)
			}
		})
	}
}
