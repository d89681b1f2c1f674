package preview

import (
	"context"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Keys are the API keys of callers, as api.Keys are.
type Keys interface {
	token.Keys

	// Check returns the key of a secret. Unauthenticated: there is no such key, or it has expired.
	Check(ctx context.Context, secret string) (store.Key, error)
}

// Options say how a gateway works. Manager, Store, Tokens, Keys and Admit must be given;
// the zero value of another field means the default stated with it.
type Options struct {
	Manager *manager.Manager
	Store   *store.Store
	// Tokens open ports, Keys are those that callers may show.
	Tokens *token.Tokens
	Keys   Keys
	// Admit authenticates a request on the API's listener: api.Edge.Admit.
	Admit func(http.ResponseWriter, *http.Request) (*http.Request, error)
	// Enter counts a request for a sandbox of an owner until leave is called:
	// api.Edge.CountPreview. Default: nothing is counted.
	Enter func(r *http.Request, owner string) (leave func(), err error)
	// Domain is the name below which every port has a host name of its own, such as
	// 8000-ID.localhost. In lower case, without a port. Default: none has.
	Domain string
	// Places returns where the gateway is served. Default: unknown, so there are no URLs.
	Places func() Places
	// Frames are the origins, in lower case, whose pages may show private previews in
	// frames, besides a preview's own pages. Default: none.
	Frames []string
	// Rules says how the ports of a sandbox are reached. Default: as Rules{} says.
	Rules func(sandpit.Sandbox) Rules
	// Wake resumes a paused sandbox for a request. Default: none is resumed.
	Wake func(context.Context, sandpit.ID) error
	// Observe is called after each request. Default: none.
	Observe func(*http.Request, api.Outcome)
	// Clock is the time of day. Default: clock.System.
	Clock clock.Clock
	// Log receives failures of programs inside, at level debug. Default: none.
	Log *slog.Logger
}

// Places are where a gateway is reached.
type Places struct {
	// Scheme and Host, which may have a port, are the parent of the host names. "": none.
	Scheme, Host string
	// Paths is the URL of the listener for paths, without a final slash. "": none.
	Paths string
}

// Gateway passes requests on to ports inside sandboxes. All methods may be called
// concurrently.
type Gateway struct {
	o       Options
	ports   *portSettings
	access  *authorizer
	buffers sync.Pool // of *[]byte, of bufferSize
	large   sync.Pool // and of largeSize
}

// Open returns a gateway with the stored settings of ports.
func Open(ctx context.Context, o Options) (*Gateway, error) {
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Places == nil {
		o.Places = func() Places { return Places{} }
	}
	if o.Enter == nil {
		o.Enter = func(*http.Request, string) (func(), error) { return func() {}, nil }
	}
	if o.Observe == nil {
		o.Observe = func(*http.Request, api.Outcome) {}
	}
	ports, err := openPortSettings(ctx, o.Store.Sandboxes(), o.Manager)
	if err != nil {
		return nil, err
	}
	access := &authorizer{manager: o.Manager, tokens: o.Tokens, keys: o.Keys, clock: o.Clock, admit: o.Admit, frames: o.Frames, ports: ports}
	return &Gateway{o: o, ports: ports, access: access}, nil
}

// The times that a URL may be good for.
const (
	defaultLife = time.Hour
	maxLife     = 30 * 24 * time.Hour
)

// checkAccess refuses sandboxes that the caller may not use, and reserved ports.
func (g *Gateway) checkAccess(ctx context.Context, id sandpit.ID, port int) error {
	s, err := api.Find(ctx, g.o.Manager, id)
	switch {
	case err != nil:
		return err
	case s.State == sandpit.StateDeleting || s.State == sandpit.StateDeleted:
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone: %s", id, s.Reason)
	case port < 1 || port > 65535:
		return sandpit.Errorf(sandpit.Invalid, "port %d: want 1 to 65535", port)
	case port == guestPort:
		return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "port %d is reserved for the sandbox's guest and has no preview", guestPort),
			"programs reach it with an API key, below /v1/sandboxes/ID/envd/")
	}
	return nil
}

// URL returns the preview URL of a port, with a token unless the port is public. The default
// life of the token is an hour. Lists of tokens show the note.
//
// NotFound, Gone: the sandbox. Invalid: the port, a life of more than 30 days, or a note that
// is too long. PermissionDenied: the guest's own port. Exhausted: too many tokens.
func (g *Gateway) URL(ctx context.Context, id sandpit.ID, port int, life time.Duration, note string) (wire.PreviewURL, error) {
	err := g.checkAccess(ctx, id, port)
	if err == nil && (life < 0 || life > maxLife) {
		err = sandpit.Errorf(sandpit.Invalid, "a URL that is good for %v: want at most %v", life, maxLife)
	}
	if life == 0 {
		life = defaultLife
	}
	var u wire.PreviewURL
	if err == nil {
		u, err = g.previewURL(ctx, g.ports.find(id, port), life, note)
	}
	g.reportEvent(ctx, "give a preview URL", id, port, err)
	return u, err
}

func (g *Gateway) previewURL(ctx context.Context, p store.Preview, life time.Duration, note string) (wire.PreviewURL, error) {
	u := wire.PreviewURL{Port: p.Port, Public: p.Public}
	query := ""
	if !p.Public {
		h, err := holderOf(ctx)
		if err != nil {
			return wire.PreviewURL{}, err
		}
		u.ExpiresAt = g.o.Clock.Now().Add(life).Truncate(time.Second).UTC()
		if u.Token, err = g.o.Tokens.Issue(ctx, grantOf(p), h, u.ExpiresAt, note); err != nil {
			return wire.PreviewURL{}, err
		}
		query = "?" + queryToken + "=" + u.Token
	}
	u.URL, u.PathURL = g.previewAddresses(p.Sandbox, p.Port, query)
	return u, nil
}

// previewAddresses are where a port is seen by host name and by path; "": it is not.
func (g *Gateway) previewAddresses(id sandpit.ID, port int, query string) (byName, byPath string) {
	number := strconv.Itoa(port)
	places := g.o.Places()
	if places.Host != "" {
		byName = places.Scheme + "://" + number + "-" + string(id) + "." + places.Host + "/" + query
	}
	if places.Paths != "" {
		byPath = places.Paths + "/p/" + string(id) + "/" + number + "/" + query
	}
	return byName, byPath
}

// SetPublic sets whether a port is public. Existing URLs stay valid. Errors are those of URL.
func (g *Gateway) SetPublic(ctx context.Context, id sandpit.ID, port int, public bool) error {
	action := "make a port public"
	if !public {
		action = "make a port private"
	}
	return g.setAndReport(ctx, action, id, port, func() error {
		return g.ports.change(ctx, id, port, func(p *store.Preview) { p.Public = public })
	})
}

// Revoke makes a port private and every URL useless that was given out for it, and ends
// what such URLs have opened. Errors as with URL.
func (g *Gateway) Revoke(ctx context.Context, id sandpit.ID, port int) error {
	return g.setAndReport(ctx, "revoke preview URLs", id, port, func() error {
		err := g.ports.change(ctx, id, port, func(p *store.Preview) {
			p.Public = false
			p.Epoch++
		})
		if err != nil {
			return err
		}
		return g.o.Tokens.RevokePort(ctx, id, port)
	})
}

func (g *Gateway) setAndReport(ctx context.Context, action string, id sandpit.ID, port int, change func() error) error {
	err := g.checkAccess(ctx, id, port)
	if err == nil {
		err = change()
	}
	g.reportEvent(ctx, action, id, port, err)
	return err
}

// Public lists the public ports of a sandbox, in order.
func (g *Gateway) Public(id sandpit.ID) []int { return g.ports.listPublic(id) }

func (g *Gateway) reportEvent(ctx context.Context, action string, id sandpit.ID, port int, err error) {
	actor := ""
	if p, unknown := api.PrincipalOf(ctx); unknown == nil {
		actor = p.Owner
	}
	g.o.Manager.Events().Record(manager.Report{
		Actor: actor, Action: action, Sandbox: id, Args: map[string]string{"port": strconv.Itoa(port)}, Err: err,
	})
}
