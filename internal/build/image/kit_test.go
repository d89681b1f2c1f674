package image

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"io/fs"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/sandpit-dev/sandpit"
)

// hubServer is a registry that is not ours, with faults to order.
type hubServer struct {
	*httptest.Server
	mu     sync.Mutex
	counts map[string]int // of answers, by path and status
	// before may answer in place of the registry, and says so by true.
	before func(w http.ResponseWriter, r *http.Request) bool
	ranges bool // blobs can be asked for in part
}

func newHub(tb testing.TB) *hubServer {
	tb.Helper()
	h := &hubServer{counts: map[string]int{}, ranges: true}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		before := h.before
		h.mu.Unlock()
		if r.Method == http.MethodGet && before != nil && before(w, r) {
			h.count(r, "before")
			return
		}
		h.count(r, r.Method)
		if r.Header.Get("Range") != "" && h.ranges {
			rec := httptest.NewRecorder()
			inner.ServeHTTP(rec, r)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(rec.Body.Bytes()))
			return
		}
		r.Header.Del("Range")
		inner.ServeHTTP(w, r)
	}))
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.Start()
	tb.Cleanup(h.Close)
	return h
}

func (h *hubServer) count(r *http.Request, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts[what+" "+r.URL.Path]++
}

// got returns how often something was asked for, by the beginning of its path in
// the repository.
func (h *hubServer) got(part string) map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	found := map[string]int{}
	for key, n := range h.counts {
		if strings.HasPrefix(key, "GET ") && strings.Contains(key, part) {
			found[key] = n
		}
	}
	return found
}

func (h *hubServer) host() string { return strings.TrimPrefix(h.URL, "http://") }

// ref names an image of the registry.
func (h *hubServer) ref(rest string) sandpit.Image { return sandpit.Image(h.host() + "/" + rest) }

func (h *hubServer) put(tb testing.TB, method, path, mediaType string, data []byte) (location string) {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), method, h.URL+path, bytes.NewReader(data))
	must(tb, err)
	req.Header.Set("Content-Type", mediaType)
	resp, err := http.DefaultClient.Do(req)
	must(tb, err)
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode >= 300 {
		tb.Fatalf("%s %s: %s %s", method, path, resp.Status, body)
	}
	return resp.Header.Get("Location")
}

const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

// set orders a fault while the registry is running.
func (h *hubServer) set(before func(http.ResponseWriter, *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.before = before
}

// blob pushes one and returns its descriptor.
func (h *hubServer) blob(tb testing.TB, repo, mediaType string, data []byte) map[string]any {
	tb.Helper()
	at := h.put(tb, http.MethodPost, "/v2/"+repo+"/blobs/uploads/", "", nil)
	u, err := url.Parse(at)
	must(tb, err)
	query := u.Query()
	query.Set("digest", sha256Of(data))
	h.put(tb, http.MethodPut, u.Path+"?"+query.Encode(), "application/octet-stream", data)
	return described(mediaType, data)
}

func described(mediaType string, data []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": sha256Of(data), "size": len(data)}
}

// parts are what an image is pushed from.
type parts struct {
	layers [][]byte
	config map[string]any // its "config" part
	arch   string
}

// push puts an image into a repository under a tag and returns its descriptor.
func (h *hubServer) push(tb testing.TB, repo, tag string, p parts) map[string]any {
	tb.Helper()
	config := imageConfig(tb, p)
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest,
		"config": h.blob(tb, repo, typeConfig, config), "layers": []any{},
	}
	for _, l := range p.layers {
		manifest["layers"] = append(manifest["layers"].([]any), h.blob(tb, repo, typeLayer, l))
	}
	return h.manifest(tb, repo, tag, typeManifest, manifest)
}

func (h *hubServer) manifest(tb testing.TB, repo, tag, mediaType string, v any) map[string]any {
	tb.Helper()
	data := toJSON(tb, v)
	h.put(tb, http.MethodPut, "/v2/"+repo+"/manifests/"+tag, mediaType, data)
	return described(mediaType, data)
}

func imageConfig(tb testing.TB, p parts) []byte {
	tb.Helper()
	arch := p.arch
	if arch == "" {
		arch = thisMachine().Architecture
	}
	ids := []string{}
	for _, l := range p.layers {
		ids = append(ids, sha256Of(l))
	}
	return toJSON(tb, map[string]any{
		"os": "linux", "architecture": arch, "created": "2024-05-06T07:08:09Z", "config": p.config,
		"rootfs": map[string]any{"type": "layers", "diff_ids": ids},
	})
}

func toJSON(tb testing.TB, v any) []byte {
	tb.Helper()
	data, err := json.Marshal(v)
	must(tb, err)
	return data
}

// simple is a small image of two layers.
func simple(tb testing.TB) parts {
	tb.Helper()
	return parts{
		layers: [][]byte{
			archiveOf(tb, file("etc/issue", "below"), file("bin/tool", "program"), file("gone", "x")),
			zipped(tb, archiveOf(tb, file("etc/issue", "above"), file(".wh.gone", ""))),
		},
		config: map[string]any{
			"Env": []string{"PATH=/bin", "A=b=c"}, "WorkingDir": "/work", "User": "1000:1000",
			"Entrypoint": []string{"/bin/tool"}, "Cmd": []string{"x"}, "Labels": map[string]string{"l": "m"},
			"ExposedPorts": map[string]any{"80/tcp": map[string]any{}},
		},
	}
}

// incompressible returns an archive with a file of random bytes.
func incompressible(tb testing.TB, name string, size int) []byte {
	tb.Helper()
	data := make([]byte, size)
	_, _ = rand.Read(data) // never fails
	return archiveOf(tb, file(name, string(data)))
}

// all returns the contents of an image's files, "-> " and the targets of links, and
// "/" for directories.
func all(tb testing.TB, path string) map[string]string {
	tb.Helper()
	f, err := os.Open(path)
	must(tb, err)
	defer f.Close()
	img, err := erofs.Open(f)
	must(tb, err)
	got := map[string]string{}
	must(tb, fs.WalkDir(img, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil || name == ".":
			return err
		case d.IsDir():
			got[name] = "/"
		case d.Type()&fs.ModeSymlink != 0:
			target, err := fs.ReadLink(img, name)
			got[name] = "-> " + target
			return err
		default:
			data, err := fs.ReadFile(img, name)
			got[name] = string(data)
			return err
		}
		return nil
	}))
	return got
}

func newClientStore(tb testing.TB, o Options) *Store {
	tb.Helper()
	s, err := Open(tb.TempDir(), o)
	must(tb, err)
	s.puller.timeouts = timeouts{connect: time.Second, idle: 300 * time.Millisecond, pause: time.Millisecond, longest: 50 * time.Millisecond, tries: 4}
	return s
}

func resolved(tb testing.TB, s interface {
	Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error)
}, ref sandpit.Image,
) Root {
	tb.Helper()
	root, err := s.Resolve(tb.Context(), ref, nil)
	if err != nil {
		tb.Fatalf("%s: %v (hint: %s)", ref, err, sandpit.HintOf(err))
	}
	tb.Cleanup(func() { _ = root.File.Close() })
	return root
}
