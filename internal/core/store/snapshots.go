package store

import (
	"cmp"
	"context"
	"encoding/json"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// SnapshotState is where a snapshot is in its life.
type SnapshotState string

// The states. The next server that opens the store finishes or undoes a transition.
const (
	SnapshotCreating SnapshotState = "creating"
	SnapshotReady    SnapshotState = "ready"
	SnapshotDeleting SnapshotState = "deleting"
)

func (s SnapshotState) isValid() bool {
	return s == SnapshotCreating || s == SnapshotReady || s == SnapshotDeleting
}

// Snapshot is a snapshot as it is kept. The provider knows it by its ID.
type Snapshot struct {
	ID       sandpit.SnapshotID
	Owner    string
	Name     string // one of each owner's; "" for none
	Sandbox  sandpit.ID
	Provider string
	State    SnapshotState
	// Brief is a temporary snapshot of an operation, which does not count against limits.
	Brief  bool
	Size   int64 // in bytes
	Memory bool
	Spec   sandpit.Spec // without an environment
	// Build is the build of a template that it belongs to, "" for none. Such a one is not
	// its owner's own, and counts for no limit of snapshots.
	Build sandpit.BuildID
	// Problem is why nothing can be made of it, "" if something can.
	Problem string

	CreatedAt time.Time
}

// SnapshotLimits are what each owner may have, ready or not.
type SnapshotLimits struct {
	Count int
	// Bytes of all together; 0 is without a limit.
	Bytes int64
}

const snapshotColumns = `id, owner, name, sandbox, provider, state, brief, size, memory, spec, problem, created_at, build`

// InsertSnapshot adds a snapshot and returns it as stored.
//
// AlreadyExists: the owner has one of that name, or the ID exists. Invalid: a field is out
// of bounds. Exhausted: the owner has reached a limit.
func (s *Snapshots) InsertSnapshot(ctx context.Context, n Snapshot, most SnapshotLimits) (Snapshot, error) {
	n.CreatedAt, n.Spec.Env = roundTime(n.CreatedAt), nil
	spec, kept, err := encodeSpec(n.Spec)
	if err != nil {
		return Snapshot{}, sandpit.Errorf(sandpit.Invalid, "spec of snapshot %s: %w", n.ID, err)
	}
	n.Spec = kept
	if problem := n.describeProblem(); problem != "" {
		return Snapshot{}, sandpit.Errorf(sandpit.Invalid, "snapshot: %s is out of bounds", problem)
	}
	err = s.db.writeTx(ctx, func(tx *writer) error {
		added, err := tx.exec(ctx, `INSERT INTO snapshots (`+snapshotColumns+`) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?15
			WHERE ?7 OR ?15 <> '' OR (SELECT count(*) FROM snapshots WHERE owner = ?2 AND NOT brief AND build = '') < ?13
			AND (?14 = 0 OR (SELECT ifnull(sum(size), 0) FROM snapshots WHERE owner = ?2 AND NOT brief AND build = '') + ?8 < ?14)`,
			string(n.ID), n.Owner, toNullable(n.Name), string(n.Sandbox), n.Provider, string(n.State), n.Brief, n.Size, n.Memory,
			spec, n.Problem, toMicros(n.CreatedAt), most.Count, most.Bytes, string(n.Build))
		if err == nil && added == 0 {
			err = most.exceededError()
		}
		return err
	})
	if isTaken(err) {
		return Snapshot{}, sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s exists already", cmp.Or(n.Name, string(n.ID)))
	}
	if err != nil {
		return Snapshot{}, s.db.wrapError(err, "keep a snapshot")
	}
	return n, nil
}

func (l SnapshotLimits) exceededError() error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Exhausted, "the snapshots of this owner are as many, or as large, as they may be (%d, %d bytes)", l.Count, l.Bytes),
		"remove unused ones: sandpit snapshot ls")
}

func toNullable(text string) any {
	if text == "" {
		return nil
	}
	return text
}

// FinishSnapshot writes that a snapshot is ready, with what is known of it by now.
// NotFound: it is gone. Exhausted: all of the owner's are larger than they may be.
func (s *Snapshots) FinishSnapshot(ctx context.Context, n Snapshot, most SnapshotLimits) error {
	n.Spec.Env = nil
	spec, _, err := encodeSpec(n.Spec)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "spec of snapshot %s: %w", n.ID, err)
	}
	if problem := n.describeProblem(); problem != "" {
		return sandpit.Errorf(sandpit.Invalid, "snapshot: %s is out of bounds", problem)
	}
	return s.changeSnapshot(ctx, n.ID, func(tx *writer) (int64, error) {
		var large bool
		if most.Bytes > 0 && !n.Brief && n.Build == "" {
			err := tx.scanRow(ctx, `SELECT ifnull(sum(size), 0) + ?3 > ?4 FROM snapshots WHERE owner = ?2 AND id <> ?1 AND NOT brief AND build = ''`,
				[]any{string(n.ID), n.Owner, n.Size, most.Bytes}, &large)
			if err != nil {
				return 0, err
			}
		}
		if large {
			return 0, most.exceededError()
		}
		return tx.exec(ctx, `UPDATE snapshots SET state = ?2, size = ?3, memory = ?4, spec = ?5, sandbox = ?6 WHERE id = ?1`,
			string(n.ID), string(SnapshotReady), n.Size, n.Memory, spec, string(n.Sandbox))
	})
}

// SetSnapshotDeleting writes that a snapshot is about to be deleted. NotFound: it is gone.
func (s *Snapshots) SetSnapshotDeleting(ctx context.Context, id sandpit.SnapshotID) error {
	return s.changeSnapshot(ctx, id, func(tx *writer) (int64, error) {
		return tx.exec(ctx, `UPDATE snapshots SET state = ?2 WHERE id = ?1`, string(id), string(SnapshotDeleting))
	})
}

// SetSnapshotUse writes whether there is memory in a snapshot that can be loaded, and why
// nothing can be made of it, "" if something can. NotFound: it is gone.
func (s *Snapshots) SetSnapshotUse(ctx context.Context, id sandpit.SnapshotID, memory bool, problem string) error {
	return s.changeSnapshot(ctx, id, func(tx *writer) (int64, error) {
		return tx.exec(ctx, `UPDATE snapshots SET problem = ?2, memory = ?3 WHERE id = ?1`, string(id), shortenText(problem), memory)
	})
}

// KeptBytes returns how many bytes the snapshots of an owner take that last, and the builds
// of its templates.
func (s *Snapshots) KeptBytes(ctx context.Context, owner string) (int64, error) {
	var bytes int64
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT (SELECT ifnull(sum(size), 0) FROM snapshots WHERE owner = ?1 AND NOT brief AND build = '')
			+ (SELECT ifnull(sum(size), 0) FROM template_builds WHERE owner = ?1)`, []any{owner}, func(c *cells) bool {
			bytes, bad = c.nextInt(), c.err
			return false
		})
	})
	if err = cmp.Or(err, bad); err != nil {
		return 0, s.db.wrapError(err, "count what an owner keeps")
	}
	return bytes, nil
}

// DeleteSnapshot forgets a snapshot. NotFound: it is gone.
func (s *Snapshots) DeleteSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	return s.changeSnapshot(ctx, id, func(tx *writer) (int64, error) {
		return tx.exec(ctx, `DELETE FROM snapshots WHERE id = ?1`, string(id))
	})
}

func (s *Snapshots) changeSnapshot(ctx context.Context, id sandpit.SnapshotID, do func(*writer) (int64, error)) error {
	var changed int64
	err := s.db.writeAnyway(ctx, func(tx *writer) (err error) {
		changed, err = do(tx)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "change a snapshot")
	}
	if changed == 0 {
		return sandpit.Errorf(sandpit.NotFound, "snapshot %.40s not found", string(id))
	}
	return nil
}

// SnapshotFilter chooses snapshots. Fields that are zero choose everything.
type SnapshotFilter struct {
	// Owner is whose, unless All is set.
	Owner string
	// All includes every owner.
	All bool
	// Sandbox is what they were taken of.
	Sandbox sandpit.ID
	// Lasting leaves out those that are brief, of a build, or not ready.
	Lasting bool
	// After is the ID of the last snapshot of the page before.
	After sandpit.SnapshotID
	// Limit is at most so many. Default: all.
	Limit int
}

// ListSnapshots returns snapshots in the order of their IDs. A row that cannot be read is an
// error.
func (s *Snapshots) ListSnapshots(ctx context.Context, f SnapshotFilter) ([]Snapshot, error) {
	where, args := []string{"id > ?"}, []any{string(f.After)}
	if !f.All {
		where, args = append(where, "owner = ?"), append(args, f.Owner)
	}
	if f.Sandbox != "" {
		where, args = append(where, "sandbox = ?"), append(args, string(f.Sandbox))
	}
	if f.Lasting {
		where, args = append(where, "NOT brief AND build = '' AND state = ?"), append(args, string(SnapshotReady))
	}
	limit := f.Limit
	if limit == 0 {
		limit = -1 // none
	}
	list, err := s.querySnapshots(ctx, `WHERE `+strings.Join(where, " AND ")+` ORDER BY id LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, s.db.wrapError(err, "list snapshots")
	}
	return list, nil
}

// Snapshot returns an owner's snapshot by its ID or name. NotFound.
func (s *Snapshots) Snapshot(ctx context.Context, owner, name string) (Snapshot, error) {
	list, err := s.querySnapshots(ctx, `WHERE owner = ?1 AND (id = ?2 OR name = ?2) AND build = ''`, owner, name)
	if err != nil {
		return Snapshot{}, s.db.wrapError(err, "look for a snapshot")
	}
	if len(list) == 0 {
		return Snapshot{}, sandpit.Errorf(sandpit.NotFound, "snapshot %.100s not found", name)
	}
	return list[0], nil
}

// HasSnapshot reports whether a snapshot of any owner exists, readable or not.
func (s *Snapshots) HasSnapshot(ctx context.Context, id sandpit.SnapshotID) (bool, error) {
	found := false
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT 1 FROM snapshots WHERE id = ?1`, []any{string(id)}, func(*cells) bool {
			found = true
			return false
		})
	})
	if err != nil {
		return false, s.db.wrapError(err, "look for a snapshot")
	}
	return found, nil
}

func (s *Snapshots) querySnapshots(ctx context.Context, where string, args ...any) ([]Snapshot, error) {
	var list []Snapshot
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT id, owner, ifnull(name, ''), sandbox, provider, state, brief, size, memory, spec, problem, created_at, build
			FROM snapshots `+where, args, func(c *cells) bool {
			n := decodeSnapshot(c)
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "snapshot %.40q: %w", string(n.ID), c.err)
				return false
			}
			list = append(list, n)
			return true
		})
	})
	return list, cmp.Or(err, bad)
}

func decodeSnapshot(c *cells) Snapshot {
	n := Snapshot{
		ID: sandpit.SnapshotID(c.nextText()), Owner: c.nextText(), Name: c.nextText(), Sandbox: sandpit.ID(c.nextText()), Provider: c.nextText(),
		State: SnapshotState(c.nextText()), Brief: c.nextInt() != 0, Size: c.nextInt(), Memory: c.nextInt() != 0,
	}
	spec := c.nextText()
	n.Problem, n.CreatedAt, n.Build = c.nextText(), c.nextTime(), sandpit.BuildID(c.nextText())
	if c.err == nil && json.Unmarshal([]byte(spec), &n.Spec) != nil {
		c.rejectValue("spec")
	}
	if problem := n.describeProblem(); c.err == nil && problem != "" {
		c.rejectValue(problem)
	}
	return n
}

// describeProblem names what is wrong with a snapshot, "" for nothing.
func (n Snapshot) describeProblem() string {
	switch {
	case n.ID.Validate() != nil:
		return "id"
	case len(n.Owner) > MaxName || !utf8.ValidString(n.Owner):
		return "owner"
	case n.Name != "" && sandpit.CheckSnapshotName(n.Name) != nil:
		return "name"
	case n.Sandbox != "" && n.Sandbox.Validate() != nil:
		return "sandbox"
	case n.Provider == "" || len(n.Provider) > MaxName || !utf8.ValidString(n.Provider):
		return "provider"
	case !n.State.isValid():
		return "state"
	case n.Build != "" && n.Build.Validate() != nil:
		return "build"
	case n.Size < 0:
		return "size"
	case !inRange(n.CreatedAt):
		return "date"
	}
	return ""
}
