package e2b_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

const (
	apiKey = "e2b_0000000000000000000000000000000000000000"
	// envdVersion is the version of E2B's guest that ours stands for.
	envdVersion = "0.6.13"
)

// shim is the least of E2B's control plane that its SDK needs to get at
// sandboxes. It keeps no time and answers for nothing but this test.
type shim struct {
	provider *gvisor.Provider
	runtime  string // the provider's runtime directory
	image    sandpit.Image

	mu    sync.Mutex
	boxes map[string]*box
}

// box is one sandbox, as the shim knows it.
type box struct {
	instance sandpit.Instance
	token    string // the guest's own
	template string
	metadata map[string]string
	started  time.Time
}

// newShim starts a shim and returns its address.
func newShim(tb testing.TB) string {
	tb.Helper()
	s := &shim{runtime: filepath.Join(tb.TempDir(), "run"), boxes: make(map[string]*box)}
	s.provider = newProvider(tb, s.runtime)
	s.image = buildImage(tb)
	server := httptest.NewServer(s.handler())
	tb.Cleanup(func() {
		s.killAll(tb)
		server.Close() // waits for what is open, and that ends with its sandbox
	})
	return server.URL
}

func newProvider(tb testing.TB, runtime string) *gvisor.Provider {
	tb.Helper()
	engine := testengine.Path(tb)
	scratch := filepath.Join(filepath.Dir(runtime), "scratch")
	store := filepath.Join(filepath.Dir(runtime), "images")
	for _, dir := range []string{runtime, scratch, store} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	images, err := image.Open(store, image.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	p, err := gvisor.New(gvisor.Config{RuntimeDir: runtime, ScratchDir: scratch, Images: images, Engine: engine})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func (s *shim) killAll(tb testing.TB) {
	tb.Helper()
	s.mu.Lock()
	left := s.boxes
	s.boxes = nil
	s.mu.Unlock()
	for _, b := range left {
		if err := b.instance.Destroy(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	}
}

// handler sends what names a sandbox there, and takes the rest for calls of the
// control plane.
func (s *shim) handler() http.Handler {
	api := http.NewServeMux()
	for _, prefix := range []string{"", "/v2"} {
		api.HandleFunc("POST "+prefix+"/sandboxes", s.serveCreate)
		api.HandleFunc("POST "+prefix+"/sandboxes/{id}/connect", s.with(serveConnect))
	}
	api.HandleFunc("GET /sandboxes/{id}", s.with(serveInfo))
	api.HandleFunc("POST /sandboxes/{id}/timeout", s.with(serveTimeout))
	api.HandleFunc("DELETE /sandboxes/{id}", s.with(s.serveKill))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		switch id := r.Header.Get("E2b-Sandbox-Id"); {
		case id != "":
			s.forward(w, r, id)
		case r.URL.Path == "/files" && query.Has("signature"):
			s.forward(w, r, s.signer(r.Method, query))
		case r.Header.Get("X-API-KEY") != apiKey:
			answerError(w, http.StatusUnauthorized, "invalid API key")
		default:
			api.ServeHTTP(w, r)
		}
	})
}

func (s *shim) find(id string) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[id]
}

func (s *shim) serveCreate(w http.ResponseWriter, r *http.Request) {
	var req struct {
		TemplateID string            `json:"templateID"`
		EnvVars    map[string]string `json:"envVars"`
		Metadata   map[string]string `json:"metadata"`
	}
	if err := json.NewDecoder(r.Body).Decode(&req); err != nil {
		answerError(w, http.StatusBadRequest, err.Error())
		return
	}
	spec := sandpit.Spec{Image: s.image, User: "user", WorkDir: "/home/user", Env: req.EnvVars}
	instance, err := s.provider.Create(r.Context(), sandpit.NewID(), spec)
	if err != nil {
		answerError(w, http.StatusInternalServerError, err.Error())
		return
	}
	b := &box{instance: instance, template: req.TemplateID, metadata: req.Metadata, started: time.Now()}
	s.mu.Lock()
	if s.boxes != nil {
		s.boxes[string(instance.ID())] = b
	}
	s.mu.Unlock()
	if b.token, err = s.tokenOf(instance.ID()); err == nil {
		err = b.startAtHome(r.Context())
	}
	if err != nil {
		answerError(w, http.StatusInternalServerError, err.Error())
		return
	}
	answer(w, http.StatusCreated, b.describe())
}

// tokenOf reads a guest's token where the provider has written it down. The SDK
// needs this one and no other: it signs with it what the guest checks.
func (s *shim) tokenOf(id sandpit.ID) (string, error) {
	paths, err := filepath.Glob(filepath.Join(s.runtime, "engines", "*", "boxes", string(id)+".json"))
	if err != nil || len(paths) != 1 {
		return "", fmt.Errorf("records of sandbox %s: %q, %w", id, paths, err)
	}
	data, err := os.ReadFile(paths[0])
	if err != nil {
		return "", err
	}
	var record struct {
		Token string `json:"token"`
	}
	err = json.Unmarshal(data, &record)
	return record.Token, err
}

// startAtHome has processes start in their user's home, as E2B's templates do.
func (b *box) startAtHome(ctx context.Context) error {
	body := strings.NewReader(`{"defaultWorkdir":""}`)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://sandbox/init", body)
	if err != nil {
		return err
	}
	req.Header.Set(guest.TokenHeader, b.token)
	res, err := b.instance.HTTP(guest.Port).RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNoContent {
		text, _ := io.ReadAll(res.Body)
		return fmt.Errorf("init: %s: %s", res.Status, text)
	}
	return nil
}

// describe is what the API tells of a sandbox to those who made it or connect
// to it.
func (b *box) describe() map[string]any {
	return map[string]any{
		"sandboxID":       b.instance.ID(),
		"templateID":      b.template,
		"clientID":        "shim",
		"envdVersion":     envdVersion,
		"envdAccessToken": b.token,
		"domain":          nil,
	}
}

// with finds the sandbox that the path names.
func (s *shim) with(serve func(http.ResponseWriter, *http.Request, *box)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		id := r.PathValue("id")
		b := s.find(id)
		if b == nil {
			answerError(w, http.StatusNotFound, fmt.Sprintf("Sandbox %q not found", id))
			return
		}
		serve(w, r, b)
	}
}

func serveConnect(w http.ResponseWriter, _ *http.Request, b *box) {
	answer(w, http.StatusOK, b.describe())
}

func serveInfo(w http.ResponseWriter, _ *http.Request, b *box) {
	info := b.describe()
	delete(info, "envdAccessToken")
	info["startedAt"] = b.started
	info["endAt"] = b.started.Add(time.Hour)
	info["state"] = "running"
	info["cpuCount"], info["memoryMB"], info["diskSizeMB"] = 2, 512, 512
	info["metadata"] = b.metadata
	answer(w, http.StatusOK, info)
}

func serveTimeout(w http.ResponseWriter, _ *http.Request, _ *box) {
	w.WriteHeader(http.StatusNoContent) // no sandbox of this test gets old
}

// serveKill forgets the sandbox before it ends it: when its streams break, the
// SDK asks at once whether it is there still.
func (s *shim) serveKill(w http.ResponseWriter, r *http.Request, b *box) {
	s.mu.Lock()
	delete(s.boxes, string(b.instance.ID()))
	s.mu.Unlock()
	if err := b.instance.Destroy(context.WithoutCancel(r.Context())); err != nil {
		answerError(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// signer returns the sandbox whose token a URL is signed with: nothing else in
// it says which one is meant. The guest checks the signature itself, so one that
// is nobody's goes to any of them, to be refused.
func (s *shim) signer(method string, query url.Values) (id string) {
	operation := "read"
	if method == http.MethodPost {
		operation = "write"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, b := range s.boxes {
		id = name
		text := strings.Join([]string{query.Get("path"), operation, query.Get("username"), b.token}, ":")
		if expiration := query.Get("signature_expiration"); expiration != "" {
			text += ":" + expiration
		}
		sum := sha256.Sum256([]byte(text))
		if query.Get("signature") == "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]) {
			return id
		}
	}
	return id
}

// forward passes a call on to a sandbox's guest, as it is. When the sandbox ends
// meanwhile, the proxy cuts the answer off, which is how the SDK learns of it.
func (s *shim) forward(w http.ResponseWriter, r *http.Request, id string) {
	b := s.find(id)
	if b == nil {
		answerGone(w, id)
		return
	}
	if port := r.Header.Get("E2b-Sandbox-Port"); port != "" && port != strconv.Itoa(guest.Port) {
		answer(w, http.StatusBadGateway, map[string]any{
			"sandboxId": id, "message": "The sandbox is running but port is not open", "port": port, "code": http.StatusBadGateway,
		})
		return
	}
	proxy := httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.SetURL(&url.URL{Scheme: "http", Host: "sandbox"}) },
		Transport:     b.instance.HTTP(guest.Port),
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // of sandboxes killed and clients gone, on purpose
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if s.find(id) == nil {
				answerGone(w, id)
				return
			}
			answerError(w, http.StatusBadGateway, err.Error())
		},
	}
	// The guest answers as soon as it has read the message, before the end of the
	// request. Without this the server would then close the request's body under
	// the transport, which breaks off the answer.
	if err := http.NewResponseController(w).EnableFullDuplex(); err != nil {
		answerError(w, http.StatusInternalServerError, err.Error())
		return
	}
	proxy.ServeHTTP(w, r)
}

func answerGone(w http.ResponseWriter, id string) {
	answer(w, http.StatusBadGateway, map[string]any{
		"sandboxId": id, "message": "The sandbox was not found", "code": http.StatusBadGateway,
	})
}

func answerError(w http.ResponseWriter, status int, message string) {
	answer(w, status, map[string]any{"code": status, "message": message})
}

func answer(w http.ResponseWriter, status int, v any) {
	var body bytes.Buffer
	if err := json.NewEncoder(&body).Encode(v); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a client that went away hears nothing
}
