package e2b_test

import (
	"cmp"
	"maps"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
	"github.com/sandpit-dev/sandpit/provider/e2b"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

// missing are the checks that no sandbox of E2B can pass.
func missing() map[string]string {
	return map[string]string{
		"abilities/pause and resume":   "the cloud closes connections when it pauses a sandbox: output is not followed across a pause (TestPause)",
		"abilities/stats":              "the cloud reports no number of processes (TestStats)",
		"abilities/network policy":     "the cloud's rules cannot name a port (TestNetworkPolicy)",
		"volumes/read only":            "E2B cannot mount volumes read-only",
		"volumes/while it is had":      "E2B cannot mount volumes read-only",
		"snapshots/followed across it": "the cloud closes connections into a sandbox while it saves it",
	}
}

// missingWithCloudGuest are further checks that a sandbox with E2B's guest alone cannot pass.
func missingWithCloudGuest() map[string]string {
	all := missing()
	maps.Copy(all, map[string]string{
		"ports/nothing listens":    "there are no raw connections to ports (TestCloudGuest)",
		"ports/a server inside":    "there are no raw connections to ports, and programs receive the cloud's host (TestCloudGuest)",
		"cancel/dial":              "there are no raw connections to ports",
		"confined/by the observer": "E2B's guest cannot confine calls: they are refused (TestCloudGuest)",
	})
	return all
}

// TestProvider runs the suite with sandpit's own guest in each sandbox.
func TestProvider(t *testing.T) {
	c := newCloud(t)
	var groups []string // all
	if testing.Short() {
		groups = providertest.ProviderGroups() // the other ones test the guest, which other providers have as well
	}
	runSuite(t, c, missing(), groups, func(o *e2b.Options) { o.Guest = e2b.GuestOwn })
}

// TestProviderCloudGuest runs the suite with E2B's guest only.
func TestProviderCloudGuest(t *testing.T) {
	c := newCloud(t)
	genuine := envdtest.StartGenuine(t, c.url)
	runSuite(t, c, missingWithCloudGuest(), nil, func(o *e2b.Options) { o.Guest, o.APIURL, o.SandboxURL = e2b.GuestCloud, genuine, genuine })
}

// TestProviderBesideGenuine runs the suite with sandpit's guest beside E2B's. Only how the guest is brought in and reached
// differs from TestProvider: the other checks would repeat those there.
func TestProviderBesideGenuine(t *testing.T) {
	if testing.Short() {
		t.Skip("repeats checks of TestProvider")
	}
	c := newCloud(t)
	genuine := envdtest.StartGenuine(t, c.url)
	runSuite(t, c, missing(), []string{"lifecycle", "abilities", "cancel", "ports"}, func(o *e2b.Options) { o.APIURL, o.SandboxURL = genuine, genuine })
}

// TestProviderCloud runs the suite in an account at E2B, or at the cloud that E2B's variables name.
func TestProviderCloud(t *testing.T) {
	key := os.Getenv("E2B_API_KEY")
	if os.Getenv("SANDPIT_TEST_E2B_CLOUD") != "1" || key == "" {
		t.Skip("set SANDPIT_TEST_E2B_CLOUD=1 and E2B_API_KEY to create sandboxes in your account at E2B")
	}
	c := &cloud{url: cmp.Or(os.Getenv("E2B_API_URL"), "https://api."+cmp.Or(os.Getenv("E2B_DOMAIN"), "e2b.app")), key: key, client: http.DefaultClient}
	runSuite(t, c, missing(), nil, func(o *e2b.Options) {
		o.APIURL, o.Domain, o.SandboxURL, o.Template = c.url, os.Getenv("E2B_DOMAIN"), os.Getenv("E2B_SANDBOX_URL"), os.Getenv("E2B_TEMPLATE")
		o.Guest, o.Poll, o.Timeout = e2b.GuestOwn, 0, 10*time.Minute
		c.identities = append(c.identities, o.Identity)
	})
}

// runSuite runs the suite, or some groups of it, of providers with changed options.
func runSuite(t *testing.T, c *cloud, missing map[string]string, groups []string, change func(*e2b.Options)) {
	t.Helper()
	var mu sync.Mutex
	identities := make(map[sandpit.Provider]e2b.Options)
	open := func(t *testing.T, o e2b.Options) sandpit.Provider {
		t.Helper()
		p := newProvider(t, o)
		mu.Lock()
		defer mu.Unlock()
		identities[p] = o
		return p
	}
	optionsOf := func(p sandpit.Provider) e2b.Options {
		mu.Lock()
		defer mu.Unlock()
		return identities[p]
	}
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T) sandpit.Provider {
			t.Helper()
			o := c.options()
			change(&o)
			return open(t, o)
		},
		Reopen: func(t *testing.T, p sandpit.Provider) sandpit.Provider {
			t.Helper()
			return open(t, optionsOf(p))
		},
		Kill: func(t *testing.T, _ sandpit.Provider, id sandpit.ID) {
			t.Helper()
			for _, cloudID := range c.list(t) {
				c.killIf(t, cloudID, id)
			}
		},
		Leftovers: func(t *testing.T) []string {
			t.Helper()
			return c.leftovers(t)
		},
		Missing:  missing,
		Isolated: true,
		Groups:   groups,
		Patience: time.Minute,
	})
}
