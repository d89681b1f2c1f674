package image

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// stocked is a cache with three images: a:1 (also called b:1), c:1, and a directory
// without a name; used one, two and three hours ago.
func stocked(t *testing.T) (*Store, []string) {
	t.Helper()
	s := newStore(t)
	s.o.Pull = PullNever
	var ids []string
	add := func(name string) {
		dir := filepath.Join(t.TempDir(), "root")
		write(t, filepath.Join(dir, "name"), name+strings.Repeat("x", 100<<10))
		f, err := s.openDir(t.Context(), dir, nil)
		must(t, err, f.Close())
		ids = append(ids, strings.TrimSuffix(filepath.Base(f.Name()), imageSuffix))
		if name != "" {
			_, err = s.Import(t.Context(), dir, name, nil)
			must(t, err)
		}
	}
	add("a:1")
	r, err := parseReference("b:1")
	must(t, err, s.names.set(t.Context(), r, nameRecord{Name: r.String(), Key: ids[0]}))
	add("c:1")
	add("")
	for i, id := range ids {
		at := time.Now().Add(-time.Duration(i+1) * time.Hour)
		must(t, os.Chtimes(s.cache.imagePath(id), at, at))
	}
	return s, ids
}

func listed(t *testing.T, s *Store) string {
	t.Helper()
	list, err := s.List()
	must(t, err)
	var names []string
	for _, e := range list {
		name := e.Name
		if name == "" {
			name = "-"
		}
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func TestRemove(t *testing.T) {
	t.Parallel()
	s, ids := stocked(t)
	if got := listed(t, s); got != "a:1 b:1 c:1 -" {
		t.Fatalf("listed: %s", got)
	}
	for _, tc := range []struct {
		text, left string
		want       sandpit.Code
	}{
		{"d:1", "a:1 b:1 c:1 -", sandpit.NotFound},
		{"", "a:1 b:1 c:1 -", sandpit.NotFound},
		{"../../etc/passwd", "a:1 b:1 c:1 -", sandpit.NotFound},
		{ids[2][:5], "a:1 b:1 c:1 -", sandpit.NotFound}, // too short
		{"docker.io/library/a:1", "b:1 c:1 -", ""},
		{ids[2][:12], "b:1 c:1", ""},
		{"b:1", "c:1", ""}, // the last name
		{ids[1], "", ""},
	} {
		_, err := s.Remove(t.Context(), tc.text)
		if got := listed(t, s); sandpit.CodeOf(err) != tc.want || got != tc.left {
			t.Errorf("%s: %v, left %q, want %q", tc.text, err, got, tc.left)
		}
	}
	expectFiles(t, s, "nothing")
}

func TestPrune(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		o    PruneOptions
		gone int
		left string
	}{
		"usual":        {PruneOptions{}, 1, "a:1 b:1 c:1"},
		"dry":          {PruneOptions{All: true, DryRun: true}, 3, "a:1 b:1 c:1 -"},
		"all":          {PruneOptions{All: true}, 3, ""},
		"older":        {PruneOptions{OlderThan: 90 * time.Minute}, 2, "a:1 b:1"},
		"older than 9": {PruneOptions{OlderThan: 9 * time.Hour}, 0, "a:1 b:1 c:1 -"},
		"small":        {PruneOptions{MaxSize: 250 << 10}, 1, "a:1 b:1 c:1"},
		"smaller":      {PruneOptions{MaxSize: 1}, 3, ""},
		"large":        {PruneOptions{MaxSize: 1 << 40}, 0, "a:1 b:1 c:1 -"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _ := stocked(t)
			write(t, filepath.Join(s.cache.dir, "x"+blobSuffix), "half a layer")
			done, err := s.Prune(t.Context(), tc.o)
			must(t, err)
			if got := listed(t, s); len(done.Images) != tc.gone || got != tc.left || done.Size < int64(tc.gone)*100<<10 {
				t.Errorf("%d gone (%d bytes), left %q, want %d and %q", len(done.Images), done.Size, got, tc.gone, tc.left)
			}
			if !tc.o.DryRun {
				expectFiles(t, s, imageSuffix, nameSuffix)
			}
		})
	}
	s, _ := stocked(t)
	if _, err := s.Prune(t.Context(), PruneOptions{MaxSize: -1}); !errors.Is(err, sandpit.Invalid) {
		t.Errorf("negative size: %v", err)
	}
}

// TestUsedImagesStay has images open, here and in another process.
func TestUsedImagesStay(t *testing.T) {
	t.Parallel()
	s, ids := stocked(t)
	root := resolved(t, s, "a:1")
	other := exec.CommandContext(t.Context(), "sleep", "60")
	f, err := s.cache.openImage(t.Context(), ids[1])
	must(t, err)
	other.ExtraFiles = []*os.File{f} // as a sandbox gets it
	must(t, other.Start(), f.Close())
	done, err := s.Prune(t.Context(), PruneOptions{All: true})
	must(t, err)
	if got := listed(t, s); got != "a:1 b:1 c:1" || len(done.Images) != 1 {
		t.Errorf("left %q", got)
	}
	must(t, other.Process.Kill())
	_ = other.Wait() // it was killed
	must(t, root.File.Close())
	if _, err = s.Prune(t.Context(), PruneOptions{All: true}); err != nil || listed(t, s) != "" {
		t.Errorf("left %q, %v", listed(t, s), err)
	}
	if _, err := s.Resolve(t.Context(), "a:1", nil); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("after that: %v", err)
	}
}

// TestCacheSize has more images made than there is room for.
func TestCacheSize(t *testing.T) {
	t.Parallel()
	s, _ := stocked(t)
	s.space.cacheSize = 350 << 10
	dir := t.TempDir()
	write(t, filepath.Join(dir, "new"), strings.Repeat("n", 100<<10))
	_, err := s.Import(t.Context(), dir, "new:1", nil)
	must(t, err)
	if got := listed(t, s); got != "a:1 b:1 c:1 new:1" {
		t.Errorf("left %q", got)
	}
	s.space.cacheSize = 1
	write(t, filepath.Join(dir, "newer"), "n")
	_, err = s.Import(t.Context(), dir, "newer:1", nil)
	must(t, err)
	if got := listed(t, s); got != "new:1 newer:1" { // used a moment ago
		t.Errorf("left %q", got)
	}
}

// TestPruneWhileResolving makes images and removes them at the same time: a caller that
// asks for one gets it.
func TestPruneWhileResolving(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a"), "1")
	done := make(chan error, 1)
	go func() {
		var errs []error
		for range 300 {
			list, err := s.cache.listImages()
			errs = append(errs, err)
			for _, e := range list {
				_, err := s.cache.removeUnlocked(e, false)
				errs = append(errs, err)
			}
		}
		done <- errors.Join(errs...)
	}()
	for running := true; running; {
		select {
		case err := <-done:
			must(t, err)
			running = false
		default:
		}
		root, err := s.Resolve(t.Context(), sandpit.Image(dir), nil)
		must(t, err)
		if e, err := listImage(root.File); err != nil || len(e) != 2 {
			t.Fatalf("%v, %v", e, err)
		}
		must(t, root.File.Close())
	}
}

// TestKilledImports ends imports at any moment by force. Afterwards every image
// that is listed must be whole. SANDPIT_TEST_KILLS says how many; the default is
// 20.
func TestKilledImports(t *testing.T) {
	t.Parallel()
	count := 20
	if n, err := strconv.Atoi(os.Getenv("SANDPIT_TEST_KILLS")); err == nil {
		count = n
	}
	s := newStore(t)
	dir := t.TempDir()
	var sources []string
	for i := range 4 {
		p := filepath.Join(dir, fmt.Sprint(i, ".tar"))
		layer := incompressible(t, "big", 2<<20)
		if i%2 == 0 { // an archive of files
			must(t, os.WriteFile(p, layer, 0o644))
		} else {
			must(t, os.WriteFile(p, singleLayer(t, fmt.Sprintf("kill:%d", i), layer).tar(t), 0o644))
		}
		sources = append(sources, p)
	}
	killed := 0
	for i := range count {
		if i%5 == 4 { // from the beginning
			_, err := s.Prune(t.Context(), PruneOptions{All: true})
			must(t, err)
		}
		n := i % len(sources)
		cmd := child(t, s, sources[n], "-name", fmt.Sprintf("kill:%d", n))
		must(t, cmd.Start())
		timer := time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		if cmd.Wait() != nil {
			killed++
		}
		timer.Stop()
		list, err := s.List()
		must(t, err)
		for _, e := range list {
			f, err := os.Open(s.cache.imagePath(e.ID))
			must(t, err)
			got, err := listImage(f)
			must(t, err, f.Close())
			if big := got["big"]; big.Size != 2<<20 || e.Kind == "" {
				t.Fatalf("%+v: %+v", e, got)
			}
		}
	}
	t.Logf("%d of %d were killed", killed, count)
	must(t, s.cache.removeAbandoned())
	expectFiles(t, s, imageSuffix, nameSuffix, indexSuffix)
	for i, source := range sources {
		_, err := s.Import(t.Context(), source, fmt.Sprintf("kill:%d", i), nil)
		must(t, err)
	}
	if _, err := s.Prune(t.Context(), PruneOptions{}); err != nil || listed(t, s) != "kill:0 kill:1 kill:2 kill:3" {
		t.Errorf("listed %q, %v", listed(t, s), err)
	}
	if files, _ := s.cache.listFiles(nameSuffix); len(files) != 4 {
		t.Errorf("names: %q", files)
	}
}

// singleLayer is what docker save writes of an image with one layer.
func singleLayer(t *testing.T, tag string, layer []byte) saved {
	t.Helper()
	config := imageConfig(t, parts{layers: [][]byte{layer}})
	return saved{
		"config.json": config, "layer.tar": layer,
		"manifest.json": toJSON(t, []any{map[string]any{"Config": "config.json", "RepoTags": []string{tag}, "Layers": []string{"layer.tar"}}}),
	}
}

// TestKilledPull continues where a killed process was.
func TestKilledPull(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	layers := [][]byte{incompressible(t, "a", 1<<20), incompressible(t, "b", 1<<20), incompressible(t, "c", 1<<20)}
	h.push(t, "x", "v", parts{layers: layers})
	s := newClientStore(t, Options{})
	cmd := child(t, s, string(h.ref("x:v")), "-hang")
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	if must(t, err); line != "midway\n" {
		t.Fatalf("the other process says %q", line)
	}
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	before := len(h.got("/blobs/"))
	got := all(t, resolved(t, s, h.ref("x:v")).Path)
	if len(got) != 3 || before == 0 {
		t.Errorf("%d files, %d blobs before", len(got), before)
	}
	if _, err := s.Prune(t.Context(), PruneOptions{}); err != nil {
		t.Error(err)
	}
	expectFiles(t, s, imageSuffix, nameSuffix)
	if list, _ := s.cache.listFiles(blobSuffix); slices.Compact(list) != nil {
		t.Errorf("layers stay: %q", list)
	}
}
