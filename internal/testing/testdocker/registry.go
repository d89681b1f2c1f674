package testdocker

import (
	"bytes"
	"crypto/subtle"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Registry is a registry on this machine. Its fields may be set before the first request.
type Registry struct {
	// User and Password are required from all clients, if they are set.
	User, Password string
	// Hold, if set, delays blobs until it is closed or the client disconnects.
	Hold chan struct{}
	// Cut makes blobs end after half of their bytes.
	Cut bool

	server    *httptest.Server
	manifests atomic.Int64
	waiting   sync.Once
	reached   chan struct{}
}

// NewRegistry starts a registry, which ends with the test.
func NewRegistry(tb testing.TB) *Registry {
	tb.Helper()
	r := &Registry{reached: make(chan struct{})}
	quiet := slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug)
	inner := registry.New(registry.Logger(quiet))
	r.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { r.serve(w, req, inner) }))
	tb.Cleanup(func() {
		r.server.CloseClientConnections()
		r.server.Close()
	})
	return r
}

// Host returns the registry's part of the names of images.
func (r *Registry) Host() string { return strings.TrimPrefix(r.server.URL, "http://") }

// Manifests returns how often a manifest was read.
func (r *Registry) Manifests() int { return int(r.manifests.Load()) }

// Reached returns a channel that is closed at the first request for a blob.
func (r *Registry) Reached() <-chan struct{} { return r.reached }

func (r *Registry) serve(w http.ResponseWriter, req *http.Request, inner http.Handler) {
	pushing := req.Header.Get(pushHeader) != ""
	user, password, _ := req.BasicAuth()
	if !pushing && r.User != "" &&
		(user != r.User || subtle.ConstantTimeCompare([]byte(password), []byte(r.Password)) != 1) {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"authentication required"}]}`))
		return
	}
	if pushing || req.Method != http.MethodGet {
		inner.ServeHTTP(w, req)
		return
	}
	if strings.Contains(req.URL.Path, "/manifests/") {
		r.manifests.Add(1)
	}
	if !strings.Contains(req.URL.Path, "/blobs/") {
		inner.ServeHTTP(w, req)
		return
	}
	r.waiting.Do(func() { close(r.reached) })
	if r.Hold != nil {
		select {
		case <-r.Hold:
		case <-req.Context().Done():
			return
		}
	}
	if r.Cut {
		rec := httptest.NewRecorder()
		inner.ServeHTTP(rec, req)
		body := rec.Body.Bytes()
		w.Header().Set("Content-Length", rec.Header().Get("Content-Length"))
		_, _ = w.Write(body[:len(body)/2])
		return
	}
	inner.ServeHTTP(w, req)
}

const pushHeader = "Sandpit-Test-Push"

type pusher struct{}

func (pusher) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(pushHeader, "1")
	return http.DefaultTransport.RoundTrip(r)
}

// Push puts an image with these files into the registry, and returns its name and its name with the
// digest. The caller may change the configuration first.
func (r *Registry) Push(tb testing.TB, repository, tag string, files []File, change func(*v1.Config)) (tagged, pinned string) {
	tb.Helper()
	content := Tar(tb, files)
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content)), nil })
	if err != nil {
		tb.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		tb.Fatal(err)
	}
	file, err := img.ConfigFile()
	if err != nil {
		tb.Fatal(err)
	}
	file = file.DeepCopy()
	file.Architecture, file.OS = runtime.GOARCH, "linux"
	if change != nil {
		change(&file.Config)
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		tb.Fatal(err)
	}
	ref, err := name.ParseReference(r.Host() + "/" + repository + ":" + tag)
	if err != nil {
		tb.Fatal(err)
	}
	if err := remote.Write(ref, img, remote.WithContext(tb.Context()), remote.WithTransport(pusher{})); err != nil {
		tb.Fatal(err)
	}
	digest, err := img.Digest()
	if err != nil {
		tb.Fatal(err)
	}
	return ref.Name(), ref.Context().Name() + "@" + digest.String()
}

// Config is the configuration of an image.
type Config = v1.Config
