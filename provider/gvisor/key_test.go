package gvisor_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestGuestKeyChanges shows that the guest has a new key whenever its sandbox comes back
// from disk, so that the key in a copy of its memory opens nothing, and that an Instance
// that has seen none of it finds the guest still.
func TestGuestKeyChanges(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	other, err := p.Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	output(t, other, "true")
	keys := map[string]string{guestKey(t, dir, box.ID()): "create"}
	changes := func(how string, box sandpit.Instance) {
		t.Helper()
		key := guestKey(t, dir, box.ID())
		if before, known := keys[key]; known {
			t.Errorf("after %s the guest has the key it had after %s", how, before)
		}
		for old := range keys {
			if status := askGuest(t, box, old); status != http.StatusUnauthorized {
				t.Errorf("after %s an old key is answered with status %d", how, status)
			}
		}
		if status := askGuest(t, box, key); status != http.StatusOK {
			t.Errorf("after %s the new key is answered with status %d", how, status)
		}
		keys[key] = how
		output(t, box, "true")
	}
	snap := snapshotOf(t, box)
	suspend(t, box)
	resume(t, box)
	changes("resume from disk", box)
	if err := box.(sandpit.Rollbacker).Rollback(t.Context(), snap.ID); err != nil {
		t.Fatal(err)
	}
	changes("rollback", box)
	if err := box.(sandpit.Stopper).Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := box.(sandpit.Stopper).Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	changes("start", box)
	fork := copyOf(t, p, snap)
	changes("fork", fork)
	output(t, other, "true")
	destroy(t, box, fork)
}

// guestKey reads the key of a sandbox's guest from the record that its engine has.
func guestKey(t *testing.T, dir string, id sandpit.ID) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "run", "*", "*", string(id)+".json"))
	if deeper, _ := filepath.Glob(filepath.Join(dir, "run", "*", "*", "*", string(id)+".json")); len(found) == 0 {
		found = deeper
	}
	if err != nil || len(found) != 1 {
		t.Fatalf("records of the sandbox: %q, %v", found, err)
	}
	text, err := os.ReadFile(found[0])
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal(text, &r); err != nil || r.Token == "" {
		t.Fatalf("record: %v", err)
	}
	return r.Token
}

// askGuest asks the guest for something that needs its key.
func askGuest(t *testing.T, box sandpit.Instance, key string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://guest/envs", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Access-Token", key)
	res, err := box.HTTP(49983).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}
