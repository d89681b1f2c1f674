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

// identifyClient returns the principal of a request.
func (e *Edge) identifyClient(w http.ResponseWriter, r *http.Request, from peer) (Principal, error) {
	secret, found := readCredential(r.Header)
	if !found {
		if from.unix || e.o.Keyless && from.isLoopback(r.Header) && e.isOwnUser(r, from) {
			return Principal{Owner: LocalOwner, Admin: true}, nil
		}
		return PrincipalOf(r.Context()) // the error says what to do
	}
	p, wait, err := e.identifySecret(r, secret, from)
	if wait > 0 {
		retryAfter(w, wait)
	}
	return p, err
}

// identifySecret returns the principal of a key. After too many wrong keys it also returns how
// long the client must wait.
func (e *Edge) identifySecret(r *http.Request, secret string, from peer) (p Principal, wait time.Duration, err error) {
	key, err := e.checkKey(r.Context(), secret, from)
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		var ok bool
		if wait, ok = e.reportRefusal(r, e.failed, "log in", err); !ok && !from.unix {
			err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "invalid API key, and too many invalid keys from this address"),
				"wait for the time in Retry-After")
		}
	}
	if err != nil {
		return Principal{}, wait, err
	}
	return Principal{Owner: key.Owner, Admin: key.Admin, KeyID: key.ID}, 0, nil
}

// Authenticate returns the principal of a key that the client of a request sends elsewhere than in
// a header, or that of the request if secret is "".
//
// Unauthenticated: the key is not valid. Exhausted: too many wrong keys from the address.
func Authenticate(r *http.Request, secret string) (Principal, error) {
	e, served := r.Context().Value(servingEdgeKey{}).(*Edge)
	if secret == "" || !served {
		return PrincipalOf(r.Context()) // the error says what to do
	}
	p, _, err := e.identifySecret(r, secret, e.o.clientOf(r))
	return p, err
}

// AttachKey returns a context that ends with the request, and with a cause when the key of a
// principal that Authenticate returned ends. The request and its connection count as the owner's.
// The caller calls release at the end.
//
// Exhausted: the owner has too many requests. Unauthenticated: the key has ended.
func AttachKey(r *http.Request, p Principal) (ctx context.Context, release func(), err error) {
	e, served := r.Context().Value(servingEdgeKey{}).(*Edge)
	if current, unknown := PrincipalOf(r.Context()); !served || unknown == nil && current == p {
		return r.Context(), func() {}, nil // the edge has done both
	}
	leave, err := countRequest(r, e.requests, p.Owner)
	if err != nil {
		return nil, nil, err
	}
	ctx, detach, err := e.o.Keys.Attach(WithPrincipal(r.Context(), p), p.KeyID)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return ctx, func() {
		detach()
		leave()
	}, nil
}

// checkKey returns the key of a secret. The result does not depend on other requests from the
// same address, which may be those of a proxy. Keys cannot be guessed because they have 160
// random bits; only the work for wrong keys is limited.
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

// isOwnUser reports whether a request comes from a program of the server's own user or of
// root.
func (e *Edge) isOwnUser(r *http.Request, from peer) bool {
	own, err := from.ownPeer()
	if err != nil {
		e.o.Log.DebugContext(r.Context(), "edge: cannot determine the user of a connection; it needs a key", slog.Any("error", err))
	}
	return own
}

// reportRefusal records a refusal in the audit trail. It returns false, and how long to wait,
// if there were too many: they must not crowd out other events.
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

// readCredential returns the key in the headers of a request. Several different keys count as
// an invalid one.
func readCredential(h http.Header) (secret string, found bool) {
	var list []string
	list = append(list, h.Values(wire.HeaderKey)...)
	for _, value := range h.Values("Authorization") {
		scheme, token, _ := strings.Cut(value, " ")
		if namesUser(scheme, token) {
			continue
		}
		if !strings.EqualFold(scheme, "Bearer") {
			token = "" // an unsupported scheme
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

// namesUser reports whether an authorization is not a credential: the guest's protocol names a
// user of the sandbox by basic authentication without a password.
func namesUser(scheme, token string) bool {
	if !strings.EqualFold(scheme, "Basic") {
		return false
	}
	raw, err := base64.StdEncoding.DecodeString(token)
	return err == nil && len(raw) > 1 && raw[len(raw)-1] == ':'
}
