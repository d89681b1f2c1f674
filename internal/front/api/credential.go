package api

import (
	"context"
	"encoding/base64"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// identifyClient returns who makes a request.
func (e *Edge) identifyClient(w http.ResponseWriter, r *http.Request, from peer) (Principal, error) {
	secret, found := readCredential(r.Header)
	if !found {
		if from.unix || e.o.Keyless && from.isLoopback(r.Header) && e.isOwnUser(r, from) {
			return Principal{Owner: LocalOwner, Admin: true}, nil
		}
		return PrincipalOf(r.Context()) // there is none, and the error says what to do
	}
	key, err := e.checkKey(r.Context(), secret, from)
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		if wait, ok := e.reportRefusal(r, e.failed, "log in", err); !ok && !from.unix {
			retryAfter(w, wait)
			err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "too many wrong API keys from this address, and this one is wrong"),
				"wait as long as Retry-After says")
		}
	}
	if err != nil {
		return Principal{}, err
	}
	return Principal{Owner: key.Owner, Admin: key.Admin, KeyID: key.ID}, nil
}

// checkKey returns the key that a secret is of. Whether it is right does not depend on what
// else comes from the address: behind a proxy that would be everybody. What keeps keys from
// being guessed is that they have 160 random bits; what is bounded is the work that a wrong
// one makes.
func (e *Edge) checkKey(ctx context.Context, secret string, from peer) (store.Key, error) {
	if _, known := e.o.Keys.cachedKey(secret); !known && IsKey(secret) {
		grant, err := e.lookups.Acquire(ctx, from.actorName(), 1)
		if err != nil {
			return store.Key{}, err
		}
		defer grant.Release()
	}
	return e.o.Keys.Check(ctx, secret)
}

// isOwnUser reports whether a program of the server's own user, or of root, makes a request.
func (e *Edge) isOwnUser(r *http.Request, from peer) bool {
	own, err := from.ownPeer()
	if err != nil {
		e.o.Log.DebugContext(r.Context(), "whose connection it is cannot be told, so that it needs a key", slog.Any("error", err))
	}
	return own
}

// reportRefusal reports a refusal, unless there were too many: they must not push everything
// else out of the trail. Then it returns how long to wait.
func (e *Edge) reportRefusal(r *http.Request, l *limiter, action string, err error) (wait time.Duration, ok bool) {
	from := e.o.clientOf(r)
	if wait, ok = l.takeToken(from.actorName()); !ok {
		return wait, false
	}
	e.o.Report(manager.Report{
		Actor: from.actorName(), Action: action, Err: err,
		Args: map[string]string{"method": r.Method, "path": cutText(r.URL.Path, 200), "request": RequestID(r.Context())},
	})
	return 0, true
}

// readCredential returns the key that a request shows. Of several that differ none
// counts.
func readCredential(h http.Header) (secret string, found bool) {
	var list []string
	list = append(list, h.Values(wire.HeaderKey)...)
	for _, value := range h.Values("Authorization") {
		scheme, token, _ := strings.Cut(value, " ")
		if namesUser(scheme, token) {
			continue
		}
		if !strings.EqualFold(scheme, "Bearer") {
			token = "" // of a kind that nobody here takes
		}
		list = append(list, strings.TrimSpace(token))
	}
	if len(list) == 0 {
		return "", false
	}
	for _, other := range list[1:] {
		if other != list[0] {
			return "", true
		}
	}
	return list[0], true
}

// namesUser reports whether an authorization is no credential: the guest's protocol names
// a user inside by basic authentication without a password.
func namesUser(scheme, token string) bool {
	if !strings.EqualFold(scheme, "Basic") {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(token)
	return err == nil && len(raw) > 1 && raw[len(raw)-1] == ':'
}
