package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// WarmUp runs the smallest program in a sandbox, for Pool.Warm: the first program takes longer,
// because kernel, guest and libraries are used for the first time. A sandbox without such a
// program, or whose default user may not run it, is left as it is.
func WarmUp(ctx context.Context, i sandpit.Instance, _ sandpit.Spec) error {
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
