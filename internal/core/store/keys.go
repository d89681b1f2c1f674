package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// The bounds of keys. What exceeds them is refused.
const (
	MaxKeys    = 10_000 // in one store: Exhausted
	MaxKeyText = 200    // bytes of a key's ID, name and owner each: Invalid
)

// Key is an API key as it is kept: without its secret.
type Key struct {
	// ID names it.
	ID string
	// Hash is the SHA-256 of the secret, as hexadecimal digits.
	Hash string
	// Name is for people.
	Name string
	// Owner is whose sandboxes it reaches.
	Owner string
	// Admin reaches everything.
	Admin     bool
	CreatedAt time.Time
	// ExpiresAt is from when on it is good for nothing. Zero: never.
	ExpiresAt time.Time
	// LastUsedAt is the last use that TouchKey recorded. Zero: never.
	LastUsedAt time.Time
}

const keyColumns = `id, hash, name, owner, admin, created_at, expires_at, last_used_at`

// InsertKey adds a key and returns it as stored. AlreadyExists: the ID or hash exists.
// Invalid: a field is out of bounds. Exhausted: too many keys.
func (s *Credentials) InsertKey(ctx context.Context, k Key) (Key, error) {
	k.CreatedAt, k.ExpiresAt, k.LastUsedAt = roundTime(k.CreatedAt), roundTime(k.ExpiresAt), roundTime(k.LastUsedAt)
	if problem := k.describeProblem(); problem != "" {
		return Key{}, sandpit.Errorf(sandpit.Invalid, "key: %s is out of bounds", problem)
	}
	err := s.db.writeTx(ctx, func(tx *writer) error {
		n, err := tx.exec(ctx, `INSERT INTO api_keys (`+keyColumns+`) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
			WHERE (SELECT count(*) FROM api_keys) < ?9`,
			k.ID, k.Hash, k.Name, k.Owner, k.Admin, toMicros(k.CreatedAt), toMicros(k.ExpiresAt), toMicros(k.LastUsedAt), MaxKeys)
		if err == nil && n == 0 {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "there are %d API keys, and no more may be made", MaxKeys),
				"delete those that have expired")
		}
		return err
	})
	if isTaken(err) {
		return Key{}, sandpit.Errorf(sandpit.AlreadyExists, "key %s already exists", k.ID)
	}
	if err != nil {
		return Key{}, s.db.wrapError(err, "keep a key")
	}
	return k, nil
}

// ListKeys returns keys in the order of their IDs, from the one after the ID after on,
// at most limit.
func (s *Credentials) ListKeys(ctx context.Context, after string, limit int) ([]Key, error) {
	list, err := s.queryKeys(ctx, `WHERE id > ? ORDER BY id LIMIT ?`, after, max(limit, 0))
	if err != nil {
		return nil, s.db.wrapError(err, "list keys")
	}
	return list, nil
}

// KeyOwners returns the owners of the keys that have not expired at a time. The value is true
// for an owner with an administrator's key.
func (s *Credentials) KeyOwners(ctx context.Context, at time.Time) (map[string]bool, error) {
	owners := make(map[string]bool)
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT owner, max(admin) FROM api_keys WHERE expires_at IS NULL OR expires_at > ? GROUP BY owner`,
			[]any{toMicros(at)}, func(c *cells) bool {
				owners[c.nextText()] = c.nextInt() != 0
				bad = c.err
				return bad == nil
			})
	})
	if err = cmp.Or(err, bad); err != nil {
		return nil, s.db.wrapError(err, "list the owners of keys")
	}
	return owners, nil
}

// KeyByHash returns the key with this hash. NotFound.
func (s *Credentials) KeyByHash(ctx context.Context, hash string) (Key, error) {
	list, err := s.queryKeys(ctx, `WHERE hash = ?`, hash)
	if err != nil {
		return Key{}, s.db.wrapError(err, "look for a key")
	}
	if len(list) == 0 {
		return Key{}, sandpit.Errorf(sandpit.NotFound, "API key not found")
	}
	return list[0], nil
}

// Key returns the key with this ID. NotFound.
func (s *Credentials) Key(ctx context.Context, id string) (Key, error) {
	list, err := s.queryKeys(ctx, `WHERE id = ?`, id)
	if err != nil {
		return Key{}, s.db.wrapError(err, "look for a key")
	}
	if len(list) == 0 {
		return Key{}, sandpit.Errorf(sandpit.NotFound, "API key not found")
	}
	return list[0], nil
}

func (s *Credentials) queryKeys(ctx context.Context, where string, args ...any) ([]Key, error) {
	var list []Key
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT `+keyColumns+` FROM api_keys `+where, args, func(c *cells) bool {
			k := Key{ID: c.nextText(), Hash: c.nextText(), Name: c.nextText(), Owner: c.nextText(), Admin: c.nextInt() != 0}
			k.CreatedAt, k.ExpiresAt, k.LastUsedAt = c.nextTime(), c.nextTime(), c.nextTime()
			if problem := k.describeProblem(); c.err == nil && problem != "" {
				c.rejectValue(problem)
			}
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "key %.40q: %w", k.ID, c.err)
				return false
			}
			list = append(list, k)
			return true
		})
	})
	return list, cmp.Or(err, bad)
}

// checkKey returns an error if a record depends on a key that does not exist; "" is no key.
func checkKey(ctx context.Context, tx *writer, id string) error {
	if id == "" {
		return nil
	}
	var n int64
	err := tx.scanRow(ctx, `SELECT count(*) FROM api_keys WHERE id = ?`, []any{id}, &n)
	if err == nil && n == 0 {
		err = sandpit.Errorf(sandpit.NotFound, "the API key of the request does not exist any more")
	}
	return err
}

// DeleteKey removes a key, with the tokens and SSH keys that depend on it. NotFound.
func (s *Credentials) DeleteKey(ctx context.Context, id string) error {
	var n int64
	err := s.db.writeAnyway(ctx, func(tx *writer) (err error) {
		n, err = tx.exec(ctx, `DELETE FROM api_keys WHERE id = ?`, id)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "delete a key")
	}
	if n == 0 {
		return sandpit.Errorf(sandpit.NotFound, "key %.100q not found", id)
	}
	return nil
}

// RenameKey gives a key another name. NotFound. Invalid: the name is out of bounds.
func (s *Credentials) RenameKey(ctx context.Context, id, name string) error {
	if len(name) > MaxKeyText || !utf8.ValidString(name) {
		return sandpit.Errorf(sandpit.Invalid, "key: name is out of bounds")
	}
	var n int64
	err := s.db.writeTx(ctx, func(tx *writer) (err error) {
		n, err = tx.exec(ctx, `UPDATE api_keys SET name = ?2 WHERE id = ?1`, id, name)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "rename a key")
	}
	if n == 0 {
		return sandpit.Errorf(sandpit.NotFound, "key %.100q not found", id)
	}
	return nil
}

// TouchKey records a use of a key. A missing key is not an error.
func (s *Credentials) TouchKey(ctx context.Context, id string, at time.Time) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `UPDATE api_keys SET last_used_at = ?2 WHERE id = ?1`, id, toMicros(roundTime(at)))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "note the use of a key")
	}
	return nil
}

// describeProblem names what is wrong with a key, "" for nothing.
func (k Key) describeProblem() string {
	for name, text := range map[string]string{"id": k.ID, "name": k.Name, "owner": k.Owner} {
		if len(text) > MaxKeyText || !utf8.ValidString(text) || text == "" && name != "name" {
			return name
		}
	}
	if raw, err := hex.DecodeString(k.Hash); err != nil || len(raw) != 32 {
		return "hash"
	}
	for _, t := range []time.Time{k.CreatedAt, k.ExpiresAt, k.LastUsedAt} {
		if !inRange(t) {
			return "date"
		}
	}
	return ""
}
