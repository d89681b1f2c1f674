package sshkey

import (
	"crypto/rand"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/clock"
)

// The times that a token is good for.
const (
	DefaultTTL = time.Minute
	MaxTTL     = 10 * time.Minute
)

const (
	// maxTokens is how many tokens there may be that nobody has used.
	maxTokens = 10_000
	// maxTokensOf is how many of them one sandbox may have.
	maxTokensOf = 100
)

// Tokens let somebody into one sandbox, once. They are forgotten when the server ends.
// All methods may be called concurrently.
type Tokens struct {
	clock clock.Clock

	mu    sync.Mutex
	all   map[[sha256.Size]byte]token
	boxes map[sandpit.ID]int
}

type token struct {
	sandbox sandpit.ID
	actor   string
	expires time.Time
}

// NewTokens returns no tokens yet.
func NewTokens(c clock.Clock) *Tokens {
	return &Tokens{clock: c, all: make(map[[sha256.Size]byte]token), boxes: make(map[sandpit.ID]int)}
}

// Issue makes a token for a sandbox in the name of actor, who may reach it. A ttl of zero
// means DefaultTTL.
//
// Invalid: the ttl is below zero or beyond MaxTTL. Exhausted: there are too many that
// nobody has used.
func (t *Tokens) Issue(id sandpit.ID, actor string, ttl time.Duration) (secret string, expires time.Time, err error) {
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
		t.prune(now)
	}
	if len(t.all) >= maxTokens || t.boxes[id] >= maxTokensOf {
		return "", time.Time{}, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "there are too many tokens for SSH that nobody has used"),
			"wait until they have expired")
	}
	secret = strings.ToLower(rand.Text()) // 130 bits
	expires = now.Add(ttl)
	t.all[sha256.Sum256([]byte(secret))] = token{sandbox: id, actor: actor, expires: expires}
	t.boxes[id]++
	return secret, expires, nil
}

// Take uses a token up and returns in whose name it was made. One that is for another
// sandbox is left as it is.
//
// Unauthenticated: it is good for nothing here.
func (t *Tokens) Take(id sandpit.ID, secret string) (actor string, err error) {
	sum := sha256.Sum256([]byte(secret))
	t.mu.Lock()
	defer t.mu.Unlock()
	// How long the look-up takes says nothing about a token: it is one of a hash.
	found, ok := t.all[sum]
	if !ok || found.sandbox != id {
		return "", errToken
	}
	t.drop(sum)
	if !t.clock.Now().Before(found.expires) {
		return "", errToken
	}
	return found.actor, nil
}

var errToken = sandpit.Errorf(sandpit.Unauthenticated, "this token is not valid")

// prune forgets what has expired. The lock is held.
func (t *Tokens) prune(now time.Time) {
	for sum, one := range t.all {
		if !now.Before(one.expires) {
			t.drop(sum)
		}
	}
}

// drop forgets a token. The lock is held.
func (t *Tokens) drop(sum [sha256.Size]byte) {
	id := t.all[sum].sandbox
	delete(t.all, sum)
	if t.boxes[id]--; t.boxes[id] <= 0 {
		delete(t.boxes, id)
	}
}
