package daytona_test

import (
	"encoding/json"
	"net/http"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testserver"
	"github.com/sandpit-dev/sandpit/provider/daytona"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

// long is how long an operation may take that is not under test.
const long = testserver.Timeout

// defaultImage is the default snapshot: at a sandpit server, this machine's programs.
const defaultImage = daytona.SnapshotPrefix + "daytonaio/sandbox"

// cloud is a server with Daytona's API: sandpit's own, or Daytona's.
type cloud struct {
	endpoint string
	key      string
}

// The variables that select Daytona's own cloud.
const (
	variableCloud = "SANDPIT_TEST_DAYTONA_CLOUD"
	variableKey   = "DAYTONA_API_KEY"
)

// newCloud starts a server, which ends with the test, unless the environment names Daytona's.
func newCloud(tb testing.TB, settings ...string) *cloud {
	tb.Helper()
	if os.Getenv(variableCloud) == "1" && os.Getenv(variableKey) != "" {
		c := &cloud{daytona.DefaultEndpoint, os.Getenv(variableKey)}
		if url := os.Getenv("DAYTONA_API_URL"); url != "" {
			c.endpoint = url
		}
		return c
	}
	settings = append([]string{
		"SANDPIT_SERVER_RATE=100000", "SANDPIT_SERVER_BURST=100000", "SANDPIT_SERVER_MAX_REQUESTS=10000", "SANDPIT_SERVER_MAX_REQUESTS_PER_OWNER=10000",
	}, settings...)
	i := testserver.Install(tb, testserver.Options{Settings: settings})
	return &cloud{endpoint: i.URL + "/api", key: i.NewKey(tb, "daytona")}
}

// call sends a request to the control API and returns the status and the body.
func (c *cloud) call(tb testing.TB, method, path string) (int, []byte) {
	tb.Helper()
	return testserver.Request{Method: method, URL: c.endpoint + path, Header: map[string]string{"Authorization": "Bearer " + c.key}}.Send(tb)
}

// names returns the names of the sandboxes of some managers.
func (c *cloud) names(tb testing.TB, managers ...string) (names []string) {
	tb.Helper()
	for _, manager := range managers {
		status, text := c.call(tb, http.MethodGet, `/sandbox?limit=200&labels=%7B%22dev.sandpit.manager%22%3A%22`+manager+`%22%7D`)
		var page struct {
			Items []struct{ Name, State string }
		}
		if err := json.Unmarshal(text, &page); err != nil || status != http.StatusOK {
			tb.Errorf("list sandboxes: status %d: %v: %s", status, err, text)
		}
		for _, one := range page.Items {
			if one.State != "destroying" && one.State != "destroyed" {
				names = append(names, one.Name+" ("+one.State+")")
			}
		}
	}
	return names
}

// options returns the options of a provider with a manager of its own.
func (c *cloud) options(tb testing.TB) daytona.Options {
	tb.Helper()
	return daytona.Options{
		Endpoint: c.endpoint, Key: c.key, StateDir: tb.TempDir(), Manager: "test-" + string(sandpit.NewID()), Image: defaultImage, Poll: time.Second,
	}
}

// open opens a provider and closes it when the test ends.
func open(tb testing.TB, o daytona.Options) *daytona.Provider {
	tb.Helper()
	p, err := daytona.New(o)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return p
}

// missing are the checks that no sandbox of Daytona can pass.
func missing() map[string]string {
	return map[string]string{
		"lifecycle/what the spec says is so inside": "Daytona chooses the host name",
		"abilities/network policy":                  "Daytona has no deny rules, and no rules for ports",
		"abilities/pause and resume":                "Daytona saves a paused sandbox, and closes connections: see snapshots/suspend and resume",
		"snapshots/of a paused sandbox":             "Daytona does not save what is paused",
		"snapshots/followed across it":              "a sandpit server closes connections into a sandbox while it saves it",
		"volumes/read only":                         "Daytona cannot mount volumes read-only",
		"volumes/while it is had":                   "Daytona cannot mount volumes read-only",
	}
}

// TestConformance runs the suite that every provider must pass.
func TestConformance(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	h := providertest.Harness{Missing: missing()}
	if testing.Short() {
		h.Groups = providertest.ProviderGroups() // the other ones test the guest, which other providers have as well
	}
	runSuite(t, c, c.options, h)
}

// runSuite runs the suite, as a harness says, with providers of some options.
func runSuite(t *testing.T, c *cloud, options func(testing.TB) daytona.Options, h providertest.Harness) {
	t.Helper()
	var mu sync.Mutex
	all := make(map[sandpit.Provider]daytona.Options)
	add := func(t *testing.T, o daytona.Options) sandpit.Provider {
		t.Helper()
		p := open(t, o)
		mu.Lock()
		defer mu.Unlock()
		all[p] = o
		return p
	}
	h.Isolated, h.Patience = true, long
	h.New = func(t *testing.T) sandpit.Provider { t.Helper(); return add(t, options(t)) }
	h.Reopen = func(t *testing.T, p sandpit.Provider) sandpit.Provider {
		t.Helper()
		mu.Lock()
		o := all[p]
		mu.Unlock()
		return add(t, o)
	}
	h.Kill = func(t *testing.T, _ sandpit.Provider, id sandpit.ID) {
		t.Helper()
		if status, text := c.call(t, http.MethodDelete, "/sandbox/sandpit-"+string(id)); status != http.StatusOK {
			t.Fatalf("delete: status %d: %s", status, text)
		}
	}
	h.Leftovers = func(t *testing.T) []string {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		managers := make([]string, 0, len(all))
		for _, o := range all {
			managers = append(managers, o.Manager)
		}
		return c.names(t, managers...)
	}
	providertest.Run(t, h)
}
