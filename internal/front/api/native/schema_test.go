package native_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
)

// TestSchemas compares the descriptions of types that have JSON methods with values that have every
// field.
func TestSchemas(t *testing.T) {
	t.Parallel()
	policy := sandpit.Policy{
		IdleTimeout: time.Second, IdleAction: sandpit.ActionKill, AutoStop: time.Second, AutoSuspend: time.Second, AutoArchive: time.Second,
		AutoDelete: time.Second, Recreate: 1, CheckpointEvery: time.Second, IgnoreBackground: true, WakeOnUse: true,
	}
	some := map[string]string{"A": "a"}
	r := newRig(t, nil)
	for name, value := range map[string]any{
		"Policy": policy,
		"CreateSandbox": api.CreateRequest{
			Spec: sandpit.Spec{Name: "a"}, Provider: "a", Providers: []string{"a"}, Timeout: time.Second, OnTimeout: sandpit.ActionKill, Policy: policy, Offline: true,
			NetworkSecrets: some, Secrets: some, AllowPaths: []string{"/a"}, Repository: &api.Repository{}, CreateTimeout: time.Second,
		},
	} {
		checkSchema(t, r, name, value)
	}
}

func checkSchema(t *testing.T, r *rig, name string, value any) {
	t.Helper()
	full, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(full, &fields); err != nil {
		t.Fatal(err)
	}
	var document struct {
		Components struct {
			Schemas map[string]struct {
				Properties map[string]any `json:"properties"`
			} `json:"schemas"`
		} `json:"components"`
	}
	r.want(t, ask{method: "GET", path: "/openapi.json"}, http.StatusOK, &document)
	described := document.Components.Schemas[name].Properties
	if diff := cmp.Diff(slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(described))); diff != "" {
		t.Errorf("fields of %s (-Go +description):\n%s", name, diff)
	}
}
