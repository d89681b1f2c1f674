package store

import (
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// PendingSandboxes are the records of sandboxes that are created when the build of their image has
// ended.
type PendingSandboxes struct{ db *Store }

// PendingSandbox is one of them.
type PendingSandbox struct {
	ID    sandpit.ID
	Owner string
	// Admin reports whether the client is an administrator.
	Admin bool
	// Request describes the sandbox in the form of the API that created it.
	Request   []byte
	CreatedAt time.Time
	// State and Reason are set when it could not be created, and EndedAt is the time of that.
	State, Reason string
	EndedAt       time.Time
}

// MaxPendingRequest bounds PendingSandbox.Request, in bytes.
const MaxPendingRequest = 4 << 20

// Save adds a sandbox, or replaces the one of this ID. Invalid: a field is out of bounds.
func (s *PendingSandboxes) Save(ctx context.Context, p PendingSandbox) error {
	if p.ID.Validate() != nil || len(p.Owner) > MaxName || len(p.Request) > MaxPendingRequest || !inRange(p.CreatedAt) || !inRange(p.EndedAt) {
		return sandpit.Errorf(sandpit.Invalid, "pending sandbox %.40q is out of bounds", string(p.ID))
	}
	err := s.db.writeTx(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `INSERT OR REPLACE INTO pending_sandboxes (id, owner, admin, request, created_at, state, reason, ended_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
			string(p.ID), p.Owner, p.Admin, p.Request, toMicros(p.CreatedAt), p.State, shortenText(p.Reason), toMicros(p.EndedAt))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "keep a pending sandbox")
	}
	return nil
}

// Delete removes a sandbox, if it exists. It works on a full disk.
func (s *PendingSandboxes) Delete(ctx context.Context, id sandpit.ID) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `DELETE FROM pending_sandboxes WHERE id = ?`, string(id))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "remove a pending sandbox")
	}
	return nil
}

// List returns all of them in the order of their IDs. Internal: some of them cannot be read; the
// others are returned nevertheless.
func (s *PendingSandboxes) List(ctx context.Context) ([]PendingSandbox, error) {
	var list []PendingSandbox
	var bad []error
	err := s.db.readTx(ctx, func(r *reader) error {
		const query = `SELECT id, owner, admin, request, created_at, state, reason, ended_at FROM pending_sandboxes ORDER BY id`
		return scanRows(ctx, r, query, nil, func(c *cells) bool {
			p := PendingSandbox{
				ID: sandpit.ID(c.nextText()), Owner: c.nextText(), Admin: c.nextInt() != 0, Request: c.nextBlob(),
				CreatedAt: c.nextTime(), State: c.nextText(), Reason: c.nextText(), EndedAt: c.nextTime(),
			}
			if c.err != nil {
				bad = append(bad, fmt.Errorf("pending sandbox %.40q: %w", string(p.ID), c.err))
				return true
			}
			list = append(list, p)
			return true
		})
	})
	if err != nil {
		return nil, s.db.wrapError(err, "list pending sandboxes")
	}
	return list, unreadableError("pending sandboxes", bad)
}
