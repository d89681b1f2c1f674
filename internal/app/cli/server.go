package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// dial returns a client for the server that the flag, the environment or the
// configuration names. It does not talk to it yet.
func (a *app) dial() (*client.Client, error) {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return nil, err
	}
	return dialConfigured(cfg)
}

// serverOverride is the --server flag as a setting.
func (a *app) serverOverride() []config.Override {
	if a.server == "" {
		return nil
	}
	return []config.Override{{Flag: "--server", Key: config.KeyURL, Value: a.server}}
}

func dialConfigured(cfg config.Config) (*client.Client, error) {
	return client.New(client.Options{URL: cfg.ServerURL(), Key: cfg.APIKey.Reveal(), CAFile: cfg.CA, UserAgent: "sandpit-cli"})
}

// verb makes a command of something that is asked of a server.
func (a *app) verb(run func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := a.dial()
		if err != nil {
			return err
		}
		defer c.Close()
		return a.verbFailed(cmd.Context(), run(cmd.Context(), c, args))
	}
}

// verbFailed gives an error the exit status that such commands have.
func (a *app) verbFailed(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return status
	}
	if status, ok := signalStatus(ctx); ok {
		return status
	}
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = sandpit.WithHint(err, "set SANDPIT_API_KEY (make a key where the server runs: sandpit key create); "+
			"on the server's machine and as its user no key is needed: leave --server and SANDPIT_URL out")
	}
	return verbError{err}
}

// finder turns what people call a sandbox into its ID.
type finder struct {
	client *client.Client
	known  []sandpit.Sandbox // fetched when first needed
	asked  bool
}

// find accepts an ID, a name, or the beginning of an ID that only one has.
//
// NotFound: nobody has it. Conflict: several have.
func (f *finder) find(ctx context.Context, name string) (sandpit.ID, error) {
	if sandpit.ID(name).Validate() == nil {
		return sandpit.ID(name), nil
	}
	if name == "" {
		return "", sandpit.Errorf(sandpit.Invalid, "the name of a sandbox is empty")
	}
	if !f.asked {
		list, err := f.client.Sandboxes.List(ctx, client.Filter{})
		if err != nil {
			return "", err
		}
		f.known, f.asked = list, true
	}
	found := matching(f.known, name)
	switch len(found) {
	case 1:
		return found[0].ID, nil
	case 0:
		return "", f.missing(ctx, name)
	}
	return "", sandpit.WithHint(
		sandpit.Errorf(sandpit.Conflict, "%q may be any of %d sandboxes: %s", name, len(found), listed(found)),
		"give more of the ID")
}

// missing tells why there is nothing of a name, if that is known.
func (f *finder) missing(ctx context.Context, name string) error {
	gone, err := f.client.Sandboxes.List(ctx, client.Filter{States: []sandpit.State{sandpit.StateDeleted}})
	if found := matching(gone, name); err == nil && len(found) == 1 {
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone: %s", name, orElse(found[0].Reason, "it was deleted"))
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "sandbox %q not found", name), "see: sandpit ls")
}

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// matching returns those of the name, else those whose ID begins so.
func matching(list []sandpit.Sandbox, name string) []sandpit.Sandbox {
	var named, begun []sandpit.Sandbox
	for _, s := range list {
		if s.Spec.Name == name {
			named = append(named, s)
		}
		if strings.HasPrefix(string(s.ID), name) {
			begun = append(begun, s)
		}
	}
	if len(named) > 0 {
		return named
	}
	return begun
}

// listed names a few sandboxes.
func listed(list []sandpit.Sandbox) string {
	const most = 10
	names := make([]string, 0, most)
	for _, s := range list {
		if len(names) == most {
			return strings.Join(names, ", ") + " and others"
		}
		text := string(s.ID)
		if s.Spec.Name != "" {
			text += " (" + s.Spec.Name + ")"
		}
		names = append(names, text)
	}
	return strings.Join(names, ", ")
}

// findAll finds each; the errors of those that cannot be found come beside.
func (f *finder) findAll(ctx context.Context, names []string) ([]sandpit.ID, error) {
	var ids []sandpit.ID
	var errs []error
	for _, name := range names {
		id, err := f.find(ctx, name)
		switch {
		case err != nil:
			errs = append(errs, err)
		case !slices.Contains(ids, id):
			ids = append(ids, id)
		}
	}
	return ids, errors.Join(errs...)
}

// find is for a command that wants one sandbox.
func find(ctx context.Context, c *client.Client, name string) (sandpit.ID, error) {
	return (&finder{client: c}).find(ctx, name)
}

// atOnce is how many sandboxes one command line changes at a time.
const atOnce = 8

// each does something to every sandbox that is named, also when it fails for
// others, and prints the IDs of those it was done to, in their order.
func (a *app) each(ctx context.Context, c *client.Client, names []string, do func(context.Context, sandpit.ID) error) error {
	ids, err := (&finder{client: c}).findAll(ctx, names)
	return errors.Join(err, a.eachID(ctx, ids, do))
}

func (a *app) eachID(ctx context.Context, ids []sandpit.ID, do func(context.Context, sandpit.ID) error) error {
	errs := parallel(ids, func(id sandpit.ID) error { return do(ctx, id) })
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

// parallel does something for each of list, a few at a time.
func parallel[T any](list []T, do func(T) error) []error {
	errs := make([]error, len(list))
	var group sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i, item := range list {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			errs[i] = do(item)
		})
	}
	group.Wait()
	return errs
}

// completionTime is how long a shell waits for the names of sandboxes.
const completionTime = 2 * time.Second

// completeSandboxes offers names and IDs. Without a server there are none, and a
// person who presses a key is not told of it.
func (a *app) completeSandboxes(most int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if most > 0 && len(args) >= most {
			return nil, none
		}
		return a.sandboxNames(cmd.Context(), args, begun), none
	}
}

func (a *app) sandboxNames(ctx context.Context, given []string, begun string) []string {
	c, err := a.dial()
	if err != nil {
		return nil
	}
	defer c.Close()
	if ctx == nil {
		ctx = context.Background()
	}
	ctx, cancel := context.WithTimeout(ctx, completionTime)
	defer cancel()
	const most = 1000
	list, err := c.Sandboxes.List(ctx, client.Filter{Limit: most})
	if err != nil {
		return nil
	}
	var names []string
	for _, s := range list {
		for _, name := range []string{s.Spec.Name, string(s.ID)} {
			// A shell would take a name with anything special in it for something else.
			plain := name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !isPlain(r) })
			if plain && strings.HasPrefix(name, begun) && !slices.Contains(given, name) {
				names = append(names, cobra.CompletionWithDesc(name, string(s.State)))
			}
		}
	}
	return names
}

func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
}
