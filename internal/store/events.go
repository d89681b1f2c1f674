package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The bounds of an Event. Longer texts and more arguments are cut, so that nothing
// goes unrecorded.
const (
	MaxEventText = maxText // bytes of each text, arguments included
	MaxEventArgs = 32      // arguments
	MaxEvents    = 1000    // events in one call; more are Invalid to append, and not returned
)

// Event is something that was done, or refused. It is the caller's business that
// it holds no secrets.
type Event struct {
	// Seq is given by the store: 1 and up, without gaps.
	Seq int64
	// At is when, to the microsecond. Default: now.
	At time.Time
	// Actor is who: an owner, or "manager".
	Actor  string
	Action string
	// Sandbox is what it was done to, if to one.
	Sandbox sandpit.ID
	Args    map[string]string
	// Result is "ok" or the code of the error.
	Result  string
	Message string
	// Duration is how long it took.
	Duration time.Duration
	// Hash is given by the store: SHA-256 of the hash before and of this event, as
	// hexadecimal digits.
	Hash string
}

// EventFilter chooses events. Fields that are zero choose everything.
type EventFilter struct {
	Sandbox sandpit.ID
	Actor   string
	Action  string
	// Owner chooses what concerns one owner: what was done in their name, and to
	// sandboxes of theirs that are remembered.
	Owner string
	// After is the Seq of the last event of the page before.
	After int64
	// Limit is at most so many, at most MaxEvents. Default: 100.
	Limit int
}

const (
	eventColumns = `seq, at, actor, action, sandbox, args, result, message, duration, hash`
	insertEvent  = `INSERT INTO events (` + eventColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
)

// AppendEvents adds events in this order, all of them or none.
func (s *Store) AppendEvents(ctx context.Context, list ...Event) error {
	if len(list) == 0 {
		return nil
	}
	if len(list) > MaxEvents {
		return sandpit.Errorf(sandpit.Invalid, "append %d events, want %d or fewer", len(list), MaxEvents)
	}
	err := s.write(ctx, func(tx *writer) error {
		var last Event
		if err := tx.row(ctx, `SELECT end_seq, end_hash FROM event_chain`, nil, &last.Seq, &last.Hash); err != nil {
			return err
		}
		for _, e := range list {
			e = s.bound(e)
			e.Seq = last.Seq + 1
			e.Hash = e.hashAfter(last.Hash)
			if err := insert(ctx, tx, e); err != nil {
				return err
			}
			last = e
		}
		_, err := tx.exec(ctx, `UPDATE event_chain SET end_seq = ?, end_hash = ?`, last.Seq, last.Hash)
		return err
	})
	if err != nil {
		return s.fail(err, "append events")
	}
	s.news.tell()
	return nil
}

// MoreEvents returns a channel that is closed when the next events are appended.
// Take it before looking, so that none is missed.
func (s *Store) MoreEvents() <-chan struct{} { return s.news.next() }

// news tells all who wait that something has come.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// EventSpan returns the Seq of the last event that was pruned and of the last one
// that was appended: there are end-start events.
func (s *Store) EventSpan(ctx context.Context) (start, end int64, err error) {
	err = s.read(ctx, func(r *reader) error {
		return scan(ctx, r, `SELECT start_seq, end_seq FROM event_chain`, nil, func(c *cells) bool {
			start, end = c.int(), c.int()
			return true
		})
	})
	if err != nil {
		return 0, 0, s.fail(err, "look at the events")
	}
	return start, end, nil
}

func insert(ctx context.Context, tx *writer, e Event) error {
	args, err := json.Marshal(e.Args)
	if err != nil {
		return err
	}
	_, err = tx.exec(ctx, insertEvent, e.Seq, micros(e.At), e.Actor, e.Action, e.Sandbox, string(args),
		e.Result, e.Message, int64(e.Duration), e.Hash)
	return err
}

// bound returns e as it is kept.
func (s *Store) bound(e Event) Event {
	if e.At.IsZero() || !inRange(e.At) {
		e.At = s.now()
	}
	e.At = round(e.At)
	e.Actor, e.Action = cut(e.Actor), cut(e.Action)
	e.Sandbox = sandpit.ID(cut(string(e.Sandbox)))
	e.Result, e.Message = cut(e.Result), cut(e.Message)
	args := make(map[string]string, min(len(e.Args), MaxEventArgs))
	for _, name := range slices.Sorted(maps.Keys(e.Args)) {
		if len(args) == MaxEventArgs {
			break
		}
		args[cut(name)] = cut(e.Args[name])
	}
	e.Args = args
	return e
}

// hashAfter returns the hash of e when it follows an event with that hash. Every
// part is preceded by its length, so that no two events look alike.
func (e Event) hashAfter(before string) string {
	var b []byte
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) } //nolint:gosec // all 64 bits, whatever they mean
	text := func(s string) { number(int64(len(s))); b = append(b, s...) }
	text(before)
	number(e.Seq)
	number(e.At.UnixMicro())
	for _, s := range []string{e.Actor, e.Action, string(e.Sandbox), e.Result, e.Message} {
		text(s)
	}
	number(int64(e.Duration))
	number(int64(len(e.Args)))
	for _, name := range slices.Sorted(maps.Keys(e.Args)) {
		text(name)
		text(e.Args[name])
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// decodeEvent reads and checks what insert wrote. Its error names the event.
func decodeEvent(c *cells) (Event, error) {
	e := Event{Seq: c.int(), At: c.time(), Actor: c.text(), Action: c.text(), Sandbox: sandpit.ID(c.text())}
	args := c.text()
	e.Result, e.Message, e.Duration, e.Hash = c.text(), c.text(), time.Duration(c.int()), c.text()
	if json.Unmarshal([]byte(args), &e.Args) != nil { // its error would quote what it found
		c.reject("args")
	}
	if c.err != nil {
		return e, fmt.Errorf("event %d: %w", e.Seq, c.err)
	}
	return e, nil
}

// Events returns events in the order they were appended. Those that cannot be
// read are left out, and are named in an Internal error that comes with the good ones.
func (s *Store) Events(ctx context.Context, f EventFilter) ([]Event, error) {
	if f.Limit < 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "list events: limit %d", f.Limit)
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	query, args := `SELECT `+eventColumns+` FROM events WHERE seq > ?`, []any{f.After}
	if f.Sandbox != "" {
		query, args = query+` AND sandbox = ?`, append(args, f.Sandbox)
	}
	if f.Actor != "" {
		query, args = query+` AND actor = ?`, append(args, f.Actor)
	}
	if f.Action != "" {
		query, args = query+` AND action = ?`, append(args, f.Action)
	}
	if f.Owner != "" {
		query += ` AND (actor = ? OR sandbox IN (SELECT id FROM sandboxes WHERE owner = ?))`
		args = append(args, f.Owner, f.Owner)
	}
	var list []Event
	var bad []error
	err := s.read(ctx, func(r *reader) error {
		return scan(ctx, r, query+` ORDER BY seq LIMIT ?`, append(args, min(f.Limit, MaxEvents)), func(c *cells) bool {
			if e, err := decodeEvent(c); err != nil {
				bad = append(bad, err)
			} else {
				list = append(list, e)
			}
			return true
		})
	})
	if err != nil {
		return nil, s.fail(err, "list events")
	}
	return list, unreadable("events", bad)
}

// VerifyEvents checks that no event was changed, removed, inserted or moved since
// it was appended. Internal: one was; the error names the first.
//
// It finds what goes past this package. It does not find somebody who may write the
// file and computes the whole chain anew; against that, keep copies of hashes elsewhere.
func (s *Store) VerifyEvents(ctx context.Context) error {
	var walk chain
	err := s.read(ctx, func(r *reader) error {
		// One query, so that events which are appended meanwhile do not matter.
		return scan(ctx, r, `SELECT start_seq, start_hash, end_seq, end_hash, events.*
			FROM event_chain LEFT JOIN events ORDER BY events.seq`, nil, walk.step)
	})
	if err != nil {
		return s.fail(err, "verify events")
	}
	return walk.verdict()
}

// chain is how far the events have been verified.
type chain struct {
	begun   bool
	seq     int64 // of the last good event
	hash    string
	endSeq  int64
	endHash string
	bad     error
}

// step looks at one event and reports whether the chain holds so far.
func (w *chain) step(c *cells) bool {
	seq, hash := c.int(), c.text()
	w.endSeq, w.endHash = c.int(), c.text()
	if !w.begun {
		w.begun, w.seq, w.hash = true, seq, hash
	}
	if c.values[c.next] == nil { // no events at all
		return true
	}
	e, err := decodeEvent(c)
	switch {
	case e.Seq <= w.seq || e.Seq > w.endSeq:
		w.bad = broken("event %d was inserted", e.Seq)
	case e.Seq != w.seq+1:
		w.bad = broken("event %d is missing", w.seq+1)
	case err != nil || e.Hash != e.hashAfter(w.hash):
		w.bad = broken("event %d was changed", e.Seq)
	default:
		w.seq, w.hash = e.Seq, e.Hash
	}
	return w.bad == nil
}

func (w *chain) verdict() error {
	switch {
	case w.bad != nil:
		return w.bad
	case !w.begun:
		return broken("the ends of the chain are missing")
	case w.seq != w.endSeq:
		return broken("event %d is missing", w.seq+1)
	case w.hash != w.endHash:
		return broken("event %d was changed", w.seq)
	}
	return nil
}

func broken(format string, args ...any) error {
	err := sandpit.Errorf(sandpit.Internal, "the record of events was tampered with or damaged: "+format, args...)
	return sandpit.WithHint(err, "compare it with a backup")
}

// PruneEvents removes the oldest events, up to the first that is not before the
// time. What is left can be verified as before.
func (s *Store) PruneEvents(ctx context.Context, before time.Time) error {
	err := s.write(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `UPDATE event_chain SET (start_seq, start_hash) = (SELECT seq, hash FROM events
			WHERE seq < ifnull((SELECT min(seq) FROM events WHERE at >= ?1), end_seq + 1) ORDER BY seq DESC LIMIT 1)
			WHERE EXISTS (SELECT 1 FROM events
			WHERE seq < ifnull((SELECT min(seq) FROM events WHERE at >= ?1), end_seq + 1))`, before.Add(time.Microsecond-1).UnixMicro())
		if err != nil || n == 0 {
			return err
		}
		_, err = tx.exec(ctx, `DELETE FROM events WHERE seq <= (SELECT start_seq FROM event_chain)`)
		return err
	})
	if err != nil {
		return s.fail(err, "prune events")
	}
	return nil
}
