package store

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
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
	// Actor is the owner that acted, or "manager".
	Actor  string
	Action string
	// Owner is the owner that the event concerns and that may see it. It is not part of
	// the hash. Default: Actor.
	Owner string
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
	// Owner chooses what concerns one owner or was done in the owner's name.
	Owner string
	// After is the Seq of the last event of the page before.
	After int64
	// Limit is at most so many, at most MaxEvents. Default: 100.
	Limit int
}

const (
	eventColumns = `seq, at, actor, action, sandbox, args, result, message, duration, hash, owner`
	eventInsert  = `INSERT INTO events (` + eventColumns + `) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`

	// eventOverhead is how many bytes an event counts besides its texts.
	eventOverhead = 100
	eventSize     = `100 + octet_length(actor) + octet_length(action) + octet_length(sandbox)
		+ octet_length(args) + octet_length(result) + octet_length(message) + octet_length(owner)`
)

// AppendEvents adds events in this order, all of them or none.
func (s *Events) AppendEvents(ctx context.Context, list ...Event) error {
	if len(list) == 0 {
		return nil
	}
	if len(list) > MaxEvents {
		return sandpit.Errorf(sandpit.Invalid, "append %d events, want %d or fewer", len(list), MaxEvents)
	}
	err := s.db.writeTx(ctx, func(tx *writer) error {
		var last Event
		if err := tx.scanRow(ctx, `SELECT end_seq, end_hash FROM event_chain`, nil, &last.Seq, &last.Hash); err != nil {
			return err
		}
		var bytes int64
		for _, e := range list {
			e = s.boundEvent(e)
			e.Seq = last.Seq + 1
			e.Hash = e.hashAfter(last.Hash)
			n, err := insertEvent(ctx, tx, e)
			if err != nil {
				return err
			}
			bytes += n
			last = e
		}
		_, err := tx.exec(ctx, `UPDATE event_chain SET end_seq = ?, end_hash = ?, bytes = bytes + ?`, last.Seq, last.Hash, bytes)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "append events")
	}
	s.db.news.notifyChange()
	return nil
}

// MoreEvents returns a channel that is closed when the next events are appended.
// Take it before looking, so that none is missed.
func (s *Events) MoreEvents() <-chan struct{} { return s.db.news.nextChange() }

// news notifies waiting callers of new events.
type news struct {
	mu sync.Mutex
	ch chan struct{}
}

func (n *news) nextChange() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch == nil {
		n.ch = make(chan struct{})
	}
	return n.ch
}

func (n *news) notifyChange() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.ch != nil {
		close(n.ch)
		n.ch = nil
	}
}

// EventSpan says which events are stored.
type EventSpan struct {
	// Start is the Seq of the last event that was dropped, End that of the last one that
	// was appended: End-Start events are stored.
	Start, End int64
	// Bytes is about how much room they take.
	Bytes int64
}

// EventSpan returns which events are stored.
func (s *Events) EventSpan(ctx context.Context) (EventSpan, error) {
	var span EventSpan
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT start_seq, end_seq, bytes FROM event_chain`, nil, func(c *cells) bool {
			span = EventSpan{Start: c.nextInt(), End: c.nextInt(), Bytes: c.nextInt()}
			return true
		})
	})
	if err != nil {
		return EventSpan{}, s.db.wrapError(err, "look at the events")
	}
	return span, nil
}

// Size is how much of EventSpan.Bytes the event takes.
func (e Event) Size() int64 {
	args, _ := json.Marshal(e.Args) // texts always have a form in JSON
	return e.sizeOf(args)
}

func (e Event) sizeOf(args []byte) int64 {
	return int64(eventOverhead + len(e.Actor) + len(e.Action) + len(e.Sandbox) + len(args) + len(e.Result) + len(e.Message) + len(e.Owner))
}

// insertEvent adds an event and returns its size.
func insertEvent(ctx context.Context, tx *writer, e Event) (int64, error) {
	args, err := json.Marshal(e.Args)
	if err != nil {
		return 0, err
	}
	_, err = tx.exec(ctx, eventInsert, e.Seq, toMicros(e.At), e.Actor, e.Action, e.Sandbox, string(args),
		e.Result, e.Message, int64(e.Duration), e.Hash, e.Owner)
	return e.sizeOf(args), err
}

// boundEvent returns e as it is kept.
func (s *Events) boundEvent(e Event) Event {
	if e.At.IsZero() || !inRange(e.At) {
		e.At = s.db.now()
	}
	e.At = roundTime(e.At)
	e.Actor, e.Action = shortenText(e.Actor), shortenText(e.Action)
	e.Owner = shortenText(cmp.Or(e.Owner, e.Actor))
	e.Sandbox = sandpit.ID(shortenText(string(e.Sandbox)))
	e.Result, e.Message = shortenText(e.Result), shortenText(e.Message)
	args := make(map[string]string, min(len(e.Args), MaxEventArgs))
	for _, name := range slices.Sorted(maps.Keys(e.Args)) {
		if len(args) == MaxEventArgs {
			break
		}
		args[shortenText(name)] = shortenText(e.Args[name])
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
	e := Event{Seq: c.nextInt(), At: c.nextTime(), Actor: c.nextText(), Action: c.nextText(), Sandbox: sandpit.ID(c.nextText())}
	args := c.nextText()
	e.Result, e.Message, e.Duration, e.Hash, e.Owner = c.nextText(), c.nextText(), time.Duration(c.nextInt()), c.nextText(), c.nextText()
	if json.Unmarshal([]byte(args), &e.Args) != nil { // its error would quote what it found
		c.rejectValue("args")
	}
	if c.err != nil {
		return e, fmt.Errorf("event %d: %w", e.Seq, c.err)
	}
	return e, nil
}

// ListEvents returns events in the order they were appended. Those that cannot be
// read are left out, and are named in an Internal error that comes with the good ones.
func (s *Events) ListEvents(ctx context.Context, f EventFilter) ([]Event, error) {
	if f.Limit < 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "list events: limit %d", f.Limit)
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	query, args := f.buildQuery(min(f.Limit, MaxEvents))
	var list []Event
	var bad []error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, query, args, func(c *cells) bool {
			if e, err := decodeEvent(c); err != nil {
				bad = append(bad, err)
			} else {
				list = append(list, e)
			}
			return true
		})
	})
	if err != nil {
		return nil, s.db.wrapError(err, "list events")
	}
	return list, unreadableError("events", bad)
}

// buildQuery returns the statement that finds events, and its arguments.
func (f EventFilter) buildQuery(limit int) (string, []any) {
	where, args := `seq > ?`, []any{f.After}
	for _, c := range []struct{ column, value string }{{"sandbox", string(f.Sandbox)}, {"actor", f.Actor}, {"action", f.Action}} {
		if c.value != "" {
			where, args = where+` AND `+c.column+` = ?`, append(args, c.value)
		}
	}
	const end = ` ORDER BY seq LIMIT ?`
	if f.Owner == "" {
		return `SELECT ` + eventColumns + ` FROM events WHERE ` + where + end, append(args, limit)
	}
	// Two walks along an index each, of which neither sees the events of other owners: an
	// OR would read all events.
	var parts []string
	var all []any
	for _, column := range []string{"owner", "actor"} {
		parts = append(parts, `SELECT * FROM (SELECT `+eventColumns+` FROM events WHERE `+column+` = ? AND `+where+end+`)`)
		all = append(append(append(all, f.Owner), args...), limit)
	}
	return strings.Join(parts, ` UNION `) + end, append(all, limit)
}

// VerifyEvents checks that no event was changed, removed, inserted or moved since
// it was appended. Internal: one was; the error names the first.
//
// It detects changes that bypass this package. It does not detect an attacker that has
// write access and computes the whole chain again; against that, keep copies of hashes elsewhere.
func (s *Events) VerifyEvents(ctx context.Context) error {
	var walk chain
	err := s.db.readTx(ctx, func(r *reader) error {
		// One query, so that events which are appended meanwhile do not matter.
		return scanRows(ctx, r, `SELECT start_seq, start_hash, end_seq, end_hash, `+eventColumns+`
			FROM event_chain LEFT JOIN events ORDER BY events.seq`, nil, walk.checkEvent)
	})
	if err != nil {
		return s.db.wrapError(err, "verify events")
	}
	return walk.chainError()
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

// checkEvent looks at one event and reports whether the chain holds so far.
func (w *chain) checkEvent(c *cells) bool {
	seq, hash := c.nextInt(), c.nextText()
	w.endSeq, w.endHash = c.nextInt(), c.nextText()
	if !w.begun {
		w.begun, w.seq, w.hash = true, seq, hash
	}
	if c.values[c.next] == nil { // no events at all
		return true
	}
	e, err := decodeEvent(c)
	switch {
	case e.Seq <= w.seq || e.Seq > w.endSeq:
		w.bad = brokenChain("event %d was inserted", e.Seq)
	case e.Seq != w.seq+1:
		w.bad = brokenChain("event %d is missing", w.seq+1)
	case err != nil || e.Hash != e.hashAfter(w.hash):
		w.bad = brokenChain("event %d was changed", e.Seq)
	default:
		w.seq, w.hash = e.Seq, e.Hash
	}
	return w.bad == nil
}

func (w *chain) chainError() error {
	switch {
	case w.bad != nil:
		return w.bad
	case !w.begun:
		return brokenChain("the ends of the chain are missing")
	case w.seq != w.endSeq:
		return brokenChain("event %d is missing", w.seq+1)
	case w.hash != w.endHash:
		return brokenChain("event %d was changed", w.seq)
	}
	return nil
}

func brokenChain(format string, args ...any) error {
	err := sandpit.Errorf(sandpit.Internal, "the record of events was tampered with or damaged: "+format, args...)
	return sandpit.WithHint(err, "compare it with a backup")
}

// DropEvents removes the oldest events up to and including one. The remaining events can
// still be verified.
//
// NotFound: no such event.
func (s *Events) DropEvents(ctx context.Context, through int64) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `UPDATE event_chain SET (start_seq, start_hash, bytes) = (SELECT seq, hash,
			max(0, event_chain.bytes - (SELECT sum(`+eventSize+`) FROM events WHERE seq <= ?1)) FROM events WHERE seq = ?1)
			WHERE EXISTS (SELECT 1 FROM events WHERE seq = ?1)`, through)
		if err == nil && n == 0 {
			err = sandpit.Errorf(sandpit.NotFound, "event %d not found", through)
		}
		if err == nil {
			_, err = tx.exec(ctx, `DELETE FROM events WHERE seq <= ?`, through)
		}
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "drop events")
	}
	return nil
}
