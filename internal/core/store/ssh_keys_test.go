package store_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// sshKey returns a key that uses every field.
func sshKey(owner string, n int) store.SSHKey {
	return store.SSHKey{
		ID: fmt.Sprintf("%s%03d", owner, n), Owner: owner, Fingerprint: fmt.Sprintf("SHA256:%043d", n), Type: "ssh-ed25519", Name: "näme",
		CreatedAt: begin, LastUsedAt: begin.Add(time.Minute),
	}
}

// TestSSHKeys keeps keys, finds them, and forgets them, after a restart as well.
func TestSSHKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	for _, k := range []store.SSHKey{sshKey("ann", 1), sshKey("ann", 2), sshKey("bob", 1)} {
		got, err := s.Credentials().InsertSSHKey(t.Context(), k)
		if diff := cmp.Diff(k, got); err != nil || diff != "" {
			t.Fatalf("insert: %v\n%s", err, diff)
		}
	}
	again := sshKey("ann", 1)
	again.ID = "other"
	_, err := s.Credentials().InsertSSHKey(t.Context(), again)
	want(t, err, sandpit.AlreadyExists, "SHA256:")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	list, err := s.Credentials().ListSSHKeys(t.Context(), "ann")
	if diff := cmp.Diff([]store.SSHKey{sshKey("ann", 1), sshKey("ann", 2)}, list); err != nil || diff != "" {
		t.Errorf("list: %v\n%s", err, diff)
	}
	got, err := s.Credentials().SSHKeyOf(t.Context(), "bob", sshKey("bob", 1).Fingerprint)
	if diff := cmp.Diff(sshKey("bob", 1), got); err != nil || diff != "" {
		t.Errorf("find: %v\n%s", err, diff)
	}
	if err := s.Credentials().TouchSSHKey(t.Context(), "bob001", begin.Add(time.Hour)); err != nil {
		t.Error(err)
	}
	if got, err := s.Credentials().SSHKeyOf(t.Context(), "bob", sshKey("bob", 1).Fingerprint); err != nil || !got.LastUsedAt.Equal(begin.Add(time.Hour)) {
		t.Errorf("touched: %+v, %v", got, err)
	}
	want(t, s.Credentials().DeleteSSHKey(t.Context(), "ann", "bob001"), sandpit.NotFound, "bob001")
	if err := s.Credentials().DeleteSSHKey(t.Context(), "bob", "bob001"); err != nil {
		t.Error(err)
	}
	_, err = s.Credentials().SSHKeyOf(t.Context(), "bob", sshKey("bob", 1).Fingerprint)
	want(t, err, sandpit.NotFound, "SSH key not found")
}

// TestBadSSHKeys refuses what could not be read again, and names what cannot be read.
func TestBadSSHKeys(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	for part, edit := range map[string]func(*store.SSHKey){
		"id":          func(k *store.SSHKey) { k.ID = "" },
		"owner":       func(k *store.SSHKey) { k.Owner = "" },
		"type":        func(k *store.SSHKey) { k.Type = strings.Repeat("x", 201) },
		"name":        func(k *store.SSHKey) { k.Name = "\xff" },
		"fingerprint": func(k *store.SSHKey) { k.Fingerprint = "MD5:x" },
		"date":        func(k *store.SSHKey) { k.CreatedAt = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
	} {
		k := sshKey("ann", 1)
		edit(&k)
		_, err := s.Credentials().InsertSSHKey(t.Context(), k)
		want(t, err, sandpit.Invalid, part)
	}
	if _, err := s.Credentials().InsertSSHKey(t.Context(), sshKey("ann", 1)); err != nil {
		t.Fatal(err)
	}
	raw(t, dir, `UPDATE ssh_keys SET fingerprint = 'bad'`)
	_, err := s.Credentials().ListSSHKeys(t.Context(), "ann")
	want(t, err, sandpit.Internal, "ann001")
}
