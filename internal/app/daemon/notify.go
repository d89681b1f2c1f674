package daemon

import (
	"context"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// notifier reports the server's state to systemd by sd_notify(3), which is one datagram of
// text.
type notifier struct {
	o   config.Systemd
	log *slog.Logger
}

// notifyLimit is how long systemd may take to listen.
const notifyLimit = 5 * time.Second

// sendState sends a state. A failure does not stop the server.
func (n notifier) sendState(ctx context.Context, state string) {
	if n.o.Socket == "" {
		return
	}
	name := n.o.Socket
	if strings.HasPrefix(name, "@") {
		name = "\x00" + name[1:] // a socket without a file
	}
	conn, err := (&net.Dialer{Timeout: notifyLimit}).DialContext(ctx, "unixgram", name)
	if err == nil {
		_ = conn.SetWriteDeadline(time.Now().Add(notifyLimit)) // a full socket must not block for ever
		_, err = conn.Write([]byte(state))
		_ = conn.Close() // a datagram is gone already
	}
	if err != nil {
		n.log.WarnContext(ctx, "server: systemd not notified", slog.String("state", state), slog.Any("error", err))
	}
}

// notifyWatchdog notifies systemd's watchdog, as often as it requires, while well returns
// nil, until ctx ends.
func (n notifier) notifyWatchdog(ctx context.Context, well func(context.Context) error) {
	if n.o.Watchdog <= 0 || n.o.PID != 0 && n.o.PID != os.Getpid() {
		return
	}
	ticker := time.NewTicker(n.o.Watchdog / 3)
	defer ticker.Stop()
	for {
		look, cancel := context.WithTimeout(ctx, n.o.Watchdog/3)
		err := well(look)
		cancel()
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			n.log.ErrorContext(ctx, "server: health check failed; watchdog not notified", slog.Any("error", err))
		default:
			n.sendState(ctx, "WATCHDOG=1")
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}
