package tool_test

import (
	"context"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestFrozenSandbox has sessions that share a sandbox go on after that was paused, in memory
// and on disk: interpreters with their variables, files with their owners, shells too
// unless memory was given back, which closes all connections; then they say so.
func TestFrozenSandbox(t *testing.T) {
	t.Parallel()
	box := newBox(t)
	sessions := tool.NewSessions(tool.SessionsOptions{
		Open: func(context.Context, string) (tool.Box, error) {
			return tool.Box{Guest: box.Guest(), Close: func(context.Context) error { return nil }}, nil
		},
	})
	members := map[string]kit{"one": newMember(t, sessions, "one"), "two": newMember(t, sessions, "two")}
	for id, k := range members {
		k.want("python_exec", fields{"code": "kept = '" + id + "'"})
		k.want("shell_exec", fields{"command": "kept=" + id + "; echo " + id + " >file"})
	}
	const fresh = "in a new shell"
	pauser := box.(sandpit.Pauser)
	for _, step := range []struct {
		freeze func(context.Context) error
		shell  func(id string) string
	}{
		{pauser.Pause, func(id string) string { return "<" + id + ">" }},
		{box.(sandpit.Suspender).Suspend, func(string) string { return fresh }},
	} {
		if err := step.freeze(t.Context()); err != nil {
			t.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
		}
		if err := pauser.Resume(t.Context()); err != nil {
			t.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
		}
		for id, k := range members {
			k.want("shell_exec", fields{"command": `echo "<$kept>"; cat file`}, id+"\n", step.shell(id))
			k.lacks(k.want("shell_exec", fields{"command": "cat file"}, id), fresh)
			k.want("python_exec", fields{"code": "kept"}, id)
		}
	}
	if err := sessions.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
