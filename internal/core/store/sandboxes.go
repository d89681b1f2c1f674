package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The bounds of a Row. What exceeds them is Invalid, but a longer Reason is cut.
const (
	MaxSpec   = 1 << 20 // bytes of the Spec as JSON
	MaxHandle = 4096    // bytes
	MaxName   = 512     // bytes of Owner, Provider, Key, Digest and Pool each
	MaxReason = maxText // bytes
)

// Row is one sandbox: its lease and what became of it. Times are kept in UTC, to
// the microsecond, and are in the years 1970 to 9999 or zero. LastUsedAt never goes back,
// except by ShiftDeadlines. In Policy, an IdleTimeout of zero means never. Next and
// ResumesOnUse follow from the rest, and are not kept.
type Row struct {
	sandpit.Sandbox
	// Provider is the name of its provider.
	Provider string
	// Handle is what the provider attaches to it by.
	Handle []byte
	// Idled says that it is paused or stopped, or on the way to that, because it was idle.
	Idled bool
	// Prepared is what the provider was given in place of Spec.Image, "" if that.
	Prepared sandpit.Image
	// Admin says that its image was looked up with the rights of an administrator.
	Admin bool
	// Term is the time between setting the deadline and the deadline, 0 without one: a
	// sandbox that resumes after its deadline gets the same time again.
	Term time.Duration
	// Key is what the maker called the request, "" for nothing. While the row
	// exists no other row of the same owner has it.
	Key string
	// Digest is of the request made with Key.
	Digest string
	// Pool is the pool of a spare, "" for other sandboxes.
	Pool string
	// Recreated is how often it was made again.
	Recreated int
	// Version is 1 for a new row, and one more after each update.
	Version int64
}

// Policy is that of a Row. Zero durations mean never.
type Policy = sandpit.Policy

// Filter chooses rows. Fields that are zero choose everything.
type Filter struct {
	Owner string
	// Labels must all be there.
	Labels map[string]string
	// States is any of these.
	States []sandpit.State
	// After is the ID of the last row of the page before.
	After sandpit.ID
	// Limit is at most so many. Default: all.
	Limit int
}

// InsertSandbox adds a row and returns it as it is kept, with Version 1.
//
// AlreadyExists: the ID, or the Key or name for this owner. Invalid: out of bounds.
func (s *Sandboxes) InsertSandbox(ctx context.Context, r Row) (Row, error) {
	r.Version = 1
	values, r, err := encodeRow(r)
	if err != nil {
		return Row{}, err
	}
	err = s.db.writeTx(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, insertRow, values...)
		if isTaken(err) {
			return conflictOf(ctx, tx, r)
		}
		return err
	})
	if err != nil {
		return Row{}, s.db.wrapError(err, "keep sandbox %s", r.ID)
	}
	return r, nil
}

// UpdateSandbox replaces the row with the ID and Version of r and returns it as
// it is kept, with the next Version. CreatedAt and a later LastUsedAt stay. Unless the spec
// becomes longer, that works on a full disk, too.
//
// NotFound: no such row. Conflict: it has another version. AlreadyExists: another
// row of the owner has the Key or the name. Invalid: out of bounds.
func (s *Sandboxes) UpdateSandbox(ctx context.Context, r Row) (Row, error) {
	before := r.Version
	r.Version++
	values, r, err := encodeRow(r)
	if err != nil {
		return Row{}, err
	}
	err = s.db.writeAnyway(ctx, func(tx *writer) error {
		if err := s.checkGrowth(ctx, tx, r, values); err != nil {
			return err
		}
		var created, used sql.Null[int64]
		err := tx.scanRow(ctx, updateRow, append(values, before), &created, &used)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return staleReason(ctx, tx, r.ID, before)
		case isTaken(err):
			return conflictOf(ctx, tx, r)
		}
		r.CreatedAt, r.LastUsedAt = fromMicros(created), fromMicros(used)
		return err
	})
	if err != nil {
		return Row{}, s.db.wrapError(err, "keep sandbox %s", r.ID)
	}
	return r, nil
}

// checkGrowth is CheckRoom if the spec of a row becomes longer.
func (s *Sandboxes) checkGrowth(ctx context.Context, tx *writer, r Row, values []any) error {
	full := s.db.CheckRoom()
	if full == nil {
		return nil
	}
	spec, _ := values[specColumn].(string)
	var longer bool
	err := tx.scanRow(ctx, `SELECT length(CAST(spec AS BLOB)) < ?2 FROM sandboxes WHERE id = ?1`, []any{r.ID, len(spec)}, &longer)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return nil // the update reports it
	case err != nil:
		return err
	case longer:
		return full
	}
	return nil
}

// conflictOf returns why a row could not be written.
func conflictOf(ctx context.Context, q querier, r Row) error {
	holder := ""
	err := scanRows(ctx, q, `SELECT id FROM sandboxes WHERE owner = ? AND request_key = ? AND request_key <> '' AND id <> ?`,
		[]any{r.Lease.Owner, r.Key, r.ID}, func(c *cells) bool { holder = c.nextText(); return true })
	if err != nil {
		return err
	}
	if holder != "" {
		return sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s was made with the same idempotency key", holder)
	}
	err = scanRows(ctx, q, `SELECT id FROM sandboxes WHERE owner = ? AND name = ? AND name <> '' AND id <> ?`,
		[]any{r.Lease.Owner, r.reservedName(), r.ID}, func(c *cells) bool { holder = c.nextText(); return true })
	if err != nil {
		return err
	}
	if holder != "" {
		return NameTaken(r.Spec.Name, sandpit.ID(holder))
	}
	return sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", r.ID)
}

// NameTaken is the error for a name that another sandbox of the same owner has.
func NameTaken(name string, holder sandpit.ID) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.AlreadyExists, "the name %q is taken by sandbox %s", name, holder),
		"choose another name, or first: sandpit rm "+string(holder))
}

// staleReason returns why no row was updated.
func staleReason(ctx context.Context, q querier, id sandpit.ID, want int64) error {
	err := missingSandbox(id)
	scanErr := scanRows(ctx, q, `SELECT version FROM sandboxes WHERE id = ?`, []any{id}, func(c *cells) bool {
		err = sandpit.Errorf(sandpit.Conflict, "sandbox %s was changed meanwhile: it has version %d, not %d", id, c.nextInt(), want)
		return true
	})
	if scanErr != nil {
		return scanErr
	}
	return err
}

func missingSandbox(id sandpit.ID) error {
	return sandpit.Errorf(sandpit.NotFound, "Sandbox %.40s not found", string(id))
}

// DeleteSandbox removes a row; absent is fine.
func (s *Sandboxes) DeleteSandbox(ctx context.Context, id sandpit.ID) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `DELETE FROM sandboxes WHERE id = ?`, id)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "forget sandbox %.40s", string(id))
	}
	return nil
}

// Sandbox returns a row.
//
// NotFound: no such row. Internal: it cannot be read.
func (s *Sandboxes) Sandbox(ctx context.Context, id sandpit.ID) (Row, error) {
	list, err := s.queryRows(ctx, Filter{}, `WHERE id = ?`, id)
	if err == nil && len(list) == 0 {
		err = missingSandbox(id)
	}
	if err != nil {
		return Row{}, err
	}
	return list[0], nil
}

// SandboxByKey returns the row of an owner that was made with key.
//
// NotFound: no such row. Internal: it cannot be read.
func (s *Sandboxes) SandboxByKey(ctx context.Context, owner, key string) (Row, error) {
	list, err := s.queryRows(ctx, Filter{}, `WHERE owner = ? AND request_key = ? AND request_key <> ''`, owner, key)
	if err == nil && len(list) == 0 {
		err = sandpit.Errorf(sandpit.NotFound, "no sandbox was made with this idempotency key")
	}
	if err != nil {
		return Row{}, err
	}
	return list[0], nil
}

// SandboxByName returns the row of an owner's sandbox that has a name. Sandboxes that are
// deleted, or wait in a pool, have none.
//
// NotFound: no such row. Internal: it cannot be read.
func (s *Sandboxes) SandboxByName(ctx context.Context, owner, name string) (Row, error) {
	list, err := s.queryRows(ctx, Filter{}, `WHERE owner = ? AND name = ? AND name <> ''`, owner, name)
	if err == nil && len(list) == 0 {
		err = sandpit.Errorf(sandpit.NotFound, "sandbox %q not found", name)
	}
	if err != nil {
		return Row{}, err
	}
	return list[0], nil
}

// ListSandboxes returns rows in the order of their IDs. Rows that cannot be read are
// left out, and are named in an Internal error that comes with the good ones.
func (s *Sandboxes) ListSandboxes(ctx context.Context, f Filter) ([]Row, error) {
	if f.Limit < 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "list sandboxes: limit %d", f.Limit)
	}
	where, args := `WHERE id > ?`, []any{f.After}
	if f.Owner != "" {
		where, args = where+` AND owner = ?`, append(args, f.Owner)
	}
	if len(f.States) > 0 {
		states, err := json.Marshal(f.States)
		if err != nil {
			return nil, sandpit.Errorf(sandpit.Invalid, "list sandboxes: %w", err)
		}
		where, args = where+` AND state IN (SELECT value FROM json_each(?))`, append(args, string(states))
	}
	return s.queryRows(ctx, f, where+` ORDER BY id`, args...)
}

// queryRows returns what a query finds and f does not leave out by labels and limit:
// labels are looked at here, since a row whose JSON is broken would fail the query.
func (s *Sandboxes) queryRows(ctx context.Context, f Filter, where string, args ...any) ([]Row, error) {
	var list []Row
	var bad []error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, selectRows+where, args, func(c *cells) bool {
			switch row, err := decodeRow(c); {
			case err != nil:
				bad = append(bad, err)
			case hasLabels(row, f.Labels):
				list = append(list, row)
			}
			return f.Limit == 0 || len(list) < f.Limit
		})
	})
	if err != nil {
		return nil, s.db.wrapError(err, "list sandboxes")
	}
	return list, unreadableError("sandboxes", bad)
}

func hasLabels(r Row, want map[string]string) bool {
	for name, value := range want {
		if got, ok := r.Spec.Labels[name]; !ok || got != value {
			return false
		}
	}
	return true
}

// TouchSandboxes notes when sandboxes were used last: all of them or none. A time
// before the one noted already, and an ID without a row, change nothing. Versions
// stay.
func (s *Sandboxes) TouchSandboxes(ctx context.Context, used map[sandpit.ID]time.Time) error {
	if len(used) == 0 {
		return nil
	}
	times := make(map[sandpit.ID]int64, len(used))
	for id, t := range used {
		if t.IsZero() || !inRange(t) {
			return sandpit.Errorf(sandpit.Invalid, "sandbox %.40s was used in the year %d", string(id), t.UTC().Year())
		}
		times[id] = t.UnixMicro()
	}
	text, err := json.Marshal(times)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "note the last use: %w", err)
	}
	err = s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `UPDATE sandboxes SET last_used_at = max(ifnull(last_used_at, 0), used.value)
			FROM json_each(?) AS used WHERE sandboxes.id = used.key`, string(text))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "note the last use")
	}
	return nil
}

// maxShift is how far a clock is believed to be set: a hundred years.
const maxShift = 100 * 365 * 24 * time.Hour

// ShiftDeadlines moves Deadline, LastUsedAt, ChangedAt and CheckpointedAt of every row, because
// the clock was set by so much. Versions do not change: the caller shifts its rows in
// memory itself. Times stay in the years 1970 to 9999. Invalid: more than a hundred years.
func (s *Sandboxes) ShiftDeadlines(ctx context.Context, by time.Duration) error {
	if by.Abs() > maxShift {
		return sandpit.Errorf(sandpit.Invalid, "shift deadlines by %v", by)
	}
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `UPDATE sandboxes SET
			deadline = min(max(deadline + ?1, 1), ?2),
			last_used_at = min(max(last_used_at + ?1, 1), ?2),
			changed_at = min(max(changed_at + ?1, 1), ?2),
			checkpointed_at = min(max(checkpointed_at + ?1, 1), ?2)`, by.Microseconds(), latestTime().UnixMicro())
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "shift deadlines")
	}
	return nil
}
