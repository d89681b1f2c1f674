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
)

// TestPolicySchema compares the description of a policy with a policy that has every field.
func TestPolicySchema(t *testing.T) {
	t.Parallel()
	full, err := json.Marshal(sandpit.Policy{
		IdleTimeout: time.Second, IdleAction: sandpit.ActionKill, AutoStop: time.Second, AutoSuspend: time.Second, AutoArchive: time.Second,
		AutoDelete: time.Second, Recreate: 1, CheckpointEvery: time.Second, IgnoreBackground: true, WakeOnUse: true,
	})
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
	r := newRig(t, nil)
	r.want(t, ask{method: "GET", path: "/openapi.json"}, http.StatusOK, &document)
	described := document.Components.Schemas["Policy"].Properties
	if diff := cmp.Diff(slices.Sorted(maps.Keys(fields)), slices.Sorted(maps.Keys(described))); diff != "" {
		t.Errorf("fields of a policy (-Go +description):\n%s", diff)
	}
}
