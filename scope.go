package sandpit

import (
	"context"
	"maps"
	"time"
)

// CommandScope goes along with a context to every command that is started with it,
// whatever the provider: so that who serves a request can tell the command where it
// belongs, and hears of its end.
type CommandScope struct {
	// Env is given to each command; what the command itself says goes before.
	Env map[string]string
	// Ended is told once of each command that was started, or could not be: how long
	// it took, and what Process.Wait returns. It must not block. Default: nobody is.
	Ended func(took time.Duration, status ExitStatus, err error)
}

type commandScopeKey struct{}

// WithCommandScope returns a context whose commands are in scope s, instead of in
// that of ctx.
func WithCommandScope(ctx context.Context, s CommandScope) context.Context {
	return context.WithValue(ctx, commandScopeKey{}, s)
}

// CommandScopeOf returns the scope that commands started with ctx are in. Guests
// call it. Its Ended is never nil.
func CommandScopeOf(ctx context.Context) CommandScope {
	s, _ := ctx.Value(commandScopeKey{}).(CommandScope)
	if s.Ended == nil {
		s.Ended = func(time.Duration, ExitStatus, error) {}
	}
	return s
}

// Apply returns the command as it is to be started in the scope.
func (s CommandScope) Apply(cmd Command) Command {
	if len(s.Env) == 0 {
		return cmd
	}
	env := maps.Clone(s.Env)
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return cmd
}
