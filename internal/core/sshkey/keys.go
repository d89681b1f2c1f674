package sshkey

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"encoding/hex"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/revocation"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

const (
	// maxText bounds what may be a public key, in bytes.
	maxText = 16 << 10
	// maxName bounds the name of a key, in bytes.
	maxName = 100
	// minRSA is the least strength of an RSA key, in bits.
	minRSA = 2048
	// usedEvery is how often it is written that a key was used.
	usedEvery = time.Minute
)

// APIKeys are the API keys that public keys depend on: api.Keys. All methods may be called
// concurrently.
type APIKeys interface {
	// Attach returns a context that ends when an API key does.
	Attach(ctx context.Context, id string) (attached context.Context, release func(), err error)
}

// Keys are the public keys that owners have registered. All methods may be called
// concurrently.
type Keys struct {
	store   *store.Store
	apiKeys APIKeys
	clock   clock.Clock
	log     *slog.Logger
	lines   *revocation.Lines[string] // by the IDs of public keys
}

// NewKeys returns the keys of a store. A nil log discards failures.
func NewKeys(s *store.Store, apiKeys APIKeys, c clock.Clock, log *slog.Logger) *Keys {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keys{store: s, apiKeys: apiKeys, clock: c, log: log, lines: revocation.New[string](c)}
}

// Add registers a public key for the sandboxes of owner. The text is as in a .pub file
// of OpenSSH; without a name, the comment of the key is its name. The public key is
// deleted with the API key of the ID apiKey, unless that is "".
//
// Invalid: not a public key, one with options, or one that is too weak. AlreadyExists: the
// owner has this key. Exhausted: the owner has too many keys. NotFound: the API key.
func (k *Keys) Add(ctx context.Context, owner, apiKey, name, text string) (store.SSHKey, error) {
	key, comment, err := Parse(text)
	if err != nil {
		return store.SSHKey{}, err
	}
	if name == "" {
		name = sanitizeText(comment)
	}
	if len(name) > maxName || name != sanitizeText(name) {
		return store.SSHKey{}, sandpit.Errorf(sandpit.Invalid, "name of an SSH key: want at most %d bytes of printable text", maxName)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails: crypto/rand ends the program instead
	return k.store.Credentials().InsertSSHKey(ctx, store.SSHKey{
		ID: hex.EncodeToString(id[:]), Owner: owner, Fingerprint: ssh.FingerprintSHA256(key), Type: key.Type(), Name: name, APIKey: apiKey, CreatedAt: k.clock.Now(),
	})
}

// sanitizeText leaves out what is not to be seen, and what is too much.
func sanitizeText(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return -1
		}
		return r
	}, text)
	for len(text) > maxName {
		text = strings.ToValidUTF8(text[:maxName], "")
	}
	return text
}

// Parse reads one public key as in a .pub file of OpenSSH.
//
// Invalid: not a public key, a private key, one with options, or one that is too weak.
func Parse(text string) (key ssh.PublicKey, comment string, err error) {
	raw := []byte(text)
	if bytes.Contains(raw, []byte("PRIVATE KEY")) {
		return nil, "", sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "this is a private key; want a public key"),
			"give the public key: the file of the same name that ends in .pub")
	}
	if len(raw) > maxText {
		return nil, "", notKey("it has %d bytes", len(raw))
	}
	key, comment, options, rest, err := ssh.ParseAuthorizedKey(raw)
	switch {
	case err != nil:
		return nil, "", notKey("it cannot be read")
	case len(options) > 0:
		return nil, "", notKey("options are not for here")
	case len(bytes.TrimSpace(rest)) > 0:
		return nil, "", notKey("there is more than one")
	}
	return key, comment, checkKey(key)
}

// checkKey refuses keys that are too weak, and certificates.
func checkKey(key ssh.PublicKey) error {
	switch key.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return nil
	case ssh.KeyAlgoRSA:
		crypto, ok := key.(ssh.CryptoPublicKey)
		if !ok {
			break
		}
		if public, ok := crypto.CryptoPublicKey().(*rsa.PublicKey); ok && public.N.BitLen() >= minRSA {
			return nil
		}
		return notKey("it has fewer than %d bits", minRSA)
	}
	return notKey("keys of the type %.40q are not taken", key.Type())
}

func notKey(format string, args ...any) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "not a public key for SSH: "+format, args...),
		"give the line of a .pub file; ssh-keygen makes one")
}

// List returns the keys of an owner.
func (k *Keys) List(ctx context.Context, owner string) ([]store.SSHKey, error) {
	return k.store.Credentials().ListSSHKeys(ctx, owner)
}

// Delete removes a key of an owner, and ends the connections that it has opened. NotFound.
func (k *Keys) Delete(ctx context.Context, owner, id string) error {
	if err := k.store.Credentials().DeleteSSHKey(ctx, owner, id); err != nil {
		return err
	}
	k.lines.Cut(id, errKeyEnded)
	return nil
}

// errKeyEnded is why a connection ends whose public key was good when it began.
var errKeyEnded = sandpit.Errorf(sandpit.Unauthenticated, "the SSH key was removed")

// Attach returns a context that ends with ctx, and with a cause when a public key is removed
// or its API key ends. The caller calls release when it does not need the context any more.
//
// Unauthenticated, NotFound: one of them has ended already.
func (k *Keys) Attach(ctx context.Context, key store.SSHKey) (attached context.Context, release func(), err error) {
	line, cut := k.lines.Attach(ctx, key.ID, time.Time{}, nil)
	now, err := k.store.Credentials().SSHKeyOf(ctx, key.Owner, key.Fingerprint) // it may have been removed just before
	if err == nil && now.ID != key.ID {
		err = errKeyEnded
	}
	if err != nil {
		cut()
		return nil, nil, err
	}
	attached, cutAll, err := k.apiKeys.Attach(line, key.APIKey)
	if err != nil {
		cut()
		return nil, nil, err
	}
	return attached, func() { cutAll(); cut() }, nil
}

// Of returns the key of an owner that is shown. It does not say that it was used.
//
// NotFound: the owner has no such key.
func (k *Keys) Of(ctx context.Context, owner string, key ssh.PublicKey) (store.SSHKey, error) {
	return k.store.Credentials().SSHKeyOf(ctx, owner, ssh.FingerprintSHA256(key))
}

// Used notes that a key was used, about once a minute.
func (k *Keys) Used(ctx context.Context, key store.SSHKey) {
	now := k.clock.Now()
	if now.Sub(key.LastUsedAt).Abs() < usedEvery {
		return
	}
	if err := k.store.Credentials().TouchSSHKey(ctx, key.ID, now); err != nil {
		k.log.WarnContext(ctx, "the use of an SSH key is not noted", slog.String("key", key.ID), slog.Any("error", err))
	}
}
