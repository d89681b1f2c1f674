// Package token keeps the tokens that open sandboxes without an API key: the guest of a
// sandbox, its ports, or the preview of one port.
//
// Each token is a record in the store. Its secret is not stored: it is derived from the
// record with a key that only the server has, so that URLs that clients sign with their
// token can be checked, and a copy of the database opens nothing. A token ends with the API
// key that asked for it and with its sandbox, when it expires, and when it is revoked. What
// it has opened ends with it.
package token

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/revocation"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// GuestPort is the port of a sandbox's guest.
const GuestPort = 49983

const (
	// maxCached is how many records are remembered. It bounds memory only.
	maxCached = 4096
	// usedEvery is how often it is written that a token was used.
	usedEvery = time.Minute
	// pruneEvery is how often records are deleted that have expired.
	pruneEvery = time.Hour
)

// Keys are the API keys that tokens depend on. All methods may be called concurrently.
type Keys interface {
	// Attach returns a context that ends when a key does, as api.Keys does.
	Attach(ctx context.Context, id string) (attached context.Context, release func(), err error)
}

// Options say how tokens are kept. Store, Keys and Dir must be given; the zero value of
// another field means the default stated with it.
type Options struct {
	Store *store.Store
	Keys  Keys
	// Dir is a directory of the server's own, for the key that secrets are derived with.
	Dir string
	// Clock is the time of day. Default: clock.System.
	Clock clock.Clock
	// Log receives problems that no caller sees. Default: none does.
	Log *slog.Logger
}

// Grant is what a token opens.
type Grant struct {
	Kind    store.TokenKind
	Sandbox sandpit.ID
	Port    int
	// Epoch is that of the preview: a token of an earlier one opens nothing.
	Epoch int64
}

// Guest is the grant of a sandbox's guest.
func Guest(id sandpit.ID) Grant {
	return Grant{Kind: store.TokenGuest, Sandbox: id, Port: GuestPort}
}

// Traffic is the grant of all ports but the guest's.
func Traffic(id sandpit.ID) Grant { return Grant{Kind: store.TokenTraffic, Sandbox: id} }

// Preview is the grant of the preview of a port.
func Preview(id sandpit.ID, port int, epoch int64) Grant {
	return Grant{Kind: store.TokenPreview, Sandbox: id, Port: port, Epoch: epoch}
}

func grantOf(t store.Token) Grant {
	return Grant{Kind: t.Kind, Sandbox: t.Sandbox, Port: t.Port, Epoch: t.PortEpoch}
}

// Holder is the caller that asks for a token.
type Holder struct {
	Owner string
	// Key is the ID of its API key; "" for a caller without a key.
	Key string
}

// Tokens are the tokens of a server. All methods may be called concurrently.
type Tokens struct {
	o         Options
	signer    signer
	lines     *revocation.Lines[string]     // by the IDs of tokens
	sandboxes *revocation.Lines[sandpit.ID] // of all that tokens of a sandbox have opened
	guests    guestSecrets

	mu     sync.Mutex
	cache  map[string]*cached // by ID
	access map[accessKey]accessTokens
	epochs map[sandpit.ID]int64 // zero if missing
	pruned time.Time
	// changes counts revocations, so that a look-up that began before one does not restore a
	// revoked token.
	changes int64
}

type cached struct {
	token store.Token
	used  time.Time // when that was written last
}

type accessKey struct {
	sandbox sandpit.ID
	key     string
	traffic bool
}

type accessTokens struct{ guest, traffic string }

// Open returns the tokens of a store, of which nothing else deletes any.
func Open(ctx context.Context, o Options) (*Tokens, error) {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	key, err := loadKey(o.Dir)
	if err != nil {
		return nil, err
	}
	t := &Tokens{
		o: o, signer: signer{key}, lines: revocation.New[string](o.Clock), sandboxes: revocation.New[sandpit.ID](o.Clock),
		cache: make(map[string]*cached), access: make(map[accessKey]accessTokens), pruned: o.Clock.Now(),
	}
	if err := o.Store.Credentials().PruneTokens(ctx, t.pruned); err != nil {
		return nil, err
	}
	if t.epochs, err = o.Store.Credentials().TokenEpochs(ctx); err != nil {
		return nil, err
	}
	list, err := o.Store.Credentials().GuestTokens(ctx)
	for _, one := range list {
		t.guests.addToken(one, t.signer.secretOf(one))
	}
	return t, err
}

// pruneTokens deletes records that have expired, and forgets what is kept in memory of sandboxes
// and keys that are gone.
func (t *Tokens) pruneTokens(ctx context.Context) error {
	if err := t.o.Store.Credentials().PruneTokens(ctx, t.o.Clock.Now()); err != nil {
		return err
	}
	t.mu.Lock()
	epochs := maps.Clone(t.epochs)
	t.mu.Unlock()
	guests := t.guests.tokenIDs()
	// Entries added from here on stay, whether or not the store returned them.
	known, err := t.o.Store.Credentials().TokenEpochs(ctx)
	if err != nil {
		return err
	}
	list, err := t.o.Store.Credentials().GuestTokens(ctx)
	if err != nil {
		return err
	}
	for _, one := range list {
		delete(guests, one.ID)
	}
	t.guests.removeTokens(func(id string) bool { return guests[id] })
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range epochs {
		if _, ok := known[id]; !ok {
			delete(t.epochs, id)
		}
	}
	return nil
}

// pruneSometimes prunes if that was long ago.
func (t *Tokens) pruneSometimes(ctx context.Context) {
	t.mu.Lock()
	now := t.o.Clock.Now()
	due := now.Sub(t.pruned).Abs() >= pruneEvery
	if due {
		t.pruned = now
	}
	t.mu.Unlock()
	if !due {
		return
	}
	if err := t.pruneTokens(ctx); err != nil {
		t.o.Log.WarnContext(ctx, "tokens: expired records not deleted", slog.Any("error", err))
	}
}

// Issue creates a token that is good until a time, and returns its secret, which is stored
// nowhere. The note is for people.
//
// NotFound: the sandbox or the holder's key does not exist. Exhausted: the sandbox or its
// owner has too many. Invalid: the note is too long.
func (t *Tokens) Issue(ctx context.Context, g Grant, h Holder, expires time.Time, note string) (string, error) {
	t.pruneSometimes(ctx)
	one := t.newToken(g, h)
	one.ExpiresAt, one.Note = expires, note
	one, err := t.o.Store.Credentials().InsertToken(ctx, one)
	if err != nil {
		return "", err
	}
	return t.signer.secretOf(one), nil
}

func (t *Tokens) newToken(g Grant, h Holder) store.Token {
	return store.Token{
		ID: newID(), Kind: g.Kind, Sandbox: g.Sandbox, Port: g.Port, PortEpoch: g.Epoch,
		Creator: h.Owner, Key: h.Key, CreatedAt: t.o.Clock.Now(),
	}
}

// Access returns the secrets of the token that opens the guest of a sandbox and, if traffic
// is wanted, of the one that opens all of its other ports; else "". They are good as long as
// the sandbox and the holder's key. A second call with the same key returns the same ones.
// Errors are those of Issue.
func (t *Tokens) Access(ctx context.Context, id sandpit.ID, h Holder, wantTraffic bool) (guest, traffic string, err error) {
	t.pruneSometimes(ctx)
	key := accessKey{id, h.Key, wantTraffic}
	t.mu.Lock()
	known, ok := t.access[key]
	before := t.changes
	t.mu.Unlock()
	if ok {
		return known.guest, known.traffic, nil
	}
	wanted := []store.Token{t.newToken(Guest(id), h)}
	if wantTraffic {
		wanted = append(wanted, t.newToken(Traffic(id), h))
	}
	list, err := t.o.Store.Credentials().AccessTokens(ctx, wanted)
	if err != nil {
		return "", "", err
	}
	known.guest = t.signer.secretOf(list[0])
	if wantTraffic {
		known.traffic = t.signer.secretOf(list[1])
	}
	t.guests.addToken(list[0], known.guest)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes == before {
		makeRoom(t.access)
		t.access[key] = known
	}
	return known.guest, known.traffic, nil
}

// makeRoom forgets something if a cache is full.
func makeRoom[K comparable, V any](m map[K]V) {
	for k := range m {
		if len(m) < maxCached {
			return
		}
		delete(m, k)
	}
}

// errToken is the same whatever is wrong with a token.
var errToken = sandpit.Errorf(sandpit.Unauthenticated, "invalid token")

// errEnded is why something ends that a token has opened.
var errEnded = sandpit.Errorf(sandpit.Unauthenticated, "the token was revoked or has expired")

// Admission is the right of a request that has shown a token.
type Admission struct {
	// Expires is when the token does; zero: with its key or its sandbox.
	Expires time.Time

	ctx     context.Context //nolint:containedctx // this is what an admission is about
	release func()
}

// Context ends with the request, and with a cause when the token, its API key or the tokens
// of its sandbox end.
func (a *Admission) Context() context.Context { return a.ctx }

// Release ends the context, when the request is done.
func (a *Admission) Release() { a.release() }

// Admit admits a request that shows a token for one of some grants. The caller releases
// the admission.
//
// Unauthenticated: the token opens none of them. Other errors are those of the store.
func (t *Tokens) Admit(ctx context.Context, secret string, grants ...Grant) (*Admission, error) {
	for _, g := range grants {
		id, err := t.verifySecret(ctx, secret, g)
		if err != nil {
			return nil, err
		}
		if id != "" {
			return t.admitRequest(ctx, id, g)
		}
	}
	return nil, errToken
}

// AdmitSigned admits a request for the guest of a sandbox that shows no token, but was
// signed with one: matches reports whether it was with a token of a secret. The caller
// releases the admission. Errors are those of Admit.
func (t *Tokens) AdmitSigned(ctx context.Context, id sandpit.ID, matches func(secret string) bool) (*Admission, error) {
	if found := t.guests.findToken(id, matches); found != "" {
		return t.admitRequest(ctx, found, Guest(id))
	}
	return nil, errToken
}

// verifySecret returns the ID of a token that is signed for a grant; "" if it is not. Only then
// is the store asked.
func (t *Tokens) verifySecret(ctx context.Context, secret string, g Grant) (string, error) {
	if id, sum, ok := parseSecret(secret); ok {
		t.mu.Lock()
		epoch := t.epochs[g.Sandbox]
		t.mu.Unlock()
		if isSame(string(sum), string(t.signer.signToken(id, g, epoch))) {
			return id, nil
		}
		return "", nil
	}
	if g.Kind == store.TokenPreview || !isSame(secret, t.signer.legacySecret(g)) {
		return "", nil
	}
	list, err := t.o.Store.Credentials().ListTokens(ctx, store.TokenFilter{Sandbox: g.Sandbox, Kind: g.Kind}, t.o.Clock.Now())
	if err != nil {
		return "", err
	}
	for _, one := range list {
		if one.Legacy {
			return one.ID, nil
		}
	}
	return "", nil
}

// admitRequest admits a request that has shown a token of this ID, if that is still good.
func (t *Tokens) admitRequest(ctx context.Context, id string, g Grant) (*Admission, error) {
	one, err := t.findRecord(ctx, id)
	if err != nil {
		return nil, err
	}
	attached, cut := t.lines.Attach(ctx, id, one.ExpiresAt, errEnded)
	attached, cutAll := t.sandboxes.Attach(attached, g.Sandbox, time.Time{}, nil)
	release := func() { cutAll(); cut() }
	if one, err = t.findRecord(ctx, id); err != nil || grantOf(one) != g || t.hasEnded(one) { // it may have been revoked just before
		release()
		return nil, orToken(err)
	}
	bound, cutKey, err := t.o.Keys.Attach(attached, one.Key)
	if err != nil {
		if attached.Err() != nil && ctx.Err() == nil {
			err = errToken // it was revoked just now
		}
		release()
		return nil, orToken(err)
	}
	t.recordUse(ctx, one)
	return &Admission{Expires: one.ExpiresAt, ctx: bound, release: func() { cutKey(); release() }}, nil
}

// orToken returns an error for the caller that does not say what is wrong with the token.
func orToken(err error) error {
	if err == nil || errors.Is(err, sandpit.Unauthenticated) {
		return errToken
	}
	return err
}

// hasEnded reports whether a record is good for nothing any more.
func (t *Tokens) hasEnded(one store.Token) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return !one.ExpiresAt.IsZero() && !t.o.Clock.Now().Before(one.ExpiresAt) || !one.Legacy && one.Epoch != t.epochs[one.Sandbox]
}

// findRecord returns the record of an ID. Unauthenticated: it does not exist.
func (t *Tokens) findRecord(ctx context.Context, id string) (store.Token, error) {
	t.mu.Lock()
	known := t.cache[id]
	before := t.changes
	t.mu.Unlock()
	if known != nil {
		return known.token, nil
	}
	one, err := t.o.Store.Credentials().Token(ctx, id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = errToken
	}
	if err != nil {
		return store.Token{}, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.changes == before {
		makeRoom(t.cache)
		t.cache[id] = &cached{token: one, used: one.LastUsedAt}
	}
	return one, nil
}

// recordUse notes that a token is used.
func (t *Tokens) recordUse(ctx context.Context, one store.Token) {
	now := t.o.Clock.Now()
	t.mu.Lock()
	known := t.cache[one.ID]
	due := known != nil && now.Sub(known.used).Abs() >= usedEvery
	if due {
		known.used = now
	}
	t.mu.Unlock()
	if !due {
		return
	}
	if err := t.o.Store.Credentials().TouchToken(ctx, one.ID, now); err != nil {
		t.o.Log.WarnContext(ctx, "tokens: use of a token not recorded", slog.String("token", one.ID), slog.Any("error", err))
	}
}

// GuestOf returns the sandbox whose guest a token opens, for a request that names no sandbox
// or was signed with the token; otherwise "".
func (t *Tokens) GuestOf(ctx context.Context, secret string) sandpit.ID {
	if id, _, ok := parseSecret(secret); ok {
		one, err := t.findRecord(ctx, id)
		if err != nil || one.Kind != store.TokenGuest {
			return ""
		}
		return one.Sandbox
	}
	return t.GuestOfSigned(func(other string) bool { return isSame(secret, other) })
}

// GuestOfSigned returns the sandbox whose token signed a request, as AdmitSigned takes it;
// otherwise "".
func (t *Tokens) GuestOfSigned(matches func(secret string) bool) sandpit.ID {
	return t.guests.findSandbox(matches)
}
