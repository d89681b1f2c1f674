package store_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// appendEvents appends n events, an hour apart.
func appendEvents(tb testing.TB, s *store.Store, n int) {
	tb.Helper()
	for i := range n {
		err := s.Events().AppendEvents(tb.Context(), store.Event{
			At: begin.Add(time.Duration(i) * time.Hour), Actor: fmt.Sprint("actor", i%2), Action: "create",
			Args: map[string]string{"n": strconv.Itoa(i)}, Result: "ok",
		})
		if err != nil {
			tb.Fatal(err)
		}
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	ctx := t.Context()
	id := sandpit.NewID()
	list := []store.Event{
		{At: begin, Actor: "anna", Owner: "anna", Action: "create", Sandbox: id, Args: map[string]string{"image": "host", "": "x\x00y"}, Result: "ok", Duration: time.Second},
		{At: begin.Add(-time.Hour), Actor: "manager", Owner: "anna", Action: "delete", Sandbox: id, Args: map[string]string{}, Result: "timeout", Message: "näme"},
		{At: begin, Actor: "manager", Owner: "manager", Action: "sweep", Args: map[string]string{}, Result: "ok"},
	}
	if err := s.Events().AppendEvents(ctx, list[:2]...); err != nil {
		t.Fatal(err)
	}
	if err := s.Events().AppendEvents(ctx, list[2]); err != nil {
		t.Fatal(err)
	}
	if err := s.Events().AppendEvents(ctx); err != nil {
		t.Fatal(err)
	}
	got, err := s.Events().ListEvents(ctx, store.EventFilter{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(list, got, cmpopts.IgnoreFields(store.Event{}, "Seq", "Hash")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for i, e := range got {
		if e.Seq != int64(i+1) || len(e.Hash) != 64 {
			t.Errorf("event %d has number %d, hash %q", i+1, e.Seq, e.Hash)
		}
	}
	for name, tc := range map[string]struct {
		filter store.EventFilter
		want   []int64
	}{
		"sandbox": {store.EventFilter{Sandbox: id}, []int64{1, 2}},
		"actor":   {store.EventFilter{Actor: "manager"}, []int64{2, 3}},
		"action":  {store.EventFilter{Action: "sweep"}, []int64{3}},
		"page":    {store.EventFilter{After: 1, Limit: 1}, []int64{2}},
		"none":    {store.EventFilter{Actor: "bert"}, nil},
	} {
		list, err := s.Events().ListEvents(ctx, tc.filter)
		var got []int64
		for _, e := range list {
			got = append(got, e.Seq)
		}
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	if err := s.Events().VerifyEvents(ctx); err != nil {
		t.Error(err)
	}
	want(t, s.Events().AppendEvents(ctx, make([]store.Event, store.MaxEvents+1)...), sandpit.Invalid, "")
	_, err = s.Events().ListEvents(ctx, store.EventFilter{Limit: -1})
	want(t, err, sandpit.Invalid, "")
}

// TestEventsAreCut shows that nothing goes unrecorded because it is too long.
func TestEventsAreCut(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	long := strings.Repeat("\xffx", 5000)
	args := make(map[string]string)
	for i := range 100 {
		args[fmt.Sprintf("%03d", i)] = long
	}
	before := time.Now()
	err := s.Events().AppendEvents(t.Context(), store.Event{Actor: long, Action: long, Sandbox: sandpit.ID(long), Args: args, Result: long, Message: long})
	if err != nil {
		t.Fatal(err)
	}
	list, err := s.Events().ListEvents(t.Context(), store.EventFilter{})
	if err != nil || len(list) != 1 {
		t.Fatal(len(list), err)
	}
	e := list[0]
	if len(e.Args) != store.MaxEventArgs || e.Args["031"] == "" {
		t.Errorf("%d arguments, want the first %d", len(e.Args), store.MaxEventArgs)
	}
	for _, text := range []string{e.Actor, e.Action, string(e.Sandbox), e.Args["000"], e.Result, e.Message} {
		if len(text) > store.MaxEventText || len(text) < store.MaxEventText-3 {
			t.Errorf("%d bytes of text, want about %d", len(text), store.MaxEventText)
		}
	}
	if e.At.Before(before.Add(-time.Second)) || e.At.After(time.Now()) {
		t.Errorf("no time given: %v", e.At)
	}
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestEventsCannotBeChanged(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	appendEvents(t, s, 5)
	db := openRaw(t, dir)
	for _, statement := range []string{
		`UPDATE events SET message = 'x' WHERE seq = 3`,
		`DELETE FROM events WHERE seq = 5`,
		`DELETE FROM events`,
		`INSERT INTO events SELECT 9, at, actor, action, sandbox, args, result, message, duration, hash, owner FROM events WHERE seq = 1`,
		`INSERT OR REPLACE INTO events SELECT 2, at, actor, action, sandbox, args, result, message, duration, hash, owner FROM events WHERE seq = 1`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err == nil {
			t.Errorf("%s: done", statement)
		}
	}
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestVerifyFinds(t *testing.T) {
	t.Parallel()
	swap := func(a, b int) []string {
		return []string{
			fmt.Sprintf(`UPDATE events SET seq = 99 WHERE seq = %d`, a), fmt.Sprintf(`UPDATE events SET seq = %d WHERE seq = %d`, a, b),
			fmt.Sprintf(`UPDATE events SET seq = %d WHERE seq = 99`, b),
		}
	}
	for name, tc := range map[string]struct {
		statements []string
		want       string
	}{
		"changed text":      {[]string{`UPDATE events SET message = 'x' WHERE seq = 5`}, "event 5 was changed"},
		"changed argument":  {[]string{`UPDATE events SET args = '{"n":"9"}' WHERE seq = 5`}, "event 5 was changed"},
		"unreadable":        {[]string{`UPDATE events SET args = '{' WHERE seq = 5`}, "event 5 was changed"},
		"changed time":      {[]string{`UPDATE events SET at = at + 1 WHERE seq = 1`}, "event 1 was changed"},
		"changed hash":      {[]string{`UPDATE events SET hash = upper(hash) WHERE seq = 8`}, "event 8 was changed"},
		"moved text":        {[]string{`UPDATE events SET actor = actor || 'c', action = 'reate' WHERE seq = 5`}, "event 5 was changed"},
		"removed":           {[]string{`DELETE FROM events WHERE seq = 5`}, "event 5 is missing"},
		"removed first":     {[]string{`DELETE FROM events WHERE seq = 1`}, "event 1 is missing"},
		"removed last":      {[]string{`DELETE FROM events WHERE seq = 8`}, "event 8 is missing"},
		"removed all":       {[]string{`DELETE FROM events`}, "event 1 is missing"},
		"removed, closed":   {[]string{`DELETE FROM events WHERE seq = 5`, `UPDATE events SET seq = seq - 1 WHERE seq > 5`}, "event 5 was changed"},
		"removed chain":     {[]string{`DELETE FROM event_chain`}, "ends of the chain are missing"},
		"last two the same": {[]string{`UPDATE event_chain SET end_hash = 'x'`}, "event 8 was changed"},
		"inserted at end": {
			[]string{`INSERT INTO events SELECT 9, at, actor, action, sandbox, args, result, message, duration, hash, owner FROM events WHERE seq = 8`},
			"event 9 was inserted",
		},
		"inserted before": {
			[]string{`INSERT INTO events SELECT 0, at, actor, action, sandbox, args, result, message, duration, hash, owner FROM events WHERE seq = 8`},
			"event 0 was inserted",
		},
		"inserted": {
			[]string{
				`UPDATE events SET seq = -seq WHERE seq > 4`, `UPDATE events SET seq = 1 - seq WHERE seq < 0`,
				`INSERT INTO events SELECT 5, at, actor, action, sandbox, args, result, message, duration, hash, owner FROM events WHERE seq = 1`,
			},
			"event 5 was changed",
		},
		"reordered": {swap(3, 6), "event 3 was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir)
			appendEvents(t, s, 8)
			raw(t, dir, append([]string{`DROP TRIGGER events_stay`, `DROP TRIGGER events_last`, `DROP TRIGGER events_in_order`}, tc.statements...)...)
			err := s.Events().VerifyEvents(t.Context())
			want(t, err, sandpit.Internal, tc.want)
			if sandpit.HintOf(err) == "" {
				t.Error("no hint")
			}
		})
	}
}

func TestDropEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir)
	stored := func() []int64 {
		t.Helper()
		if err := s.Events().VerifyEvents(t.Context()); err != nil {
			t.Fatal(err)
		}
		list, err := s.Events().ListEvents(t.Context(), store.EventFilter{})
		if err != nil {
			t.Fatal(err)
		}
		var seqs []int64
		for _, e := range list {
			seqs = append(seqs, e.Seq)
		}
		return seqs
	}
	want(t, s.Events().DropEvents(t.Context(), 1), sandpit.NotFound, "event 1 not found")
	appendEvents(t, s, 6)
	full, err := s.Events().EventSpan(t.Context())
	if err != nil || full.Start != 0 || full.End != 6 || full.Bytes < 6*100 {
		t.Fatalf("span %+v, %v", full, err)
	}
	if err := s.Events().DropEvents(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if got := stored(); !slices.Equal(got, []int64{3, 4, 5, 6}) {
		t.Errorf("stored are %v, want 3 to 6", got)
	}
	// The events are of the same size.
	span, err := s.Events().EventSpan(t.Context())
	if diff := cmp.Diff(store.EventSpan{Start: 2, End: 6, Bytes: full.Bytes / 6 * 4}, span); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	want(t, s.Events().DropEvents(t.Context(), 2), sandpit.NotFound, "event 2 not found")
	want(t, s.Events().DropEvents(t.Context(), 7), sandpit.NotFound, "event 7 not found")
	if err := s.Events().DropEvents(t.Context(), 6); err != nil {
		t.Fatal(err)
	}
	if got := stored(); got != nil {
		t.Errorf("stored are %v, want none", got)
	}
	if span, err := s.Events().EventSpan(t.Context()); span != (store.EventSpan{Start: 6, End: 6}) || err != nil {
		t.Errorf("span %+v, %v", span, err)
	}
	appendEvents(t, s, 2)
	if got := stored(); !slices.Equal(got, []int64{7, 8}) {
		t.Errorf("stored are %v, want 7 and 8", got)
	}
}

// TestEventsOfOwner shows that an owner finds what concerns it, and nothing else, also
// where both an owner and a sandbox are asked for.
func TestEventsOfOwner(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	id := sandpit.NewID()
	err := s.Events().AppendEvents(t.Context(),
		store.Event{Actor: "anna", Action: "create", Sandbox: id, Owner: "anna"},
		store.Event{Actor: "manager", Action: "delete", Sandbox: id, Owner: "anna"},
		store.Event{Actor: "bert", Action: "delete", Sandbox: id, Owner: "bert"},
		store.Event{Actor: "anna", Action: "log in"},
	)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		filter store.EventFilter
		want   []int64
	}{
		"anna":                  {store.EventFilter{Owner: "anna"}, []int64{1, 2, 4}},
		"bert":                  {store.EventFilter{Owner: "bert"}, []int64{3}},
		"anna, after the first": {store.EventFilter{Owner: "anna", After: 1}, []int64{2, 4}},
		"anna, a page":          {store.EventFilter{Owner: "anna", Limit: 2}, []int64{1, 2}},
		"anna, of the sandbox":  {store.EventFilter{Owner: "anna", Sandbox: id}, []int64{1, 2}},
		"anna, by the manager":  {store.EventFilter{Owner: "anna", Actor: "manager"}, []int64{2}},
		"nobody":                {store.EventFilter{Owner: "carl"}, nil},
	} {
		list, err := s.Events().ListEvents(t.Context(), tc.filter)
		var got []int64
		for _, e := range list {
			got = append(got, e.Seq)
		}
		if diff := cmp.Diff(tc.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestAppendConcurrently(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	codes := together(16, func() error {
		for i := range 9 {
			if err := s.Events().AppendEvents(t.Context(), make([]store.Event, 1+i%3)...); err != nil {
				return err
			}
		}
		return s.Events().VerifyEvents(t.Context()) // while others append
	})
	list, err := s.Events().ListEvents(t.Context(), store.EventFilter{Limit: store.MaxEvents})
	if err != nil || codes[""] != 16 || len(list) != 16*18 {
		t.Errorf("%d events, want %d; %v, %v", len(list), 16*18, codes, err)
	}
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Error(err)
	}
}
