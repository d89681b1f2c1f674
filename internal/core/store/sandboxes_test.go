package store_test

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	for name, r := range map[string]store.Row{
		"everything": row(),
		"nothing":    {Sandbox: sandpit.Sandbox{ID: sandpit.NewID(), State: sandpit.StateCreating}},
		"local time": func() store.Row {
			r := row()
			r.CreatedAt = time.Date(2031, 5, 6, 7, 8, 9, 123_456_789, time.FixedZone("x", 7200))
			return r
		}(),
	} {
		expect := r
		expect.Version = 1
		expect.CreatedAt = r.CreatedAt.UTC().Truncate(time.Microsecond)
		got, err := s.Sandboxes().InsertSandbox(t.Context(), r)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Errorf("%s inserted (-want +got):\n%s", name, diff)
		}
		if got, err = s.Sandboxes().Sandbox(t.Context(), r.ID); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Errorf("%s read (-want +got):\n%s", name, diff)
		}
		changed := row()
		changed.ID, changed.Version, changed.State, changed.LastUsedAt = r.ID, 1, sandpit.StatePaused, begin.Add(time.Hour)
		expect = changed
		expect.Version, expect.CreatedAt = 2, got.CreatedAt
		if got, err = s.Sandboxes().UpdateSandbox(t.Context(), changed); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if diff := cmp.Diff(expect, got); diff != "" {
			t.Errorf("%s updated (-want +got):\n%s", name, diff)
		}
		again, err := s.Sandboxes().SandboxByKey(t.Context(), changed.Lease.Owner, changed.Key)
		if diff := cmp.Diff(got, again); err != nil || diff != "" {
			t.Errorf("%s by its key: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if list, err := open(t, dir).Sandboxes().ListSandboxes(t.Context(), store.Filter{}); err != nil || len(list) != 3 {
		t.Errorf("opened again: %d rows, %v", len(list), err)
	}
}

func TestBounds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	long := strings.Repeat("x", store.MaxName+1)
	for name, change := range map[string]func(*store.Row){
		"id":         func(r *store.Row) { r.ID = "../../etc" },
		"owner":      func(r *store.Row) { r.Lease.Owner = long },
		"provider":   func(r *store.Row) { r.Provider = long },
		"key":        func(r *store.Row) { r.Key = long },
		"digest":     func(r *store.Row) { r.Digest = long },
		"pool":       func(r *store.Row) { r.Pool = "\xff" },
		"handle":     func(r *store.Row) { r.Handle = make([]byte, store.MaxHandle+1) },
		"state":      func(r *store.Row) { r.State = "dreaming" },
		"no state":   func(r *store.Row) { r.State = "" },
		"action":     func(r *store.Row) { r.Lease.Action = "explode" },
		"idle":       func(r *store.Row) { r.Policy.IdleAction = "explode" },
		"negative":   func(r *store.Row) { r.Policy.AutoStop = -1 },
		"suspend":    func(r *store.Row) { r.Policy.AutoSuspend = -1 },
		"term":       func(r *store.Row) { r.Term = -1 },
		"checkpoint": func(r *store.Row) { r.Policy.CheckpointEvery = -1 },
		"recreate":   func(r *store.Row) { r.Policy.Recreate = -1 },
		"recreated":  func(r *store.Row) { r.Recreated = -1 },
		"early":      func(r *store.Row) { r.CreatedAt = time.Date(1969, 1, 1, 0, 0, 0, 0, time.UTC) },
		"late":       func(r *store.Row) { r.Lease.Deadline = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC) },
		"large spec": func(r *store.Row) { r.Spec.Env = map[string]string{"A": strings.Repeat(secret, store.MaxSpec)} },
		"not text":   func(r *store.Row) { r.Spec.Env = map[string]string{"A": secret + "\xff"} },
		"not number": func(r *store.Row) { r.Spec.Resources.CPUs = math.NaN() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := row()
			change(&r)
			_, err := s.Sandboxes().InsertSandbox(t.Context(), r)
			want(t, err, sandpit.Invalid, "")
			if err != nil && strings.Contains(err.Error(), secret) {
				t.Errorf("the error tells a secret: %.200v", err)
			}
			r.Version = 1
			_, err = s.Sandboxes().UpdateSandbox(t.Context(), r)
			want(t, err, sandpit.Invalid, "")
		})
	}
	r := insert(t, s, func(r *store.Row) { r.Reason = strings.Repeat("é", store.MaxReason) })
	if got, want := r.Reason, strings.Repeat("é", store.MaxReason/2); got != want {
		t.Errorf("a long reason has %d bytes, want %d", len(got), len(want))
	}
}

func TestErrorsOfRows(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx := t.Context()
	first, second := insert(t, s, nil), insert(t, s, nil)

	_, err := s.Sandboxes().InsertSandbox(ctx, first)
	want(t, err, sandpit.AlreadyExists, fmt.Sprintf("sandbox %s exists already", first.ID))
	twin := row()
	twin.Key = first.Key
	_, err = s.Sandboxes().InsertSandbox(ctx, twin)
	want(t, err, sandpit.AlreadyExists, fmt.Sprintf("sandbox %s was made with the same idempotency key", first.ID))
	thief := second
	thief.Key = first.Key
	_, err = s.Sandboxes().UpdateSandbox(ctx, thief)
	want(t, err, sandpit.AlreadyExists, "idempotency key")
	stranger := row()
	stranger.Key, stranger.Lease.Owner = first.Key, "bert"
	if _, err = s.Sandboxes().InsertSandbox(ctx, stranger); err != nil {
		t.Errorf("the key of another owner: %v", err)
	}
	for range 2 {
		insert(t, s, func(r *store.Row) { r.Key = "" })
	}

	unknown := row()
	unknown.Version = 1
	_, err = s.Sandboxes().UpdateSandbox(ctx, unknown)
	want(t, err, sandpit.NotFound, fmt.Sprintf("Sandbox %s not found", unknown.ID))
	_, err = s.Sandboxes().Sandbox(ctx, unknown.ID)
	want(t, err, sandpit.NotFound, fmt.Sprintf("Sandbox %s not found", unknown.ID))
	_, err = s.Sandboxes().SandboxByKey(ctx, "anna", "")
	want(t, err, sandpit.NotFound, "")
	if _, err = s.Sandboxes().UpdateSandbox(ctx, first); err != nil {
		t.Fatal(err)
	}
	_, err = s.Sandboxes().UpdateSandbox(ctx, first)
	want(t, err, sandpit.Conflict, "it has version 2, not 1")

	for range 2 {
		if err := s.Sandboxes().DeleteSandbox(ctx, first.ID); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Sandboxes().InsertSandbox(ctx, twin); err != nil {
		t.Errorf("the key of a row that is gone: %v", err)
	}
}

func TestKeyIsUniqueUnderConcurrency(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	for range 20 {
		key := string(sandpit.NewID())
		codes := together(16, func() error {
			r := row()
			r.Key = key
			_, err := s.Sandboxes().InsertSandbox(t.Context(), r)
			return err
		})
		if diff := cmp.Diff(map[sandpit.Code]int{"": 1, sandpit.AlreadyExists: 15}, codes); diff != "" {
			t.Fatalf("16 inserts with one key (-want +got):\n%s", diff)
		}
	}
}

func TestCompareAndSwap(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	r := insert(t, s, func(r *store.Row) { r.Recreated = 0 })
	const each = 4
	// Each goroutine counts to 4; one that loses a race reads again.
	codes := together(16, func() error {
		for done := 0; done < each; {
			now, err := s.Sandboxes().Sandbox(t.Context(), r.ID)
			if err != nil {
				return err
			}
			now.Recreated++
			switch _, err := s.Sandboxes().UpdateSandbox(t.Context(), now); {
			case err == nil:
				done++
			case sandpit.CodeOf(err) != sandpit.Conflict:
				return err
			}
		}
		return nil
	})
	got, err := s.Sandboxes().Sandbox(t.Context(), r.ID)
	if err != nil || codes[""] != 16 || got.Recreated != 16*each || got.Version != 1+16*each {
		t.Errorf("16 × %d updates: count %d, version %d, %v, %v", each, got.Recreated, got.Version, codes, err)
	}
}

// together runs do n times at once and counts the codes of its errors.
func together(n int, do func() error) map[sandpit.Code]int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := make(map[sandpit.Code]int)
	for range n {
		wg.Go(func() {
			err := do()
			mu.Lock()
			defer mu.Unlock()
			codes[sandpit.CodeOf(err)]++
		})
	}
	wg.Wait()
	return codes
}

func TestFilter(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	var all []sandpit.ID
	for i := range 12 {
		all = append(all, insert(t, s, func(r *store.Row) {
			r.Lease.Owner = fmt.Sprint("owner", i%2)
			r.Spec.Labels = map[string]string{"n": strconv.Itoa(i % 3), "'; --": `"`}
			r.State = []sandpit.State{sandpit.StateRunning, sandpit.StatePaused, sandpit.StateError, sandpit.StateDeleted}[i/3]
		}).ID)
	}
	pick := func(keep func(i int) bool) (ids []sandpit.ID) {
		for i, id := range all {
			if keep(i) {
				ids = append(ids, id)
			}
		}
		slices.Sort(ids)
		return ids
	}
	every := pick(func(int) bool { return true })
	for name, tc := range map[string]struct {
		filter store.Filter
		want   []sandpit.ID
	}{
		"all":     {store.Filter{}, every},
		"owner":   {store.Filter{Owner: "owner1"}, pick(func(i int) bool { return i%2 == 1 })},
		"label":   {store.Filter{Labels: map[string]string{"n": "2"}}, pick(func(i int) bool { return i%3 == 2 })},
		"labels":  {store.Filter{Labels: map[string]string{"n": "2", "'; --": `"`}}, pick(func(i int) bool { return i%3 == 2 })},
		"missing": {store.Filter{Labels: map[string]string{"m": ""}}, nil},
		"states":  {store.Filter{States: []sandpit.State{sandpit.StateRunning, sandpit.StateError}}, pick(func(i int) bool { return i/3%2 == 0 })},
		"page":    {store.Filter{After: every[3], Limit: 4}, every[4:8]},
		"all of it": {
			store.Filter{Owner: "owner0", Labels: map[string]string{"n": "0"}, States: []sandpit.State{sandpit.StateRunning}, Limit: 5},
			all[:1],
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			list, err := s.Sandboxes().ListSandboxes(t.Context(), tc.filter)
			if err != nil {
				t.Fatal(err)
			}
			var got []sandpit.ID
			for _, r := range list {
				got = append(got, r.ID)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	_, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{Limit: -1})
	want(t, err, sandpit.Invalid, "")
}

// TestBadRows damages rows in every way that the file allows.
func TestBadRows(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	good := insert(t, s, nil)
	damage := []string{
		`state = 'dreaming'`, `spec = '{"env": {"TOKEN": "` + secret + `"'`, `spec = '{"env": {"TOKEN": 4711}}'`, `spec = ''`,
		`action = 'explode'`, `deadline = 9223372036854775807`, `created_at = -1`, `version = 0`, `recreated = -5`,
		`handle = zeroblob(5000)`, `idle_action = 'x'`, `auto_stop = -1`, `owner = cast(x'ff' AS TEXT)`, `id = '../../etc/passwd'`,
	}
	var bad []sandpit.ID
	for _, set := range damage {
		r := insert(t, s, nil)
		bad = append(bad, r.ID)
		raw(t, dir, fmt.Sprintf(`UPDATE sandboxes SET %s WHERE id = '%s'`, set, r.ID))
	}
	list, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{})
	want(t, err, sandpit.Internal, fmt.Sprintf("%d sandboxes cannot be read", len(damage)))
	if len(list) != 1 || list[0].ID != good.ID {
		t.Errorf("%d rows, want the good one", len(list))
	}
	if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "4711") {
		t.Errorf("the error tells a secret: %v", err)
	}
	for i, id := range bad {
		if strings.HasPrefix(damage[i], "id ") {
			continue
		}
		_, err := s.Sandboxes().Sandbox(t.Context(), id)
		want(t, err, sandpit.Internal, string(id))
		if err := s.Sandboxes().DeleteSandbox(t.Context(), id); err != nil {
			t.Errorf("a bad row cannot be deleted: %v", err)
		}
	}
	if err := s.Sandboxes().DeleteSandbox(t.Context(), "../../etc/passwd"); err != nil {
		t.Error(err)
	}
	if list, err := s.Sandboxes().ListSandboxes(t.Context(), store.Filter{}); err != nil || len(list) != 1 {
		t.Errorf("after the bad ones were deleted: %d rows, %v", len(list), err)
	}
}

func TestTouch(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx := t.Context()
	a := insert(t, s, nil)
	b := insert(t, s, func(r *store.Row) { r.LastUsedAt = time.Time{} })
	later := begin.Add(time.Hour)
	if err := s.Sandboxes().TouchSandboxes(ctx, map[sandpit.ID]time.Time{a.ID: later, b.ID: later, sandpit.NewID(): later}); err != nil {
		t.Fatal(err)
	}
	if err := s.Sandboxes().TouchSandboxes(ctx, map[sandpit.ID]time.Time{a.ID: begin}); err != nil {
		t.Fatal(err)
	}
	if err := s.Sandboxes().TouchSandboxes(ctx, nil); err != nil {
		t.Fatal(err)
	}
	want(t, s.Sandboxes().TouchSandboxes(ctx, map[sandpit.ID]time.Time{a.ID: later.Add(1), b.ID: {}}), sandpit.Invalid, string(b.ID))
	// The caller's row is older than the last use, but not stale.
	if _, err := s.Sandboxes().UpdateSandbox(ctx, a); err != nil {
		t.Fatal(err)
	}
	for _, id := range []sandpit.ID{a.ID, b.ID} {
		if got, err := s.Sandboxes().Sandbox(ctx, id); err != nil || !got.LastUsedAt.Equal(later) {
			t.Errorf("last use %v, want %v; %v", got.LastUsedAt, later, err)
		}
	}
}

func TestShift(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	r := insert(t, s, nil)
	none := insert(t, s, func(r *store.Row) {
		r.Lease.Deadline, r.LastUsedAt, r.ChangedAt, r.CheckpointedAt = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	})
	far := insert(t, s, func(r *store.Row) { r.Lease.Deadline = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC) })
	day := 24 * time.Hour
	if err := s.Sandboxes().ShiftDeadlines(t.Context(), 2*day); err != nil {
		t.Fatal(err)
	}
	if err := s.Sandboxes().ShiftDeadlines(t.Context(), -day); err != nil {
		t.Fatal(err)
	}
	want(t, s.Sandboxes().ShiftDeadlines(t.Context(), math.MinInt64), sandpit.Invalid, "")
	expect := r
	expect.Lease.Deadline, expect.LastUsedAt, expect.ChangedAt = r.Lease.Deadline.Add(day), r.LastUsedAt.Add(day), r.ChangedAt.Add(day)
	expect.CheckpointedAt = r.CheckpointedAt.Add(day)
	for _, want := range []store.Row{expect, none} {
		got, err := s.Sandboxes().Sandbox(t.Context(), want.ID)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	}
	if got, err := s.Sandboxes().Sandbox(t.Context(), far.ID); err != nil || got.Lease.Deadline.Year() != 9999 {
		t.Errorf("a deadline at the end of time: %v, %v", got.Lease.Deadline, err)
	}
}
