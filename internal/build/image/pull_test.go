package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func TestPull(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	digest := h.push(t, "owner/tool", "v1", simple(t))["digest"].(string)
	s := newClientStore(t, Options{})
	var last, total int64
	root, err := s.Resolve(t.Context(), h.ref("owner/tool:v1"), func(done, of int64) { last, total = done, of })
	must(t, err)
	defer root.File.Close()
	want := map[string]string{"etc": "/", "etc/issue": "above", "bin": "/", "bin/tool": "program"}
	if diff := cmp.Diff(want, all(t, root.Path)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	wantConfig := Config{
		Env: map[string]string{"PATH": "/bin", "A": "b=c"}, WorkDir: "/work", User: "1000:1000",
		Entrypoint: []string{"/bin/tool"}, Cmd: []string{"x"}, Labels: map[string]string{"l": "m"}, ExposedPorts: []string{"80/tcp"},
	}
	if diff := cmp.Diff(wantConfig, root.Config); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
	if last != total || total == 0 {
		t.Errorf("progress ended at %d of %d", last, total)
	}
	checkWithTools(t, root.Path)

	// From now on nothing is asked for, by the tag or by the digest once it is known.
	h.Close()
	again := resolved(t, s, h.ref("owner/tool:v1"))
	if again.Path != root.Path {
		t.Errorf("another file: %s", again.Path)
	}
	list, err := s.List()
	must(t, err)
	if len(list) != 1 || list[0].Name != string(h.ref("owner/tool:v1")) || list[0].Digest != digest ||
		list[0].Platform != thisMachine().String() || list[0].Created.Format(time.DateOnly) != "2024-05-06" || list[0].Size == 0 {
		t.Errorf("listed: %+v", list)
	}
	expectFiles(t, s, imageSuffix, nameSuffix)
}

// expectFiles wants nothing in the cache but files with these endings.
func expectFiles(t *testing.T, s *Store, suffixes ...string) {
	t.Helper()
	entries, err := os.ReadDir(s.cache.dir)
	must(t, err)
	for _, e := range entries {
		known := false
		for _, suffix := range suffixes {
			known = known || strings.HasSuffix(e.Name(), suffix)
		}
		if !known {
			t.Errorf("left in the cache: %s", e.Name())
		}
	}
}

func TestPullByDigestAndIndex(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	mine := h.push(t, "x", "mine", simple(t))
	mine["platform"] = map[string]string{"os": "linux", "architecture": thisMachine().Architecture}
	other := h.push(t, "x", "other", parts{arch: "s390x", layers: [][]byte{archiveOf(t, file("wrong", ""))}})
	other["platform"] = map[string]string{"os": "linux", "architecture": "s390x"}
	proof := h.push(t, "x", "proof", parts{layers: [][]byte{archiveOf(t, file("proof", ""))}})
	proof["platform"] = map[string]string{"os": "unknown", "architecture": "unknown"}
	index := h.manifest(t, "x", "all", typeIndex, map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []any{other, proof, mine}})
	foreign := h.manifest(t, "x", "foreign", typeIndex, map[string]any{"schemaVersion": 2, "manifests": []any{other, proof}})
	s := newClientStore(t, Options{})
	one := resolved(t, s, h.ref("x:all"))
	for _, ref := range []sandpit.Image{h.ref("x@" + index["digest"].(string)), h.ref("x:mine"), h.ref("x@" + mine["digest"].(string))} {
		if root := resolved(t, s, ref); root.Path != one.Path {
			t.Errorf("%s is another image", ref)
		}
	}
	for _, ref := range []sandpit.Image{h.ref("x:other"), h.ref("x@" + foreign["digest"].(string))} {
		_, err := s.Resolve(t.Context(), ref, nil)
		if !errors.Is(err, sandpit.Unsupported) || !strings.Contains(err.Error(), "s390x") || strings.Contains(err.Error(), "unknown") {
			t.Errorf("%s: %v", ref, err)
		}
	}
}

func TestPolicies(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.push(t, "x", "latest", parts{layers: [][]byte{archiveOf(t, file("version", "1"))}})
	s := newClientStore(t, Options{})
	never, always := *s, *s
	never.o.Pull, always.o.Pull = PullNever, PullAlways
	version := func(s *Store) string { return all(t, resolved(t, s, h.ref("x")).Path)["version"] }
	if _, err := never.Resolve(t.Context(), h.ref("x"), nil); !errors.Is(err, sandpit.NotFound) || len(h.got("")) > 0 {
		t.Errorf("never: %v, asked %v", err, h.got(""))
	}
	if got := version(s); got != "1" {
		t.Errorf("version %s", got)
	}
	name := string(h.ref("x:latest"))
	if u, err := s.Check(t.Context(), name); err != nil || u.Newer {
		t.Errorf("check: %+v, %v", u, err)
	}
	h.push(t, "x", "latest", parts{layers: [][]byte{archiveOf(t, file("version", "2"))}})
	if u, err := s.Check(t.Context(), name); err != nil || !u.Newer || u.Have == u.Latest {
		t.Errorf("check: %+v, %v", u, err)
	}
	for _, tc := range []struct {
		name string
		s    *Store
		want string
	}{{"missing", s, "1"}, {"never", &never, "1"}, {"always", &always, "2"}, {"missing after that", s, "2"}} {
		if got := version(tc.s); got != tc.want {
			t.Errorf("%s: version %s, want %s", tc.name, got, tc.want)
		}
	}
	if names, err := s.Fetched(); err != nil || len(names) != 1 || names[0] != name {
		t.Errorf("fetched: %q, %v", names, err)
	}
}

// TestManyPullOnce lets goroutines and processes fetch the same image.
func TestManyPullOnce(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	p := parts{}
	for i := range 6 {
		p.layers = append(p.layers, incompressible(t, fmt.Sprint("file", i), 1<<20))
	}
	h.push(t, "big", "v1", p)
	s := newClientStore(t, Options{})
	var wg sync.WaitGroup
	var errs [23]error
	for i := range 20 {
		wg.Go(func() {
			root, err := s.Resolve(t.Context(), h.ref("big:v1"), nil)
			if errs[i] = err; err == nil {
				errs[i] = root.File.Close()
			}
		})
	}
	for i := range 3 {
		wg.Go(func() { errs[20+i] = child(t, s, string(h.ref("big:v1"))).Run() })
	}
	wg.Wait()
	must(t, errs[:]...)
	for path, n := range h.got("/blobs/") {
		if n != 1 {
			t.Errorf("%s: %d times", path, n)
		}
	}
	if n := len(h.got("/blobs/")); n != 7 {
		t.Errorf("%d blobs were asked for, want 7", n)
	}
	if got := all(t, resolved(t, s, h.ref("big:v1")).Path); len(got) != 6 || len(got["file3"]) != 1<<20 {
		t.Errorf("%d files", len(got))
	}
	expectFiles(t, s, imageSuffix, nameSuffix)
}

// TestResume breaks transfers off, within one pull and between two.
func TestResume(t *testing.T) {
	t.Parallel()
	for name, ranges := range map[string]bool{"ranges": true, "no ranges": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.ranges = ranges
			first, second := incompressible(t, "a", 1<<20), incompressible(t, "b", 3<<20)
			h.push(t, "x", "v", parts{layers: [][]byte{first, second}})
			var sent atomic.Int64
			var cuts atomic.Int32
			cut := func(most int32) func(http.ResponseWriter, *http.Request) bool {
				return func(w http.ResponseWriter, r *http.Request) bool {
					if !strings.HasSuffix(r.URL.Path, sha256Of(second)) || cuts.Add(1) > most {
						return false
					}
					from := int64(0)
					if ranges {
						_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
					}
					if from > 0 {
						w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(second)-1, len(second)))
					}
					w.Header().Set("Content-Length", strconv.FormatInt(int64(len(second))-from, 10))
					if from > 0 {
						w.WriteHeader(http.StatusPartialContent)
					}
					end := min(from+1<<20, int64(len(second)))
					n, _ := w.Write(second[from:end])
					if sent.Add(int64(n)); end == int64(len(second)) {
						return true
					}
					panic(http.ErrAbortHandler)
				}
			}
			h.set(cut(1 << 30))
			s := newClientStore(t, Options{})
			if _, err := s.Resolve(t.Context(), h.ref("x:v"), nil); !ranges && !errors.Is(err, sandpit.Unavailable) {
				t.Fatalf("cut off each time: %v, want unavailable", err)
			}
			if ranges && sent.Load() > 2*int64(len(second)) {
				t.Errorf("%d bytes of %d were sent", sent.Load(), len(second))
			}
			before := cuts.Load()
			h.set(nil)
			got := all(t, resolved(t, s, h.ref("x:v")).Path)
			if len(got["a"]) != 1<<20 || len(got["b"]) != 3<<20 {
				t.Errorf("the files have %d and %d bytes", len(got["a"]), len(got["b"]))
			}
			for path, n := range h.got(sha256Of(first)) {
				if n != 1 {
					t.Errorf("%s: the complete layer was fetched %d times", path, n)
				}
			}
			if before == 0 {
				t.Error("nothing was cut off")
			}
			expectFiles(t, s, imageSuffix, nameSuffix)
		})
	}
}

// TestFaults has the registry misbehave in one way each.
func TestFaults(t *testing.T) {
	t.Parallel()
	layer := incompressible(t, "a", 64<<10)
	config := imageConfig(t, parts{layers: [][]byte{layer}})
	answer := func(status int, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	on := func(part string, f func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return strings.Contains(r.URL.Path, part) && f(w, r)
		}
	}
	hang := func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	stall := func(w http.ResponseWriter, r *http.Request) bool {
		_, _ = w.Write(layer[:1000])
		_ = http.NewResponseController(w).Flush()
		return hang(w, r)
	}
	var limited atomic.Int32
	for name, tc := range map[string]struct {
		before func(http.ResponseWriter, *http.Request) bool
		want   sandpit.Code
		text   string // in the error
		hint   string
	}{
		"no such tag":         {on("/manifests/", answer(404, `{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not \u001b[31mhere"}]}`)), sandpit.NotFound, `no such image or tag (the registry says: "not \x1b[31mhere")`, ""},
		"forbidden":           {on("/manifests/", answer(403, "")), sandpit.PermissionDenied, "denies access", "docker login"},
		"unauthorized":        {answer(401, ""), sandpit.PermissionDenied, "denies access", "docker login"},
		"out of order":        {answer(500, "secret"), sandpit.Unavailable, "status 500", "later"},
		"teapot":              {answer(418, ""), sandpit.Unavailable, "status 418", ""},
		"too many":            {answer(429, ""), sandpit.Unavailable, "too many requests", "docker login"},
		"hangs":               {on("/manifests/", hang), sandpit.Timeout, "timed out", "import"},
		"a layer hangs":       {on("/blobs/"+sha256Of(layer), hang), sandpit.Timeout, "timed out", "import"},
		"a layer stalls":      {on("/blobs/"+sha256Of(layer), stall), sandpit.Timeout, "sent nothing", "import"},
		"other layer":         {on("/blobs/"+sha256Of(layer), answer(200, strings.Repeat("x", len(layer)))), sandpit.Unavailable, "wrong digest", "again"},
		"short layer":         {on("/blobs/"+sha256Of(layer), answer(200, "x")), sandpit.Unavailable, "sent 1 of", ""},
		"long layer":          {on("/blobs/"+sha256Of(layer), answer(200, string(layer)+"x")), sandpit.Unavailable, "more than", ""},
		"other configuration": {on("/blobs/"+sha256Of(config), answer(200, "{}")), sandpit.Unavailable, "wrong digest", "again"},
		"huge configuration":  {on("/blobs/"+sha256Of(config), answer(200, strings.Repeat("x", maxDocument+1))), sandpit.Exhausted, "bytes", ""},
		"huge manifest":       {on("/manifests/", answer(200, strings.Repeat(" ", maxDocument+1))), sandpit.Exhausted, "bytes", ""},
		"no manifest":         {on("/manifests/", answer(200, "<html>")), sandpit.Invalid, "invalid JSON", ""},
		"both":                {on("/manifests/", answer(200, `{"manifests":[],"layers":[],"config":{}}`)), sandpit.Invalid, "both a manifest and an index", ""},
		"neither":             {on("/manifests/", answer(200, `{}`)), sandpit.Invalid, "neither", ""},
		"old":                 {on("/manifests/", answer(200, `{"schemaVersion":1,"fsLayers":[{"blobSum":"x"}]}`)), sandpit.Unsupported, "version 1", "again"},
		"redirects for ever": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, r.URL.Path, http.StatusTemporaryRedirect)
			return true
		}, sandpit.Unavailable, "too many redirects", ""},
		"redirects to plain": {func(w http.ResponseWriter, r *http.Request) bool {
			http.Redirect(w, r, "http://example.com/", http.StatusTemporaryRedirect)
			return true
		}, sandpit.PermissionDenied, "unencrypted", "image.insecure"},
		"recovers": {func(w http.ResponseWriter, r *http.Request) bool {
			w.Header().Set("Retry-After", "1")
			return limited.Add(1) < 4 && answer(429, "")(w, r)
		}, "", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.push(t, "x", "v", parts{layers: [][]byte{layer}})
			h.before = tc.before
			s := newClientStore(t, Options{})
			root, err := s.Resolve(t.Context(), h.ref("x:v"), nil)
			if tc.want == "" {
				must(t, err, root.File.Close())
				return
			}
			if sandpit.CodeOf(err) != tc.want || !strings.Contains(err.Error(), tc.text) || !strings.Contains(sandpit.HintOf(err), tc.hint) {
				t.Errorf("%q %v (hint: %s), want %q with %q and %q", sandpit.CodeOf(err), err, sandpit.HintOf(err), tc.want, tc.text, tc.hint)
			}
			if err != nil && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error repeats the answer: %v", err)
			}
			expectFiles(t, s, blobSuffix, partSuffix)
		})
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	h.Close()
	s := newClientStore(t, Options{})
	_, err := s.Resolve(t.Context(), h.ref("x"), nil)
	if !errors.Is(err, sandpit.Unavailable) || !strings.Contains(sandpit.HintOf(err), "image import") {
		t.Errorf("%v, hint %q", err, sandpit.HintOf(err))
	}
	slow := newHub(t)
	slow.before = func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true }
	s = newClientStore(t, Options{PullTimeout: 50 * time.Millisecond})
	if _, err = s.Resolve(t.Context(), slow.ref("x"), nil); !errors.Is(err, sandpit.Timeout) || !strings.Contains(err.Error(), "longer than 50ms") {
		t.Errorf("whole pull: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, cancel)
	s = newClientStore(t, Options{})
	if _, err = s.Resolve(ctx, slow.ref("x"), nil); sandpit.CodeOf(err) != sandpit.Canceled {
		t.Errorf("canceled: %v", err)
	}
	expectFiles(t, s)
}

func TestMirrors(t *testing.T) {
	t.Parallel()
	empty, mirror, origin := newHub(t), newHub(t), newHub(t)
	mirror.push(t, "library/tool", "v", parts{layers: [][]byte{archiveOf(t, file("from", "mirror"))}})
	mirror.push(t, "cache/owner/deep", "v", parts{layers: [][]byte{archiveOf(t, file("from", "below"))}})
	dead := newHub(t)
	dead.Close()
	s := newClientStore(t, Options{Mirrors: map[string][]string{
		"docker.io":     {dead.host(), empty.host(), mirror.host()},
		"quay.io":       {mirror.host() + "/cache"},
		origin.host():   {empty.host()},
		"registry.test": {mirror.host()},
	}})
	origin.push(t, "x", "v", parts{layers: [][]byte{archiveOf(t, file("from", "origin"))}})
	for ref, want := range map[sandpit.Image]string{
		"tool:v": "mirror", "quay.io/owner/deep:v": "below", origin.ref("x:v"): "origin", "registry.test/library/tool:v": "mirror",
	} {
		if got := all(t, resolved(t, s, ref).Path)["from"]; got != want {
			t.Errorf("%s: from %q, want %q", ref, got, want)
		}
	}
	if len(empty.got("/manifests/v")) != 0 && len(empty.got("")) == 0 {
		t.Error("the first mirror was not asked")
	}
}

func TestForeignLayersAreNotFetched(t *testing.T) {
	t.Parallel()
	h, trap := newHub(t), newHub(t)
	layer := archiveOf(t, file("a", "1"))
	config := h.blob(t, "x", typeConfig, imageConfig(t, parts{layers: [][]byte{layer}}))
	for name, mediaType := range map[string]string{"foreign": "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", "usual": typeLayer} {
		d := described(mediaType, layer)
		d["urls"] = []string{trap.URL + "/layer"}
		h.manifest(t, "x", name, typeManifest, map[string]any{"schemaVersion": 2, "config": config, "layers": []any{d}})
		if _, err := newClientStore(t, Options{}).Resolve(t.Context(), h.ref("x:"+name), nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if len(trap.counts) > 0 {
		t.Errorf("asked elsewhere: %v", trap.counts)
	}
}

// TestRealRegistry uses the registry that Docker gives away.
func TestRealRegistry(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		testengine.Skip(t, "no docker-registry on this machine")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // only to find a free port
	must(t, err)
	addr := l.Addr().String()
	must(t, l.Close())
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	must(t, os.WriteFile(config, []byte("version: 0.1\nlog: {level: error}\nstorage: {filesystem: {rootdirectory: "+dir+"}}\nhttp: {addr: "+addr+"}\n"), 0o600))
	var out bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, "serve", config)
	cmd.Stdout, cmd.Stderr = &out, &out
	must(t, cmd.Start())
	t.Cleanup(func() { _ = cmd.Wait() }) // it is killed
	h := &hubServer{counts: map[string]int{}}
	h.Server = &httptest.Server{URL: "http://" + addr}
	for range 200 {
		resp, err := http.Get(h.URL + "/v2/") //nolint:noctx // ends with the test
		if err == nil && resp.Body.Close() == nil && resp.StatusCode == http.StatusOK {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	p := simple(t)
	p.layers = append(p.layers, incompressible(t, "random", 2<<20))
	h.push(t, "owner/tool", "v1", p)
	s := newClientStore(t, Options{})
	s.puller.timeouts = defaultTimeouts
	got := all(t, resolved(t, s, sandpit.Image(addr+"/owner/tool:v1")).Path)
	if got["etc/issue"] != "above" || len(got["random"]) != 2<<20 {
		t.Errorf("%d files; the registry says %s", len(got), out.String())
	}
	if _, err := s.Resolve(t.Context(), sandpit.Image(addr+"/owner/tool:v2"), nil); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("no such tag: %v", err)
	}
}
