package store

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// ProviderUses are the records of how long sandboxes of providers have run.
type ProviderUses struct{ db *Store }

// ProviderUse is how long all sandboxes of a provider have run in a month.
type ProviderUse struct {
	Provider string
	// Month is a calendar month, such as "2026-11".
	Month string
	Time  time.Duration
	// At is when Time was measured.
	At time.Time
}

// Save replaces the records of providers. Invalid: a name or a date is out of bounds.
func (s *ProviderUses) Save(ctx context.Context, list []ProviderUse) error {
	for _, u := range list {
		if len(u.Provider) > MaxName || len(u.Month) > len("2006-01") || u.Time < 0 || !inRange(u.At) {
			return sandpit.Errorf(sandpit.Invalid, "use of provider %.100q is out of bounds", u.Provider)
		}
	}
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		for _, u := range list {
			_, err := tx.exec(ctx, `INSERT INTO provider_uses (provider, month, time, at) VALUES (?1, ?2, ?3, ?4)
				ON CONFLICT (provider) DO UPDATE SET month = ?2, time = ?3, at = ?4`,
				u.Provider, u.Month, int64(u.Time), toMicros(roundTime(u.At)))
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return s.db.wrapError(err, "keep the use of providers")
	}
	return nil
}

// List returns the records of all providers.
func (s *ProviderUses) List(ctx context.Context) ([]ProviderUse, error) {
	var list []ProviderUse
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT provider, month, time, at FROM provider_uses ORDER BY provider`, nil, func(c *cells) bool {
			u := ProviderUse{Provider: c.nextText(), Month: c.nextText(), Time: c.nextDuration(), At: c.nextTime()}
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "use of provider %.40q: %w", u.Provider, c.err)
				return false
			}
			list = append(list, u)
			return true
		})
	})
	if err != nil {
		return nil, s.db.wrapError(err, "read the use of providers")
	}
	return list, bad
}
