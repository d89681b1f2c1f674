package store_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func TestOpenTwice(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	_, err := store.Open(t.Context(), dir, store.Options{})
	want(t, err, sandpit.Conflict, fmt.Sprintf("state directory %s is in use by process %d", dir, os.Getpid()))
	if sandpit.HintOf(err) == "" {
		t.Error("no hint")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	if got, want := again.Identity(), s.Identity(); got != want || len(got) != 32 {
		t.Errorf("identity %q, then %q", want, got)
	}
	if open(t, t.TempDir()).Identity() == s.Identity() {
		t.Error("another state has the same identity")
	}
}

// hold keeps a store open until it is killed.
func hold(ctx context.Context, dir string) error {
	if _, err := store.Open(ctx, dir, store.Options{}); err != nil {
		return err
	}
	fmt.Println("held")
	time.Sleep(time.Hour) // an endless wait alone may end the program as a deadlock
	return nil
}

func TestOpenInTwoProcesses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other, out := play(t, "hold", dir)
	if line, err := out.ReadString('\n'); line != "held\n" {
		t.Fatalf("the other process: %q, %v", line, err)
	}
	_, err := store.Open(t.Context(), dir, store.Options{})
	want(t, err, sandpit.Conflict, fmt.Sprintf("in use by process %d", other.Process.Pid))
	if err := other.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = other.Wait() // it was killed
	open(t, dir)
}

func TestPermissions(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "a", "b ?c#d%41é")
	s := open(t, dir)
	insert(t, s, nil)
	modes := map[string]fs.FileMode{}
	for _, name := range []string{"..", ".", "state.db", "state.db-wal", "state.db-shm", "state.lock"} {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		modes[name] = info.Mode().Perm()
		expect := fs.FileMode(0o600)
		if info.IsDir() {
			expect = 0o700
		}
		if modes[name] != expect {
			t.Errorf("%s has permissions %o, want %o", name, modes[name], expect)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "state.db"), 0o644); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if info, err := os.Stat(filepath.Join(dir, "state.db")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("a file open to others stays so: %v, %v", info.Mode(), err)
	}
}

func TestDirectoryOfOthers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	_, err := store.Open(t.Context(), dir, store.Options{})
	want(t, err, sandpit.PermissionDenied, "others may write to it")
	if got, want := sandpit.HintOf(err), "run: chmod 700 "+dir; got != want {
		t.Errorf("hint %q, want %q", got, want)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = store.Open(t.Context(), file, store.Options{})
	want(t, err, sandpit.Invalid, "not a directory")
}

func TestClosed(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	r := insert(t, s, nil)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	_, get := s.Sandboxes().Sandbox(ctx, r.ID)
	_, list := s.Sandboxes().ListSandboxes(ctx, store.Filter{})
	_, update := s.Sandboxes().UpdateSandbox(ctx, r)
	_, claim := s.Queue().Claim(ctx, begin, []string{"a"}, 1, time.Second)
	for name, err := range map[string]error{
		"get": get, "list": list, "update": update, "claim": claim,
		"delete": s.Sandboxes().DeleteSandbox(ctx, r.ID), "append": s.Events().AppendEvents(ctx, store.Event{}), "verify": s.Events().VerifyEvents(ctx),
		"backup": s.Backup(ctx, filepath.Join(t.TempDir(), "b")),
	} {
		t.Run(name, func(t *testing.T) { want(t, err, sandpit.Unavailable, "is closed") })
	}
}

// TestContext shows that a context which ended means that nothing happened.
func TestContext(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := s.Sandboxes().InsertSandbox(ctx, row())
	want(t, err, sandpit.Canceled, "context canceled")
	_, err = s.Sandboxes().ListSandboxes(ctx, store.Filter{})
	want(t, err, sandpit.Canceled, "context canceled")
	for i := range 200 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*20*time.Microsecond)
		r := row()
		_, err := s.Sandboxes().InsertSandbox(ctx, r)
		cancel()
		_, found := s.Sandboxes().Sandbox(t.Context(), r.ID)
		if (err == nil) != (found == nil) || err != nil && sandpit.CodeOf(err) != sandpit.Timeout {
			t.Fatalf("insert: %v, then get: %v", err, found)
		}
	}
}

// TestBubble shows that tests of others may use a store with fake time.
func TestBubble(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := open(t, dir)
		r := insert(t, s, nil)
		q := s.Queue()
		m, err := q.Schedule(t.Context(), queue.Message{Topic: s.Identity(), Sandbox: r.ID, Kind: "idle", Due: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		list, err := q.Claim(t.Context(), time.Now(), []string{s.Identity()}, 1, time.Minute)
		if err != nil || len(list) != 1 || list[0].ID != m.ID {
			t.Errorf("claimed %v, %v", list, err)
		}
	})
}
