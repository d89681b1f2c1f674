package store

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
)

// The bounds of tokens. What exceeds them is refused.
const (
	MaxSandboxTokens = 1000   // of one kind and sandbox: Exhausted
	MaxOwnerTokens   = 10_000 // of previews, of one owner: Exhausted
	MaxTokenNote     = 200    // bytes: Invalid
)

// tokenIDBytes is how many bytes the ID of a token is the hexadecimal digits of.
const tokenIDBytes = 10

// TokenKind is what a token opens.
type TokenKind string

// The kinds of tokens.
const (
	TokenGuest   TokenKind = "guest"   // the guest's own port
	TokenTraffic TokenKind = "traffic" // all ports but the guest's own
	TokenPreview TokenKind = "preview" // one port
)

// Token is a record of a token, without its secret. It is deleted with its API key and with
// the row of its sandbox.
type Token struct {
	// ID has 20 hexadecimal digits.
	ID      string
	Kind    TokenKind
	Sandbox sandpit.ID
	// Port is 0 for all ports.
	Port int
	// Owner is the owner of the sandbox, Creator the owner that requested the token.
	Owner, Creator string
	// Key is the ID of the API key that asked for it; "" for a caller without a key.
	Key string
	// Epoch is the sandbox's token epoch, PortEpoch that of the preview, when the token was
	// created. A token of an earlier epoch opens nothing.
	Epoch, PortEpoch int64
	// Legacy marks a token that an earlier version derived in its own way.
	Legacy bool
	// Note is for people.
	Note      string
	CreatedAt time.Time
	// ExpiresAt is when it stops working. Zero: with its key or its sandbox.
	ExpiresAt time.Time
	// LastUsedAt is when it was last shown, about. Zero: never.
	LastUsedAt time.Time
}

// TokenFilter selects tokens. Zero fields select all.
type TokenFilter struct {
	Owner   string
	Sandbox sandpit.ID
	Kind    TokenKind
	// After is the ID of the last token of the page before.
	After string
	// Limit is the most tokens to return. Default: all.
	Limit int
}

const tokenColumns = `id, kind, sandbox, port, owner, creator, api_key, epoch, port_epoch, legacy, note, created_at, expires_at, last_used_at` //nolint:gosec // names of columns

// InsertToken adds a token and returns it as it is stored, with the owner and the epoch of
// its sandbox.
//
// NotFound: the sandbox or the API key does not exist. Exhausted: the sandbox or its owner
// has too many. Invalid: a field is out of bounds.
func (s *Credentials) InsertToken(ctx context.Context, t Token) (Token, error) {
	err := s.db.writeTx(ctx, func(tx *writer) (err error) {
		t, err = insertToken(ctx, tx, t)
		return err
	})
	if err != nil {
		return Token{}, s.db.wrapError(err, "store a token")
	}
	return t, nil
}

// AccessTokens returns the tokens of the sandboxes, kinds, ports and API keys of list, and
// adds those that do not exist. Errors are those of InsertToken.
func (s *Credentials) AccessTokens(ctx context.Context, list []Token) (found []Token, err error) {
	if found, err = s.knownTokens(ctx, list); err != nil || len(found) == len(list) {
		return found, err // this works on a full disk, too
	}
	err = s.db.writeTx(ctx, func(tx *writer) error {
		found = make([]Token, len(list))
		for i, t := range list {
			if found[i], err = insertToken(ctx, tx, t); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, s.db.wrapError(err, "store access tokens")
	}
	return found, nil
}

// knownTokens returns the access tokens of list that exist.
func (s *Credentials) knownTokens(ctx context.Context, list []Token) (known []Token, err error) {
	err = s.db.readTx(ctx, func(r *reader) error {
		for _, t := range list {
			found, err := queryAccess(ctx, r, t)
			if err != nil {
				return err
			}
			known = append(known, found...)
		}
		return nil
	})
	if err != nil {
		return nil, s.db.wrapError(err, "look for access tokens")
	}
	return known, nil
}

// insertToken adds a token, or returns the access token that exists already.
func insertToken(ctx context.Context, tx *writer, t Token) (Token, error) {
	t.CreatedAt, t.ExpiresAt, t.LastUsedAt = roundTime(t.CreatedAt), roundTime(t.ExpiresAt), roundTime(t.LastUsedAt)
	if problem := t.describeProblem(); problem != "" {
		return Token{}, sandpit.Errorf(sandpit.Invalid, "token: %s is out of bounds", problem)
	}
	if t.Kind != TokenPreview {
		found, err := queryAccess(ctx, tx, t)
		if err != nil {
			return Token{}, err
		}
		if len(found) > 0 {
			return found[0], nil
		}
	}
	if err := checkKey(ctx, tx, t.Key); err != nil {
		return Token{}, err
	}
	if err := checkRoom(ctx, tx, t); err != nil {
		return Token{}, err
	}
	_, err := tx.exec(ctx, `INSERT INTO tokens (`+tokenColumns+`)
		SELECT ?1, ?2, ?3, ?4, owner, ?5, ?6, token_epoch, ?7, 0, ?8, ?9, ?10, NULL FROM sandboxes WHERE id = ?3`,
		t.ID, t.Kind, t.Sandbox, t.Port, t.Creator, t.Key, t.PortEpoch, t.Note, toMicros(t.CreatedAt), toMicros(t.ExpiresAt))
	if err != nil {
		return Token{}, err
	}
	added, err := queryTokens(ctx, tx, `WHERE id = ?`, t.ID)
	if err != nil {
		return Token{}, err
	}
	if len(added) == 0 {
		return Token{}, missingSandbox(t.Sandbox)
	}
	return added[0], nil
}

// queryAccess returns the access token for the grant and the API key of t, if it exists.
func queryAccess(ctx context.Context, q querier, t Token) ([]Token, error) {
	return queryTokens(ctx, q, `WHERE sandbox = ?1 AND kind = ?2 AND port = ?3 AND api_key = ?4 AND kind <> 'preview' AND legacy = 0`,
		t.Sandbox, t.Kind, t.Port, t.Key)
}

// checkRoom refuses one token too many.
func checkRoom(ctx context.Context, tx *writer, t Token) error {
	var ofSandbox, ofOwner int64
	err := tx.scanRow(ctx, `SELECT
		(SELECT count(*) FROM tokens WHERE sandbox = ?1 AND kind = ?2 AND (expires_at IS NULL OR expires_at > ?3)),
		(SELECT count(*) FROM tokens WHERE ?2 = 'preview' AND kind = 'preview' AND expires_at > ?3
			AND owner = (SELECT owner FROM sandboxes WHERE id = ?1))`,
		[]any{t.Sandbox, t.Kind, toMicros(t.CreatedAt)}, &ofSandbox, &ofOwner)
	const hint = "revoke some of them, or wait until they expire: sandpit token ls"
	switch {
	case err != nil:
		return err
	case ofSandbox >= MaxSandboxTokens:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "token limit reached: sandbox %s has %d tokens of the kind %s", t.Sandbox, ofSandbox, t.Kind), hint)
	case ofOwner >= MaxOwnerTokens:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "token limit reached: the sandboxes of the owner have %d preview tokens", ofOwner), hint)
	}
	return nil
}

// Token returns a token. NotFound: it does not exist.
func (s *Credentials) Token(ctx context.Context, id string) (Token, error) {
	list, err := s.queryTokens(ctx, `WHERE id = ?`, id)
	if err != nil {
		return Token{}, s.db.wrapError(err, "find a token")
	}
	if len(list) == 0 {
		return Token{}, noToken(id)
	}
	return list[0], nil
}

func noToken(id string) error {
	return sandpit.Errorf(sandpit.NotFound, "token %.100q not found", id)
}

// ListTokens returns the tokens that work at a time, in the order of their IDs: no token that
// has expired, or whose API key has expired, or whose sandbox was deleted.
func (s *Credentials) ListTokens(ctx context.Context, f TokenFilter, now time.Time) ([]Token, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = -1 // SQLite's way to say all
	}
	list, err := s.queryTokens(ctx, `WHERE id > ?1 AND (?2 = '' OR owner = ?2) AND (?3 = '' OR sandbox = ?3) AND (?4 = '' OR kind = ?4)
		AND (expires_at IS NULL OR expires_at > ?5)
		AND NOT EXISTS (SELECT 1 FROM api_keys k WHERE k.id = tokens.api_key AND k.expires_at <= ?5)
		AND EXISTS (SELECT 1 FROM sandboxes s WHERE s.id = tokens.sandbox AND s.state NOT IN ('deleting', 'deleted'))
		ORDER BY id LIMIT ?6`, f.After, f.Owner, f.Sandbox, f.Kind, toMicros(roundTime(now)), limit)
	if err != nil {
		return nil, s.db.wrapError(err, "list tokens")
	}
	return list, nil
}

// GuestTokens returns all tokens of guests, also those of sandboxes that were deleted a
// short while ago.
func (s *Credentials) GuestTokens(ctx context.Context) ([]Token, error) {
	list, err := s.queryTokens(ctx, `WHERE kind = 'guest'`)
	if err != nil {
		return nil, s.db.wrapError(err, "list the tokens of guests")
	}
	return list, nil
}

func (s *Credentials) queryTokens(ctx context.Context, where string, args ...any) (list []Token, err error) {
	err = s.db.readTx(ctx, func(r *reader) (err error) {
		list, err = queryTokens(ctx, r, where, args...)
		return err
	})
	return list, err
}

func queryTokens(ctx context.Context, q querier, where string, args ...any) ([]Token, error) {
	var list []Token
	var bad error
	err := scanRows(ctx, q, `SELECT `+tokenColumns+` FROM tokens `+where, args, func(c *cells) bool {
		t := Token{ID: c.nextText(), Kind: TokenKind(c.nextText()), Sandbox: sandpit.ID(c.nextText()), Port: int(c.nextInt()), Owner: c.nextText(), Creator: c.nextText(), Key: c.nextText()}
		t.Epoch, t.PortEpoch, t.Legacy, t.Note = c.nextInt(), c.nextInt(), c.nextInt() != 0, c.nextText()
		t.CreatedAt, t.ExpiresAt, t.LastUsedAt = c.nextTime(), c.nextTime(), c.nextTime()
		if problem := t.describeProblem(); c.err == nil && problem != "" {
			c.rejectValue(problem)
		}
		if c.err != nil {
			bad = sandpit.Errorf(sandpit.Internal, "token %.40q: %w", t.ID, c.err)
			return false
		}
		list = append(list, t)
		return true
	})
	return list, cmp.Or(err, bad)
}

// DeleteToken deletes a token. NotFound: it does not exist.
func (s *Credentials) DeleteToken(ctx context.Context, id string) error {
	ids, err := s.deleteTokens(ctx, `id = ?`, id)
	if err == nil && len(ids) == 0 {
		err = noToken(id)
	}
	return err
}

// DeletePortTokens deletes the tokens for the preview of a port, and returns their IDs.
func (s *Credentials) DeletePortTokens(ctx context.Context, id sandpit.ID, port int) ([]string, error) {
	return s.deleteTokens(ctx, `sandbox = ? AND kind = 'preview' AND port = ?`, id, port)
}

// PruneTokens deletes the tokens that have expired, or whose API key has.
func (s *Credentials) PruneTokens(ctx context.Context, now time.Time) error {
	_, err := s.deleteTokens(ctx, `expires_at <= ?1 OR api_key IN (SELECT id FROM api_keys WHERE expires_at <= ?1)`, toMicros(roundTime(now)))
	return err
}

func (s *Credentials) deleteTokens(ctx context.Context, where string, args ...any) (ids []string, err error) {
	err = s.db.writeAnyway(ctx, func(tx *writer) error {
		ids, err = deleteTokens(ctx, tx, where, args...)
		return err
	})
	if err != nil {
		return nil, s.db.wrapError(err, "delete tokens")
	}
	return ids, nil
}

func deleteTokens(ctx context.Context, tx *writer, where string, args ...any) (ids []string, err error) {
	err = scanRows(ctx, tx, `DELETE FROM tokens WHERE `+where+` RETURNING id`, args, func(c *cells) bool {
		ids = append(ids, c.nextText())
		return true
	})
	return ids, err
}

// RaiseTokenEpoch deletes all tokens of a sandbox, and raises its token epoch, which it
// returns. NotFound: the sandbox does not exist.
func (s *Credentials) RaiseTokenEpoch(ctx context.Context, id sandpit.ID) (epoch int64, err error) {
	err = s.db.writeAnyway(ctx, func(tx *writer) error {
		found := false
		err := scanRows(ctx, tx, `UPDATE sandboxes SET token_epoch = token_epoch + 1 WHERE id = ? RETURNING token_epoch`, []any{id}, func(c *cells) bool {
			epoch, found = c.nextInt(), true
			return true
		})
		if err == nil && !found {
			err = missingSandbox(id)
		}
		if err == nil {
			_, err = deleteTokens(ctx, tx, `sandbox = ?`, id)
		}
		return err
	})
	if err != nil {
		return 0, s.db.wrapError(err, "revoke the tokens of a sandbox")
	}
	return epoch, nil
}

// TokenEpochs returns the token epochs of all sandboxes whose epoch was raised.
func (s *Credentials) TokenEpochs(ctx context.Context) (map[sandpit.ID]int64, error) {
	all := make(map[sandpit.ID]int64)
	var bad error
	err := s.db.readTx(ctx, func(r *reader) error {
		return scanRows(ctx, r, `SELECT id, token_epoch FROM sandboxes WHERE token_epoch <> 0`, nil, func(c *cells) bool {
			all[sandpit.ID(c.nextText())] = c.nextInt()
			bad = c.err
			return bad == nil
		})
	})
	if err = errors.Join(err, bad); err != nil {
		return nil, s.db.wrapError(err, "read the epochs of tokens")
	}
	return all, nil
}

// TouchToken records a use of a token. A missing token is not an error.
func (s *Credentials) TouchToken(ctx context.Context, id string, at time.Time) error {
	err := s.db.writeAnyway(ctx, func(tx *writer) error {
		_, err := tx.exec(ctx, `UPDATE tokens SET last_used_at = ?2 WHERE id = ?1`, id, toMicros(roundTime(at)))
		return err
	})
	if err != nil {
		return s.db.wrapError(err, "note the use of a token")
	}
	return nil
}

// describeProblem names what is wrong with a token, "" for nothing.
func (t Token) describeProblem() string {
	if raw, err := hex.DecodeString(t.ID); err != nil || len(raw) != tokenIDBytes {
		return "id"
	}
	for name, text := range map[string]string{"owner": t.Owner, "creator": t.Creator, "key": t.Key, "note": t.Note} {
		if len(text) > MaxName || !utf8.ValidString(text) {
			return name
		}
	}
	switch {
	case t.Kind != TokenGuest && t.Kind != TokenTraffic && t.Kind != TokenPreview:
		return "kind"
	case t.Port < 0 || t.Port > 65535 || t.Port == 0 && t.Kind != TokenTraffic:
		return "port"
	case len(t.Note) > MaxTokenNote:
		return "note"
	case t.Sandbox.Validate() != nil:
		return "sandbox"
	}
	for _, at := range []time.Time{t.CreatedAt, t.ExpiresAt, t.LastUsedAt} {
		if !inRange(at) {
			return "date"
		}
	}
	return ""
}
