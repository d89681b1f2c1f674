package token

import (
	"context"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// List returns the tokens that work.
func (t *Tokens) List(ctx context.Context, f store.TokenFilter) ([]store.Token, error) {
	return t.o.Store.Credentials().ListTokens(ctx, f, t.o.Clock.Now())
}

// Get returns the record of an ID. NotFound: it does not exist.
func (t *Tokens) Get(ctx context.Context, id string) (store.Token, error) {
	return t.o.Store.Credentials().Token(ctx, id)
}

// Revoke ends a token and what it has opened. NotFound: it does not exist.
func (t *Tokens) Revoke(ctx context.Context, id string) error {
	if err := t.o.Store.Credentials().DeleteToken(ctx, id); err != nil {
		return err
	}
	t.endTokens(id)
	return nil
}

// RevokeSecret ends the token of a secret that opens what g grants, and what it has opened.
// NotFound: the secret does not open it.
func (t *Tokens) RevokeSecret(ctx context.Context, secret string, g Grant) error {
	id, err := t.verifySecret(ctx, secret, g)
	switch {
	case err != nil:
		return err
	case id == "":
		return sandpit.Errorf(sandpit.NotFound, "no such token")
	}
	return t.Revoke(ctx, id)
}

// RevokePort ends the tokens for the preview of a port, and what they have opened.
func (t *Tokens) RevokePort(ctx context.Context, id sandpit.ID, port int) error {
	ids, err := t.o.Store.Credentials().DeletePortTokens(ctx, id, port)
	if err != nil {
		return err
	}
	t.endTokens(ids...)
	return nil
}

// RevokeSandbox ends all tokens of a sandbox, the URLs signed with them, and the connections
// they opened. NotFound: the sandbox does not exist.
func (t *Tokens) RevokeSandbox(ctx context.Context, id sandpit.ID) error {
	epoch, err := t.o.Store.Credentials().RaiseTokenEpoch(ctx, id)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.changes++
	t.epochs[id] = max(t.epochs[id], epoch)
	clear(t.access)
	for other, known := range t.cache {
		if known.token.Sandbox == id {
			delete(t.cache, other)
		}
	}
	t.mu.Unlock()
	t.guests.removeSandbox(id)
	t.sandboxes.Cut(id, errEnded)
	return nil
}

// endTokens ends what tokens have opened whose records were deleted.
func (t *Tokens) endTokens(ids ...string) {
	t.mu.Lock()
	t.changes++
	clear(t.access)
	for _, id := range ids {
		delete(t.cache, id)
	}
	t.mu.Unlock()
	t.guests.removeTokens(func(id string) bool { return slices.Contains(ids, id) })
	for _, id := range ids {
		t.lines.Cut(id, errEnded)
	}
}

// Attach returns a context that ends with ctx, and with a cause when an API key ends or the
// tokens of a sandbox are revoked. It is for tokens that are not kept here. The caller calls
// release when it does not need the context any more.
//
// Unauthenticated: the key has ended already.
func (t *Tokens) Attach(ctx context.Context, id sandpit.ID, key string) (attached context.Context, release func(), err error) {
	ctx, releaseKey, err := t.o.Keys.Attach(ctx, key)
	if err != nil {
		return nil, nil, err
	}
	ctx, releaseSandbox := t.sandboxes.Attach(ctx, id, time.Time{}, nil)
	return ctx, func() { releaseSandbox(); releaseKey() }, nil
}

// Epoch returns how often the tokens of a sandbox were revoked.
func (t *Tokens) Epoch(id sandpit.ID) int64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.epochs[id]
}
