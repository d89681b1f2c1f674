package store_test

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// key returns a key that uses every field.
func key(n int) store.Key {
	hash := make([]byte, 32)
	hash[0], hash[1] = byte(n), byte(n>>8)
	return store.Key{
		ID: fmt.Sprintf("key%03d", n), Hash: hex.EncodeToString(hash), Name: "näme", Owner: "ann", Admin: n%2 == 1,
		CreatedAt: begin, ExpiresAt: begin.Add(time.Hour), LastUsedAt: begin.Add(time.Minute),
	}
}

// TestKeys keeps keys, finds them, and forgets them.
func TestKeys(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for n := range 3 {
		got, err := s.Credentials().InsertKey(t.Context(), key(n))
		if diff := cmp.Diff(key(n), got); err != nil || diff != "" {
			t.Fatalf("insert: %v\n%s", err, diff)
		}
	}
	_, err := s.Credentials().InsertKey(t.Context(), key(1))
	want(t, err, sandpit.AlreadyExists, "key001")
	other := key(1)
	other.ID = "other"
	_, err = s.Credentials().InsertKey(t.Context(), other)
	want(t, err, sandpit.AlreadyExists, "other")
	list, err := s.Credentials().ListKeys(t.Context(), "key000", 10)
	if diff := cmp.Diff([]store.Key{key(1), key(2)}, list); err != nil || diff != "" {
		t.Errorf("list: %v\n%s", err, diff)
	}
	got, err := s.Credentials().KeyByHash(t.Context(), key(2).Hash)
	if diff := cmp.Diff(key(2), got); err != nil || diff != "" {
		t.Errorf("find: %v\n%s", err, diff)
	}
	if err := s.Credentials().TouchKey(t.Context(), "key002", begin.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if got, err := s.Credentials().KeyByHash(t.Context(), key(2).Hash); err != nil || !got.LastUsedAt.Equal(begin.Add(time.Hour)) {
		t.Errorf("touched: %+v, %v", got, err)
	}
	if err := s.Credentials().RenameKey(t.Context(), "key002", "other"); err != nil {
		t.Error(err)
	}
	if got, err := s.Credentials().KeyByHash(t.Context(), key(2).Hash); err != nil || got.Name != "other" {
		t.Errorf("renamed: %+v, %v", got, err)
	}
	want(t, s.Credentials().RenameKey(t.Context(), "key002", strings.Repeat("x", store.MaxKeyText+1)), sandpit.Invalid, "name")
	want(t, s.Credentials().RenameKey(t.Context(), "key002", "\xff"), sandpit.Invalid, "name")
	want(t, s.Credentials().RenameKey(t.Context(), "key009", "x"), sandpit.NotFound, "key009")
	if err := s.Credentials().DeleteKey(t.Context(), "key002"); err != nil {
		t.Error(err)
	}
	want(t, s.Credentials().DeleteKey(t.Context(), "key002"), sandpit.NotFound, "key002")
	if err := s.Credentials().TouchKey(t.Context(), "key002", begin); err != nil {
		t.Error(err)
	}
	_, err = s.Credentials().KeyByHash(t.Context(), key(2).Hash)
	want(t, err, sandpit.NotFound, "API key not found")
	if list, err := s.Credentials().ListKeys(t.Context(), "", 0); err != nil || len(list) != 0 {
		t.Errorf("at most none: %v, %v", list, err)
	}
}

// TestBadKeys refuses what could not be read again, and names what cannot be read.
func TestBadKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	for part, edit := range map[string]func(*store.Key){
		"id":    func(k *store.Key) { k.ID = "" },
		"owner": func(k *store.Key) { k.Owner = strings.Repeat("x", 201) },
		"name":  func(k *store.Key) { k.Name = "\xff" },
		"hash":  func(k *store.Key) { k.Hash = secret },
		"date":  func(k *store.Key) { k.ExpiresAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		k := key(0)
		edit(&k)
		_, err := s.Credentials().InsertKey(t.Context(), k)
		want(t, err, sandpit.Invalid, part)
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("%s: it quotes: %v", part, err)
		}
	}
	if _, err := s.Credentials().InsertKey(t.Context(), key(0)); err != nil {
		t.Fatal(err)
	}
	raw(t, dir, `UPDATE api_keys SET hash = 'bad'`)
	_, err := s.Credentials().ListKeys(t.Context(), "", 10)
	want(t, err, sandpit.Internal, "key000")
}

// TestTooManyKeys is refused.
func TestTooManyKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	raw(t, dir, fmt.Sprintf(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < %d)
		INSERT INTO api_keys SELECT 'x' || i, printf('%%064x', i), '', 'x', 0, 1, NULL, NULL FROM n`, store.MaxKeys))
	_, err := s.Credentials().InsertKey(t.Context(), key(300))
	want(t, err, sandpit.Exhausted, "no more")
}

// TestOwnersEvents chooses what concerns one owner, and tells of what comes.
func TestOwnersEvents(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	mine, others := row(), row()
	mine.Lease.Owner, others.Lease.Owner, mine.Key, others.Key = "ann", "bob", "", ""
	for _, r := range []store.Row{mine, others} {
		if _, err := s.Sandboxes().InsertSandbox(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	more := s.Events().MoreEvents()
	err := s.Events().AppendEvents(t.Context(),
		store.Event{Actor: "ann", Action: "log in"}, store.Event{Actor: "bob", Action: "log in"},
		store.Event{Actor: "manager", Action: "idle", Sandbox: mine.ID, Owner: "ann"},
		store.Event{Actor: "manager", Action: "idle", Sandbox: others.ID, Owner: "bob"},
		store.Event{Actor: "root", Action: "delete", Sandbox: mine.ID, Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-more:
	default:
		t.Error("no notification")
	}
	select {
	case <-s.Events().MoreEvents():
		t.Error("it tells of what was told")
	default:
	}
	list, err := s.Events().ListEvents(t.Context(), store.EventFilter{Owner: "ann"})
	var seqs []int64
	for _, e := range list {
		seqs = append(seqs, e.Seq)
	}
	if diff := cmp.Diff([]int64{1, 3, 5}, seqs); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if span, err := s.Events().EventSpan(t.Context()); span.Start != 0 || span.End != 5 || err != nil {
		t.Errorf("span %+v, %v", span, err)
	}
}

// TestKeyOwners lists whose keys have not expired.
func TestKeyOwners(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for n, owner := range []string{"ann", "ann", "bob", "gone"} { // odd ones are administrators'
		k := key(n)
		k.Owner, k.ExpiresAt = owner, time.Time{}
		if owner == "gone" {
			k.ExpiresAt = begin
		}
		if _, err := s.Credentials().InsertKey(t.Context(), k); err != nil {
			t.Fatal(err)
		}
	}
	got, err := s.Credentials().KeyOwners(t.Context(), begin)
	if diff := cmp.Diff(map[string]bool{"ann": true, "bob": false}, got); err != nil || diff != "" {
		t.Errorf("owners: %v\n%s", err, diff)
	}
}
