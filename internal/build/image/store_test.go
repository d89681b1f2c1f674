package image

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// TestMain plays a second process when the environment says so: it converts a directory
// and says whether it was this process that did.
func TestMain(m *testing.M) {
	cache := flag.String("cache", "", "convert -source into this cache")
	source := flag.String("source", "", "directory or archive")
	hang := flag.Bool("hang", false, "stop midway")
	name := flag.String("name", "", "import under this name")
	flag.Parse()
	if *cache == "" {
		status := m.Run()
		http.DefaultClient.CloseIdleConnections() // that of the tests
		if err := goleak.Find(); err != nil && status == 0 {
			fmt.Fprintln(os.Stderr, err)
			status = 1
		}
		os.Exit(status)
	}
	if err := convertAsChild(*cache, *source, *name, *hang); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func convertAsChild(cache, source, name string, hang bool) error {
	s, err := Open(cache, Options{})
	if err != nil {
		return err
	}
	if name != "" {
		_, err := s.Import(context.Background(), source, name, nil)
		return err
	}
	told := "found"
	root, err := s.Resolve(context.Background(), sandpit.Image(source), func(int64, int64) {
		told = "converted"
		if hang {
			fmt.Fprintln(os.Stdout, "midway")
			time.Sleep(time.Hour) // an endless wait alone would end a program without cgo as a deadlock
		}
	})
	fmt.Fprintln(os.Stdout, told, root.Path)
	return err
}

func child(t *testing.T, s *Store, source string, args ...string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	cmd := exec.CommandContext(t.Context(), exe, append(args, "-cache", s.cache.dir, "-source", source)...)
	cmd.Stderr = os.Stderr
	return cmd
}

func TestManyConvertOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "etc/hostname"), "x")
	write(t, filepath.Join(dir, "big"), strings.Repeat("some text\n", 1<<20))
	tarFile := filepath.Join(t.TempDir(), "root.tar")
	must(t, exec.CommandContext(t.Context(), "tar", "-cf", tarFile, "-C", dir, ".").Run())
	for name, source := range map[string]string{"directory": dir, "tar": tarFile} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var converted atomic.Int32
			var mu sync.Mutex
			paths := map[string]bool{}
			saw := func(path string, made bool) {
				mu.Lock()
				defer mu.Unlock()
				paths[path] = true
				if made {
					converted.Add(1)
				}
			}
			var wg sync.WaitGroup
			for range 4 {
				cmd := child(t, s, source)
				wg.Go(func() {
					out, err := cmd.Output()
					if err != nil {
						t.Errorf("child: %v", err)
					}
					told, path, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
					saw(path, told == "converted")
				})
			}
			for range 16 {
				wg.Go(func() {
					made := false
					root, err := s.Resolve(t.Context(), sandpit.Image(source), func(int64, int64) { made = true })
					if err != nil {
						t.Error(err)
					}
					saw(root.Path, made)
				})
			}
			wg.Wait()
			if converted.Load() != 1 || len(paths) != 1 {
				t.Errorf("converted %d times into %v, want once", converted.Load(), paths)
			}
			if left, _ := filepath.Glob(s.cache.dir + "/*" + tempSuffix); len(left) > 0 {
				t.Errorf("left behind: %q", left)
			}
		})
	}
}

// hung returns a process that has stopped in the middle of a conversion.
func hung(t *testing.T, s *Store, source string) *exec.Cmd {
	t.Helper()
	cmd := child(t, s, source, "-hang")
	out, err := cmd.StdoutPipe()
	must(t, err, cmd.Start())
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	line := make([]byte, len("midway"))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "midway" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return cmd
}

func TestKilledWhileConverting(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "big"), strings.Repeat("some text\n", 1<<20))
	temps := func() []string {
		found, err := filepath.Glob(s.cache.dir + "/*" + tempSuffix)
		must(t, err)
		return found
	}
	cmd := hung(t, s, dir)

	// As long as it lives, others wait, and no process removes its file.
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Resolve(short, sandpit.Image(dir), nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("while another converts: %v, want to wait", err)
	}
	_, err := Open(s.cache.dir, Options{})
	must(t, err)
	if got := temps(); len(got) != 1 {
		t.Fatalf("files in the making: %q, want one", got)
	}

	waiting := make(chan error, 1)
	go func() {
		_, failed := s.Resolve(t.Context(), sandpit.Image(dir), nil)
		waiting <- failed
	}()
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	if err = <-waiting; err != nil {
		t.Fatalf("after the other was killed: %v", err)
	}

	write(t, filepath.Join(dir, "more"), "so that there is something to do")
	cmd = hung(t, s, dir)
	must(t, cmd.Process.Kill())
	_ = cmd.Wait() // it was killed
	if got := temps(); len(got) != 1 {
		t.Fatalf("left by the kill: %q, want one", got)
	}
	s, err = Open(s.cache.dir, Options{})
	must(t, err)
	if got := temps(); len(got) != 0 {
		t.Errorf("left after Open: %q", got)
	}
	root, err := s.Resolve(t.Context(), sandpit.Image(dir), nil)
	must(t, err)
	if got := readImage(t, root.Path); len(got) != 3 {
		t.Errorf("the image has %d files, want 3", len(got))
	}
}

func TestSingle(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	opened := 0
	program := bytes.Repeat([]byte("program"), 100_000)
	open := func() (io.ReadCloser, error) {
		opened++
		return io.NopCloser(bytes.NewReader(program)), nil
	}
	var first string
	for range 3 {
		path, err := s.Single(t.Context(), "build/../id", "guest", open)
		must(t, err)
		if first == "" {
			first = path
		}
		if path != first || filepath.Dir(path) != s.cache.dir {
			t.Errorf("path %s, want %s", path, first)
		}
	}
	if opened != 1 {
		t.Errorf("opened %d times, want once", opened)
	}
	got := readImage(t, first)
	if e := got["guest"]; len(got) != 2 || e.Mode != 0o755 || e.Size != int64(len(program)) || e.UID != 0 {
		t.Errorf("image holds %v", got)
	}
	if path, err := s.Single(t.Context(), "another", "guest", open); err != nil || path == first {
		t.Errorf("another key: %s, %v", path, err)
	}
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b", strings.Repeat("n", 256)} {
		if _, err := s.Single(t.Context(), "k", name, open); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("name %q: %v, want invalid", name, err)
		}
	}
	gone := errors.New("no guest")
	if _, err := s.Single(t.Context(), "third", "guest", func() (io.ReadCloser, error) { return nil, gone }); !errors.Is(err, gone) {
		t.Errorf("open fails: %v", err)
	}
	if left, _ := filepath.Glob(s.cache.dir + "/*" + tempSuffix); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestResolveForms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "file"), "x")
	write(t, filepath.Join(dir, "image.tar.xz"), "x")
	for ref, want := range map[sandpit.Image]sandpit.Code{
		"python:3.12-slim":                               sandpit.NotFound, // in the cache
		"ghcr.io/owner/name@sha256:0":                    sandpit.Invalid,
		"Upper/Case":                                     sandpit.Invalid,
		"dir":                                            sandpit.NotFound,
		sandpit.Image(dir + "/missing"):                  sandpit.NotFound,
		sandpit.Image(dir + "/missing.tar"):              sandpit.NotFound,
		"missing.tgz":                                    sandpit.NotFound,
		sandpit.Image(dir + "/file"):                     sandpit.Unsupported,
		sandpit.Image(dir + "/image.tar.xz"):             sandpit.Unsupported,
		sandpit.Image(dir + "/file/below"):               sandpit.NotFound,
		sandpit.Image(dir):                               "",
		sandpit.Image(dir + "/../" + filepath.Base(dir)): "",
	} {
		s := newStore(t)
		s.o.Pull = PullNever
		root, err := s.Resolve(t.Context(), ref, nil)
		if got := sandpit.CodeOf(err); got != want {
			t.Errorf("%s: %q (%v), want %q", ref, got, err, want)
		}
		if want == sandpit.Unsupported && sandpit.HintOf(err) == "" {
			t.Errorf("%s: no hint with %v", ref, err)
		}
		if err != nil && root.Path != "" {
			t.Errorf("%s: path %s with an error", ref, root.Path)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a/b")
	must(t, os.MkdirAll(dir, 0o755), os.Chmod(dir, 0o777))
	write(t, dir+"/leftover.tmp", "x")
	write(t, dir+"/other", "x")
	_, err := Open(dir, Options{})
	must(t, err)
	info, err := os.Stat(dir)
	must(t, err)
	if info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, want 0700", info.Mode())
	}
	if _, err := os.Stat(dir + "/leftover.tmp"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("leftover: %v", err)
	}
	if _, err := os.Stat(dir + "/other"); err != nil {
		t.Errorf("another's file: %v", err)
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	must(t, os.Chown(dir, 1000, 1000))
	if _, err := Open(dir, Options{}); !errors.Is(err, sandpit.PermissionDenied) || sandpit.HintOf(err) == "" {
		t.Errorf("another user's directory: %v", err)
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	small := t.TempDir()
	if err := unix.Mount("tmpfs", small, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("mount:", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(small, unix.MNT_DETACH)) })
	s, err := Open(filepath.Join(small, "images"), Options{})
	must(t, err)
	dir := t.TempDir()
	write(t, filepath.Join(dir, "big"), strings.Repeat("some text\n", 1<<20))
	tarFile := filepath.Join(t.TempDir(), "root.tar")
	must(t, exec.CommandContext(t.Context(), "tar", "-cf", tarFile, "-C", dir, ".").Run())
	for _, ref := range []string{dir, tarFile} {
		_, err = s.Resolve(t.Context(), sandpit.Image(ref), nil)
		if !errors.Is(err, sandpit.Exhausted) || !strings.Contains(sandpit.HintOf(err), s.cache.dir) {
			t.Errorf("%s: %v (hint %q)", ref, err, sandpit.HintOf(err))
		}
	}
	if left, _ := os.ReadDir(s.cache.dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestMode holds that an image whose maker was killed at the very end becomes
// readable for the engine all the same.
func TestMode(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	dir := t.TempDir()
	for range 2 {
		root, err := s.Resolve(t.Context(), sandpit.Image(dir), nil)
		must(t, err)
		info, err := os.Stat(root.Path)
		must(t, err)
		if info.Mode().Perm() != 0o444 {
			t.Errorf("mode %v, want 0444", info.Mode())
		}
		must(t, os.Chmod(root.Path, 0o600))
	}
}
