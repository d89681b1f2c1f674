package api

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/revocation"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// The form of a key: a prefix that secret scanners recognize, and 160 random bits.
const (
	keyPrefix = "e2b_"
	keyBytes  = 20
)

// maxCachedKeys is how many keys are cached. It does not limit how many may exist.
const maxCachedKeys = 1024

// useInterval is how often the use of a key is recorded.
const useInterval = time.Minute

var (
	keyPattern   = pattern.New(`^` + keyPrefix + `[0-9a-f]{40}$`)
	ownerPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._@+-]{0,99}$`)
)

// Keys are the API keys of a server. All methods may be called concurrently.
type Keys struct {
	store *store.Store
	clock clock.Clock
	log   *slog.Logger

	lines *revocation.Lines[string] // by the IDs of keys

	mu    sync.Mutex
	cache map[[sha256.Size]byte]*cachedKey
	byID  map[string]store.Key
	// changes counts deletions and renames, so that an earlier look-up does not cache an old
	// key.
	changes int64
}

type cachedKey struct {
	key  store.Key
	used time.Time // when its use was last recorded
}

// NewKeys returns the keys of a store, from which nothing else removes keys. With a nil log,
// nothing is logged.
func NewKeys(s *store.Store, c clock.Clock, log *slog.Logger) *Keys {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Keys{
		store: s, clock: c, log: log, lines: revocation.New[string](c),
		cache: make(map[[sha256.Size]byte]*cachedKey), byID: make(map[string]store.Key),
	}
}

// IsKey reports whether a text has the form of a key. Such a key need not exist.
func IsKey(text string) bool { return keyPattern().MatchString(text) }

// NewKey describes a new key.
type NewKey struct {
	Name  string // for people
	Owner string // the owner whose sandboxes it reaches: letters, digits and . _ @ + -
	Admin bool
	// TTL is the time until it expires. Zero: never.
	TTL time.Duration
}

// Create creates a key and returns it with its secret, which is not stored.
//
// Invalid: the owner or TTL. Exhausted: there are too many keys.
func (k *Keys) Create(ctx context.Context, n NewKey) (store.Key, string, error) {
	if err := checkOwner(n.Owner); err != nil {
		return store.Key{}, "", err
	}
	if n.TTL < 0 {
		return store.Key{}, "", sandpit.Errorf(sandpit.Invalid, "invalid TTL %v of a key", n.TTL)
	}
	now := k.clock.Now()
	var raw [keyBytes]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the program instead
	secret := keyPrefix + hex.EncodeToString(raw[:])
	sum := sha256.Sum256([]byte(secret))
	key := store.Key{
		ID: randomHex(8), Hash: hex.EncodeToString(sum[:]), Name: n.Name, Owner: n.Owner, Admin: n.Admin, CreatedAt: now,
	}
	if n.TTL > 0 {
		key.ExpiresAt = now.Add(n.TTL)
	}
	key, err := k.store.Credentials().InsertKey(ctx, key)
	if err != nil {
		return store.Key{}, "", err
	}
	return key, secret, nil
}

// IsOwner reports whether a name is valid for an owner.
func IsOwner(name string) bool { return checkOwner(name) == nil }

// checkOwner refuses names of other actors in the audit trail: the manager, and addresses.
func checkOwner(owner string) error {
	if !ownerPattern().MatchString(owner) || owner == "manager" {
		return sandpit.Errorf(sandpit.Invalid, "owner %.100q: want a letter or digit, then up to 99 of these and . _ @ + -, and not \"manager\"", owner)
	}
	return nil
}

// List returns keys in the order of their IDs, starting after an ID.
func (k *Keys) List(ctx context.Context, after string, limit int) ([]store.Key, error) {
	return k.store.Credentials().ListKeys(ctx, after, limit)
}

// Delete deletes a key, which stops working at once, and ends what is attached to it.
// NotFound.
func (k *Keys) Delete(ctx context.Context, id string) error {
	if err := k.store.Credentials().DeleteKey(ctx, id); err != nil {
		return err
	}
	k.dropCached(id)
	k.lines.Cut(id, errKeyEnded)
	return nil
}

// errKeyEnded is the cause when a request ends with its key.
var errKeyEnded = sandpit.Errorf(sandpit.Unauthenticated, "the API key was deleted or has expired")

// Attach returns a context that ends with ctx, and with a cause when the key with an ID is
// deleted or expires. The caller calls release when it does not need the context any more. The
// ID "" stands for a client without a key, whose context ends only with ctx.
//
// Unauthenticated: the key was deleted or has expired. Other errors are those of the store.
func (k *Keys) Attach(ctx context.Context, id string) (attached context.Context, release func(), err error) {
	if id == "" {
		return ctx, func() {}, nil
	}
	key, err := k.keyByID(ctx, id)
	if err != nil {
		return nil, nil, err
	}
	attached, release = k.lines.Attach(ctx, id, key.ExpiresAt, errKeyEnded)
	if _, err := k.keyByID(ctx, id); err != nil { // it may have been deleted meanwhile
		release()
		return nil, nil, err
	}
	return attached, release, nil
}

// Get returns the key with an ID. Unauthenticated: it was deleted or has expired.
func (k *Keys) Get(ctx context.Context, id string) (store.Key, error) { return k.keyByID(ctx, id) }

// keyByID returns the key with an ID. Unauthenticated: it was deleted or has expired.
func (k *Keys) keyByID(ctx context.Context, id string) (store.Key, error) {
	k.mu.Lock()
	key, ok := k.byID[id]
	before := k.changes
	k.mu.Unlock()
	if !ok {
		var err error
		key, err = k.store.Credentials().Key(ctx, id)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			return store.Key{}, errKeyEnded
		}
		if err != nil {
			return store.Key{}, err
		}
		k.cacheByID(key, before)
	}
	if k.isExpired(key) {
		return store.Key{}, errKeyEnded
	}
	return key, nil
}

// cacheByID caches a key by its ID, unless keys have changed since before.
func (k *Keys) cacheByID(key store.Key, before int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changes != before {
		return
	}
	for other := range k.byID {
		if len(k.byID) < maxCachedKeys {
			break
		}
		delete(k.byID, other)
	}
	k.byID[key.ID] = key
}

// Rename changes the name of a key. NotFound. Invalid: the name is too long.
func (k *Keys) Rename(ctx context.Context, id, name string) error {
	if err := k.store.Credentials().RenameKey(ctx, id, name); err != nil {
		return err
	}
	k.dropCached(id)
	return nil
}

// dropCached removes a key from the caches, so that it is looked up again.
func (k *Keys) dropCached(id string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes++
	delete(k.byID, id)
	for sum, c := range k.cache {
		if c.key.ID == id {
			delete(k.cache, sum)
		}
	}
}

// errNoKey is the same error for all invalid keys, so that it does not help to guess them.
var errNoKey = sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "this API key is not valid"),
	"the key is wrong, has expired or was deleted; ask for a new one")

// cachedKey returns the key of a secret from the cache.
func (k *Keys) cachedKey(secret string) (store.Key, bool) {
	sum := sha256.Sum256([]byte(secret))
	k.mu.Lock()
	defer k.mu.Unlock()
	c, ok := k.cache[sum]
	if !ok || k.isExpired(c.key) {
		return store.Key{}, false
	}
	return c.key, true
}

// Check returns the key of a secret. It records the use of the key about once a minute.
//
// Its duration does not help to guess keys: it looks up and compares hashes, which a client
// cannot choose.
//
// Unauthenticated: there is no such key, or it has expired. Other errors are those of the
// store.
func (k *Keys) Check(ctx context.Context, secret string) (store.Key, error) {
	if !keyPattern().MatchString(secret) {
		return store.Key{}, errNoKey
	}
	key, ok := k.cachedKey(secret)
	if !ok {
		var err error
		if key, err = k.lookUpKey(ctx, secret); err != nil {
			return store.Key{}, err
		}
	}
	k.recordUse(ctx, secret)
	return key, nil
}

// lookUpKey reads a key from the store and caches it.
func (k *Keys) lookUpKey(ctx context.Context, secret string) (store.Key, error) {
	sum := sha256.Sum256([]byte(secret))
	k.mu.Lock()
	before := k.changes
	k.mu.Unlock()
	key, err := k.store.Credentials().KeyByHash(ctx, hex.EncodeToString(sum[:]))
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return store.Key{}, errNoKey
	}
	if err != nil {
		return store.Key{}, err
	}
	hash, err := hex.DecodeString(key.Hash)
	if err != nil || subtle.ConstantTimeCompare(hash, sum[:]) != 1 || k.isExpired(key) {
		return store.Key{}, errNoKey
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.changes != before {
		return key, nil // valid when the look-up began, but not cached
	}
	for other := range k.cache {
		if len(k.cache) < maxCachedKeys {
			break
		}
		delete(k.cache, other)
	}
	k.cache[sum] = &cachedKey{key: key, used: key.LastUsedAt}
	return key, nil
}

func (k *Keys) isExpired(key store.Key) bool {
	return !key.ExpiresAt.IsZero() && !k.clock.Now().Before(key.ExpiresAt)
}

// recordUse records that a key is used.
func (k *Keys) recordUse(ctx context.Context, secret string) {
	now := k.clock.Now()
	k.mu.Lock()
	c := k.cache[sha256.Sum256([]byte(secret))]
	if c == nil || now.Sub(c.used).Abs() < useInterval {
		k.mu.Unlock()
		return
	}
	c.used = now
	id := c.key.ID
	k.mu.Unlock()
	if err := k.store.Credentials().TouchKey(ctx, id, now); err != nil {
		k.log.WarnContext(ctx, "api: cannot record the use of a key", slog.String("key", id), slog.Any("error", err))
	}
}

// randomHex returns n random bytes as hexadecimal digits.
func randomHex(n int) string {
	raw := make([]byte, n)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return hex.EncodeToString(raw)
}
