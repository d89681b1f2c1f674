package client

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Ports opens ports of sandboxes to browsers and other clients.
type Ports struct{ client *Client }

// URL returns the preview URL of a port, with a token that is valid for a time. A public port
// needs no token, and its URL does not expire. Default of expires: an hour, at most 30 days.
//
// NotFound, Gone: the sandbox. Invalid: the port or time. PermissionDenied: a port that the
// sandbox's guest uses. Exhausted: the sandbox has too many tokens.
func (g Ports) URL(ctx context.Context, id sandpit.ID, port int, expires time.Duration) (api.PreviewURL, error) {
	return g.client.Ports.URLWithNote(ctx, id, port, expires, "")
}

// URLWithNote is URL with a note that lists of tokens show.
func (g Ports) URLWithNote(ctx context.Context, id sandpit.ID, port int, expires time.Duration, note string) (api.PreviewURL, error) {
	var u api.PreviewURL
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: portPath(id, port) + "/url", in: wire.NewPreviewURL{Expires: expires.Seconds(), Note: note}, out: &u, idempotent: true,
	})
	return u, err
}

// Ticket returns a link that opens a port once: the browser that opens it exchanges the ticket
// for a cookie that is valid for session. A public port needs no ticket. Default of expires: 30
// seconds, at most 5 minutes. Default of session: an hour, at most 30 days.
//
// Errors are those of URL. Exhausted: the sandbox has too many unused tickets.
func (g Ports) Ticket(ctx context.Context, id sandpit.ID, port int, expires, session time.Duration) (api.PreviewTicket, error) {
	var t api.PreviewTicket
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: portPath(id, port) + "/ticket",
		in: wire.NewPreviewTicket{Expires: expires.Seconds(), Session: session.Seconds()}, out: &t, idempotent: true,
	})
	return t, err
}

// SetPublic sets whether a port opens for everyone with its URL. URLs with tokens remain valid.
// Errors are those of URL.
func (g Ports) SetPublic(ctx context.Context, id sandpit.ID, port int, public bool) error {
	return g.client.doCall(ctx, call{method: http.MethodPut, path: portPath(id, port), in: wire.PortAccess{Public: public}, idempotent: true})
}

// Close makes a port private and revokes every URL of it. Errors are those of URL.
func (g Ports) Close(ctx context.Context, id sandpit.ID, port int) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: portPath(id, port), idempotent: true})
}

// List returns the ports of a sandbox that are public or published. NotFound.
func (g Ports) List(ctx context.Context, id sandpit.ID) ([]api.SharedPort, error) {
	var page wire.Page[api.SharedPort]
	err := g.client.doCall(ctx, call{method: http.MethodGet, path: apiPath("sandboxes", string(id), "ports"), out: &page, idempotent: true})
	return page.Items, err
}

// portPath returns the path of a port of a sandbox.
func portPath(id sandpit.ID, port int) string {
	return apiPath("sandboxes", string(id), "ports", strconv.Itoa(port))
}
