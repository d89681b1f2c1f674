package envd_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/internal/testing/envdtest"
)

const (
	// callTime is how long each call to a liar may take by its context.
	callTime = 250 * time.Millisecond
	// slack is how much later it must have returned, also on a busy machine.
	slack = 15 * time.Second
	// killTime is how long a workspace tries to kill a command besides.
	killTime = 5 * time.Second
	// maxGrowth bounds the memory for all calls to one liar together, in bytes.
	// Two lists of 16 MiB are among them, each in a buffer that doubled to hold it.
	maxGrowth = 160 << 20
	// maxErrorLength bounds the text of an error, in bytes.
	maxErrorLength = 8 << 10

	liarVariable = "SANDPIT_TEST_LIAR"
	liesHere     = "liars are at "
)

// TestHostileGuest has a guest tell every lie there is to every call there is. No
// call may panic, outlast its context or need much memory, and what is returned
// without an error must be as documented. The liar is another process, so that
// the memory measured is the client's alone.
func TestHostileGuest(t *testing.T) {
	if os.Getenv(liarVariable) != "" {
		serveLies(t)
		return
	}
	address := startLiars(t)
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // measure what is held more than what is garbage
	var small, large []string
	for _, lie := range envdtest.Lies() {
		switch {
		case largestLies.MatchString(lie):
			tellLies(t, address, []string{lie}, 1)
		case largeLies.MatchString(lie):
			large = append(large, lie)
		default:
			small = append(small, lie)
		}
	}
	tellLies(t, address, large, 4)
	tellLies(t, address, small, 32)
	if _, err := os.Lstat("/tmp/sandpit-escaped"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("something was written to /tmp: %v", err)
	}
}

// The memory for each of the largest lies is bounded, and the memory for several of those
// that are large. It is the same bound for all others together.
var (
	largestLies = regexp.MustCompile("mib|hollow|many|^list")
	largeLies   = regexp.MustCompile("endless|long|details|dir-|^end|^metadata|gzip")
)

// tellLies tells some lies, so many at the same time, and measures the memory for all.
func tellLies(t *testing.T, address string, lies []string, together int) {
	t.Helper()
	defer measure(t, lies[0])()
	var wg sync.WaitGroup
	defer wg.Wait()
	free := make(chan struct{}, together)
	for _, lie := range lies {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			t.Run(lie, func(t *testing.T) { tellLie(t, address, lie) })
		})
	}
}

// serveLies is the process of the liars. It ends with its standard input.
func serveLies(t *testing.T) {
	t.Helper()
	var config net.ListenConfig
	ln, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("\n%s%s\n", liesHere, ln.Addr())
	var mu sync.Mutex
	var answering sync.WaitGroup
	liars := make(map[string]*envdtest.Liar)
	closed := false // liars of requests that are accepted late, too
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			answering.Add(1)
			defer answering.Done()
			mu.Lock()
			liar := liars[r.Host]
			if liar == nil {
				liar = envdtest.New(r.Host)
				liars[r.Host] = liar
			}
			if closed {
				liar.Close()
			}
			mu.Unlock()
			liar.ServeHTTP(w, r)
		}),
	}
	served := make(chan error)
	go func() { served <- server.Serve(ln) }()
	_, _ = io.Copy(io.Discard, os.Stdin)
	mu.Lock()
	closed = true
	for _, liar := range liars {
		liar.Close()
	}
	mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	defer cancel()
	if err := errors.Join(server.Shutdown(ctx), server.Close()); err != nil { // connections linger for a while
		t.Error(err)
	}
	<-served
	answering.Wait()
}

func startLiars(t *testing.T) (address string) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), os.Args[0], "-test.run=^TestHostileGuest$")
	cmd.Env = append(os.Environ(), liarVariable+"=1")
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close()
		_, _ = io.Copy(io.Discard, stdout)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the liars: %v", err)
		}
	})
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if address, ok := strings.CutPrefix(lines.Text(), liesHere); ok {
			return address
		}
	}
	t.Fatal("the liars do not say where they are")
	return ""
}

// named sends every request to one liar.
type named struct {
	to
	lie string
}

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r.Host = n.lie
	return n.to.RoundTrip(r)
}

// tellLie makes every call to one liar, all at the same time.
func tellLie(t *testing.T, address, lie string) {
	t.Helper()
	// As providers make it.
	transport := &http.Transport{MaxResponseHeaderBytes: 64 << 10, DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10}
	defer transport.CloseIdleConnections()
	v := &victim{T: t, lie: lie, client: envd.New(named{to{address, transport}, lie}, token), dir: t.TempDir()}
	v.prepare()
	before := snapshot(t, v.dir)
	var wg sync.WaitGroup
	for name, call := range calls {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), callTime)
			defer cancel()
			longest := callTime + slack
			if strings.HasPrefix(name, "run") {
				longest += killTime
			}
			begin := time.Now()
			call(ctx, v)
			if took := time.Since(begin); took > longest {
				t.Errorf("%s took %s", name, took)
			}
		})
	}
	within(t, killTime+2*slack, wg.Wait)
	if diff := cmp.Diff(before, snapshot(t, v.dir)); diff != "" {
		t.Errorf("something changed beside the copies (-before +after):\n%s", diff)
	}
	if v.checkCopies(); t.Failed() {
		return
	}
	if err := filepath.WalkDir(v.dir, makeRemovable); err != nil {
		t.Error(err)
	}
}

// within fails the whole test, with all goroutines, if f does not return.
func within(t *testing.T, limit time.Duration, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	select {
	case <-done:
	case <-time.After(limit):
		stacks := make([]byte, 1<<20)
		t.Fatalf("a call hangs:\n%s", stacks[:runtime.Stack(stacks, true)])
	}
}

// measure watches the heap until stop is called, without stopping the program each time.
func measure(t *testing.T, what string) (stop func()) {
	t.Helper()
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	runtime.GC()
	metrics.Read(heap)
	before := heap[0].Value.Uint64()
	most := before
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			metrics.Read(heap)
			most = max(most, heap[0].Value.Uint64())
			select {
			case <-time.After(2 * time.Millisecond):
			case <-done:
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
		t.Logf("from %s on the heap grew by %d MiB", what, (most-before)>>20)
		if growth := most - before; growth > maxGrowth {
			t.Errorf("from %s on the heap grew by %d MiB", what, growth>>20)
		}
	}
}

// victim is the client of a hostile guest. Directory dir has files that must not change, and
// gets the copies.
type victim struct {
	*testing.T

	lie      string
	client   *envd.Client
	work     *workspace.Workspace
	confined sandpit.Files
	dir      string
}

const (
	copiedDir  = "copied-dir"
	copiedFile = "copied-file"
)

func (v *victim) prepare() {
	v.Helper()
	for name, content := range map[string]string{"outside": "secret", "source/a": "a", "source/sub/b": strings.Repeat("b", 1<<20)} {
		p := filepath.Join(v.dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o600)); err != nil {
			v.Fatal(err)
		}
	}
	var err error
	if v.work, err = workspace.New(v.client, workspace.Options{Timeout: time.Second, MaxOutput: 64 << 10, MaxFile: 1 << 20}); err != nil {
		v.Fatal(err)
	}
	if v.confined, err = v.client.Within("/dir", "/other"); err != nil {
		v.Fatal(err)
	}
}

// snapshot describes everything in dir but the copies.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	err := filepath.WalkDir(dir, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		if name == copiedDir || name == copiedFile {
			if entry.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		text := info.Mode().String()
		if info.Mode().IsRegular() {
			content, err := os.ReadFile(p)
			text += fmt.Sprintf(" %d %s %.10s", len(content), info.ModTime(), content)
			if err != nil {
				return err
			}
		}
		found[name] = text
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

// checkCopies looks at what was copied out of the sandbox.
func (v *victim) checkCopies() {
	v.Helper()
	top := filepath.Join(v.dir, copiedDir)
	err := filepath.WalkDir(top, func(p string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p == top {
			return nil
		}
		if errors.Is(err, fs.ErrPermission) {
			return nil // a directory that its mode closes
		}
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(top, p)
		switch {
		case info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0:
			v.Errorf("copied %s with mode %s", name, info.Mode())
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(p)
			if err != nil || !filepath.IsLocal(filepath.Join(filepath.Dir(name), target)) || filepath.IsAbs(target) {
				v.Errorf("copied the link %s to %q, %v", name, target, err)
			}
		case !info.Mode().IsRegular() && !info.IsDir():
			v.Errorf("copied %s, a %s", name, info.Mode())
		case info.Mode().IsRegular():
			if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Size > 1<<30 {
				v.Errorf("copied %s with %d bytes", name, st.Size)
			}
		}
		return nil
	})
	if err != nil {
		v.Error(err)
	}
}

func makeRemovable(p string, entry fs.DirEntry, err error) error {
	if err != nil || !entry.IsDir() {
		return err
	}
	return os.Chmod(p, 0o700)
}

// told checks an error: what a guest says in it is short and has nothing in it
// that moves a terminal's cursor.
func (v *victim) told(what string, err error) {
	v.Helper()
	if err == nil {
		return
	}
	text := err.Error()
	if len(text) > maxErrorLength {
		v.Errorf("%s: an error of %d bytes: %.200q", what, len(text), text)
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
		v.Errorf("%s: an error that is not plain text: %.200q", what, text)
	}
	if sandpit.CodeOf(err) == sandpit.Internal && !errors.As(err, new(*sandpit.Error)) {
		v.Errorf("%s: an error without a code: %v", what, err)
	}
}

func (v *victim) file(what string, f sandpit.File) {
	v.Helper()
	if f.Path != "/" && (f.Name == "" || f.Name == "." || f.Name == ".." || strings.ContainsAny(f.Name, "/\x00") || len(f.Name) > 255) {
		v.Errorf("%s: name %.200q", what, f.Name)
	}
	if !path.IsAbs(f.Path) || strings.Contains(f.Path, "\x00") {
		v.Errorf("%s: path %.200q", what, f.Path)
	}
	if f.Size < 0 {
		v.Errorf("%s: size %d", what, f.Size)
	}
	if odd := f.Mode &^ (fs.ModePerm | fs.ModeDir | fs.ModeSymlink | fs.ModeIrregular); odd != 0 {
		v.Errorf("%s: mode %s", what, f.Mode)
	}
	if _, err := f.ModifiedAt.MarshalJSON(); err != nil {
		v.Errorf("%s: time: %v", what, err)
	}
	if (f.Mode&fs.ModeSymlink != 0) == (f.LinkTarget == "") || strings.Contains(f.LinkTarget, "\x00") {
		v.Errorf("%s: mode %s and link target %.200q", what, f.Mode, f.LinkTarget)
	}
}

func (v *victim) status(what string, code int, err error) {
	v.Helper()
	v.told(what, err)
	if err == nil && (code < 0 || code > 255) {
		v.Errorf("%s: exit code %d", what, code)
	}
}
