package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// WarmUp runs the smallest program in a sandbox, for Pool.Warm: its kernel, its guest
// and the libraries of its programs have then been used once, which makes a program
// take longer the first time. A sandbox without such a program, or a default user who
// may not run it, is as good as another that was not warmed up.
func WarmUp(ctx context.Context, i sandpit.Instance) error {
	p, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"true"}})
	switch sandpit.CodeOf(err) {
	case "":
		_, err = p.Wait(ctx)
		return err
	case sandpit.NotFound, sandpit.PermissionDenied, sandpit.Unauthenticated, sandpit.Invalid:
		return nil
	default:
		return err
	}
}
