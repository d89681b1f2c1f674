package store_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// roleVariable makes the test binary a helper of its own tests: it plays the role
// on the directory that is its only argument.
const roleVariable = "SANDPIT_STORE_TEST_ROLE"

var roles = map[string]func(ctx context.Context, dir string) error{
	"hold":    hold,
	"write":   writeForever,
	"limited": writeLimited,
}

func TestMain(m *testing.M) {
	role, ok := roles[os.Getenv(roleVariable)]
	if !ok {
		goleak.VerifyTestMain(m)
		return
	}
	if err := role(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// play starts this binary in a role. Its output can be read; it is killed with
// the test at the latest.
func play(t *testing.T, role, dir string) (*exec.Cmd, *bufio.Reader) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewReader(out)
}

// open opens a store that is closed with the test.
func open(tb testing.TB, dir string) *store.Store {
	tb.Helper()
	s, err := store.Open(tb.Context(), dir, store.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
	return s
}

// openRaw opens the file behind the store's back.
func openRaw(tb testing.TB, dir string) *sql.DB {
	tb.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(dir, "state.db")+"?_busy_timeout=5000")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = db.Close() })
	db.SetMaxOpenConns(1)
	return db
}

// raw runs SQL on the file behind the store's back.
func raw(tb testing.TB, dir string, statements ...string) {
	tb.Helper()
	db := openRaw(tb, dir)
	defer db.Close()
	for _, s := range statements {
		if _, err := db.ExecContext(tb.Context(), s); err != nil {
			tb.Fatalf("%s: %v", s, err)
		}
	}
}

// want fails the test unless err has the code and its text contains part.
func want(tb testing.TB, err error, code sandpit.Code, part string) {
	tb.Helper()
	if sandpit.CodeOf(err) != code || err != nil && !strings.Contains(err.Error(), part) {
		tb.Errorf("error %v (%q), want %q and %q in it", err, sandpit.CodeOf(err), code, part)
	}
}

var begin = time.Date(2030, 1, 2, 3, 4, 5, 678_901_000, time.UTC)

// secret is in the environment of the rows made here, and must be in no error.
const secret = "hunter2-of-the-tests"

// row returns a row that uses every field.
func row() store.Row {
	id := sandpit.NewID()
	return store.Row{
		Sandbox: sandpit.Sandbox{
			ID: id,
			Spec: sandpit.Spec{
				Name: "näme " + string(id), Image: "docker.io/library/alpine", Labels: map[string]string{"team": "blue", "sandpit.manager": "x"},
				Env: map[string]string{"TOKEN": secret}, User: "1000:1000", WorkDir: "/w", Hostname: "h",
				Mounts:    []sandpit.Mount{{Source: "/a", Target: "/b", ReadOnly: true}},
				Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 0.5, Disk: 1 << 33, PIDs: 100},
			},
			Lease: sandpit.Lease{Owner: "anna", Deadline: begin.Add(time.Hour), Action: sandpit.ActionPause},
			State: sandpit.StateRunning, Reason: "asked for", CreatedAt: begin, Suspended: true,
			CheckpointedAt: begin.Add(2 * time.Second),
			Policy: store.Policy{
				IdleTimeout: time.Hour, IdleAction: sandpit.ActionSuspend, AutoStop: 1, AutoArchive: 2,
				AutoDelete: 3, Recreate: 4, IgnoreBackground: true,
				AutoSuspend: 5, WakeOnUse: true, CheckpointEvery: 6,
			},
			LastUsedAt: begin.Add(time.Minute), ChangedAt: begin.Add(time.Second),
		},
		Provider: "fake", Handle: []byte{0, 1, 255}, Idled: true,
		Term: time.Hour, Key: string(sandpit.NewID()), Digest: "d", Pool: "p", Recreated: 2, Prepared: "0123", Admin: true,
	}
}

// insert adds a row of which only what varies is given.
func insert(tb testing.TB, s *store.Store, change func(*store.Row)) store.Row {
	tb.Helper()
	r := row()
	if change != nil {
		change(&r)
	}
	r, err := s.Sandboxes().InsertSandbox(tb.Context(), r)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}
