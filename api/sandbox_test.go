package api_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
)

func TestCreateRequestJSON(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]api.CreateRequest{
		`{}`:                     {},
		`{"timeout_seconds":-1}`: {Timeout: -time.Second},
		`{"spec":{"image":"host"},"provider":"gvisor","on_timeout":"stop","policy":{"auto_stop_seconds":1},"offline":true,` +
			`"network_secrets":{"A":"a"},"secrets":{"B":"b"},"allow_paths":["/c"],"repository":{"url":"d"},` +
			`"timeout_seconds":0.5,"create_timeout_seconds":2}`: {
			Spec: sandpit.Spec{Image: "host"}, Provider: "gvisor", Timeout: time.Second / 2, OnTimeout: sandpit.ActionStop,
			Policy: sandpit.Policy{AutoStop: time.Second}, Offline: true, NetworkSecrets: map[string]string{"A": "a"},
			Secrets: map[string]string{"B": "b"}, AllowPaths: []string{"/c"}, Repository: &api.Repository{URL: "d"},
			CreateTimeout: 2 * time.Second,
		},
	} {
		text, err := json.Marshal(r)
		if err != nil || string(text) != want {
			t.Errorf("%+v became %s, %v; want %s", r, text, err, want)
		}
		var got api.CreateRequest
		if err := json.Unmarshal(text, &got); err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(r, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for _, text := range []string{
		`{"timeout_seconds":1e300}`, `{"timeout_seconds":-4e9}`, `{"create_timeout_seconds":1e300}`, `{"timeout_seconds":"1h"}`,
		`{"policy":{"auto_stop_seconds":1e300}}`, `{"provider":"a","providers":["b"]}`,
	} {
		var r api.CreateRequest
		if err := json.Unmarshal([]byte(text), &r); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}
