package owners_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// registriesInside lets ordinary owners use registries of this machine.
const registriesInside = "[image]\nregistries = [\"127.0.0.1\"]\n"

// registry is a registry of one party. It has no blobs but those it was given.
type registry struct {
	*httptest.Server

	mu    sync.Mutex
	parts map[string][]byte // by path below /v2/
	// before may answer in place of the registry, and says so by true.
	before func(w http.ResponseWriter, r *http.Request) bool
}

func newRegistry(t *testing.T) *registry {
	t.Helper()
	g := &registry{parts: make(map[string][]byte)}
	g.Server = httptest.NewServer(g)
	t.Cleanup(func() {
		g.CloseClientConnections()
		g.Close()
	})
	return g
}

// ServeHTTP implements http.Handler.
func (g *registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	before, data := g.before, g.parts[strings.TrimPrefix(r.URL.Path, "/v2/")]
	g.mu.Unlock()
	if before != nil && before(w, r) {
		return
	}
	if data == nil {
		http.NotFound(w, r)
		return
	}
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
}

// answer has the registry ask f first.
func (g *registry) answer(f func(w http.ResponseWriter, r *http.Request) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.before = f
}

// push puts an image of layers into a repository, and returns its name.
func (g *registry) push(t *testing.T, repository, tag string, layers ...[]byte) string {
	t.Helper()
	config := toJSON(t, map[string]any{"os": "linux", "architecture": runtime.GOARCH, "config": map[string]any{"Env": []string{"PATH=/bin"}}})
	manifest := map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": described("application/vnd.oci.image.config.v1+json", config),
	}
	list := []any{}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.parts[repository+"/blobs/"+digestOf(config)] = config
	for _, layer := range layers {
		g.parts[repository+"/blobs/"+digestOf(layer)] = layer
		list = append(list, described("application/vnd.oci.image.layer.v1.tar+gzip", layer))
	}
	manifest["layers"] = list
	text := toJSON(t, manifest)
	g.parts[repository+"/manifests/"+tag] = text
	g.parts[repository+"/manifests/"+digestOf(text)] = text
	return strings.TrimPrefix(g.URL, "http://") + "/" + repository + ":" + tag
}

// forget removes a blob, of which the manifests still speak.
func (g *registry) forget(repository string, layer []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.parts, repository+"/blobs/"+digestOf(layer))
}

func described(mediaType string, data []byte) map[string]any {
	return map[string]any{"mediaType": mediaType, "digest": digestOf(data), "size": len(data)}
}

func digestOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func toJSON(t *testing.T, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// busyboxLayer is a layer with BusyBox, from which every image here starts.
func busyboxLayer(t *testing.T) []byte {
	t.Helper()
	content, err := os.ReadFile(busyboxTar(t))
	if err != nil {
		t.Fatal(err)
	}
	return packed(t, content)
}

// layerOf is a layer of files by their paths.
func layerOf(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		h := &tar.Header{Name: name, Mode: 0o755, Size: int64(len(files[name])), Typeflag: tar.TypeReg}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(files[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return packed(t, out.Bytes())
}

func packed(t *testing.T, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	if _, err = w.Write(data); err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// trickle sends data a byte at a time until the client disconnects.
func trickle(w http.ResponseWriter, r *http.Request, data []byte) {
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	for _, b := range data {
		if _, err := w.Write([]byte{b}); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
	}
}
