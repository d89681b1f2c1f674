package store_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// newToken returns a token of a sandbox that uses every field.
func newToken(n int, kind store.TokenKind, id sandpit.ID) store.Token {
	t := store.Token{
		ID: fmt.Sprintf("%020x", n), Kind: kind, Sandbox: id, Port: 8000, Creator: "ann", PortEpoch: 3, Note: "für Carol", CreatedAt: begin,
	}
	switch kind {
	case store.TokenPreview:
		t.ExpiresAt = begin.Add(time.Hour)
	case store.TokenTraffic:
		t.Port = 0
	case store.TokenGuest:
		t.Port = 49983
	}
	return t
}

func insertToken(tb testing.TB, s *store.Store, t store.Token) store.Token {
	tb.Helper()
	got, err := s.Credentials().InsertToken(tb.Context(), t)
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

// TestTokens stores tokens, finds and lists them, and deletes them with what they depend on.
func TestTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	one, other := insert(t, s, nil), insert(t, s, func(r *store.Row) { r.Lease.Owner = "bob" })
	if _, err := s.Credentials().InsertKey(t.Context(), key(1)); err != nil {
		t.Fatal(err)
	}
	bound := newToken(1, store.TokenPreview, one.ID)
	bound.Key = key(1).ID
	expect := bound
	expect.Owner = "anna"
	if diff := cmp.Diff(expect, insertToken(t, s, bound)); diff != "" {
		t.Errorf("inserted (-want +got):\n%s", diff)
	}
	insertToken(t, s, newToken(2, store.TokenPreview, one.ID))
	insertToken(t, s, newToken(3, store.TokenTraffic, other.ID))
	if err := s.Credentials().TouchToken(t.Context(), bound.ID, begin.Add(time.Minute)); err != nil {
		t.Error(err)
	}
	expect.LastUsedAt = begin.Add(time.Minute)
	if got, err := s.Credentials().Token(t.Context(), bound.ID); err != nil || cmp.Diff(expect, got) != "" {
		t.Errorf("read: %v (-want +got):\n%s", err, cmp.Diff(expect, got))
	}
	list := func(f store.TokenFilter, at time.Time) string {
		t.Helper()
		found, err := s.Credentials().ListTokens(t.Context(), f, at)
		if err != nil {
			t.Fatal(err)
		}
		numbers := make([]string, len(found))
		for i, one := range found {
			numbers[i] = strings.TrimLeft(one.ID, "0")
		}
		return strings.Join(numbers, " ")
	}
	for _, tc := range []struct {
		filter store.TokenFilter
		at     time.Time
		want   string
	}{
		{store.TokenFilter{}, begin, "1 2 3"},
		{store.TokenFilter{Owner: "anna"}, begin, "1 2"},
		{store.TokenFilter{Sandbox: other.ID}, begin, "3"},
		{store.TokenFilter{Kind: store.TokenTraffic}, begin, "3"},
		{store.TokenFilter{Owner: "nobody"}, begin, ""},
		{store.TokenFilter{After: bound.ID, Limit: 1}, begin, "2"},
		{store.TokenFilter{}, begin.Add(time.Hour), "3"},
	} {
		if got := list(tc.filter, tc.at); got != tc.want {
			t.Errorf("%+v at %v: %q, want %q", tc.filter, tc.at, got, tc.want)
		}
	}
	if err := s.Credentials().DeleteKey(t.Context(), key(1).ID); err != nil {
		t.Fatal(err)
	}
	_, err := s.Credentials().Token(t.Context(), bound.ID)
	want(t, err, sandpit.NotFound, bound.ID)
	if err := s.Sandboxes().DeleteSandbox(t.Context(), other.ID); err != nil {
		t.Fatal(err)
	}
	if got := list(store.TokenFilter{}, begin); got != "2" {
		t.Errorf("after their key and their sandbox: %q, want 2", got)
	}
	if ids, err := s.Credentials().DeletePortTokens(t.Context(), one.ID, 8000); err != nil || !slices.Equal(ids, []string{newToken(2, "", "").ID}) {
		t.Errorf("deleted for the port: %q, %v", ids, err)
	}
	want(t, s.Credentials().DeleteToken(t.Context(), newToken(2, "", "").ID), sandpit.NotFound, "not found")
	insertToken(t, s, newToken(4, store.TokenPreview, one.ID))
	raw(t, dir, `UPDATE sandboxes SET state = 'deleted'`)
	if got := list(store.TokenFilter{}, begin); got != "" {
		t.Errorf("of a sandbox that was deleted: %q", got)
	}
}

// TestTokenRefusals are what cannot be stored.
func TestTokenRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	one := insert(t, s, nil)
	good := newToken(1, store.TokenPreview, one.ID)
	for name, tc := range map[string]struct {
		change func(*store.Token)
		code   sandpit.Code
	}{
		"no sandbox":   {func(t *store.Token) { t.Sandbox = sandpit.NewID() }, sandpit.NotFound},
		"no API key":   {func(t *store.Token) { t.Key = "gone" }, sandpit.NotFound},
		"ID":           {func(t *store.Token) { t.ID = "12" }, sandpit.Invalid},
		"kind":         {func(t *store.Token) { t.Kind = "root" }, sandpit.Invalid},
		"port":         {func(t *store.Token) { t.Port = 65536 }, sandpit.Invalid},
		"all ports":    {func(t *store.Token) { t.Port = 0 }, sandpit.Invalid},
		"long note":    {func(t *store.Token) { t.Note = strings.Repeat("x", store.MaxTokenNote+1) }, sandpit.Invalid},
		"note's bytes": {func(t *store.Token) { t.Note = "\xff" }, sandpit.Invalid},
		"sandbox's ID": {func(t *store.Token) { t.Sandbox = "../x" }, sandpit.Invalid},
		"date":         {func(t *store.Token) { t.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) }, sandpit.Invalid},
	} {
		bad := good
		tc.change(&bad)
		_, err := s.Credentials().InsertToken(t.Context(), bad)
		if sandpit.CodeOf(err) != tc.code {
			t.Errorf("%s: %v, want %s", name, err, tc.code)
		}
	}
	fill := fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %%d)
		INSERT INTO tokens SELECT printf('%%s%%%%018x', i), 'preview', '%%s', 8000, 'anna', 'ann', '', 0, 0, 0, '', %d, %d, NULL FROM n`,
		begin.UnixMicro(), begin.Add(time.Hour).UnixMicro())
	raw(t, dir, fmt.Sprintf(fill, store.MaxSandboxTokens, "aa", one.ID))
	_, err := s.Credentials().InsertToken(t.Context(), good)
	want(t, err, sandpit.Exhausted, "1000 tokens of the kind preview")
	later := good
	later.CreatedAt, later.ExpiresAt = begin.Add(2*time.Hour), begin.Add(3*time.Hour)
	if _, err := s.Credentials().InsertToken(t.Context(), later); err != nil {
		t.Errorf("when the others have expired: %v", err)
	}
	raw(t, dir, fmt.Sprintf(fill, store.MaxOwnerTokens, "bb", sandpit.NewID()))
	other := insert(t, s, nil)
	another := newToken(2, store.TokenPreview, other.ID)
	_, err = s.Credentials().InsertToken(t.Context(), another)
	want(t, err, sandpit.Exhausted, "of the owner")
	another.Kind, another.Port, another.ExpiresAt = store.TokenGuest, 49983, time.Time{}
	if _, err := s.Credentials().InsertToken(t.Context(), another); err != nil {
		t.Errorf("a guest's: %v", err)
	}
	if err := s.Credentials().PruneTokens(t.Context(), begin.Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Credentials().ListTokens(t.Context(), store.TokenFilter{}, begin); err != nil || len(list) != 2 {
		t.Errorf("%d tokens are left, %v; want 2", len(list), err)
	}
}

// TestAccessTokens checks that a key gets the same tokens again, and another key gets others.
func TestAccessTokens(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	one := insert(t, s, nil)
	for n := range 2 {
		if _, err := s.Credentials().InsertKey(t.Context(), key(n)); err != nil {
			t.Fatal(err)
		}
	}
	number := 0
	ask := func(key string) []store.Token {
		t.Helper()
		number += 10
		guest, traffic := newToken(number, store.TokenGuest, one.ID), newToken(number+1, store.TokenTraffic, one.ID)
		guest.Key, traffic.Key = key, key
		list, err := s.Credentials().AccessTokens(t.Context(), []store.Token{guest, traffic})
		if err != nil {
			t.Fatal(err)
		}
		return list
	}
	first, second, third := ask(key(0).ID), ask(key(1).ID), ask("")
	for key, before := range map[string][]store.Token{key(0).ID: first, key(1).ID: second, "": third} {
		if diff := cmp.Diff(before, ask(key)); diff != "" {
			t.Errorf("asked again with key %q (-want +got):\n%s", key, diff)
		}
	}
	if first[0].ID == second[0].ID || first[0].ID == third[0].ID {
		t.Error("different keys have the same token")
	}
	if list, err := s.Credentials().GuestTokens(t.Context()); err != nil || len(list) != 3 {
		t.Errorf("%d tokens of guests, %v", len(list), err)
	}
	if epoch, err := s.Credentials().RaiseTokenEpoch(t.Context(), one.ID); err != nil || epoch != 1 {
		t.Errorf("epoch %d, %v", epoch, err)
	}
	if list, err := s.Credentials().ListTokens(t.Context(), store.TokenFilter{}, begin); err != nil || len(list) != 0 {
		t.Errorf("%d tokens after the epoch, %v", len(list), err)
	}
	if again := ask(key(0).ID); again[0].Epoch != 1 || again[0].ID == first[0].ID {
		t.Errorf("after the epoch: %+v", again[0])
	}
	changed := row()
	changed.ID, changed.Version = one.ID, 1
	if _, err := s.Sandboxes().UpdateSandbox(t.Context(), changed); err != nil { // which does not know of epochs
		t.Fatal(err)
	}
	if all, err := s.Credentials().TokenEpochs(t.Context()); err != nil || all[one.ID] != 1 || len(all) != 1 {
		t.Errorf("epochs %v, %v", all, err)
	}
	_, err := s.Credentials().RaiseTokenEpoch(t.Context(), sandpit.NewID())
	want(t, err, sandpit.NotFound, "not found")
}

// TestSSHKeyOfAPIKey is deleted with the API key.
func TestSSHKeyOfAPIKey(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	if _, err := s.Credentials().InsertKey(t.Context(), key(1)); err != nil {
		t.Fatal(err)
	}
	free, bound, lost := sshKey("ann", 1), sshKey("ann", 2), sshKey("ann", 3)
	bound.APIKey, lost.APIKey = key(1).ID, "gone"
	for _, k := range []store.SSHKey{free, bound} {
		if got, err := s.Credentials().InsertSSHKey(t.Context(), k); err != nil || got != k {
			t.Fatalf("%+v, %v", got, err)
		}
	}
	_, err := s.Credentials().InsertSSHKey(t.Context(), lost)
	want(t, err, sandpit.NotFound, "does not exist any more")
	if err := s.Credentials().DeleteKey(t.Context(), key(1).ID); err != nil {
		t.Fatal(err)
	}
	if list, err := s.Credentials().ListSSHKeys(t.Context(), "ann"); err != nil || len(list) != 1 || list[0] != free {
		t.Errorf("left: %+v, %v", list, err)
	}
}

// BenchmarkAccessTokens is what making a sandbox by E2B's API costs more.
func BenchmarkAccessTokens(b *testing.B) {
	s := open(b, b.TempDir())
	ids := make([]sandpit.ID, 1000)
	for i := range ids {
		ids[i] = insert(b, s, nil).ID
	}
	n := 0
	for b.Loop() {
		n++
		list := []store.Token{newToken(n, store.TokenGuest, ids[n%len(ids)])}
		list[0].Key = ""
		if _, err := s.Credentials().AccessTokens(b.Context(), list); err != nil {
			b.Fatal(err)
		}
	}
}
