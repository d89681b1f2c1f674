package client

import (
	"context"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// remoteGuest is a guest behind a server. The server sees which programs start, but not what a
// shell reads; so commands that run inside of a shell are announced to it.
type remoteGuest struct {
	*envd.Client

	client *Client
	id     sandpit.ID
}

// Observer implements sandpit.CallObserver. The server decides about a command, and records
// it, when it is announced.
func (g *remoteGuest) Observer() sandpit.GuestObserver {
	return sandpit.GuestObserver{
		Admit: func(ctx context.Context, args []string, dir string) error {
			return g.announce(ctx, wire.Announcement{Args: args, Dir: dir})
		},
		Ended: func(ctx context.Context, took time.Duration, status sandpit.ExitStatus, err error) {
			if err != nil {
				return // how it ended is not known
			}
			// The caller may have left. A figure that is lost is no reason for a command to fail.
			_ = g.announce(context.WithoutCancel(ctx), wire.Announcement{Ended: &wire.Ended{Took: took.Seconds(), ExitCode: status.Code}})
		},
	}.OrNobody()
}

func (g *remoteGuest) announce(ctx context.Context, a wire.Announcement) error {
	return g.client.do(ctx, call{method: http.MethodPost, path: path("sandboxes", string(g.id), "announce"), in: a})
}
