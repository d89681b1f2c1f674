package sandpit_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func TestPolicyJSON(t *testing.T) {
	t.Parallel()
	for want, p := range map[string]sandpit.Policy{
		`{}`: {},
		`{"idle_timeout_seconds":-1,"idle_action":"suspend"}`: {IdleTimeout: -time.Second, IdleAction: sandpit.ActionSuspend},
		`{"idle_timeout_seconds":0.5,"idle_action":"kill","auto_stop_seconds":1,"auto_suspend_seconds":2,"auto_archive_seconds":3,` +
			`"auto_delete_seconds":4,"checkpoint_every_seconds":10,"wake_on_use":true,"recreate":5,"ignore_background":true}`: {
			IdleTimeout: time.Second / 2, IdleAction: sandpit.ActionKill, AutoStop: time.Second, AutoSuspend: 2 * time.Second,
			AutoArchive: 3 * time.Second, AutoDelete: 4 * time.Second, CheckpointEvery: 10 * time.Second,
			WakeOnUse: true, Recreate: 5, IgnoreBackground: true,
		},
	} {
		text, err := json.Marshal(p)
		if err != nil || string(text) != want {
			t.Errorf("%+v became %s, %v; want %s", p, text, err, want)
		}
		var got sandpit.Policy
		if err := json.Unmarshal(text, &got); err != nil || got != p {
			t.Errorf("%s: %v (-want +got):\n%s", text, err, cmp.Diff(p, got))
		}
	}
	var p sandpit.Policy
	for _, text := range []string{`{"idle_timeout_seconds":1e300}`, `{"auto_stop_seconds":-1e300}`, `{"auto_delete_seconds":4e9}`, `{"idle_timeout_seconds":"1h"}`} {
		if err := json.Unmarshal([]byte(text), &p); err == nil {
			t.Errorf("%s was accepted", text)
		}
	}
}
