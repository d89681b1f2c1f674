package fake_test

import (
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var worlds []*fake.World
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T) sandpit.Provider {
			t.Helper()
			w := newWorld(t)
			mu.Lock()
			worlds = append(worlds, w)
			mu.Unlock()
			return open(t, w)
		},
		Reopen: func(t *testing.T, p sandpit.Provider) sandpit.Provider {
			t.Helper()
			return open(t, worldOf(t, p))
		},
		Kill: func(t *testing.T, p sandpit.Provider, id sandpit.ID) {
			t.Helper()
			if err := worldOf(t, p).Kill(id, sandpit.Exit{Reason: "killed by a test"}); err != nil {
				t.Fatal(err)
			}
		},
		Patience: 15 * time.Second,
		Leftovers: func(*testing.T) (left []string) {
			for _, w := range worlds {
				left = append(left, w.Leftovers()...)
			}
			return left
		},
	})
}

// newWorld returns a world that ends with the test.
func newWorld(t *testing.T) *fake.World {
	t.Helper()
	w := fake.NewWorld(t.TempDir())
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Errorf("close the world: %v", err)
		}
	})
	return w
}

func open(t *testing.T, w *fake.World) *fake.Provider {
	t.Helper()
	p := w.NewProvider()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

func worldOf(t *testing.T, p sandpit.Provider) *fake.World {
	t.Helper()
	own, ok := p.(*fake.Provider)
	if !ok {
		t.Fatalf("a provider of another kind: %T", p)
	}
	return own.World()
}
