package docker_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/docker"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

func TestMain(m *testing.M) { os.Exit(testdocker.Main(m)) }

// busybox is an image with a shell.
const busybox = "sandpit-test/busybox:1"

var importBusybox sync.Once

func options(t *testing.T) docker.Options {
	t.Helper()
	o := testoptions.Docker(docker.Options{
		Endpoint: docker.Endpoint{Host: testdocker.Host(t)}, StateDir: t.TempDir(), Guest: testdocker.Guest(t),
		Notice: func(text string) { t.Logf("notice: %s", text) },
	})
	importBusybox.Do(func() { testdocker.Import(t, busybox, testdocker.BusyboxFiles(t)) })
	return o
}

func open(t *testing.T, o docker.Options) *docker.Provider {
	t.Helper()
	p, err := docker.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// TestConformance runs the suite that every provider must pass.
func TestConformance(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	all := make(map[sandpit.Provider]docker.Options)
	add := func(t *testing.T, o docker.Options) sandpit.Provider {
		t.Helper()
		p := open(t, o)
		mu.Lock()
		defer mu.Unlock()
		all[p] = o
		return p
	}
	managers := func() (names []string) {
		mu.Lock()
		defer mu.Unlock()
		for _, o := range all {
			names = append(names, o.Manager)
		}
		return names
	}
	api := testdocker.Client(t)
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T) sandpit.Provider {
			t.Helper()
			o := options(t)
			o.Manager = "test-" + string(sandpit.NewID())
			o.Notice = nil
			return add(t, o)
		},
		Reopen: func(t *testing.T, p sandpit.Provider) sandpit.Provider {
			t.Helper()
			mu.Lock()
			o := all[p]
			mu.Unlock()
			return add(t, o)
		},
		Kill: func(t *testing.T, _ sandpit.Provider, id sandpit.ID) {
			t.Helper()
			if _, err := api.ContainerKill(t.Context(), "sandpit-"+string(id), client.ContainerKillOptions{Signal: "KILL"}); err != nil {
				t.Fatal(err)
			}
		},
		Spec:     sandpit.Spec{Image: busybox},
		Isolated: true,
		Patience: 2 * time.Minute,
		Leftovers: func(t *testing.T) (left []string) {
			t.Helper()
			own, err := client.New(client.WithHost(testdocker.Host(t)))
			if err != nil {
				return []string{err.Error()}
			}
			defer own.Close()
			for _, name := range managers() {
				list, err := own.ContainerList(context.WithoutCancel(t.Context()), client.ContainerListOptions{
					All: true, Filters: make(client.Filters).Add("label", "dev.sandpit.manager="+name),
				})
				if err != nil {
					return append(left, err.Error())
				}
				for _, c := range list.Items {
					left = append(left, c.Names...)
				}
			}
			return left
		},
	})
}
