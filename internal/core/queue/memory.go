package queue

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Memory is a queue in memory: nothing to install, and gone with the program. It
// is made for thousands of messages, not millions.
type Memory struct {
	mu    sync.Mutex
	live  map[string]*entry // by ID; pending and claimed
	slots map[slot]pair
	dead  map[string]Message // by ID
}

var _ Queue = (*Memory)(nil)

// entry is a pending message, or a claimed one if it has a token.
type entry struct {
	Message
	token string
	until time.Time
}

// slot is what there is one pending and one claimed message of.
type slot struct {
	sandbox sandpit.ID
	kind    Kind
}

type pair struct{ pending, claimed *entry }

// NewMemory returns an empty queue.
func NewMemory() *Memory {
	return &Memory{live: make(map[string]*entry), slots: make(map[slot]pair), dead: make(map[string]Message)}
}

// Schedule makes m pending; see Producer.
func (q *Memory) Schedule(ctx context.Context, m Message) (Message, error) {
	m, err := Prepare(m, time.Now())
	if err != nil {
		return Message{}, err
	}
	if err := ctx.Err(); err != nil {
		return Message{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.removeEntry(q.slots[slotOf(m)].pending)
	q.addEntry(&entry{Message: m})
	return m.cloneMessage(), nil
}

// Reschedule moves the pending message; see Producer.
func (q *Memory) Reschedule(ctx context.Context, sandbox sandpit.ID, kind Kind, due time.Time) (bool, error) {
	if err := checkSlot(sandbox, kind); err != nil {
		return false, err
	}
	if err := CheckTime(due); err != nil {
		return false, err
	}
	if err := ctx.Err(); err != nil {
		return false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.slots[slot{sandbox, kind}].pending
	if e == nil {
		return false, nil
	}
	e.Due = Millis(due)
	return true, nil
}

// Cancel removes messages of a sandbox; see Producer.
func (q *Memory) Cancel(ctx context.Context, sandbox sandpit.ID, kinds ...Kind) (int, error) {
	if err := checkSlot(sandbox, kinds...); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	n := 0
	for _, e := range q.live {
		if e.Sandbox == sandbox && (len(kinds) == 0 || slices.Contains(kinds, e.Kind)) {
			q.removeEntry(e)
			n++
		}
	}
	return n, nil
}

// Claim takes messages that are due; see Consumer.
func (q *Memory) Claim(ctx context.Context, now time.Time, topics []string, n int, visibility time.Duration) ([]Claim, error) {
	n, err := CheckClaim(now, topics, n, visibility)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var due []*entry
	for _, e := range q.live {
		if slices.Contains(topics, e.Topic) && q.isClaimable(e, now) {
			due = append(due, e)
		}
	}
	slices.SortFunc(due, func(a, b *entry) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	claims := make([]Claim, 0, min(n, len(due)))
	for _, e := range due[:min(n, len(due))] {
		e.token, e.until = NewToken(), Millis(now.Add(visibility))
		q.putEntry(e)
		claims = append(claims, Claim{Message: e.cloneMessage(), Token: e.token, Until: e.until})
	}
	return claims, nil
}

// isClaimable reports whether e may be claimed at now. It drops claims that ran
// out and were replaced.
func (q *Memory) isClaimable(e *entry, now time.Time) bool {
	both := q.slots[slotOf(e.Message)]
	lapsed := both.claimed != nil && !both.claimed.until.After(now)
	if lapsed && both.pending != nil {
		q.removeEntry(both.claimed)
		both.claimed = nil
	}
	if e.token != "" {
		return e == both.claimed && lapsed
	}
	return both.claimed == nil && !e.Due.After(now)
}

// Next returns when there may be something to claim; see Consumer.
func (q *Memory) Next(ctx context.Context, topics []string) (time.Time, bool, error) {
	if err := CheckTopics(topics...); err != nil {
		return time.Time{}, false, err
	}
	if err := ctx.Err(); err != nil {
		return time.Time{}, false, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	var next time.Time
	for _, e := range q.live {
		if !slices.Contains(topics, e.Topic) {
			continue
		}
		at := e.Due
		if holder := q.slots[slotOf(e.Message)].claimed; holder != nil {
			at = holder.until
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next, !next.IsZero(), nil
}

// Extend moves the end of a claim; see Holder.
func (q *Memory) Extend(ctx context.Context, c Claim, until time.Time) (Claim, error) {
	if err := CheckTime(until); err != nil {
		return Claim{}, err
	}
	err := q.updateClaimed(ctx, "extend", c, func(e *entry) { e.until = Millis(until) })
	if err != nil {
		return Claim{}, err
	}
	c.Until = Millis(until)
	return c, nil
}

// Complete removes a message that was done; see Holder.
func (q *Memory) Complete(ctx context.Context, c Claim) error {
	return q.updateClaimed(ctx, "complete", c, q.removeEntry)
}

// Retry makes a message pending again; see Holder.
func (q *Memory) Retry(ctx context.Context, c Claim, due time.Time, cause string) error {
	if err := CheckTime(due); err != nil {
		return err
	}
	return q.updateClaimed(ctx, "retry", c, func(e *entry) {
		q.removeEntry(e)
		if q.slots[slotOf(e.Message)].pending != nil {
			return
		}
		e.recordFailure(cause)
		e.Due, e.token = Millis(due), ""
		q.addEntry(e)
	})
}

// Bury makes a message a dead letter; see Holder.
func (q *Memory) Bury(ctx context.Context, c Claim, cause string) error {
	return q.updateClaimed(ctx, "bury", c, func(e *entry) {
		q.removeEntry(e)
		e.recordFailure(cause)
		q.dead[e.ID] = e.Message
		if old := q.listDeadLetters(Filter{Topic: e.Topic}); len(old) > MaxDead {
			delete(q.dead, old[0].ID)
		}
	})
}

// updateClaimed does something to the message of a claim if the caller still holds it.
func (q *Memory) updateClaimed(ctx context.Context, what string, c Claim, do func(*entry)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	e := q.live[c.ID]
	if e == nil || e.token == "" || e.token != c.Token {
		return Lost(what, c)
	}
	do(e)
	return nil
}

// Revive makes a dead letter pending; see DeadLetters.
func (q *Memory) Revive(ctx context.Context, id string, due time.Time) error {
	if err := CheckTime(due); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	m, ok := q.dead[id]
	if !ok {
		return NoLetter(id)
	}
	if q.slots[slotOf(m)] != (pair{}) {
		return Taken(id)
	}
	delete(q.dead, id)
	m.Due, m.Attempts = Millis(due), 0
	q.addEntry(&entry{Message: m})
	return nil
}

// Drop removes a dead letter; see DeadLetters.
func (q *Memory) Drop(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, ok := q.dead[id]; !ok {
		return NoLetter(id)
	}
	delete(q.dead, id)
	return nil
}

// List returns messages; see Keeper.
func (q *Memory) List(ctx context.Context, f Filter) ([]Message, error) {
	f, err := f.Check()
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	list := q.listDeadLetters(f)
	if !f.Dead {
		list = q.listMessages(f)
	}
	first, found := slices.BinarySearchFunc(list, f.After, func(m Message, id string) int { return cmp.Compare(m.ID, id) })
	if found {
		first++
	}
	list = list[first:]
	list = list[:min(f.Limit, len(list))]
	for i, m := range list {
		list[i] = m.cloneMessage()
	}
	return list, nil
}

// listMessages returns what is pending or claimed, in the order of their IDs.
func (q *Memory) listMessages(f Filter) []Message {
	var list []Message
	for _, e := range q.live {
		if f.Holds(e.Message) {
			list = append(list, e.Message)
		}
	}
	slices.SortFunc(list, byID)
	return list
}

// listDeadLetters returns dead letters in the order of their IDs.
func (q *Memory) listDeadLetters(f Filter) []Message {
	var list []Message
	for _, m := range q.dead {
		if f.Holds(m) {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, byID)
	return list
}

func byID(a, b Message) int { return cmp.Compare(a.ID, b.ID) }

// Stats counts messages; see Keeper.
func (q *Memory) Stats(ctx context.Context) (Stats, error) {
	if err := ctx.Err(); err != nil {
		return Stats{}, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s := Stats{Dead: len(q.dead)}
	for _, e := range q.live {
		if e.token != "" {
			s.Claimed++
			continue
		}
		s.Pending++
		if s.OldestDue.IsZero() || e.Due.Before(s.OldestDue) {
			s.OldestDue = e.Due
		}
	}
	return s, nil
}

// Shift moves the times of messages; see Keeper.
func (q *Memory) Shift(ctx context.Context, topics []string, by time.Duration) error {
	if err := CheckTopics(topics...); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	by = by.Truncate(time.Millisecond)
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.live {
		if slices.Contains(topics, e.Topic) {
			e.Due, e.until = e.Due.Add(by), e.until.Add(by)
		}
	}
	return nil
}

// Close has nothing to give back.
func (q *Memory) Close() error { return nil }

// addEntry makes e the pending or claimed message of its slot.
func (q *Memory) addEntry(e *entry) {
	q.live[e.ID] = e
	q.putEntry(e)
}

func (q *Memory) putEntry(e *entry) {
	both := q.slots[slotOf(e.Message)]
	if both.pending == e {
		both.pending = nil
	}
	if e.token != "" {
		both.claimed = e
	} else {
		both.pending = e
	}
	q.slots[slotOf(e.Message)] = both
}

// removeEntry takes e out of the queue. It may be nil.
func (q *Memory) removeEntry(e *entry) {
	if e == nil {
		return
	}
	delete(q.live, e.ID)
	both := q.slots[slotOf(e.Message)]
	if both.pending == e {
		both.pending = nil
	}
	if both.claimed == e {
		both.claimed = nil
	}
	if both == (pair{}) {
		delete(q.slots, slotOf(e.Message))
		return
	}
	q.slots[slotOf(e.Message)] = both
}

func slotOf(m Message) slot { return slot{m.Sandbox, m.Kind} }
