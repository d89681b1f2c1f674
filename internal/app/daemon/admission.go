package daemon

import (
	"context"
	"log/slog"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/core/commandscreen"
)

// Admission returns the check of each command before it starts, as sandbox.command_screen
// configures it, or nil if that is off. It cannot ask a person. Warnings go to the log,
// without the command's text, which may contain secrets.
func Admission(cfg config.Config, warnings *slog.Logger) func(context.Context, []string, string) error {
	mode := cfg.Sandbox.CommandScreen
	if mode == config.ScreenOff {
		return nil
	}
	return func(ctx context.Context, args []string, dir string) error {
		policy := commandscreen.Default()
		policy.Dir = dir
		verdict := policy.Check(args)
		switch verdict.Under(mode) {
		case commandscreen.Allow:
			return nil
		case commandscreen.Warn:
			warnings.WarnContext(ctx, "a command looks dangerous", slog.String("rule", verdict.Rule), slog.String("reason", verdict.Reason))
			return nil
		default:
			return verdict.Err()
		}
	}
}
