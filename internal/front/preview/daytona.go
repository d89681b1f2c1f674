package preview

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// The names by which Daytona's clients send a token.
const (
	headerDaytona       = "X-Daytona-Preview-Token"
	queryDaytona        = "DAYTONA_SANDBOX_AUTH_KEY"
	cookieDaytonaPrefix = "daytona-sandbox-auth-" // the ID of the sandbox follows
)

// toolboxPort is the port whose token Daytona's clients use for the toolbox API, where they
// cannot send an API key.
const toolboxPort = 1

// maxSignedLife is how long the token in a host name may be valid.
const maxSignedLife = 24 * time.Hour

// isReserved reports whether a port of a sandbox with public ports needs a token nevertheless:
// those at which Daytona's sandboxes give access to everything inside.
func isReserved(port int) bool {
	switch port {
	case toolboxPort, 2280, 22222, 33333, guestPort:
		return true
	}
	return false
}

// isPublic reports whether a port needs no token.
func isPublic(settings store.Preview, rules Rules) bool {
	return settings.Public && settings.Port != guestPort || rules.Public && !isReserved(settings.Port)
}

// TokenURL returns the URL of a port without a token, and a token for it. The token is good for
// all ports of the sandbox except the guest's, and as long as the caller's API key. That of
// port 1 is good for the toolbox API instead.
//
// NotFound, Gone: the sandbox. Invalid: the port. PermissionDenied: the guest's own port.
// Exhausted: too many tokens.
func (g *Gateway) TokenURL(ctx context.Context, id sandpit.ID, port int) (wire.PreviewURL, error) {
	u := wire.PreviewURL{Port: port}
	err := g.checkAccess(ctx, id, port)
	if err == nil {
		u.Public = isPublic(g.ports.find(id, port), g.rulesOf(id))
		var guest string
		if guest, u.Token, err = g.AccessTokens(ctx, id, true); port == toolboxPort {
			u.Token = guest
		}
	}
	if err == nil {
		u.URL, u.PathURL = g.previewAddresses(id, port, "")
	}
	g.reportEvent(ctx, "give a preview URL", id, port, err)
	return u, err
}

// SignedURL returns a URL of a port whose host name contains a token in place of the sandbox's
// ID. The token is Token of the result. A server without host names for ports returns a path
// with a token.
//
// Invalid: a life that is not between a second and a day. Other errors are those of TokenURL.
func (g *Gateway) SignedURL(ctx context.Context, id sandpit.ID, port int, life time.Duration) (wire.PreviewURL, error) {
	err := g.checkAccess(ctx, id, port)
	if err == nil && (life < time.Second || life > maxSignedLife) {
		err = sandpit.Errorf(sandpit.Invalid, "a signed URL that is valid for %v: want 1s to %v", life, maxSignedLife)
	}
	u := wire.PreviewURL{Port: port}
	if err == nil {
		u, err = g.signedURL(ctx, id, port, life)
	}
	g.reportEvent(ctx, "give a preview URL", id, port, err)
	return u, err
}

func (g *Gateway) signedURL(ctx context.Context, id sandpit.ID, port int, life time.Duration) (wire.PreviewURL, error) {
	u := wire.PreviewURL{Port: port}
	h, err := holderOf(ctx)
	if err != nil {
		return u, err
	}
	u.ExpiresAt = g.o.Clock.Now().Add(life).UTC()
	secret, err := g.o.Tokens.Issue(ctx, grantOf(g.ports.find(id, port)), h, u.ExpiresAt, "signed URL")
	if err != nil {
		return u, err
	}
	u.Token = token.Label(secret)
	_, u.PathURL = g.previewAddresses(id, port, "?"+queryToken+"="+secret)
	if places := g.o.Places(); places.Host != "" {
		u.URL = places.Scheme + "://" + strconv.Itoa(port) + "-" + u.Token + "." + places.Host + "/"
	}
	return u, nil
}

// ExpireSignedURL ends the token of a signed URL, and what it has opened.
//
// NotFound: the token is not one of this port. Other errors are those of TokenURL.
func (g *Gateway) ExpireSignedURL(ctx context.Context, id sandpit.ID, port int, label string) error {
	return g.setAndReport(ctx, "revoke a preview URL", id, port, func() error {
		tokenID, found, err := g.o.Tokens.FindLabel(ctx, strings.ToLower(label))
		if sandpit.CodeOf(err) == sandpit.Unauthenticated || err == nil && (found.Kind != store.TokenPreview || found.Sandbox != id || found.Port != port) {
			return sandpit.Errorf(sandpit.NotFound, "port %d of sandbox %s has no such signed URL", port, id)
		}
		if err != nil {
			return err
		}
		return g.o.Tokens.Revoke(ctx, tokenID)
	})
}

// AdmitToolbox returns the context, with the token's holder as the principal, of a request for
// the toolbox API that shows a token of port 1. It ends when the token does. The caller calls
// release after the response.
//
// Unauthenticated: the token does not open the sandbox.
func (g *Gateway) AdmitToolbox(r *http.Request, id sandpit.ID, secret string) (ctx context.Context, release func(), err error) {
	a, err := g.o.Tokens.Admit(r.Context(), secret, token.Guest(id))
	if err != nil {
		return nil, nil, err
	}
	h, err := g.o.Tokens.HolderOf(r.Context(), secret)
	if err != nil {
		a.Release()
		return nil, nil, err
	}
	return api.WithPrincipal(a.Context(), api.Principal{Owner: h.Owner, KeyID: h.Key}), a.Release, nil
}

// AdmitSignedToolbox is AdmitToolbox for a request that shows no token, but was signed with one:
// matches reports whether it was signed with a secret.
func (g *Gateway) AdmitSignedToolbox(r *http.Request, id sandpit.ID, matches func(secret string) bool) (ctx context.Context, release func(), err error) {
	used := ""
	a, err := g.o.Tokens.AdmitSigned(r.Context(), id, func(secret string) bool {
		if !matches(secret) {
			return false
		}
		used = secret
		return true
	})
	if err != nil {
		return nil, nil, err
	}
	h, err := g.o.Tokens.HolderOf(r.Context(), used)
	if err != nil {
		a.Release()
		return nil, nil, err
	}
	return api.WithPrincipal(a.Context(), api.Principal{Owner: h.Owner, KeyID: h.Key}), a.Release, nil
}

// SigningKey returns the secret with which the caller signs URLs of files of a sandbox. It is the
// token of port 1. If it is to be renewed, the old one and what it has opened end.
//
// Errors are those of TokenURL.
func (g *Gateway) SigningKey(ctx context.Context, id sandpit.ID, renew bool) (string, error) {
	action := "give a signing key"
	if renew {
		action = "renew a signing key"
	}
	err := g.checkAccess(ctx, id, toolboxPort)
	secret := ""
	if err == nil {
		secret, _, err = g.AccessTokens(ctx, id, false)
	}
	if err == nil && renew {
		if err = g.o.Tokens.RevokeSecret(ctx, secret, token.Guest(id)); err == nil {
			secret, _, err = g.AccessTokens(ctx, id, false)
		}
	}
	g.reportEvent(ctx, action, id, toolboxPort, err)
	return secret, err
}

// resolveSigned returns a target with its sandbox. That of an invalid token has none, and is
// refused later.
func (g *Gateway) resolveSigned(r *http.Request, t target) target {
	if t.label == "" {
		return t
	}
	if _, found, err := g.o.Tokens.FindLabel(r.Context(), t.label); err == nil && found.Port == t.port {
		t.id = found.Sandbox
	}
	return t
}

// enterByLabel admits a request whose host name contains a token.
func (a *authorizer) enterByLabel(r *http.Request, t target) (*http.Request, pass, error) {
	return enterBy(r, func() (*token.Admission, error) {
		return a.tokens.AdmitLabel(r.Context(), t.label, grantOf(a.ports.find(t.id, t.port)))
	})
}

// isDaytonaCookie reports whether a cookie carries a token of Daytona's clients.
func isDaytonaCookie(name string) bool {
	return len(name) >= len(cookieDaytonaPrefix) && strings.EqualFold(name[:len(cookieDaytonaPrefix)], cookieDaytonaPrefix)
}
