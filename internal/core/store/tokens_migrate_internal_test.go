package store

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestTokensMigrate upgrades a state without tokens: only the credentials of E2B's clients
// stay valid, for a day.
func TestTokensMigrate(t *testing.T) {
	t.Parallel()
	own, err := loadMigrations(embedded)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(own, func(m migration) bool { return strings.HasSuffix(m.name, "_tokens.sql") })
	if at < 0 {
		t.Fatal("there is no such migration")
	}
	s := openWith(t, own[:at])
	insert := func(id, state, pool, spec string) {
		t.Helper()
		if _, err := s.writer.exec(t.Context(), `INSERT INTO sandboxes (id, owner, provider, state, reason, spec, action, request_key, request_digest,
			pool, recreated, version, idle_timeout, idle_action, auto_stop, auto_archive, auto_delete, recreate, ignore_background)
			VALUES (?, 'ann', 'p', ?, '', ?, '', '', '', ?, 0, 1, 0, '', 0, 0, 0, 0, 0)`, id, state, spec, pool); err != nil {
			t.Fatal(err)
		}
	}
	const made = `{"labels":{"sandpit.e2b":"{\"template\":\"base\"}"}}`
	for id, row := range map[string][3]string{
		"sa": {"running", "", made}, "sb": {"paused", "", made}, "sc": {"deleted", "", made}, "sd": {"running", "pool", made}, "se": {"running", "", `{}`},
	} {
		insert(id+strings.Repeat("x", 18), row[0], row[1], row[2])
	}
	if _, err := s.writer.exec(t.Context(), `INSERT INTO ssh_keys VALUES ('k', 'ann', 'SHA256:`+strings.Repeat("A", 43)+`', 'ssh-ed25519', '', 1, NULL)`); err != nil {
		t.Fatal(err)
	}
	if err := s.applyMigrations(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	list, err := s.Credentials().ListTokens(t.Context(), TokenFilter{}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[sandpit.ID][]TokenKind{}
	for _, one := range list {
		kinds[one.Sandbox] = append(kinds[one.Sandbox], one.Kind)
		left := time.Until(one.ExpiresAt)
		if !one.Legacy || one.Owner != "ann" || one.Key != "" || left > 24*time.Hour || left < 23*time.Hour {
			t.Errorf("%+v", one)
		}
	}
	if len(kinds) != 2 || len(list) != 4 || len(kinds["sa"+sandpit.ID(strings.Repeat("x", 18))]) != 2 {
		t.Errorf("tokens of %v", kinds)
	}
	if keys, err := s.Credentials().ListSSHKeys(t.Context(), "ann"); err != nil || len(keys) != 1 || keys[0].APIKey != "" {
		t.Errorf("SSH keys: %+v, %v", keys, err)
	}
	later, err := s.Credentials().AccessTokens(t.Context(), []Token{{
		ID: strings.Repeat("a", 20), Kind: TokenGuest, Sandbox: list[0].Sandbox, Port: 49983, CreatedAt: time.Now(),
	}})
	if err != nil || later[0].Legacy || later[0].ID != strings.Repeat("a", 20) {
		t.Errorf("asked for again: %+v, %v", later, err)
	}
}

// openWith opens a state that has only some migrations.
func openWith(t *testing.T, list []migration) *Store {
	t.Helper()
	dir := t.TempDir()
	lock, err := takeLock(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &Store{dir: dir, now: time.Now, lock: lock}
	if err := s.prepareFile(); err != nil {
		t.Fatal(err)
	}
	if s.reserve, err = openReserve(dir); err != nil {
		t.Fatal(err)
	}
	if s.writer, err = s.openWriter(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.applyMigrations(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if s.reader, err = s.openReader(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}
