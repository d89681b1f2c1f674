package client

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/wire"
)

// PreviewURL is where a port of a sandbox is seen.
type PreviewURL = wire.PreviewURL

// PreviewTicket is where one browser sees a port of a sandbox.
type PreviewTicket = wire.PreviewTicket

// SharedPort is a port of a sandbox that is seen without a key.
type SharedPort = wire.SharedPort

// PreviewURL returns where a port is seen, with a token that is good for so long; of a
// public port it has none, and does not end. The default is an hour, at most 30 days.
//
// NotFound, Gone: the sandbox. Invalid: the port or time. PermissionDenied: the
// sandbox's own port.
func (c *Client) PreviewURL(ctx context.Context, id sandpit.ID, port int, expires time.Duration) (PreviewURL, error) {
	var u PreviewURL
	err := c.do(ctx, call{
		method: http.MethodPost, path: portPath(id, port) + "/url", in: wire.NewPreviewURL{Expires: expires.Seconds()}, out: &u, again: true,
	})
	return u, err
}

// PreviewTicket returns where a browser sees a port, once: what it opens is exchanged for a
// cookie that is good for session. Of a public port it has no ticket. The default of
// expires is 30 seconds, at most 5 minutes; that of session an hour, at most 30 days.
//
// Errors as with PreviewURL. Exhausted: too many tickets of the sandbox wait.
func (c *Client) PreviewTicket(ctx context.Context, id sandpit.ID, port int, expires, session time.Duration) (PreviewTicket, error) {
	var t PreviewTicket
	err := c.do(ctx, call{
		method: http.MethodPost, path: portPath(id, port) + "/ticket",
		in: wire.NewPreviewTicket{Expires: expires.Seconds(), Session: session.Seconds()}, out: &t, again: true,
	})
	return t, err
}

// SetPublic says whether everybody may see a port who knows its URL. URLs that were
// given out stay good. Errors as with PreviewURL.
func (c *Client) SetPublic(ctx context.Context, id sandpit.ID, port int, public bool) error {
	return c.do(ctx, call{method: http.MethodPut, path: portPath(id, port), in: wire.PortAccess{Public: public}, again: true})
}

// ClosePort makes a port private and every URL useless that was given out for it.
// Errors as with PreviewURL.
func (c *Client) ClosePort(ctx context.Context, id sandpit.ID, port int) error {
	return c.do(ctx, call{method: http.MethodDelete, path: portPath(id, port), again: true})
}

// Ports lists the ports of a sandbox that are public or published. NotFound.
func (c *Client) Ports(ctx context.Context, id sandpit.ID) ([]SharedPort, error) {
	var page wire.Page[SharedPort]
	err := c.do(ctx, call{method: http.MethodGet, path: path("sandboxes", string(id), "ports"), out: &page, again: true})
	return page.Items, err
}

func portPath(id sandpit.ID, port int) string {
	return path("sandboxes", string(id), "ports", strconv.Itoa(port))
}
