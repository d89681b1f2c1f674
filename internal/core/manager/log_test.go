package manager_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"log/slog"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// said returns the lines of a log that have a message.
func said(t *testing.T, log, message string) (list []map[string]any) {
	t.Helper()
	for line := range strings.Lines(log) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		if fields["msg"] == message {
			list = append(list, fields)
		}
	}
	return list
}

// TestLog: at the level info the log has what is done to sandboxes, why it failed, and what is
// lost, with the request; events name the request, too.
func TestLog(t *testing.T) {
	t.Parallel()
	log := &logbook{}
	r := newRig(t, manager.Options{Log: slog.New(slog.NewJSONHandler(log, nil))})
	ctx := manager.WithRequestID(manager.WithActor(t.Context(), "ann"), "req-7")
	b, err := r.Create(ctx, manager.CreateRequest{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range said(t, log.String(), "manager: create") {
		if line["level"] != "INFO" || line["request_id"] != "req-7" || line["actor"] != "ann" || line["sandbox"] != string(b.ID) {
			t.Errorf("the log says %v", line)
		}
	}
	// A directory of the server that is lost is nothing that the caller did not find.
	r.world.Inject(fake.Fault{Op: fake.OpCreate, Err: &fs.PathError{Op: "mkdir", Path: "/srv/x", Err: fs.ErrNotExist}, Times: 1})
	_, err = r.Create(ctx, manager.CreateRequest{Owner: "ann"})
	wantCode(t, err, sandpit.Internal)
	if s := sandpit.SubjectOf(err); s.Provider != "fake" || s.Operation != "create" || s.Sandbox == "" {
		t.Errorf("the error concerns %+v", s)
	}
	failed := said(t, log.String(), "manager: create failed")
	if len(failed) != 1 || failed[0]["request_id"] != "req-7" || failed[0]["code"] != "internal" || failed[0]["error"] == nil || failed[0]["provider"] != "fake" {
		t.Errorf("the log says %v", failed)
	}
	if err := r.world.Kill(b.ID, sandpit.Exit{Reason: "it broke down"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is lost", func() bool { return r.state(b.ID) == sandpit.StateDeleted })
	eventually(t, "the log has the loss", func() bool {
		lost := said(t, log.String(), "manager: sandbox lost")
		return len(lost) == 1 && lost[0]["level"] == "WARN" && lost[0]["sandbox"] == string(b.ID) && lost[0]["reason"] != nil
	})
	eventually(t, "the events are written", func() bool {
		list, err := r.store.Events().ListEvents(context.WithoutCancel(t.Context()), store.EventFilter{Action: "create"})
		return err == nil && len(list) == 2 && list[0].Args["request"] == "req-7" && list[1].Args["request"] == "req-7"
	})
	if n := len(said(t, log.String(), "manager: create")); n != 1 {
		t.Errorf("the log has %d lines of one creation", n)
	}
}
