package store

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// TestNamesMigrate upgrades a state in which names are not unique: every sandbox is still
// there, and no two of an owner have the same name.
func TestNamesMigrate(t *testing.T) {
	t.Parallel()
	own, err := loadMigrations(embedded)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(own, func(m migration) bool { return strings.HasSuffix(m.name, "_names.sql") })
	if at < 0 {
		t.Fatal("there is no such migration")
	}
	s := openWith(t, own[:at])
	id := func(n string) string { return "s" + strings.Repeat("x", 19-len(n)) + n }
	long := strings.Repeat("y", 1_020_000)
	for n, row := range map[string][4]string{ // owner, state, pool, spec
		"1":  {"ann", "running", "", `{"name":"work","env":{"A":"<\u003c"}}`},
		"2":  {"ann", "stopped", "", `{"name":"work","labels":{"a":"b"}}`},
		"3":  {"ann", "running", "", `{"name":"work"}`},
		"4":  {"ann", "running", "", `{"name":"work-3"}`},
		"5":  {"ann", "deleted", "", `{"name":"work"}`},
		"6":  {"ann", "running", "pool", `{"name":"work"}`},
		"7":  {"bob", "running", "", `{"name":"work"}`},
		"8":  {"ann", "running", "", `{}`},
		"9":  {"ann", "running", "", `{"name":""}`},
		"10": {"ann", "running", "", `no JSON`},
		"11": {"ann", "running", "", `{"name":"work","user":"` + long + `"}`},
		"12": {"eve", "running", "", `{"name":"a b"}`},
		"13": {"eve", "running", "", `{"name":"a b"}`},
		"14": {"eve", "running", "", `{"name":"a b-2"}`},
		"15": {"eve", "running", "", `{"name":"a b-` + id("13") + `"}`},
	} {
		created := 1000 + len(n)*100 + int(n[len(n)-1])
		if _, err := s.writer.exec(t.Context(), `INSERT INTO sandboxes (id, owner, provider, state, reason, spec, action, request_key, request_digest,
			pool, recreated, created_at, version, idle_timeout, idle_action, auto_stop, auto_archive, auto_delete, recreate, ignore_background)
			VALUES (?, ?, 'p', ?, '', ?, '', '', '', ?, 0, ?, 1, 0, '', 0, 0, 0, 0, 0)`, id(n), row[0], row[1], row[3], row[2], created); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.applyMigrations(t.Context(), own); err != nil {
		t.Fatal(err)
	}
	rows, err := s.Sandboxes().ListSandboxes(t.Context(), Filter{})
	if err == nil || !strings.Contains(err.Error(), id("10")) {
		t.Errorf("the row that cannot be read: %v", err)
	}
	got := map[string]string{}
	for _, row := range rows {
		got[strings.TrimLeft(string(row.ID), "sx")] = row.Spec.Name
		if _, err := s.Sandboxes().UpdateSandbox(t.Context(), row); err != nil {
			t.Errorf("sandbox %s cannot be written any more: %v", row.ID, err)
		}
	}
	want := map[string]string{
		"1": "work", "2": "work-2", "3": "work-" + id("3"), "4": "work-3", "5": "work", "6": "work", "7": "work", "8": "", "9": "", "11": "",
		"12": "a b", "13": "", "14": "a b-2", "15": "a b-" + id("13"),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("names (-want +got):\n%s", diff)
	}
	for _, row := range rows {
		if row.ID == sandpit.ID(id("2")) && row.Spec.Labels["a"] != "b" || row.ID == sandpit.ID(id("1")) && row.Spec.Env["A"] != "<<" {
			t.Errorf("the rest of the spec has changed: %+v", row.Spec)
		}
	}
}
