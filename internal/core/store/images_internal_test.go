package store

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestOlderTemplatesAndImages opens what a version without shared templates has written.
func TestOlderTemplatesAndImages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(t.Context(), dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	const name = "migrations/0012_images.sql"
	ids := map[string]string{}
	err = s.writeTx(t.Context(), func(tx *writer) error {
		statements := []string{
			`ALTER TABLE templates DROP COLUMN shared`, `ALTER TABLE sandboxes DROP COLUMN prepared`, `ALTER TABLE sandboxes DROP COLUMN admin`,
			`DELETE FROM migrations WHERE name = '` + name + `'`,
		}
		for _, key := range []string{"('1', 'alice', 0)", "('2', 'ops', 1)", "('3', 'both', 1)", "('4', 'both', 0)"} {
			statements = append(statements, `INSERT INTO api_keys (id, hash, name, owner, admin) SELECT column1, column1, '', column2, column3 FROM (VALUES `+key+`)`)
		}
		for _, owner := range []string{"alice", "ops", "both", "gone", "local"} {
			ids[owner] = string(sandpit.NewTemplateID())
			statements = append(statements, `INSERT INTO templates (id, owner, name, public, spawned, created_at, updated_at)
				VALUES ('`+ids[owner]+`', '`+owner+`', 'tools', 1, 0, 1, 1)`)
		}
		ids["private"] = string(sandpit.NewTemplateID())
		statements = append(statements, `INSERT INTO templates (id, owner, name, public, spawned, created_at, updated_at)
			VALUES ('`+ids["private"]+`', 'ops', 'private', 0, 0, 1, 1)`)
		for _, statement := range statements {
			if _, err := tx.exec(t.Context(), statement); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		err = s.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	if s, err = Open(t.Context(), dir, Options{}); err != nil {
		t.Fatal(err)
	}
	for owner, want := range map[string]bool{"alice": false, "ops": true, "both": false, "gone": false, "local": true, "private": false} {
		found, err := s.Templates().Template(t.Context(), sandpit.TemplateID(ids[owner]))
		if err != nil || found.Shared != want {
			t.Errorf("%s's template is shared: %v, want %v (%v)", owner, found.Shared, want, err)
		}
	}
	if found, err := s.Templates().TemplateNamed(t.Context(), "alice", "tools"); err != nil || !found.Public {
		t.Errorf("alice's template is public: %v (%v)", found.Public, err)
	}
}
