package token

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// The form of a secret: a prefix that scanners of secrets know, the ID of the record, and a
// signature.
const (
	Prefix   = "spv_"
	idBytes  = 10
	sumBytes = sha256.Size
)

// keyBytes is the length of the key that secrets are derived with.
const keyBytes = 32

// signer derives secrets from records.
type signer struct{ key [keyBytes]byte }

// signToken signs a token of an ID for a grant, at an epoch of the sandbox. All parts have a fixed
// length for each kind, so that no two grants are signed alike.
func (s *signer) signToken(id string, g Grant, epoch int64) []byte {
	mac := hmac.New(sha256.New, s.key[:])
	_, _ = fmt.Fprintf(mac, "token %s %s %s %05d %020d %020d", g.Kind, id, g.Sandbox, g.Port, epoch, g.Epoch) // a hash takes everything
	return mac.Sum(nil)
}

// secretOf returns the secret of a record.
func (s *signer) secretOf(t store.Token) string {
	if t.Legacy {
		return s.legacySecret(grantOf(t))
	}
	id, err := hex.DecodeString(t.ID)
	if err != nil {
		return "" // the store has checked it
	}
	return Prefix + base64.RawURLEncoding.EncodeToString(append(id, s.signToken(t.ID, grantOf(t), t.Epoch)...))
}

// parseSecret returns the ID and the signature of a secret.
func parseSecret(secret string) (id string, sum []byte, ok bool) {
	text, found := strings.CutPrefix(secret, Prefix)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !found || err != nil || len(raw) != idBytes+sumBytes || strings.ContainsAny(text, "\r\n") { // decoders skip these
		return "", nil, false
	}
	return hex.EncodeToString(raw[:idBytes]), raw[idBytes:], true
}

// legacyEnd is when the access tokens of earlier versions expired: never, in effect.
var legacyEnd = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC)

// legacySecret returns the access token that earlier versions gave out for a grant. It was
// the same for every caller, and had no record.
func (s *signer) legacySecret(g Grant) string {
	mac := hmac.New(sha256.New, s.key[:])
	_, _ = fmt.Fprintf(mac, "preview %s %05d %020d %020d", g.Sandbox, g.Port, 0, legacyEnd.Unix()) // a hash takes everything
	raw := binary.BigEndian.AppendUint64(nil, uint64(legacyEnd.Unix()))                            //nolint:gosec // after 1970
	return Prefix + base64.RawURLEncoding.EncodeToString(mac.Sum(raw))
}

// isSame reports whether two secrets are the same. How long it takes says nothing of where
// they differ.
func isSame(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// keyFile holds the key, below a server's state directory.
const keyFile = "preview.key"

// loadKey returns the key in a directory and creates it if it is missing. A lost key
// invalidates all tokens and nothing else.
func loadKey(dir string) (key [keyBytes]byte, err error) {
	path := filepath.Join(dir, keyFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newKey(path)
	case err != nil:
		return key, sandpit.Errorf(sandpit.CodeOf(err), "read the key of tokens: %w", err)
	case len(text) != keyBytes:
		return key, sandpit.WithHint(sandpit.Errorf(sandpit.Internal, "the key of tokens, %s, is damaged: %d bytes, want %d", path, len(text), keyBytes),
			"remove the file; the server then creates a new key, and all existing tokens and URLs stop working")
	}
	return [keyBytes]byte(text), nil
}

// newKey makes the key, all of it or nothing.
func newKey(path string) (key [keyBytes]byte, err error) {
	_, _ = rand.Read(key[:]) // never fails: crypto/rand ends the program instead
	if err := atomicfile.Write(path, 0o600, key[:]); err != nil {
		return key, sandpit.Errorf(sandpit.CodeOf(err), "create a key for tokens: %w", err)
	}
	return key, nil
}

// newID returns the ID of a new record.
func newID() string {
	raw := make([]byte, idBytes)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(raw)
}
