package store

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sandpit-dev/sandpit"
)

// cellsOf returns a row of the file with these values.
func cellsOf(columns string, values ...any) *cells {
	names := strings.FieldsFunc(columns, func(r rune) bool { return strings.ContainsRune(", \n\t", r) })
	return &cells{names: names, values: values}
}

// FuzzRow reads edited rows: each is refused, or can be stored again unchanged.
func FuzzRow(f *testing.F) {
	id := string(sandpit.NewID())
	f.Add(id, "running", "", `{"image":"host","env":{"A":"b"},"labels":{}}`, "kill", []byte{1}, "", int64(0), int64(1e15), int64(1), int64(0))
	f.Add(id, "x", "\xff", `{"image":7}`, "", []byte(nil), "k", int64(-1), int64(-1<<63), int64(0), int64(-1))
	f.Fuzz(func(t *testing.T, id, state, reason, spec, action string, handle []byte, text string, n, at, version, duration int64) {
		c := cellsOf(columns, id, text, text, state, reason, spec, at, action, handle, text, text, text, n, at, nil, at, version,
			duration, action, duration, duration, duration, n, n,
			n, at, duration, n, duration, duration, text, n, n)
		r, err := decodeRow(c)
		if err != nil {
			return
		}
		values, kept, err := encodeRow(r)
		if err != nil {
			t.Fatalf("read, but cannot be kept: %v", err)
		}
		if len(values) != len(c.names)+1 { // and the name, which is in the spec
			t.Fatalf("%d values for %d columns", len(values), len(c.names))
		}
		r.Reason = shortenText(r.Reason)
		if diff := cmp.Diff(r, kept, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-read +kept):\n%s", diff)
		}
	})
}

// FuzzEvent checks that an event that was kept and read again has the same hash,
// and that one that was edited is refused or has another.
func FuzzEvent(f *testing.F) {
	f.Add("anna", "create", "ok", "name", "value", `{"name":"other"}`, int64(1), int64(1e15))
	f.Add("\xff", "", "", "", "\x00", "{}", int64(-1), int64(0))
	f.Fuzz(func(t *testing.T, actor, action, result, name, value, edited string, duration, at int64) {
		s := &Store{}
		e := s.Events().boundEvent(Event{Seq: 7, At: roundTime(latestTime()), Actor: actor, Action: action, Result: result, Args: map[string]string{name: value}})
		e.Hash = e.hashAfter("before")
		args, err := json.Marshal(e.Args)
		if err != nil {
			t.Fatal(err)
		}
		read := func(args string) (Event, error) {
			return decodeEvent(cellsOf(eventColumns, e.Seq, toMicros(e.At), e.Actor, e.Action, string(e.Sandbox), args,
				e.Result, e.Message, int64(e.Duration), e.Hash, e.Owner))
		}
		same, err := read(string(args))
		if err != nil || same.hashAfter("before") != e.Hash {
			t.Fatalf("read again: %v, other hash", err)
		}
		other, err := read(edited)
		if err == nil && !cmp.Equal(other.Args, e.Args, cmpopts.EquateEmpty()) && other.hashAfter("before") == e.Hash {
			t.Errorf("arguments %q and %q have the same hash", other.Args, e.Args)
		}
		_, _ = decodeEvent(cellsOf(eventColumns, duration, at, actor, action, name, edited, result, value, duration, actor, name))
	})
}

// FuzzMessage reads edited messages.
func FuzzMessage(f *testing.F) {
	f.Add("id", "topic", string(sandpit.NewID()), "idle", `{"a":"b"}`, "", int64(1e12), int64(0))
	f.Add("", "\xff", "x", "", `[]`, "e", int64(-1<<63), int64(-1))
	f.Fuzz(func(t *testing.T, id, topic, sandbox, kind, metadata, last string, due, attempts int64) {
		m, err := decodeMessage(cellsOf(messageColumns, id, topic, sandbox, kind, metadata, due, attempts, last, due))
		if err == nil && m.Validate() != nil {
			t.Errorf("not valid: %v", m.Validate())
		}
	})
}
