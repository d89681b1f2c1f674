package store

import (
	"cmp"
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// VolumeState is where a volume is in its life.
type VolumeState string

// The states. The next server that opens the store finishes or undoes a transition.
const (
	VolumeCreating VolumeState = "creating"
	VolumeReady    VolumeState = "ready"
	VolumeDeleting VolumeState = "deleting"
)

func (s VolumeState) isValid() bool {
	return s == VolumeCreating || s == VolumeReady || s == VolumeDeleting
}

// Volume is a volume as it is kept. The provider knows it by its ID.
type Volume struct {
	ID       sandpit.ID
	Owner    string
	Name     string // one of each owner's
	Provider string
	State    VolumeState

	CreatedAt time.Time
}

const volumeColumns = `id, owner, name, provider, state, created_at`

// InsertVolume adds a volume and returns it as stored. An owner may have max.
//
// AlreadyExists: the owner has one of that name, or the ID exists. Invalid: a field is out
// of bounds. Exhausted: the owner has max volumes.
func (s *Volumes) InsertVolume(ctx context.Context, v Volume, most int) (Volume, error) {
	v.CreatedAt = roundTime(v.CreatedAt)
	if problem := v.describeProblem(); problem != "" {
		return Volume{}, sandpit.Errorf(sandpit.Invalid, "volume: %s is out of bounds", problem)
	}
	err := s.db.writeTx(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `INSERT INTO volumes (`+volumeColumns+`) SELECT ?1, ?2, ?3, ?4, ?5, ?6
			WHERE (SELECT count(*) FROM volumes WHERE owner = ?2) < ?7`,
			string(v.ID), v.Owner, v.Name, v.Provider, string(v.State), toMicros(v.CreatedAt), most)
		if err == nil && n == 0 {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "there are %d volumes of this owner already, and no more may be made", most),
				"remove unused ones")
		}
		return err
	})
	if isTaken(err) {
		return Volume{}, sandpit.Errorf(sandpit.AlreadyExists, "volume %s exists already", v.Name)
	}
	if err != nil {
		return Volume{}, s.db.wrapError(err, "keep a volume")
	}
	return v, nil
}

// VolumeFilter chooses volumes. Fields that are zero choose everything.
type VolumeFilter struct {
	// Owner is whose, unless All is set.
	Owner string
	// All includes every owner.
	All bool
	// Unfinished are those that are not ready.
	Unfinished bool
	// After is the ID of the last volume of the page before.
	After sandpit.ID
	// Limit is at most so many. Default: all.
	Limit int
}

// ListVolumes returns volumes in the order of their IDs. A row that cannot be read is an
// error.
func (s *Volumes) ListVolumes(ctx context.Context, f VolumeFilter) ([]Volume, error) {
	where, args := []string{"id > ?"}, []any{string(f.After)}
	if !f.All {
		where, args = append(where, "owner = ?"), append(args, f.Owner)
	}
	if f.Unfinished {
		where, args = append(where, "state <> ?"), append(args, string(VolumeReady))
	}
	limit := f.Limit
	if limit == 0 {
		limit = -1 // none
	}
	list, err := s.queryVolumes(ctx, `WHERE `+strings.Join(where, " AND ")+` ORDER BY id LIMIT ?`, append(args, limit)...)
	if err != nil {
		return nil, s.db.wrapError(err, "list volumes")
	}
	return list, nil
}

// Volume returns an owner's volume by name. NotFound.
func (s *Volumes) Volume(ctx context.Context, owner, name string) (Volume, error) {
	list, err := s.queryVolumes(ctx, `WHERE owner = ? AND name = ?`, owner, name)
	if err != nil {
		return Volume{}, s.db.wrapError(err, "look for a volume")
	}
	if len(list) == 0 {
		return Volume{}, sandpit.Errorf(sandpit.NotFound, "volume %.100s not found", name)
	}
	return list[0], nil
}

func (s *Volumes) queryVolumes(ctx context.Context, where string, args ...any) ([]Volume, error) {
	var list []Volume
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT `+volumeColumns+` FROM volumes `+where, args, func(c *cells) bool {
			v := Volume{
				ID: sandpit.ID(c.nextText()), Owner: c.nextText(), Name: c.nextText(), Provider: c.nextText(),
				State: VolumeState(c.nextText()), CreatedAt: c.nextTime(),
			}
			if problem := v.describeProblem(); c.err == nil && problem != "" {
				c.rejectValue(problem)
			}
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "volume %.40q: %w", string(v.ID), c.err)
				return false
			}
			list = append(list, v)
			return true
		})
	})
	return list, cmp.Or(err, bad)
}

// SetVolumeState changes the state of a volume. NotFound: it is gone.
func (s *Volumes) SetVolumeState(ctx context.Context, id sandpit.ID, state VolumeState) error {
	if !state.isValid() {
		return sandpit.Errorf(sandpit.Invalid, "volume: state is out of bounds")
	}
	return s.changeVolume(ctx, id, `UPDATE volumes SET state = ?2 WHERE id = ?1`, string(state))
}

// DeleteVolume forgets a volume. NotFound: it is gone.
func (s *Volumes) DeleteVolume(ctx context.Context, id sandpit.ID) error {
	return s.changeVolume(ctx, id, `DELETE FROM volumes WHERE id = ?1`)
}

func (s *Volumes) changeVolume(ctx context.Context, id sandpit.ID, statement string, args ...any) error {
	var n int64
	err := s.db.writeAnyway(ctx, func(tx *writer) (err error) {
		n, err = tx.exec(ctx, statement, append([]any{string(id)}, args...)...)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "change a volume")
	}
	if n == 0 {
		return sandpit.Errorf(sandpit.NotFound, "volume not found")
	}
	return nil
}

// describeProblem names what is wrong with a volume, "" for nothing.
func (v Volume) describeProblem() string {
	switch {
	case v.ID.Validate() != nil:
		return "id"
	case len(v.Owner) > MaxName || !utf8.ValidString(v.Owner):
		return "owner"
	case sandpit.CheckVolumeName(v.Name) != nil:
		return "name"
	case v.Provider == "" || len(v.Provider) > MaxName || !utf8.ValidString(v.Provider):
		return "provider"
	case !v.State.isValid():
		return "state"
	case !inRange(v.CreatedAt):
		return "date"
	}
	return ""
}
