package sshkey

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
)

// The times that a token is good for.
const (
	DefaultTTL = time.Minute
	MaxTTL     = 10 * time.Minute
)

const (
	// maxTokens is how many unused tokens there may be.
	maxTokens = 10_000
	// maxTokensOf is how many of them one sandbox may have.
	maxTokensOf = 100
)

// Tokens issues tokens that admit their holder to one sandbox, once. They are lost when the
// server ends. All methods may be called concurrently.
type Tokens struct {
	clock  clock.Clock
	rights Rights

	mu    sync.Mutex
	all   map[[sha256.Size]byte]token
	boxes map[sandpit.ID]int
}

// Rights are what tokens depend on: token.Tokens. All methods may be called concurrently.
type Rights interface {
	// Attach returns a context that ends when an API key does, or the tokens of a sandbox are
	// revoked.
	Attach(ctx context.Context, id sandpit.ID, key string) (attached context.Context, release func(), err error)
	// Epoch returns how often the tokens of a sandbox were revoked.
	Epoch(id sandpit.ID) int64
}

// Holder is the caller that asks for a token.
type Holder struct {
	// Owner is its name in the trail of events.
	Owner string
	// Key is the ID of its API key, with which the token ends; "" for none.
	Key string
}

type token struct {
	sandbox sandpit.ID
	epoch   int64 // of the sandbox's tokens
	holder  Holder
	expires time.Time
}

// NewTokens returns no tokens yet.
func NewTokens(c clock.Clock, r Rights) *Tokens {
	return &Tokens{clock: c, rights: r, all: make(map[[sha256.Size]byte]token), boxes: make(map[sandpit.ID]int)}
}

// Issue returns a token that admits its holder to a sandbox. A ttl of zero means
// DefaultTTL.
//
// Invalid: the ttl is negative or above MaxTTL. Exhausted: too many unused tokens.
func (t *Tokens) Issue(id sandpit.ID, h Holder, ttl time.Duration) (secret string, expires time.Time, err error) {
	if ttl < 0 || ttl > MaxTTL {
		return "", time.Time{}, sandpit.Errorf(sandpit.Invalid, "a token that is good for %v: want at most %v", ttl, MaxTTL)
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	now := t.clock.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.all) >= maxTokens || t.boxes[id] >= maxTokensOf {
		t.pruneExpired(now)
	}
	if len(t.all) >= maxTokens || t.boxes[id] >= maxTokensOf {
		return "", time.Time{}, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "too many unused SSH tokens"),
			"wait until they have expired")
	}
	secret = strings.ToLower(rand.Text()) // 130 bits
	expires = now.Add(ttl)
	t.all[sha256.Sum256([]byte(secret))] = token{sandbox: id, epoch: t.rights.Epoch(id), holder: h, expires: expires}
	t.boxes[id]++
	return secret, expires, nil
}

// Take uses a token up and returns its holder. One that is for another sandbox is left as
// it is. The caller attaches what the token opens to the holder's rights: Attach.
//
// Unauthenticated: it is good for nothing here.
func (t *Tokens) Take(id sandpit.ID, secret string) (Holder, error) {
	sum := sha256.Sum256([]byte(secret))
	t.mu.Lock()
	defer t.mu.Unlock()
	// How long the look-up takes says nothing about a token: it is one of a hash.
	found, ok := t.all[sum]
	if !ok || found.sandbox != id {
		return Holder{}, errToken
	}
	t.dropToken(sum)
	if !t.clock.Now().Before(found.expires) || found.epoch != t.rights.Epoch(id) {
		return Holder{}, errToken
	}
	return found.holder, nil
}

// Find returns the sandbox that a token opens, without using the token up, and whether there is
// one.
func (t *Tokens) Find(secret string) (sandpit.ID, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok := t.all[sha256.Sum256([]byte(secret))]
	if !ok || !t.clock.Now().Before(found.expires) || found.epoch != t.rights.Epoch(found.sandbox) {
		return "", false
	}
	return found.sandbox, true
}

// Revoke drops an unused token of a sandbox, or all of them if secret is "". Connections that
// tokens have opened stay open.
//
// NotFound: the sandbox has no such token.
func (t *Tokens) Revoke(id sandpit.ID, secret string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if secret == "" {
		for sum, one := range t.all {
			if one.sandbox == id {
				t.dropToken(sum)
			}
		}
		return nil
	}
	sum := sha256.Sum256([]byte(secret))
	if found, ok := t.all[sum]; !ok || found.sandbox != id {
		return sandpit.Errorf(sandpit.NotFound, "sandbox %s has no such SSH token", id)
	}
	t.dropToken(sum)
	return nil
}

// Attach returns a context that ends with ctx, and with a cause when the holder's API key
// does or the sandbox's tokens are revoked. The caller calls release when it does not need
// the context any more. Unauthenticated: the API key has ended already.
func (t *Tokens) Attach(ctx context.Context, id sandpit.ID, h Holder) (attached context.Context, release func(), err error) {
	return t.rights.Attach(ctx, id, h.Key)
}

var errToken = sandpit.Errorf(sandpit.Unauthenticated, "this token is not valid")

// pruneExpired forgets what has expired. The lock is held.
func (t *Tokens) pruneExpired(now time.Time) {
	for sum, one := range t.all {
		if !now.Before(one.expires) {
			t.dropToken(sum)
		}
	}
}

// dropToken forgets a token. The lock is held.
func (t *Tokens) dropToken(sum [sha256.Size]byte) {
	id := t.all[sum].sandbox
	delete(t.all, sum)
	if t.boxes[id]--; t.boxes[id] <= 0 {
		delete(t.boxes, id)
	}
}
