package store

import (
	"cmp"
	"context"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// MaxSSHKeys is how many SSH keys an owner may have.
const MaxSSHKeys = 100

// SSHKey is a public key that gives SSH access to the sandboxes of an owner. Only its
// fingerprint is stored, because a client presents the whole key.
type SSHKey struct {
	// ID names it.
	ID string
	// Owner is whose sandboxes it reaches.
	Owner string
	// Fingerprint is "SHA256:" and the hash of the key, as OpenSSH writes it.
	Fingerprint string
	// Type is of the key, such as ssh-ed25519.
	Type string
	// Name is for people.
	Name string
	// APIKey is the ID of the API key that registered it, with which it is deleted; "" for
	// none.
	APIKey    string
	CreatedAt time.Time
	// LastUsedAt is the last use that TouchSSHKey recorded. Zero: never.
	LastUsedAt time.Time
}

const sshKeyColumns = `id, owner, fingerprint, type, name, created_at, last_used_at, api_key`

// InsertSSHKey adds a key and returns it as stored. AlreadyExists: the ID exists, or the
// owner has the key. Invalid: a field is out of bounds. NotFound: its API key does not
// exist. Exhausted: the owner has too many.
func (s *Credentials) InsertSSHKey(ctx context.Context, k SSHKey) (SSHKey, error) {
	k.CreatedAt, k.LastUsedAt = roundTime(k.CreatedAt), roundTime(k.LastUsedAt)
	if problem := k.describeProblem(); problem != "" {
		return SSHKey{}, sandpit.Errorf(sandpit.Invalid, "SSH key: %s is out of bounds", problem)
	}
	err := s.db.writeTx(ctx, func(tx *writer) error {
		if err := checkKey(ctx, tx, k.APIKey); err != nil {
			return err
		}
		n, err := tx.exec(ctx, `INSERT INTO ssh_keys (`+sshKeyColumns+`) SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8
			WHERE (SELECT count(*) FROM ssh_keys WHERE owner = ?2) < ?9`,
			k.ID, k.Owner, k.Fingerprint, k.Type, k.Name, toMicros(k.CreatedAt), toMicros(k.LastUsedAt), k.APIKey, MaxSSHKeys)
		if err == nil && n == 0 {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "there are %d SSH keys, and no more may be added", MaxSSHKeys),
				"remove unused ones")
		}
		return err
	})
	if isTaken(err) {
		return SSHKey{}, sandpit.Errorf(sandpit.AlreadyExists, "SSH key %s already exists", k.Fingerprint)
	}
	if err != nil {
		return SSHKey{}, s.db.wrapError(err, "keep an SSH key")
	}
	return k, nil
}

// ListSSHKeys returns the keys of an owner in the order of their IDs.
func (s *Credentials) ListSSHKeys(ctx context.Context, owner string) ([]SSHKey, error) {
	list, err := s.sshKeys(ctx, `WHERE owner = ? ORDER BY id`, owner)
	if err != nil {
		return nil, s.db.wrapError(err, "list SSH keys")
	}
	return list, nil
}

// SSHKeyOf returns an owner's key with this fingerprint. NotFound.
func (s *Credentials) SSHKeyOf(ctx context.Context, owner, fingerprint string) (SSHKey, error) {
	list, err := s.sshKeys(ctx, `WHERE owner = ? AND fingerprint = ?`, owner, fingerprint)
	if err != nil {
		return SSHKey{}, s.db.wrapError(err, "look for an SSH key")
	}
	if len(list) == 0 {
		return SSHKey{}, sandpit.Errorf(sandpit.NotFound, "SSH key not found")
	}
	return list[0], nil
}

func (s *Credentials) sshKeys(ctx context.Context, where string, args ...any) ([]SSHKey, error) {
	var list []SSHKey
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT `+sshKeyColumns+` FROM ssh_keys `+where, args, func(c *cells) bool {
			k := SSHKey{ID: c.nextText(), Owner: c.nextText(), Fingerprint: c.nextText(), Type: c.nextText(), Name: c.nextText()}
			k.CreatedAt, k.LastUsedAt, k.APIKey = c.nextTime(), c.nextTime(), c.nextText()
			if problem := k.describeProblem(); c.err == nil && problem != "" {
				c.rejectValue(problem)
			}
			if c.err != nil {
				bad = sandpit.Errorf(sandpit.Internal, "SSH key %.40q: %w", k.ID, c.err)
				return false
			}
			list = append(list, k)
			return true
		})
	})
	return list, cmp.Or(err, bad)
}

// DeleteSSHKey removes a key of an owner. NotFound: they have none of this ID.
func (s *Credentials) DeleteSSHKey(ctx context.Context, owner, id string) error {
	var n int64
	err := s.db.writeAnyway(ctx, func(tx *writer) (err error) {
		n, err = tx.exec(ctx, `DELETE FROM ssh_keys WHERE owner = ? AND id = ?`, owner, id)
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "remove an SSH key")
	}
	if n == 0 {
		return sandpit.Errorf(sandpit.NotFound, "SSH key %.100q not found", id)
	}
	return nil
}

// TouchSSHKey records a use of a key. A missing key is not an error.
func (s *Credentials) TouchSSHKey(ctx context.Context, id string, at time.Time) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `UPDATE ssh_keys SET last_used_at = ?2 WHERE id = ?1`, id, toMicros(roundTime(at)))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "note the use of an SSH key")
	}
	return nil
}

var fingerprintPattern = pattern.New(`^SHA256:[A-Za-z0-9+/]{43}$`)

// describeProblem names what is wrong with a key, "" for nothing.
func (k SSHKey) describeProblem() string {
	for name, text := range map[string]string{"id": k.ID, "name": k.Name, "owner": k.Owner, "type": k.Type} {
		if len(text) > MaxKeyText || !utf8.ValidString(text) || text == "" && name != "name" {
			return name
		}
	}
	if len(k.APIKey) > MaxKeyText || !utf8.ValidString(k.APIKey) {
		return "API key"
	}
	if !fingerprintPattern().MatchString(k.Fingerprint) {
		return "fingerprint"
	}
	if !inRange(k.CreatedAt) || !inRange(k.LastUsedAt) {
		return "date"
	}
	return ""
}
