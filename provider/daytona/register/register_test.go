package register_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/provider/daytona/register"
)

// TestOpenLogs opens the provider without a key and with one: the log says which settings there are, and neither it nor
// an error has the key.
func TestOpenLogs(t *testing.T) {
	t.Parallel()
	const secret = "dtn_0123456789abcdef" // of no account
	for key, want := range map[string]struct {
		line string
		code sandpit.Code
	}{
		"":     {`name="API key" configured=false`, sandpit.Unauthenticated},
		secret: {`name="API key" configured=true`, sandpit.Unavailable},
	} {
		var log bytes.Buffer
		cfg := config.Default()
		cfg.Daytona.Key, cfg.Daytona.ServerURL = config.Secret(key), "http://127.0.0.1:1/api" // nothing listens there
		cfg.StateDir = t.TempDir()
		_, err := register.Provider().Open(t.Context(), registration.Surroundings{
			Config: cfg, Lasting: true, Identity: "test", Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		if sandpit.CodeOf(err) != want.code || strings.Contains(err.Error(), secret) || sandpit.HintOf(err) == "" {
			t.Errorf("key of %d bytes: %v (%s), hint %q", len(key), err, sandpit.CodeOf(err), sandpit.HintOf(err))
		}
		if text := log.String(); !strings.Contains(text, want.line) || !strings.Contains(text, `name="server URL" configured=true`) || strings.Contains(text, secret) {
			t.Errorf("key of %d bytes: the log is %s", len(key), text)
		}
	}
}
