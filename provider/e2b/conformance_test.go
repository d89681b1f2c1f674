package e2b_test

import (
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/e2b"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

// TestProvider runs the suite with sandpit's own guest in each sandbox.
func TestProvider(t *testing.T) {
	c := newCloud(t)
	runSuite(t, c, func(o *e2b.Options) { o.Guest = e2b.GuestOwn })
}

// runSuite runs the suite of providers with changed options.
func runSuite(t *testing.T, c *cloud, change func(*e2b.Options)) {
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
			o := c.options()
			change(&o)
			return open(t, o)
		},
		Reopen: func(t *testing.T, p sandpit.Provider) sandpit.Provider { return open(t, optionsOf(p)) },
		Kill: func(t *testing.T, p sandpit.Provider, id sandpit.ID) {
			for _, cloudID := range c.list(t) {
				c.killIf(t, cloudID, id)
			}
		},
		Leftovers: func(t *testing.T) []string { return c.list(t) },
		Patience:  time.Minute,
	})
}
