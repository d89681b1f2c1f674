package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// maxParallel is the number of requests that one command sends at a time.
const maxParallel = 8

// forEachSandbox calls do for every named sandbox, also after failures, and prints the IDs of
// those that succeeded, in order.
func (a *app) forEachSandbox(ctx context.Context, c *client.Client, names []string, do func(context.Context, sandpit.ID) error) error {
	ids, err := (&finder{client: c}).findIDs(ctx, names)
	return errors.Join(err, a.forEachID(ctx, ids, do))
}

// forEachID calls do for every ID, a few at a time, and prints those that succeeded.
func (a *app) forEachID(ctx context.Context, ids []sandpit.ID, do func(context.Context, sandpit.ID) error) error {
	errs := runParallel(len(ids), func(i int) error { return do(ctx, ids[i]) })
	for i, id := range ids {
		switch {
		case errs[i] == nil:
			if _, err := fmt.Fprintln(a.Out, id); err != nil {
				return err
			}
		case len(ids) > 1 && !strings.Contains(errs[i].Error(), string(id)):
			errs[i] = fmt.Errorf("%s: %w", id, errs[i])
		}
	}
	return errors.Join(errs...)
}

// forEachName calls do for every name, also after failures, and prints the names that succeeded.
func (a *app) forEachName(ctx context.Context, names []string, do func(context.Context, string) error) error {
	var errs []error
	for _, name := range names {
		err := do(ctx, name)
		if err == nil {
			_, err = fmt.Fprintln(a.Out, escapeText(name))
		}
		if err != nil && len(names) > 1 {
			err = fmt.Errorf("%s: %w", name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// runParallel calls do with each index below n, a few at a time, and returns the errors in that
// order.
func runParallel(n int, do func(i int) error) []error {
	errs := make([]error, n)
	var group errgroup.Group
	group.SetLimit(maxParallel)
	for i := range errs {
		group.Go(func() error {
			errs[i] = do(i)
			return nil
		})
	}
	_ = group.Wait() // the errors are in errs
	return errs
}
