package image

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// login makes a registry require a login, by a token or a password.
func login(h *hubServer, bearer bool, want string) {
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		user, password, _ := r.BasicAuth()
		switch {
		case r.URL.Path == "/token":
			if user+":"+password != want || r.URL.Query().Get("scope") != "repository:x:pull" || r.URL.Query().Get("service") != "the service" {
				w.WriteHeader(http.StatusUnauthorized)
				return true
			}
			_, _ = io.WriteString(w, `{"access_token":"tok"}`)
			return true
		case bearer && r.Header.Get("Authorization") == "Bearer tok", !bearer && user+":"+password == want:
			return false
		case bearer:
			w.Header().Add("WWW-Authenticate", `Negotiate`)
			w.Header().Add("WWW-Authenticate", `Bearer realm="`+h.URL+`/token",service="the service",scope="repository:x:pull"`)
		default:
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		}
		w.WriteHeader(http.StatusUnauthorized)
		return true
	}
}

func TestLogin(t *testing.T) {
	t.Parallel()
	for name, bearer := range map[string]bool{"bearer": true, "basic": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			h.push(t, "x", "v", simple(t))
			login(h, bearer, "me:hunter2")
			for _, tc := range []struct {
				who  Credential
				want sandpit.Code
			}{
				{Credential{User: "me", Password: "hunter2"}, ""},
				{Credential{User: "me", Password: "hunter3"}, sandpit.PermissionDenied},
				{Credential{}, sandpit.PermissionDenied},
			} {
				s := newClientStore(t, Options{Credentials: func(_ context.Context, registry string) (Credential, error) {
					if registry != h.host() {
						t.Errorf("asked for the login of %s", registry)
					}
					return tc.who, nil
				}})
				root, err := s.Resolve(t.Context(), h.ref("x:v"), nil)
				if sandpit.CodeOf(err) != tc.want {
					t.Errorf("%+v: %v, want %q", tc.who.User, err, tc.want)
				}
				if err == nil {
					must(t, root.File.Close())
				} else if text := err.Error() + sandpit.HintOf(err); strings.Contains(text, "hunter") || !strings.Contains(text, "docker login "+h.host()) {
					t.Errorf("error: %s", text)
				}
			}
		})
	}
}

// TestLoginGoesNowhereElse has registries that want the password sent to others.
func TestLoginGoesNowhereElse(t *testing.T) {
	t.Parallel()
	e := &endpoint{client: &client{http: &http.Client{}}, registry: "registry.test", host: "registry.test"}
	for realm, want := range map[string]bool{
		"https://auth.registry.test/token": true,
		"https://registry.test/token":      true,
		"https://10.0.0.1/token":           false,
		"https://169.254.169.254/latest":   false,
		"https://localhost/token":          false,
		"https://[::1]/token":              false,
		"http://auth.registry.test/token":  false,
		"file:///etc/passwd":               false,
		"https://user:pw@auth.test/":       false,
		"":                                 false,
	} {
		_, err := e.requestToken(canceled(t), map[string]string{"realm": realm}, Credential{User: "u", Password: "p"})
		if refused := errors.Is(err, sandpit.PermissionDenied); refused == want {
			t.Errorf("%s: %v", realm, err)
		}
	}
	c := &client{insecure: []string{"plain.test"}}
	for to, want := range map[string]bool{
		"https://cdn.test/x": true, "https://10.0.0.1/x": false, "http://127.0.0.1/x": false, "https://[::]/x": false, "https://registry.test/x": true,
	} {
		r := func(u string) *http.Request {
			return httptest.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
		}
		if err := c.checkRedirect(r(to), []*http.Request{r("https://registry.test/y")}); (err == nil) != want {
			t.Errorf("redirect to %s: %v", to, err)
		}
		if err := c.checkRedirect(r(to), []*http.Request{r("http://plain.test/y")}); err != nil {
			t.Errorf("redirect from plain.test to %s: %v", to, err)
		}
	}
	// A redirect to another host does not take the password along.
	other, h := newHub(t), newHub(t)
	data := toJSON(t, "x")
	var seen string
	other.before = func(w http.ResponseWriter, r *http.Request) bool {
		seen += r.Header.Get("Authorization")
		_, _ = w.Write(data)
		return true
	}
	login(h, false, "me:pw")
	inner := h.before
	h.before = func(w http.ResponseWriter, r *http.Request) bool {
		if inner(w, r) {
			return true
		}
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusTemporaryRedirect)
		return true
	}
	s := newClientStore(t, Options{Credentials: func(context.Context, string) (Credential, error) {
		return Credential{User: "me", Password: "pw"}, nil
	}})
	if _, err := s.Resolve(t.Context(), h.ref("x:v"), nil); err == nil || len(other.counts) == 0 || seen != "" {
		t.Errorf("error %v, the other host saw %q", err, seen)
	}
}

// TestTokenIsNotPassedOn has the server that exchanges tokens lead elsewhere.
func TestTokenIsNotPassedOn(t *testing.T) {
	t.Parallel()
	const secret = "refresh-token"
	var given atomic.Int32
	exchange := func(w http.ResponseWriter, r *http.Request) {
		if r.PostFormValue("refresh_token") == secret {
			given.Add(1)
			_, _ = io.WriteString(w, `{"token":"tok"}`)
		}
	}
	other := httptest.NewServer(http.HandlerFunc(exchange))
	t.Cleanup(other.Close)
	for name, tc := range map[string]struct {
		to   string
		want sandpit.Code
	}{
		"the same server": {"", ""},
		"another one":     {other.URL, sandpit.PermissionDenied},
	} {
		mux := http.NewServeMux()
		mux.Handle("/token", http.RedirectHandler(tc.to+"/moved", http.StatusTemporaryRedirect))
		mux.HandleFunc("/moved", exchange)
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		h := newHub(t)
		h.push(t, "x", "v", simple(t))
		h.set(func(w http.ResponseWriter, r *http.Request) bool {
			if r.Header.Get("Authorization") == "Bearer tok" {
				return false
			}
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+server.URL+`/token"`)
			w.WriteHeader(http.StatusUnauthorized)
			return true
		})
		s := newClientStore(t, Options{Credentials: func(context.Context, string) (Credential, error) {
			return Credential{Token: secret}, nil
		}})
		root, err := s.Resolve(t.Context(), h.ref("x:v"), nil)
		if sandpit.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
		if err == nil {
			must(t, root.File.Close())
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("%s: the error repeats it: %v", name, err)
		}
		if want := tc.want == ""; given.Swap(0) != 0 != want {
			t.Errorf("%s: it was given to the wrong one", name)
		}
	}
}

func canceled(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}

func TestDockerCredentials(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	helper := "#!/bin/sh\nread -r server\ncase $server in\n" +
		"ghcr.io) echo '{\"Username\":\"helper\",\"Secret\":\"s\"}';;\n" +
		"token.test) echo '{\"Username\":\"<token>\",\"Secret\":\"t\"}';;\n" +
		"broken.test) echo hidden; exit 1;;\n" +
		"flood.test) printf '{\"Username\":\"hidden\",\"Secret\":\"'; head -c 1000000 /dev/zero | tr '\\0' x; echo '\"}';;\n" +
		"slow.test) exec sleep 1000;;\n" +
		"*) echo 'credentials not found in native keychain'; exit 1;;\nesac\n"
	must(t, os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(helper), 0o755))
	auth := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	other := `{"username":"other","password":"o"}`
	config := `{"auths":{"https://index.docker.io/v1/access-token":` + other + `,"https://index.docker.io/v1/refresh-token":` + other + `,
		"docker.io":` + other + `,"https://index.docker.io/v1/":{"auth":"` + auth + `"},"https://old.test/v2/":{"username":"a","password":"b"},"plain.test:5000":{"username":"a","password":"b"},
		"id.test":{"identitytoken":"i"}},"credHelpers":{"ghcr.io":"test","token.test":"test","broken.test":"test","none.test":"test","flood.test":"test","slow.test":"test","evil.test":"../evil"}}`
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	find := DockerCredentials(dir)
	for registry, want := range map[string]Credential{
		"docker.io": {User: "me", Password: "pass:word"}, "plain.test:5000": {User: "a", Password: "b"}, "id.test": {Token: "i"},
		"ghcr.io": {User: "helper", Password: "s"}, "token.test": {Token: "t"}, "none.test": {}, "other.test": {},
		"old.test": {User: "a", Password: "b"}, "old.test:1": {}, "test": {},
	} {
		got, err := find(t.Context(), registry)
		if err != nil || got != want {
			t.Errorf("%s: %q %q %q, %v", registry, got.User, got.Password, got.Token, err)
		}
	}
	for registry, want := range map[string]sandpit.Code{"broken.test": sandpit.Unavailable, "flood.test": sandpit.Unavailable, "evil.test": sandpit.Invalid} {
		if _, err := find(t.Context(), registry); !errors.Is(err, want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", registry, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := find(ctx, "slow.test"); !errors.Is(err, sandpit.Unavailable) {
		t.Errorf("a helper that does not end: %v", err)
	}
	for _, key := range []string{"docker.io", "index.docker.io", "https://registry-1.docker.io/v2/"} {
		must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"`+key+`":`+other+`}}`), 0o600))
		if got, err := find(t.Context(), "docker.io"); err != nil || got != (Credential{User: "other", Password: "o"}) {
			t.Errorf("only %s: %q %q, %v", key, got.User, got.Password, err)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"x":{"auth":7,"p":"hidden`), 0o600))
	if _, err := find(t.Context(), "x"); !errors.Is(err, sandpit.Invalid) || strings.Contains(err.Error(), "hidden") {
		t.Errorf("damaged: %v", err)
	}
	if got, err := DockerCredentials(t.TempDir())(t.Context(), "x"); err != nil || got != (Credential{}) {
		t.Errorf("no file: %v", err)
	}
	if text := fmt.Sprintf("%v %+v %#v", Credential{Password: "hidden-pw"}, Credential{Password: "hidden-pw"}, Credential{Password: "hidden-pw"}); strings.Contains(text, "pw") {
		t.Errorf("shown: %s", text)
	}
}
