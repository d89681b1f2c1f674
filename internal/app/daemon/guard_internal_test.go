package daemon

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestServeAsksNobodyInside has a user of a server, and its administrator, want an image of
// a registry on the server's own machine, by its name and by a sandbox.
func TestServeAsksNobodyInside(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	registry := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.NotFound(w, r)
	}))
	t.Cleanup(registry.Close)
	host := strings.TrimPrefix(registry.URL, "http://")
	r := start(t, configured(t), fakes(newWorld(t)))
	var key wire.MadeKey
	if err := json.Unmarshal([]byte(r.ask("POST", "/v1/keys", `{"owner":"u"}`, http.StatusCreated)), &key); err != nil {
		t.Fatal(err)
	}
	pull := `{"name":"` + host + `/x"}`
	user := &http.Client{Transport: keyed(key.Secret)}
	if got := r.askAt(user, r.URL+"/v1/images/pull", "POST", pull, http.StatusOK); !strings.Contains(got, `"permission_denied"`) ||
		!strings.Contains(got, "image.registries") || asked.Load() > 0 {
		t.Errorf("a user: asked %d times: %s", asked.Load(), got)
	}
	// A client of the socket is an administrator.
	if got := r.ask("POST", "/v1/images/pull", pull, http.StatusOK); !strings.Contains(got, `"not_found"`) || asked.Load() == 0 {
		t.Errorf("an administrator: asked %d times: %s", asked.Load(), got)
	}
}

// keyed sends a key with every request.
type keyed string

func (k keyed) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Api-Key", string(k))
	r.Close = true
	return http.DefaultTransport.RoundTrip(r)
}
