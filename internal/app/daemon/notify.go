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

// notifier tells systemd how the server is doing: sd_notify(3), which is one
// datagram of text.
type notifier struct {
	o   config.Systemd
	log *slog.Logger
}

// notifyLimit is how long systemd may take to listen.
const notifyLimit = 5 * time.Second

// sendState sends a state. Systemd not hearing of it is no reason to stop.
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
		_ = conn.SetWriteDeadline(time.Now().Add(notifyLimit)) // a full socket is no reason to wait for ever
		_, err = conn.Write([]byte(state))
		_ = conn.Close() // a datagram is gone already
	}
	if err != nil {
		n.log.WarnContext(ctx, "systemd cannot be told", slog.String("state", state), slog.Any("error", err))
	}
}

// notifyWatchdog tells systemd that the server lives, as often as it wants, as long as well
// says so, until ctx ends.
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
			n.log.ErrorContext(ctx, "the server is not well, and systemd is not told otherwise", slog.Any("error", err))
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
