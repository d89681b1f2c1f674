package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// withCloud adds a provider with an account to the fakes.
func withCloud(near, far *fake.World) []registration.Provider {
	account := sandpit.Account{
		Endpoint: "https://api.example.com", Name: "team a", MaxSandboxes: 20, MaxLifetime: time.Hour,
		Abilities: []string{"pause"}, Missing: map[string]string{"snapshot": "not in this plan"},
	}
	return append(fakes(near), registration.Provider{
		Name: "cloud", Endpoint: func(config.Config) string { return account.Endpoint }, Used: func(config.Config) bool { return true },
		Open: func(context.Context, registration.Surroundings) (sandpit.Provider, error) {
			return far.NewCloud(account), nil
		},
	})
}

// TestFailover configures several providers, of which the first is full and another cannot be opened.
func TestFailover(t *testing.T) {
	t.Parallel()
	near, far := newWorld(t), newWorld(t)
	cfg := configured(t, "[providers]", "max_sandboxes = { fake = 1, cloud = 5 }", "max_sandbox_hours = { cloud = 100 }")
	cfg.ProviderList = []string{"fake", "broken", "cloud"}
	r := start(t, cfg, withCloud(near, far))
	defer r.stop()
	first := r.sandbox("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
	second := r.sandbox("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
	if first.Provider != "fake" || first.Reason != "" {
		t.Errorf("first: provider %q, reason %q", first.Provider, first.Reason)
	}
	const want = "created by provider cloud; fake: Maximum number of sandboxes (1) of provider fake reached; broken: no answer"
	if second.Provider != "cloud" || second.Reason != want {
		t.Errorf("second: provider %q, reason %q, want %q", second.Provider, second.Reason, want)
	}
	for body, provider := range map[string]string{
		`{"provider": "cloud"}`:              "cloud",
		`{"provider": "broken,cloud"}`:       "cloud",
		`{"providers": ["broken", "cloud"]}`: "cloud",
		`{"providers": ["cloud", "fake"]}`:   "cloud",
	} {
		if s := r.sandbox("POST", "/v1/sandboxes", body, http.StatusCreated); s.Provider != provider {
			t.Errorf("%s: provider %q", body, s.Provider)
		}
	}
	r.ask("POST", "/v1/sandboxes", `{}`, http.StatusServiceUnavailable) // all of them are full or broken
	r.ask("POST", "/v1/sandboxes", `{"provider": "fake"}`, http.StatusTooManyRequests)
	r.ask("POST", "/v1/sandboxes", `{"provider": "fake", "providers": ["cloud"]}`, http.StatusBadRequest)
	r.ask("POST", "/v1/sandboxes", `{"provider": "cloud,mars"}`, http.StatusUnprocessableEntity)

	var page wire.Page[wire.Provider]
	if err := json.Unmarshal([]byte(r.ask("GET", "/v1/providers", "", http.StatusOK)), &page); err != nil {
		t.Fatal(err)
	}
	got := make(map[string]wire.Provider)
	for _, p := range page.Items {
		got[p.Name] = p
	}
	if p := got["fake"]; !p.Default || p.Order != 1 || p.Sandboxes != 1 || p.MaxSandboxes != 1 || p.Circuit != "closed" || p.Account != nil {
		t.Errorf("fake: %+v", p)
	}
	if p := got["broken"]; p.Available || p.Order != 2 || p.Reason != "no answer" || p.Circuit != "open" || p.CircuitReason == "" || p.CircuitSeconds <= 0 {
		t.Errorf("broken: %+v", p)
	}
	p := got["cloud"]
	if !p.Available || p.Order != 3 || p.Sandboxes != 5 || p.MaxSandboxes != 5 || p.MaxSandboxHours != 100 || p.SandboxHours <= 0 {
		t.Errorf("cloud: %+v", p)
	}
	if a := p.Account; a == nil || a.Name != "team a" || a.Sandboxes != 5 || a.MaxLifetime != time.Hour || p.Missing["snapshot"] != "not in this plan" ||
		len(p.Abilities) != 1 {
		t.Errorf("account %+v, abilities %q, missing %q", p.Account, p.Abilities, p.Missing)
	}
	far.Inject(fake.Fault{Op: fake.OpReadAccount, Err: sandpit.Errorf(sandpit.Unauthenticated, "the key is not valid"), Times: -1})
	if err := json.Unmarshal([]byte(r.ask("GET", "/v1/providers", "", http.StatusOK)), &page); err != nil {
		t.Fatal(err)
	}
	if p := page.Items[2]; p.Available || p.Reason != "the key is not valid" {
		t.Errorf("with a wrong key: %+v", p)
	}
}

// TestUnknownProviders refuses names of providers that do not exist, wherever the configuration has
// them.
func TestUnknownProviders(t *testing.T) {
	t.Parallel()
	world := newWorld(t)
	for _, lines := range [][]string{
		{"[providers]", "max_sandboxes = { mars = 1 }"},
		{"[providers]", "max_sandbox_hours = { mars = 1 }"},
		{"[providers]", "create_timeout = { mars = 1 }"},
		{"[providers]", "call_timeout = { mars = 1 }"},
		nil,
	} {
		cfg := configured(t, lines...)
		if lines == nil {
			cfg.ProviderList = []string{"fake", "mars"}
		}
		err := serveWith(t.Context(), cfg, Options{}, fakes(world))
		if err == nil || err.Error() != `Unsupported provider type: "mars". Available providers: fake, broken` {
			t.Errorf("%q: %v", lines, err)
		}
	}
}
