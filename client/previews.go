package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Ports opens ports of sandboxes to browsers and other clients.
type Ports struct{ client *Client }

// PreviewURL returns where a port is seen, with a token that is good for so long; of a
// public port it has none, and does not end. The default is an hour, at most 30 days.
//
// NotFound, Gone: the sandbox. Invalid: the port or time. PermissionDenied: the
// sandbox's own port. Exhausted: the sandbox has too many tokens.
func (g Ports) URL(ctx context.Context, id sandpit.ID, port int, expires time.Duration) (api.PreviewURL, error) {
	return g.client.Ports.URLWithNote(ctx, id, port, expires, "")
}

// PreviewURLWithNote is PreviewURL with a note for people who list tokens.
func (g Ports) URLWithNote(ctx context.Context, id sandpit.ID, port int, expires time.Duration, note string) (api.PreviewURL, error) {
	var u api.PreviewURL
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: portPath(id, port) + "/url", in: wire.NewPreviewURL{Expires: expires.Seconds(), Note: note}, out: &u, again: true,
	})
	return u, err
}

// PreviewTicket returns where a browser sees a port, once: what it opens is exchanged for a
// cookie that is good for session. Of a public port it has no ticket. The default of
// expires is 30 seconds, at most 5 minutes; that of session an hour, at most 30 days.
//
// Errors as with PreviewURL. Exhausted: too many tickets of the sandbox wait.
func (g Ports) Ticket(ctx context.Context, id sandpit.ID, port int, expires, session time.Duration) (api.PreviewTicket, error) {
	var t api.PreviewTicket
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: portPath(id, port) + "/ticket",
		in: wire.NewPreviewTicket{Expires: expires.Seconds(), Session: session.Seconds()}, out: &t, again: true,
	})
	return t, err
}

// SetPublic says whether everybody may see a port who knows its URL. URLs that were
// given out stay good. Errors as with PreviewURL.
func (g Ports) SetPublic(ctx context.Context, id sandpit.ID, port int, public bool) error {
	return g.client.do(ctx, call{method: http.MethodPut, path: portPath(id, port), in: wire.PortAccess{Public: public}, again: true})
}

// ClosePort makes a port private and every URL useless that was given out for it.
// Errors as with PreviewURL.
func (g Ports) Close(ctx context.Context, id sandpit.ID, port int) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: portPath(id, port), again: true})
}

// Tokens lists and revokes the tokens that open sandboxes without an API key.
type Tokens struct{ client *Client }

// Tokens lists the tokens that work: those of one's own sandboxes or, for an administrator,
// of all. Only those of an owner, unless that is "", and of a sandbox, unless that is "".
func (g Tokens) List(ctx context.Context, owner string, id sandpit.ID) ([]api.Token, error) {
	query := url.Values{}
	if owner != "" {
		query.Set("owner", owner)
	}
	if id != "" {
		query.Set("sandbox", string(id))
	}
	return pages[api.Token](ctx, g.client, path("tokens"), query, 0)
}

// RevokeToken ends a token by its ID, and closes what it has opened. NotFound.
func (g Tokens) Revoke(ctx context.Context, id string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("tokens", id)})
}

// RevokeTokens ends all tokens, signed URLs, preview URLs and tickets of a sandbox, and
// closes what they have opened. Ports that are public stay so. NotFound.
func (g Tokens) RevokeAll(ctx context.Context, id sandpit.ID) error {
	return g.client.do(ctx, call{method: http.MethodPost, path: path("sandboxes", string(id), "tokens", "revoke"), again: true})
}

// Ports lists the ports of a sandbox that are public or published. NotFound.
func (g Ports) List(ctx context.Context, id sandpit.ID) ([]api.SharedPort, error) {
	var page wire.Page[api.SharedPort]
	err := g.client.do(ctx, call{method: http.MethodGet, path: path("sandboxes", string(id), "ports"), out: &page, again: true})
	return page.Items, err
}

func portPath(id sandpit.ID, port int) string {
	return path("sandboxes", string(id), "ports", strconv.Itoa(port))
}
