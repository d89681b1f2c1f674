package policy_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// TestDocumentedPipRules has every list of rules in the documents that is for PyPI reach
// both of its names: the index, and where the packages are.
func TestDocumentedPipRules(t *testing.T) {
	t.Parallel()
	flag, list := regexp.MustCompile(`--allow '?([^' ]+)`), regexp.MustCompile(`allow = \[([^\]]*)\]`)
	found := 0
	for _, name := range []string{"network.md", "mcp.md"} {
		page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", name))
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(page)) {
			if !strings.Contains(line, "pypi.org") && !strings.Contains(line, "pythonhosted") {
				continue
			}
			var allow []string
			for _, m := range flag.FindAllStringSubmatch(line, -1) {
				allow = append(allow, m[1])
			}
			for _, m := range list.FindAllStringSubmatch(line, -1) {
				allow = slices.Concat(allow, strings.Split(strings.NewReplacer(`"`, "", " ", "").Replace(m[1]), ","))
			}
			if len(allow) == 0 {
				continue
			}
			found++
			rules, err := policy.Parse(sandpit.NetworkPolicy{Online: true, Allow: allow})
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			for _, host := range []string{"pypi.org", "files.pythonhosted.org"} {
				if v := rules.Connect(policy.Flow{Addr: netip.MustParseAddr("198.41.0.4"), Port: 443, Names: []string{host}}); !v.Allowed {
					t.Errorf("%s: %s: %s", strings.TrimSpace(line), host, v.Reason)
				}
			}
		}
	}
	if found < 3 {
		t.Errorf("%d lists of rules are for PyPI, want at least 3", found)
	}
}
