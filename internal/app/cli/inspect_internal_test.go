package cli

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// TestInspectTellsPolicies shows everything that decides what becomes of a sandbox and what it
// may reach, and no value of a secret.
func TestInspectTellsPolicies(t *testing.T) {
	t.Parallel()
	i := inspected{Sandbox: sandpit.Sandbox{
		State: sandpit.StateRunning,
		Spec: sandpit.Spec{
			Secrets: []string{"TOKEN", "OTHER"},
			Mounts:  []sandpit.Mount{{Source: "/src", Target: "/dst", ReadOnly: true}, {Volume: "data", Target: "/data"}},
			Network: sandpit.NetworkPolicy{
				Online: true, Allow: []string{"pypi.org:443", "*.pypi.org"}, Deny: []string{"10.0.0.0/8"},
				Headers: []sandpit.NetworkHeader{{Host: "api.example.com", Name: "Authorization", Value: "Bearer literal ${KEY} ${KEY}"}},
				Limits:  sandpit.NetworkLimits{Receive: 1 << 20, Connections: 5, ConnectionRate: 1},
			},
		},
		Lease: sandpit.Lease{Owner: "ann", Deadline: time.Now().Add(24*time.Hour + time.Second), Action: sandpit.ActionPause},
		Policy: sandpit.Policy{
			IdleTimeout: 90 * time.Minute, IdleAction: sandpit.ActionStop, AutoArchive: 48 * time.Hour, AutoDelete: 7 * 24 * time.Hour,
			AutoStop: time.Hour, AutoSuspend: 30 * time.Second, CheckpointEvery: time.Minute, Recreate: 1, WakeOnUse: true, IgnoreBackground: true,
		},
		Next: sandpit.Upcoming{Action: sandpit.ActionStop, At: time.Now().Add(time.Hour + time.Second), Cause: sandpit.CauseIdle},
	}}
	var got []string
	for _, row := range i.detailRows() {
		switch row[0] {
		case "Network", "Allowed", "Denied", "Header", "Network limits", "Secrets", "Policy", "Mount":
			got = append(got, row[0]+": "+row[1])
		case "Deadline", "Next":
			_, after, _ := strings.Cut(row[1], "(")
			got = append(got, row[0]+": "+after)
		}
	}
	want := []string{
		"Deadline: in 24 h), pause",
		"Next: in 60 min), idle",
		"Secrets: TOKEN, OTHER",
		"Policy: stop after 1h30m without use",
		"Policy: stop after 1h without use",
		"Policy: suspend after 30s without use or paused",
		"Policy: archive after 2d stopped",
		"Policy: delete after 7d stopped or archived",
		"Policy: save files every 1m",
		"Policy: recreate 1 time",
		"Policy: resume on use",
		"Policy: ignore background programs",
		"Network: online, only what is allowed",
		"Allowed: pypi.org:443, *.pypi.org",
		"Denied: 10.0.0.0/8",
		"Header: api.example.com: Authorization (secret KEY)",
		"Network limits: receive 1 MiB/s, 5 connections, 1 new connection a second",
		"Mount: /src:/dst:ro",
		"Mount: data:/data:rw",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestShowNext(t *testing.T) {
	t.Parallel()
	later := time.Now().Add(time.Hour + time.Second)
	for want, s := range map[string]sandpit.Sandbox{
		"":                     {State: sandpit.StateRunning},
		"kill in 60 min":       {Next: sandpit.Upcoming{Action: sandpit.ActionKill, At: later}, ResumesOnUse: true},
		"resume on use":        {State: sandpit.StatePaused, ResumesOnUse: true},
		"suspend 1h after use": {State: sandpit.StateRunning, Policy: sandpit.Policy{IdleTimeout: time.Hour, IdleAction: sandpit.ActionSuspend}},
	} {
		if got := formatNext(s); got != want {
			t.Errorf("%+v: %q, want %q", s, got, want)
		}
	}
}
