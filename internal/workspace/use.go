package workspace

import (
	"context"
	"errors"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// destroyTimeout is how long the end of a sandbox may take.
const destroyTimeout = 30 * time.Second

// Use makes a sandbox, calls f with a workspace in it, and destroys it however f
// ends, also by a panic or when ctx is over. It returns what went wrong: f's
// error, that of destroying, or both.
func Use(ctx context.Context, p sandpit.Provider, spec sandpit.Spec, o Options, f func(context.Context, *Workspace) error) (err error) {
	box, err := p.Create(ctx, sandpit.NewID(), spec)
	if err != nil {
		return err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), destroyTimeout)
		defer cancel()
		err = errors.Join(err, box.Destroy(clean))
	}()
	if o.Dir == "" {
		o.Dir = spec.WorkDir
	}
	w, err := New(box.Guest(), o)
	if err != nil {
		return err
	}
	return f(ctx, w)
}
