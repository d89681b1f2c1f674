package daemon

import (
	"context"
	"log/slog"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/core/commandscreen"
)

// ScreenPolicy returns the policy of the command screen for commands that start in a directory:
// the configured rules and the built-in ones.
func ScreenPolicy(cfg config.Config, dir string) commandscreen.Policy {
	c := cfg.Sandbox
	return commandscreen.Policy{
		Deny: screenRules(c.ScreenDenied), Ask: screenRules(c.ScreenAsked), Warn: screenRules(c.ScreenWarned), Allow: screenRules(c.ScreenAllowed), Dir: dir,
	}
}

func screenRules(list []string) []commandscreen.Rule {
	var rules []commandscreen.Rule
	for _, text := range list {
		if words := strings.Fields(text); len(words) > 0 {
			rules = append(rules, commandscreen.Rule{Program: words[0], Args: words[1:]})
		}
	}
	return rules
}

// Admission returns the check of each command before it starts, as sandbox.command_screen
// configures it, or nil if that is off. It cannot ask a person. Warnings go to the log,
// without the command's text, which may contain secrets.
func Admission(cfg config.Config, warnings *slog.Logger) func(context.Context, []string, string) error {
	mode := cfg.Sandbox.CommandScreen
	if mode == config.ScreenOff {
		return nil
	}
	configured := ScreenPolicy(cfg, "")
	return func(ctx context.Context, args []string, dir string) error {
		policy := configured
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
