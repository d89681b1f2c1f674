package mcp

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// FuzzChoice reads what a client may say of its session: whatever comes of it asks for a
// marked sandbox, and nothing that was not said.
func FuzzChoice(f *testing.F) {
	for _, query := range []string{"", "image=a&tools=file,shell", "template=x&network=0", "image=%2e%2e", "a;b", "tools=,,&network=TRUE"} {
		f.Add(query, "", "")
	}
	f.Add("image=a", "b", "true")
	f.Fuzz(func(t *testing.T, query, image, network string) {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, Path, nil)
		r.URL.RawQuery = query
		if image != "" {
			r.Header["Sandpit-Image"] = []string{image}
		}
		if network != "" {
			r.Header["Sandpit-Network"] = []string{network}
		}
		c, err := parseChoice(r)
		if err != nil {
			return
		}
		c.idle = time.Minute
		w := c.toCreate()
		if w.Spec.Labels[label] != unsetLabel || w.Policy.IdleTimeout <= c.idle || w.Spec.Network.Online && w.Offline {
			t.Errorf("%q, %q, %q: %+v", query, image, network, w)
		}
		if image != "" && string(w.Spec.Image) != image {
			t.Errorf("%q, %q: image %q", query, image, w.Spec.Image)
		}
		if len(w.Spec.Mounts) > 0 || len(w.Spec.Ports) > 0 || len(w.Spec.Env) > 0 {
			t.Errorf("%q: %+v, which no client may request here", query, w.Spec)
		}
	})
}

// FuzzHello reads the body of a request outside of a session.
func FuzzHello(f *testing.F) {
	for _, body := range []string{"", "null", "[]", "[null]", `{"method":"initialize"}`, `[{"method":"ping"},{"method":"initialize"}]`, `{"method":1}`, `[[]]`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		// Escapes may spell the word in other ways, which must not be taken for less.
		if isInitialize(body) && !strings.Contains(string(body), "initialize") && !strings.Contains(string(body), `\u`) {
			t.Errorf("%q says hello", body)
		}
	})
}

// TestHello tells what begins a session.
func TestHello(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{
		`{"method":"initialize"}`: true, `[{"method":"ping"},{"method":"initialize"}]`: true, `{"method":"\u0069nitialize"}`: true,
		`{"method":"ping"}`: false, `[]`: false, `null`: false, ``: false, `{"method":1}`: false, `"initialize"`: false,
	} {
		if got := isInitialize([]byte(body)); got != want {
			t.Errorf("%s: %v, want %v", body, got, want)
		}
	}
}

// TestRegistries has the same choice of tools, said in two ways, made once.
func TestRegistries(t *testing.T) {
	t.Parallel()
	var r registries
	one, err := r.chooseTools([]string{"shell", "file"})
	if err != nil {
		t.Fatal(err)
	}
	if other, err := r.chooseTools([]string{"file", "shell", "file"}); err != nil || other != one {
		t.Errorf("%v, %v: want the same", other, err)
	}
	if _, err := r.chooseTools([]string{"none"}); err == nil || len(r.made) != 1 {
		t.Errorf("%v, and %d are kept: want an error", err, len(r.made))
	}
}
