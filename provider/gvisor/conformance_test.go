package gvisor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

// TestConformance runs the suite that every provider must pass.
func TestConformance(t *testing.T) {
	t.Parallel()
	testengine.Path(t) // skips here, not in the middle
	var dirs providerDirs
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T) sandpit.Provider {
			t.Helper()
			dir := t.TempDir()
			p := newProvider(t, dir)
			dirs.add(p, dir)
			return p
		},
		Reopen: func(t *testing.T, p sandpit.Provider) sandpit.Provider {
			t.Helper()
			return newProvider2(t, dirs.of(t, p))
		},
		Kill:      killKernel,
		Isolated:  true,
		Leftovers: dirs.leftovers,
	})
}

// killKernel kills the kernel process of a sandbox.
func killKernel(t *testing.T, _ sandpit.Provider, id sandpit.ID) {
	t.Helper()
	if err := syscall.Kill(kernelOf(t, id), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}

// kernelOf returns the process ID of the kernel of a sandbox.
func kernelOf(t *testing.T, id sandpit.ID) int {
	t.Helper()
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		args, err := os.ReadFile(name)
		if err != nil || !bytes.HasPrefix(args, []byte("runsc-sandbox\x00")) || !bytes.Contains(args, []byte("\x00"+id+"\x00")) {
			continue // another's, or ended meanwhile
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		if err != nil {
			t.Fatal(err)
		}
		return pid
	}
	t.Fatalf("no process is the kernel of sandbox %s", id)
	return 0
}

// providerDirs remembers where providers keep their files.
type providerDirs struct {
	mu  sync.Mutex
	all map[*gvisor.Provider]string
}

func (d *providerDirs) add(p *gvisor.Provider, dir string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = make(map[*gvisor.Provider]string)
	}
	d.all[p] = dir
}

func (d *providerDirs) of(t *testing.T, p sandpit.Provider) string {
	t.Helper()
	own, ok := p.(*gvisor.Provider)
	if !ok {
		t.Fatalf("a provider of another kind: %T", p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[own]
}

// leftovers names what engines have left in the directories that are there still.
func (d *providerDirs) leftovers(t *testing.T) (left []string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, dir := range d.all {
		for _, sub := range []string{"run/engines", "scratch", "suspended"} {
			entries, err := os.ReadDir(filepath.Join(dir, sub))
			if err != nil && !os.IsNotExist(err) { // removed with its test
				left = append(left, err.Error())
			}
			for _, e := range entries {
				left = append(left, filepath.Join(dir, sub, e.Name()))
			}
		}
		kept, err := filepath.Glob(filepath.Join(dir, "stopped", "s*")) // all but the lock
		if err != nil {
			left = append(left, err.Error())
		}
		left = append(left, kept...)
		half, err := filepath.Glob(filepath.Join(dir, "snapshots", "*.tmp"))
		if err != nil {
			left = append(left, err.Error())
		}
		left = append(left, half...)
	}
	return left
}
