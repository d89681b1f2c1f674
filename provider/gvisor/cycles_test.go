package gvisor_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestCycles makes and destroys sandboxes, a few at a time, and kills processes
// of some of them meanwhile. Nothing may be left, inside the engine as little as
// outside of it. SANDPIT_TEST_CYCLES says how many; the default is for every day.
func TestCycles(t *testing.T) {
	cycles := 40
	if testing.Short() {
		cycles = 10
	}
	if text := os.Getenv("SANDPIT_TEST_CYCLES"); text != "" {
		var err error
		if cycles, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	p := newProvider(t, dir)
	images := []sandpit.Image{sandpit.HostImage, busyboxImage(t)}
	for _, image := range images { // what is made once is there from now on
		if err := create(t, p, sandpit.Spec{Image: image}).Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	before, groups := resourcesOf(t), countGroups(t, dir)
	killed := 0
	var mu sync.Mutex
	var wg sync.WaitGroup
	free := make(chan struct{}, 3)
	for i := range cycles {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			box, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{Image: images[i%2]})
			if err == nil {
				if rand.IntN(4) == 0 && killKernelOf(box.ID()) {
					mu.Lock()
					killed++
					mu.Unlock()
				} else if p, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sleep", "100"}}); err == nil && rand.IntN(2) == 0 {
					_ = p.Signal(t.Context(), sandpit.SIGKILL)
				}
				err = box.Destroy(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	t.Logf("%d cycles, %d sandboxes killed", cycles, killed)
	expectList(t, p)
	expectResources(t, before)
	if after := countGroups(t, dir); after > groups {
		t.Errorf("%d control groups before, %d after", groups, after)
	}
}

// killKernelOf kills the kernel process of one sandbox by force, as the
// machine's administrator might.
func killKernelOf(id sandpit.ID) bool {
	for _, pid := range descendants(os.Getpid()) {
		args, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
		if err != nil || !bytes.HasPrefix(args, []byte("runsc-sandbox")) || !bytes.Contains(args, []byte(id)) {
			continue
		}
		return syscall.Kill(pid, syscall.SIGKILL) == nil
	}
	return false
}

// countGroups counts the control groups of the engines of the provider in dir.
func countGroups(t *testing.T, dir string) int {
	t.Helper()
	engines, err := os.ReadDir(filepath.Join(dir, "run", "engines"))
	if err != nil || len(engines) == 0 {
		t.Fatalf("engines: %v, %v", engines, err)
	}
	n := 0
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && strings.Contains(path, "/sandpit-"+engines[0].Name()) {
			n++
		}
		return nil // others come and go meanwhile
	})
	return n
}
