package client

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// remoteGuest is a guest behind a server. The server sees which programs start, but not what a
// shell reads. So the client announces commands that run inside a shell.
type remoteGuest struct {
	*envd.Client

	client *Client
	id     sandpit.ID
}

// Observer implements sandpit.CallObserver. The server screens and records each command that is
// announced.
func (g *remoteGuest) Observer() sandpit.GuestObserver {
	return sandpit.GuestObserver{
		Admit: func(ctx context.Context, args []string, dir string) error {
			return g.postAnnouncement(ctx, wire.Announcement{Args: args, Dir: dir})
		},
		Ended: func(ctx context.Context, took time.Duration, status sandpit.ExitStatus, err error) {
			if err != nil {
				return // the exit status is unknown
			}
			// The context may have ended. The command does not fail because this record is lost.
			_ = g.postAnnouncement(context.WithoutCancel(ctx), wire.Announcement{Ended: &wire.Ended{Took: took.Seconds(), ExitCode: status.Code}})
		},
	}.OrNobody()
}

// postAnnouncement sends an announcement to the server.
func (g *remoteGuest) postAnnouncement(ctx context.Context, a wire.Announcement) error {
	return g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("sandboxes", string(g.id), "announce"), in: a})
}

// guestTransport sends requests to the guest of a sandbox through the server.
type guestTransport struct {
	client *Client
	id     sandpit.ID
}

// RoundTrip implements http.RoundTripper. An error of the server itself is returned as an error,
// so that it is not mistaken for a response of the guest.
func (i guestTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del("X-Access-Token")
	if r.Context().Value(defaultTimeoutKey{}) != nil {
		r.Header.Set(wire.HeaderCommandTimeout, wire.DefaultCommandTimeout)
	}
	base := i.client.base
	at := apiPath("sandboxes", string(i.id), "envd") + r.URL.EscapedPath()
	target, err := base.Parse(base.Scheme + "://" + base.Host + base.EscapedPath() + at)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "invalid sandbox ID %.100q", string(i.id))
	}
	target.RawQuery = r.URL.RawQuery
	r.URL, r.Host = target, ""
	res, err := i.client.http.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if isProblem(res) {
		defer res.Body.Close()
		return nil, readProblemError(res)
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") && res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, newForeignResponseError(res, nil) // a proxy responded
	}
	return res, nil
}
