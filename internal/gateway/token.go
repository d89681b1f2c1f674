package gateway

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The form of a token: a prefix that scanners of secrets know, when it expires, and a
// signature.
const (
	tokenPrefix = "spv_"
	timeBytes   = 8
	sumBytes    = sha256.Size
)

// keyBytes is how long the key is that tokens are signed with.
const keyBytes = 32

// signer signs tokens.
type signer struct{ key [keyBytes]byte }

// grant is what a token is for.
type grant struct {
	id    sandpit.ID
	port  int
	epoch int64
}

// sum is of what is signed. All parts have one length for each kind of value, so that
// nothing can be taken for something else.
func (s *signer) sum(g grant, expires time.Time) []byte {
	mac := hmac.New(sha256.New, s.key[:])
	_, _ = fmt.Fprintf(mac, "preview %s %05d %020d %020d", g.id, g.port, g.epoch, expires.Unix()) // a hash takes everything
	return mac.Sum(nil)
}

// sign returns a token for g that is good until a time, in whole seconds.
func (s *signer) sign(g grant, expires time.Time) string {
	raw := binary.BigEndian.AppendUint64(nil, uint64(expires.Unix())) //nolint:gosec // after 1970
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(append(raw, s.sum(g, expires)...))
}

// check returns until when a token is good for g, and whether it is one at all.
func (s *signer) check(token string, g grant, now time.Time) (expires time.Time, ok bool) {
	text, found := strings.CutPrefix(token, tokenPrefix)
	raw, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !found || err != nil || len(raw) != timeBytes+sumBytes || strings.ContainsAny(text, "\r\n") { // decoders skip these
		return time.Time{}, false
	}
	expires = time.Unix(int64(binary.BigEndian.Uint64(raw)), 0) //nolint:gosec // what is too large was not signed
	if !hmac.Equal(raw[timeBytes:], s.sum(g, expires)) {
		return time.Time{}, false
	}
	return expires, now.Before(expires)
}

// keyFile is where the key is, below a server's state directory.
const keyFile = "preview.key"

// loadKey returns the key in a directory, and makes it if there is none. Who loses it
// loses all URLs that were given out, and nothing else.
func loadKey(dir string) (key [keyBytes]byte, err error) {
	path := filepath.Join(dir, keyFile)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return newKey(path)
	case err != nil:
		return key, sandpit.Errorf(sandpit.CodeOf(err), "read the key of previews: %w", err)
	case len(text) != keyBytes:
		return key, sandpit.WithHint(sandpit.Errorf(sandpit.Internal, "the key of previews, %s, is damaged: %d bytes, want %d", path, len(text), keyBytes),
			"remove it: a new one is made, and URLs that were given out are good for nothing then")
	}
	return [keyBytes]byte(text), nil
}

// newKey makes the key, all of it or nothing.
func newKey(path string) (key [keyBytes]byte, err error) {
	_, _ = rand.Read(key[:])                                  // never fails: crypto/rand ends the program instead
	f, err := os.CreateTemp(filepath.Dir(path), keyFile+".*") // for its owner only
	if err != nil {
		return key, sandpit.Errorf(sandpit.CodeOf(err), "make a key for previews: %w", err)
	}
	_, err = f.Write(key[:])
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return key, errors.Join(sandpit.Errorf(sandpit.CodeOf(err), "make a key for previews: %w", err), os.Remove(f.Name()))
	}
	return key, nil
}
