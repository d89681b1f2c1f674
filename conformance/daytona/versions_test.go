package daytona_test

import (
	"flag"
	"os"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

var update = flag.Bool("update", false, "write docs/daytona-compatibility.md")

// page is the page with the tables of the tests.
const page = "../../docs/daytona-compatibility.md"

// packages are those with which versions/compat.mjs runs, as versions/package.json names them, and
// labels are their names and versions in the table.
var (
	packages = []string{
		"@daytonaio/sdk", "@daytona/sdk", "daytona-0.205.1", "daytona-0.190.1", "daytona-0.171.0", "daytona-0.150.0",
		"daytona-0.128.1", "daytona-0.110.2",
	}
	labels = []string{"0.218.0", "`@daytona/sdk` 0.216.0", "0.205.1", "0.190.1", "0.171.0", "0.150.0", "0.128.1", "0.110.2"}
)

// versionsVariable, set to 1, enables the test of all versions, which takes minutes.
const versionsVariable = "SANDPIT_TEST_DAYTONA_VERSIONS"

// TestVersions uses a server by each version of the SDK, and compares the table of the page with the
// results.
func TestVersions(t *testing.T) {
	t.Parallel()
	if os.Getenv(versionsVariable) != "1" {
		t.Skipf("it takes minutes; set %s=1", versionsVariable)
	}
	testsdk.Need(t, "node", "npm", "python3")
	server, dir := newServer(t), testsdk.Install(t, "versions")
	table := make(map[string][]testsdk.Result)
	for i, name := range packages {
		t.Run(name, func(t *testing.T) {
			results := testsdk.Run(t, dir, append(server.clientEnviron(), "SDK="+name), scriptTimeout, "compat.mjs")
			for _, r := range results {
				t.Run(r.Name, r.Report)
			}
			table[labels[i]] = results
		})
	}
	testsdk.CheckDocument(t, page, "<!-- written by the tests of conformance/daytona: versions -->\n", testsdk.Versions("`@daytonaio/sdk`", labels, table), *update)
}
