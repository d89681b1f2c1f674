package store

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Queue returns the queue that is kept in the state. It ends with the store;
// closing it does nothing.
func (s *Store) Queue() queue.Queue { return messages{s} }

// messages is the queue of a store. It works on a full disk, too: what could not be deleted
// is tried again by it, and there are only a few messages for each sandbox.
type messages struct{ store *Store }

// messageColumns in the order in which decodeMessage has them.
const messageColumns = `id, topic, sandbox, kind, metadata, due, attempts, last_error, created_at`

func (q messages) Close() error { return nil }

func (q messages) Schedule(ctx context.Context, m queue.Message) (queue.Message, error) {
	m, err := queue.Prepare(m, q.store.now())
	if err != nil {
		return queue.Message{}, err
	}
	metadata, err := json.Marshal(m.Metadata)
	if err != nil {
		return queue.Message{}, sandpit.Errorf(sandpit.Invalid, "metadata of a message: %w", err)
	}
	err = q.store.writeAnyway(ctx, func(tx *writer) error {
		if _, err := tx.exec(ctx, `DELETE FROM messages WHERE sandbox = ? AND kind = ? AND state = 'pending'`, m.Sandbox, m.Kind); err != nil {
			return err
		}
		_, err := tx.exec(ctx, `INSERT INTO messages (`+messageColumns+`, state, token, until)
			VALUES (?, ?, ?, ?, ?, ?, 0, '', ?, 'pending', '', 0)`,
			m.ID, m.Topic, m.Sandbox, m.Kind, string(metadata), m.Due.UnixMilli(), m.CreatedAt.UnixMilli())
		return err
	})
	if err != nil {
		return queue.Message{}, q.store.wrapError(err, "schedule %s of %s", m.Kind, m.Sandbox)
	}
	return m, nil
}

func (q messages) Reschedule(ctx context.Context, sandbox sandpit.ID, kind queue.Kind, due time.Time) (bool, error) {
	if err := cmp.Or(sandbox.Validate(), queue.CheckKinds(kind), queue.CheckTime(due)); err != nil {
		return false, err
	}
	n, err := q.changeRows(ctx, `UPDATE messages SET due = ? WHERE sandbox = ? AND kind = ? AND state = 'pending'`,
		due.UnixMilli(), sandbox, kind)
	if err != nil {
		return false, q.store.wrapError(err, "reschedule %s of %s", kind, sandbox)
	}
	return n > 0, nil
}

func (q messages) Cancel(ctx context.Context, sandbox sandpit.ID, kinds ...queue.Kind) (int, error) {
	if err := cmp.Or(sandbox.Validate(), queue.CheckKinds(kinds...)); err != nil {
		return 0, err
	}
	query, args := `DELETE FROM messages WHERE sandbox = ? AND (state = 'pending' OR state = 'claimed')`, []any{sandbox}
	if len(kinds) > 0 {
		query, args = query+` AND kind IN (SELECT value FROM json_each(?))`, append(args, toJSONList(kinds))
	}
	n, err := q.changeRows(ctx, query, args...)
	if err != nil {
		return 0, q.store.wrapError(err, "cancel operations of %s", sandbox)
	}
	return int(n), nil
}

const (
	// A claim that ran out while a newer message is pending was replaced.
	dropReplaced = `DELETE FROM messages AS old WHERE state = 'claimed' AND until <= ?1 AND EXISTS (
			SELECT 1 FROM messages AS new WHERE new.sandbox = old.sandbox AND new.kind = old.kind AND new.state = 'pending'
			AND (new.topic IN (SELECT value FROM json_each(?2)) OR old.topic IN (SELECT value FROM json_each(?2))))`
	claimDue = `UPDATE messages SET state = 'claimed', token = lower(hex(randomblob(16))), until = ?3 WHERE id IN (
			SELECT id FROM (
				SELECT id, due FROM messages
					WHERE state = 'claimed' AND topic IN (SELECT value FROM json_each(?2)) AND until <= ?1
				UNION ALL
				SELECT id, due FROM messages AS m
					WHERE state = 'pending' AND topic IN (SELECT value FROM json_each(?2)) AND due <= ?1 AND NOT EXISTS (
						SELECT 1 FROM messages AS c WHERE c.sandbox = m.sandbox AND c.kind = m.kind AND c.state = 'claimed'))
			ORDER BY due, id LIMIT ?4)
		RETURNING ` + messageColumns + `, token, until`
	// Pending ones that do not wait; claims; pending ones that wait for a claim of whatever topic. Claims are few,
	// so the join (CROSS: in this order) begins with them.
	nextDue = `SELECT min(time) FROM (
		SELECT (SELECT due FROM messages AS m WHERE state = 'pending' AND topic = wanted.value AND NOT EXISTS (
			SELECT 1 FROM messages AS c WHERE c.sandbox = m.sandbox AND c.kind = m.kind AND c.state = 'claimed')
			ORDER BY due LIMIT 1) AS time FROM json_each(?1) AS wanted
		UNION ALL
		SELECT (SELECT min(until) FROM messages WHERE state = 'claimed' AND topic = wanted.value) FROM json_each(?1) AS wanted
		UNION ALL
		SELECT max(m.due, c.until) FROM messages AS c CROSS JOIN messages AS m ON m.sandbox = c.sandbox AND m.kind = c.kind
			WHERE c.state = 'claimed' AND m.state = 'pending' AND m.topic IN (SELECT value FROM json_each(?1)))`
)

func (q messages) Claim(ctx context.Context, now time.Time, topics []string, n int, visibility time.Duration) ([]queue.Claim, error) {
	n, err := queue.CheckClaim(now, topics, n, visibility)
	if err != nil {
		return nil, err
	}
	var list []queue.Claim
	err = q.store.writeAnyway(ctx, func(tx *writer) error {
		if _, err := tx.exec(ctx, dropReplaced, now.UnixMilli(), toJSONList(topics)); err != nil {
			return err
		}
		var bad []string
		err := scanRows(ctx, tx, claimDue, []any{now.UnixMilli(), toJSONList(topics), now.Add(visibility).UnixMilli(), n}, func(c *cells) bool {
			m, err := decodeMessage(c)
			if err != nil {
				bad = append(bad, m.ID)
				return true
			}
			list = append(list, queue.Claim{Message: m, Token: c.nextText(), Until: time.UnixMilli(c.nextInt()).UTC()})
			return true
		})
		if err != nil || len(bad) == 0 {
			return err
		}
		// These can never be performed, and must not block others.
		_, err = tx.exec(ctx, `UPDATE messages SET state = 'dead' WHERE id IN (SELECT value FROM json_each(?))`, toJSONList(bad))
		return err
	})
	if err != nil {
		return nil, q.store.wrapError(err, "claim operations")
	}
	slices.SortFunc(list, func(a, b queue.Claim) int {
		return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID))
	})
	return list, nil
}

// Next counts a pending message that waits for a claim from the end of that claim.
func (q messages) Next(ctx context.Context, topics []string) (time.Time, bool, error) {
	if err := queue.CheckTopics(topics...); err != nil {
		return time.Time{}, false, err
	}
	var next time.Time
	var found bool
	err := q.store.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, nextDue, []any{toJSONList(topics)},
			func(c *cells) bool {
				if found = c.values[0] != nil; found {
					next = time.UnixMilli(c.nextInt()).UTC()
				}
				return true
			})
	})
	if err != nil {
		return time.Time{}, false, q.store.wrapError(err, "look for the next operation")
	}
	return next, found, nil
}

func (q messages) Extend(ctx context.Context, c queue.Claim, until time.Time) (queue.Claim, error) {
	if err := queue.CheckTime(until); err != nil {
		return queue.Claim{}, err
	}
	c.Until = queue.Millis(until)
	err := q.updateClaimed(ctx, "extend", c, func(tx *writer) (int64, error) {
		return tx.exec(ctx, `UPDATE messages SET until = ? WHERE id = ? AND token = ? AND state = 'claimed'`,
			c.Until.UnixMilli(), c.ID, c.Token)
	})
	if err != nil {
		return queue.Claim{}, err
	}
	return c, nil
}

func (q messages) Complete(ctx context.Context, c queue.Claim) error {
	return q.updateClaimed(ctx, "complete", c, func(tx *writer) (int64, error) {
		return tx.exec(ctx, `DELETE FROM messages WHERE id = ? AND token = ? AND state = 'claimed'`, c.ID, c.Token)
	})
}

func (q messages) Retry(ctx context.Context, c queue.Claim, due time.Time, cause string) error {
	if err := queue.CheckTime(due); err != nil {
		return err
	}
	return q.updateClaimed(ctx, "retry", c, func(tx *writer) (int64, error) {
		replaced, err := tx.exec(ctx, `DELETE FROM messages AS old WHERE id = ? AND token = ? AND state = 'claimed' AND EXISTS (
			SELECT 1 FROM messages AS new WHERE new.sandbox = old.sandbox AND new.kind = old.kind AND new.state = 'pending')`, c.ID, c.Token)
		if err != nil || replaced > 0 {
			return replaced, err
		}
		return tx.exec(ctx, `UPDATE messages SET state = 'pending', token = '', until = 0, due = ?, attempts = attempts + 1, last_error = ?
			WHERE id = ? AND token = ? AND state = 'claimed'`, due.UnixMilli(), queue.Cause(cause), c.ID, c.Token)
	})
}

func (q messages) Bury(ctx context.Context, c queue.Claim, cause string) error {
	return q.updateClaimed(ctx, "bury", c, func(tx *writer) (int64, error) {
		n, err := tx.exec(ctx, `UPDATE messages SET state = 'dead', token = '', until = 0, attempts = attempts + 1, last_error = ?
			WHERE id = ? AND token = ? AND state = 'claimed'`, queue.Cause(cause), c.ID, c.Token)
		if err != nil || n == 0 {
			return n, err
		}
		_, err = tx.exec(ctx, `DELETE FROM messages WHERE id IN (SELECT id FROM messages
			WHERE topic = ? AND state = 'dead' ORDER BY id DESC LIMIT -1 OFFSET ?)`, c.Topic, queue.MaxDead)
		return n, err
	})
}

// updateClaimed is a Conflict if do changes nothing.
func (q messages) updateClaimed(ctx context.Context, what string, c queue.Claim, do func(*writer) (int64, error)) error {
	err := q.store.writeAnyway(ctx, func(tx *writer) error {
		n, err := do(tx)
		if err == nil && n == 0 {
			err = sandpit.Errorf(sandpit.Conflict, "%s %s of %s: the claim is no longer held", what, c.Kind, c.Sandbox)
		}
		return err
	})
	if err != nil {
		return q.store.wrapError(err, "%s %s of %s", what, c.Kind, c.Sandbox)
	}
	return nil
}

func (q messages) Revive(ctx context.Context, id string, due time.Time) error {
	if err := queue.CheckTime(due); err != nil {
		return err
	}
	err := q.store.writeAnyway(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `UPDATE messages AS d SET state = 'pending', due = ?, attempts = 0 WHERE id = ? AND state = 'dead'
			AND NOT EXISTS (SELECT 1 FROM messages AS m WHERE m.sandbox = d.sandbox AND m.kind = d.kind AND m.state <> 'dead')`,
			due.UnixMilli(), id)
		if err != nil || n > 0 {
			return err
		}
		err = noLetter(id)
		scanErr := scanRows(ctx, tx, `SELECT 1 FROM messages WHERE id = ? AND state = 'dead'`, []any{id}, func(*cells) bool {
			err = sandpit.Errorf(sandpit.Conflict, "revive dead letter %.40q: another one of the same kind is pending or claimed", id)
			return true
		})
		return cmp.Or(scanErr, err)
	})
	if err != nil {
		return q.store.wrapError(err, "revive dead letter %.40q", id)
	}
	return nil
}

func noLetter(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "dead letter %.40q not found", id)
}

func (q messages) Drop(ctx context.Context, id string) error {
	n, err := q.changeRows(ctx, `DELETE FROM messages WHERE id = ? AND state = 'dead'`, id)
	if err != nil {
		return q.store.wrapError(err, "drop dead letter %.40q", id)
	}
	if n == 0 {
		return noLetter(id)
	}
	return nil
}

// List returns with an Internal error, beside the good ones, if some cannot be read.
func (q messages) List(ctx context.Context, f queue.Filter) ([]queue.Message, error) {
	f, err := f.Check()
	if err != nil {
		return nil, err
	}
	query, args := `SELECT `+messageColumns+` FROM messages WHERE id > ? AND (state = 'dead') = ?`, []any{f.After, f.Dead}
	if f.Topic != "" {
		query, args = query+` AND topic = ?`, append(args, f.Topic)
	}
	if f.Sandbox != "" {
		query, args = query+` AND sandbox = ?`, append(args, f.Sandbox)
	}
	if f.Kind != "" {
		query, args = query+` AND kind = ?`, append(args, f.Kind)
	}
	var list []queue.Message
	var bad []error
	err = q.store.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, query+` ORDER BY id LIMIT ?`, append(args, f.Limit), func(c *cells) bool {
			if m, err := decodeMessage(c); err != nil {
				bad = append(bad, err)
			} else {
				list = append(list, m)
			}
			return true
		})
	})
	if err != nil {
		return nil, q.store.wrapError(err, "list operations")
	}
	return list, unreadableError("messages", bad)
}

func (q messages) Stats(ctx context.Context) (queue.Stats, error) {
	var st queue.Stats
	err := q.store.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT count(*) FILTER (WHERE state = 'pending'), count(*) FILTER (WHERE state = 'claimed'),
			count(*) FILTER (WHERE state = 'dead'), min(due) FILTER (WHERE state = 'pending') FROM messages`, nil,
			func(c *cells) bool {
				st.Pending, st.Claimed, st.Dead = int(c.nextInt()), int(c.nextInt()), int(c.nextInt())
				if st.Pending > 0 {
					st.OldestDue = time.UnixMilli(c.nextInt()).UTC()
				}
				return true
			})
	})
	if err != nil {
		return queue.Stats{}, q.store.wrapError(err, "count operations")
	}
	return st, nil
}

func (q messages) Shift(ctx context.Context, topics []string, by time.Duration) error {
	if err := queue.CheckTopics(topics...); err != nil {
		return err
	}
	_, err := q.changeRows(ctx, `UPDATE messages SET due = min(max(due + ?1, 0), ?2),
		until = CASE state WHEN 'claimed' THEN min(max(until + ?1, 0), ?2) ELSE until END
		WHERE state IN ('pending', 'claimed') AND topic IN (SELECT value FROM json_each(?3))`,
		by.Milliseconds(), latestTime().UnixMilli(), toJSONList(topics))
	if err != nil {
		return q.store.wrapError(err, "shift operations")
	}
	return nil
}

// changeRows runs one statement as a transaction and returns how many rows it changed.
func (q messages) changeRows(ctx context.Context, query string, args ...any) (n int64, err error) {
	err = q.store.writeAnyway(ctx, func(tx *writer) error {
		n, err = tx.exec(ctx, query, args...)
		return err
	})
	return n, err
}

// toJSONList returns a list as JSON, which a query can look through.
func toJSONList[T ~string](list []T) string {
	text, _ := json.Marshal(list) // a list of texts cannot fail
	return string(text)
}

// decodeMessage reads and checks what Schedule wrote. Its error names the message.
func decodeMessage(c *cells) (queue.Message, error) {
	m := queue.Message{ID: c.nextText(), Topic: c.nextText(), Sandbox: sandpit.ID(c.nextText()), Kind: queue.Kind(c.nextText())}
	metadata := c.nextText()
	m.Due = time.UnixMilli(c.nextInt()).UTC()
	m.Attempts, m.LastError = int(c.nextInt()), c.nextText()
	m.CreatedAt = time.UnixMilli(c.nextInt()).UTC()
	if json.Unmarshal([]byte(metadata), &m.Metadata) != nil { // its error would quote what it found
		c.rejectValue("metadata")
	}
	if m.Validate() != nil {
		c.rejectValue("content")
	}
	if c.err != nil {
		return m, fmt.Errorf("message %.40q: %w", m.ID, c.err)
	}
	return m, nil
}
