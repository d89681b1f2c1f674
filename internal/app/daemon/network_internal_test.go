package daemon

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// ceilingLines are a configuration with defaults and a ceiling.
var ceilingLines = []string{
	"[network]", "allow = ['a.example.org:443']", "ceiling_allow = ['*.example.org:443', '93.184.0.0/16']",
	"ceiling_deny = ['bad.example.org']", "ceiling_send = '1m'",
}

// TestCeiling asks a server for sandboxes within and beyond its ceiling, and for other
// rules while they run.
func TestCeiling(t *testing.T) {
	t.Parallel()
	cfg := configured(t, ceilingLines...)
	cfg.Engine, cfg.Provider = testengine.Path(t), "gvisor"
	r := start(t, cfg, registrations())
	s := r.sandbox("POST", "/v1/sandboxes", `{"spec":{"network":{"online":true}}}`, http.StatusCreated)
	if n := s.Spec.Network; !slices.Equal(n.Allow, []string{"a.example.org:443"}) || !slices.Equal(n.Deny, []string{"bad.example.org"}) || n.Limits.Send != 1<<20 {
		t.Errorf("by default: %+v", n)
	}
	for _, body := range []string{
		`{"online":true,"allow":["0.0.0.0/0"]}`, `{"online":true,"allow":["a.example.org"]}`, `{"online":true,"allow":["10.0.0.1"]}`,
		`{"online":true,"limits":{"send":1048577}}`,
	} {
		if got := r.ask("POST", "/v1/sandboxes", `{"spec":{"network":`+body+`}}`, http.StatusForbidden); !strings.Contains(got, "network.ceiling_") {
			t.Errorf("%s: %s, want the setting that refuses it", body, got)
		}
	}
	path := "/v1/sandboxes/" + string(s.ID) + "/network"
	r.ask("PUT", path, `{"allow":["93.184.215.14","b.example.org:443"]}`, http.StatusOK)
	for _, body := range []string{`{"allow":["93.0.0.0/8"]}`, `{"allow":["*.org:443"]}`, `{"limits":{"send":2097152}}`} {
		r.ask("PUT", path, body, http.StatusForbidden)
	}
	got := r.sandbox("GET", "/v1/sandboxes/"+string(s.ID), "", http.StatusOK).Spec.Network
	if !slices.Equal(got.Allow, []string{"93.184.215.14", "b.example.org:443"}) || !slices.Equal(got.Deny, []string{"bad.example.org"}) || got.Limits.Send != 1<<20 {
		t.Errorf("after what was refused: %+v", got)
	}
	// A policy that says nothing is no way out.
	r.ask("PUT", path, `{}`, http.StatusOK)
	if got := r.sandbox("GET", "/v1/sandboxes/"+string(s.ID), "", http.StatusOK).Spec.Network; !slices.Equal(got.Allow, []string{"*.example.org:443", "93.184.0.0/16"}) {
		t.Errorf("without rules: %+v, want the ceiling", got)
	}
	offline := r.sandbox("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
	if got := offline.Spec.Network; !got.Equal(sandpit.NetworkPolicy{}) {
		t.Errorf("offline: %+v", got)
	}
	for _, id := range []sandpit.ID{s.ID, offline.ID} { // they would outlive the server
		r.ask("DELETE", "/v1/sandboxes/"+string(id), "", http.StatusNoContent)
	}
}

// TestForbidden refuses every sandbox with a network.
func TestForbidden(t *testing.T) {
	t.Parallel()
	r := start(t, configured(t, "[network]", "forbid = true"), fakes(newWorld(t)))
	r.ask("POST", "/v1/sandboxes", `{"spec":{"network":{"online":true}}}`, http.StatusForbidden)
	r.ask("POST", "/v1/sandboxes", `{}`, http.StatusCreated)
}

// TestLocalCeiling is the same without a server, for a real sandbox.
func TestLocalCeiling(t *testing.T) {
	t.Parallel()
	cfg := configured(t, ceilingLines...)
	cfg.Provider, cfg.Engine = "gvisor", testengine.Path(t)
	local, err := OpenLocal(t.Context(), cfg, Listeners{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = local.Close() }()
	_, err = local.Create(t.Context(), sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{"0.0.0.0/0"}}})
	if !errors.Is(err, sandpit.PermissionDenied) {
		t.Errorf("beyond the ceiling: %v", err)
	}
	box, err := local.Create(t.Context(), sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true}})
	if err != nil {
		t.Fatal(err)
	}
	inspector, ok := sandpit.As[sandpit.NetworkInspector](box)
	if !ok {
		t.Fatal("nothing tells what it may reach")
	}
	for _, target := range []string{"198.41.0.4:443", "93.184.215.14:443"} {
		if list, err := inspector.TestNetwork(t.Context(), target); err != nil || len(list) == 0 || list[0].Allowed {
			t.Errorf("%s: %+v, %v, want it denied by the default", target, list, err)
		}
	}
}

// TestExamineNetwork has the doctor tell of a ceiling.
func TestExamineNetwork(t *testing.T) {
	t.Parallel()
	if got := examineNetwork(configured(t, ceilingLines...)); got.Name != "network" || got.Failed || !strings.Contains(got.Text, "at most allow *.example.org:443") {
		t.Errorf("%+v", got)
	}
}
