package store

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestIdleMigrate upgrades a state from before sandboxes resumed because they had been idle:
// they keep their policies, and none counts as idle.
func TestIdleMigrate(t *testing.T) {
	t.Parallel()
	own, err := loadMigrations(embedded)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(own, func(m migration) bool { return strings.HasSuffix(m.name, "_idle.sql") })
	if at < 0 {
		t.Fatal("there is no such migration")
	}
	s := openWith(t, own[:at])
	id := sandpit.ID("s" + strings.Repeat("a", 19))
	if _, err := s.writer.exec(t.Context(), `INSERT INTO sandboxes (id, owner, provider, state, reason, spec, action, request_key, request_digest,
		pool, recreated, version, idle_timeout, idle_action, auto_stop, auto_archive, auto_delete, recreate, ignore_background, suspended)
		VALUES (?, 'ann', 'p', 'paused', 'idle for 1h0m0s', '{}', 'kill', '', '', '', 0, 1, 3600000000000, 'pause', 0, 0, 0, 0, 0, 1)`, id); err != nil {
		t.Fatal(err)
	}
	if err := s.applyMigrations(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	row, err := s.Sandboxes().Sandbox(t.Context(), id)
	if err != nil || row.Idled || row.Policy.IdleAction != sandpit.ActionPause || !row.Suspended {
		t.Errorf("%+v, %v", row, err)
	}
	row.Idled = true
	if row, err = s.Sandboxes().UpdateSandbox(t.Context(), row); err != nil || !row.Idled {
		t.Errorf("%+v, %v", row, err)
	}
}
