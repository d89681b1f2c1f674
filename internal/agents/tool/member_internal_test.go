package tool

import (
	"context"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

// listing is a guest that knows of processes of two sessions, and of one of no session.
type listing struct{ sandpit.Guest }

func (listing) ListProcesses(context.Context) ([]sandpit.ProcessInfo, error) {
	return []sandpit.ProcessInfo{
		{PID: 1},
		{PID: 2, Env: map[string]string{sessionVariable: "40001:40001"}},
		{PID: 3, Env: map[string]string{sessionVariable: "40002:40002", "HOME": "/sessions/one"}},
	}, nil
}

func (listing) Connect(context.Context, int, sandpit.Streams) (sandpit.Process, error) {
	return nil, nil //nolint:nilnil // it was let through
}

// TestMemberSeesItsOwn has a session look for programs of others.
func TestMemberSeesItsOwn(t *testing.T) {
	t.Parallel()
	m := sessionGuest{listing{}, applet.SessionUser{ID: "one", UID: 40001, Dir: "/sessions/one"}}
	own, err := m.ListProcesses(t.Context())
	if err != nil || len(own) != 1 || own[0].PID != 2 {
		t.Errorf("processes: %+v, %v", own, err)
	}
	for pid, want := range map[int]sandpit.Code{1: sandpit.NotFound, 2: "", 3: sandpit.NotFound, 4: sandpit.NotFound} {
		if _, err := m.Connect(t.Context(), pid, sandpit.Streams{}); sandpit.CodeOf(err) != want {
			t.Errorf("follow %d: %v", pid, err)
		}
	}
}
