package sandpit

import (
	"context"
	"maps"
	"time"
)

// CommandScope applies to every command that is started with its context, in every provider.
// A server uses it to pass variables to the commands of a request and to observe their ends.
type CommandScope struct {
	// Env is added to the environment of each command; the command's own variables take
	// precedence.
	Env map[string]string
	// Ended is called once for each command that was started or failed to start, with its
	// duration and the results of Process.Wait. It must not block. Default: no call.
	Ended func(took time.Duration, status ExitStatus, err error)
}

type commandScopeKey struct{}

// WithCommandScope returns a context with scope s in place of the scope of ctx.
func WithCommandScope(ctx context.Context, s CommandScope) context.Context {
	return context.WithValue(ctx, commandScopeKey{}, s)
}

// CommandScopeOf returns the scope of ctx, for guests. Its Ended is never nil.
func CommandScopeOf(ctx context.Context) CommandScope {
	s, _ := ctx.Value(commandScopeKey{}).(CommandScope)
	if s.Ended == nil {
		s.Ended = func(time.Duration, ExitStatus, error) {}
	}
	return s
}

// Apply returns cmd with the environment of the scope.
func (s CommandScope) Apply(cmd Command) Command {
	if len(s.Env) == 0 {
		return cmd
	}
	env := maps.Clone(s.Env)
	maps.Copy(env, cmd.Env)
	cmd.Env = env
	return cmd
}
