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
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// login makes a registry want to know who asks, by a token or a password.
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
		_, err := e.token(canceled(t), map[string]string{"realm": realm}, Credential{User: "u", Password: "p"})
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
		"*) echo 'credentials not found in native keychain'; exit 1;;\nesac\n"
	must(t, os.WriteFile(filepath.Join(bin, "docker-credential-test"), []byte(helper), 0o755))
	auth := base64.StdEncoding.EncodeToString([]byte("me:pass:word"))
	config := `{"auths":{"https://index.docker.io/v1/":{"auth":"` + auth + `"},"plain.test:5000":{"username":"a","password":"b"},
		"id.test":{"identitytoken":"i"}},"credHelpers":{"ghcr.io":"test","token.test":"test","broken.test":"test","none.test":"test","evil.test":"../evil"}}`
	must(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o600))
	find := DockerCredentials(dir)
	for registry, want := range map[string]Credential{
		"docker.io": {User: "me", Password: "pass:word"}, "plain.test:5000": {User: "a", Password: "b"}, "id.test": {Token: "i"},
		"ghcr.io": {User: "helper", Password: "s"}, "token.test": {Token: "t"}, "none.test": {}, "other.test": {},
	} {
		got, err := find(t.Context(), registry)
		if err != nil || got != want {
			t.Errorf("%s: %q %q %q, %v", registry, got.User, got.Password, got.Token, err)
		}
	}
	for registry, want := range map[string]sandpit.Code{"broken.test": sandpit.Unavailable, "evil.test": sandpit.Invalid} {
		if _, err := find(t.Context(), registry); !errors.Is(err, want) || strings.Contains(err.Error(), "hidden") {
			t.Errorf("%s: %v", registry, err)
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
