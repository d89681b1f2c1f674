package store

import (
	"context"
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// MaxPreviews is how many ports of a sandbox may have a row: Exhausted.
const MaxPreviews = 256

// Preview has the settings of a port of a sandbox. It is gone with the
// row of its sandbox.
type Preview struct {
	Sandbox sandpit.ID
	Port    int
	// Public allows access without a token.
	Public bool
	// Epoch is how often all signatures for it were revoked.
	Epoch int64
}

// SetPreview stores the settings of a port. Revoking access works on a full disk, too.
//
// NotFound: no such sandbox. Exhausted: it has MaxPreviews ports with settings, or
// the port is to be public and the disk is full.
func (s *Sandboxes) SetPreview(ctx context.Context, p Preview) error {
	write := s.db.writeAnyway
	if p.Public {
		write = s.db.writeTx
	}
	err := write(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `INSERT INTO previews SELECT ?1, ?2, ?3, ?4
			WHERE EXISTS (SELECT 1 FROM sandboxes WHERE id = ?1)
			AND (SELECT count(*) FROM previews WHERE sandbox = ?1 AND port <> ?2) < ?5
			ON CONFLICT (sandbox, port) DO UPDATE SET public = excluded.public, epoch = excluded.epoch`,
			p.Sandbox, p.Port, p.Public, p.Epoch, MaxPreviews)
		if err != nil || n > 0 {
			return err
		}
		known := false
		err = scanRows(ctx, tx, `SELECT 1 FROM sandboxes WHERE id = ?`, []any{p.Sandbox}, func(c *cells) bool { known = c.nextInt() == 1; return false })
		if err == nil && !known {
			return missingSandbox(p.Sandbox)
		}
		if err == nil {
			err = sandpit.Errorf(sandpit.Exhausted, "sandbox %s already has settings for %d ports, the most it may have", p.Sandbox, MaxPreviews)
		}
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "keep a preview")
	}
	return nil
}

// ListPreviews returns the settings of all ports. Internal: one of them cannot be read; then
// none is returned, because a revoked access must stay revoked.
func (s *Sandboxes) ListPreviews(ctx context.Context) ([]Preview, error) {
	var list []Preview
	var bad []error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT sandbox, port, public, epoch FROM previews ORDER BY sandbox, port`, nil, func(c *cells) bool {
			p := Preview{Sandbox: sandpit.ID(c.nextText()), Port: int(c.nextInt()), Public: c.nextInt() != 0, Epoch: c.nextInt()}
			if c.err != nil {
				bad = append(bad, fmt.Errorf("preview of sandbox %.40q: %w", string(p.Sandbox), c.err))
			}
			list = append(list, p)
			return true
		})
	})
	if err != nil {
		return nil, s.db.wrapError(err, "list previews")
	}
	if len(bad) > 0 {
		return nil, unreadableError("previews", bad)
	}
	return list, nil
}
