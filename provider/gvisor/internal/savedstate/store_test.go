package savedstate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

type description struct {
	Name  string           `json:"name"`
	Sizes map[string]int64 `json:"sizes"`
}

func newStore(t *testing.T) *Store[description] {
	t.Helper()
	return &Store[description]{
		Dir: t.TempDir(), Kind: "state", Description: "state.json",
		CheckName: func(name string) error { return sandpit.ID(name).Validate() },
		Check: func(name string, d description) error {
			if d.Name != name {
				return errors.New("wrong name")
			}
			return nil
		},
		IsLarge: func(file string) bool { return file == "large" },
	}
}

// begin begins a draft with one small file.
func begin(t *testing.T, s *Store[description], name, content string) *Draft[description] {
	t.Helper()
	d, err := s.Begin(name, "small", "large")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Discard)
	if _, err := d.Files([]string{"small"})[0].WriteString(content); err != nil {
		t.Fatal(err)
	}
	return d
}

func describe(name string) func(sizes map[string]int64) description {
	return func(sizes map[string]int64) description { return description{name, sizes} }
}

// content returns what the small file of a state has.
func content(t *testing.T, s *Store[description], name string) string {
	t.Helper()
	d, err := s.Read(name)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.OpenFile(name, "small", d.Sizes["small"])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestCommit commits a draft, refuses a second one with the name, and replaces the first.
func TestCommit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := string(sandpit.NewID())
	first := begin(t, s, name, "first")
	if s.Has(name) {
		t.Error("a draft is found")
	}
	if _, err := s.Read(name); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("read a draft: %v", err)
	}
	if _, err := first.Commit(t.Context(), describe(name)); err != nil {
		t.Fatal(err)
	}
	first.Discard()
	second := begin(t, s, name, "second")
	if _, err := second.Commit(t.Context(), describe(name)); sandpit.CodeOf(err) != sandpit.AlreadyExists {
		t.Errorf("commit again: %v", err)
	}
	second.Discard()
	if got := content(t, s, name); got != "first" {
		t.Errorf("after a refused commit: %q", got)
	}
	third := begin(t, s, name, "the third")
	if _, err := third.Replace(t.Context(), describe(name)); err != nil {
		t.Fatal(err)
	}
	third.Discard()
	if got := content(t, s, name); got != "the third" {
		t.Errorf("after a replacement: %q", got)
	}
	if got := entries(t, s.Dir); !slices.Equal(got, []string{name}) {
		t.Errorf("left: %q", got)
	}
	if all, err := s.List(); err != nil || len(all) != 1 || all[name].Sizes["small"] != 9 {
		t.Errorf("list: %+v, %v", all, err)
	}
}

// TestRefusedBytes has a commit fail because its bytes are not admitted.
func TestRefusedBytes(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := string(sandpit.NewID())
	d := begin(t, s, name, "12345")
	var asked int64
	full := errors.New("full")
	ctx := sandpit.WithAdmit(context.WithoutCancel(t.Context()), func(bytes int64) error { asked = bytes; return full })
	if _, err := d.Commit(ctx, describe(name)); !errors.Is(err, full) || asked < 5 {
		t.Errorf("commit: %v, asked for %d bytes", err, asked)
	}
	d.Discard()
	if got := entries(t, s.Dir); len(got) > 0 {
		t.Errorf("left: %q", got)
	}
}

// TestSweep removes what killed processes leave, and nothing that is in use.
func TestSweep(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := string(sandpit.NewID())
	abandoned := begin(t, s, name, "abandoned")
	abandoned.unlock() // as with the end of its process
	used := begin(t, s, string(sandpit.NewID()), "used")
	if err := os.Mkdir(filepath.Join(s.Dir, "other.tmp"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := s.Sweep(); err != nil {
		t.Fatal(err)
	}
	want := []string{filepath.Base(used.dir), "other.tmp"}
	slices.Sort(want)
	if got := entries(t, s.Dir); !slices.Equal(got, want) {
		t.Errorf("left: %q, want %q", got, want)
	}
}

// TestDetach takes a state out of one store and moves it to another.
func TestDetach(t *testing.T) {
	t.Parallel()
	s, other := newStore(t), newStore(t)
	name := string(sandpit.NewID())
	if d, err := s.Detach(name); d != nil || err != nil {
		t.Errorf("detach what does not exist: %v, %v", d, err)
	}
	d := begin(t, s, name, "content")
	if _, err := d.Commit(t.Context(), describe(name)); err != nil {
		t.Fatal(err)
	}
	detached, err := s.Detach(name)
	if err != nil || s.Has(name) {
		t.Fatalf("detach: %v", err)
	}
	if err := s.Sweep(); err != nil { // it is locked
		t.Fatal(err)
	}
	if err := detached.MoveTo(other); err != nil {
		t.Fatal(err)
	}
	detached.Discard()
	if got := content(t, other, name); got != "content" {
		t.Errorf("moved: %q", got)
	}
	if err := other.Remove(name); err != nil || len(entries(t, other.Dir)) > 0 || len(entries(t, s.Dir)) > 0 {
		t.Errorf("remove: %v; left %q and %q", err, entries(t, other.Dir), entries(t, s.Dir))
	}
}

// TestDamage reads states whose files have changed.
func TestDamage(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	name := string(sandpit.NewID())
	d := begin(t, s, name, "content")
	state, err := d.Commit(t.Context(), describe(name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.OpenFile(name, "small", state.Sizes["small"]-1); sandpit.CodeOf(err) != sandpit.Internal {
		t.Errorf("another size: %v", err)
	}
	if err := os.WriteFile(filepath.Join(s.Path(name), "state.json"), []byte(`{"name":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Read(name); sandpit.CodeOf(err) != sandpit.Internal {
		t.Errorf("the description of another state: %v", err)
	}
}

// TestLocks locks one name, and another one beside it.
func TestLocks(t *testing.T) {
	t.Parallel()
	l := Locks{t.TempDir()}
	f, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := l.TryLock("a"); again != nil || err != nil {
		t.Errorf("locked twice: %v, %v", again, err)
	}
	other, err := l.TryLock("b")
	if other == nil || err != nil {
		t.Fatalf("lock another name: %v", err)
	}
	if err := errors.Join(other.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f, err = l.Lock(ctx, "a"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("wait in vain: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}
