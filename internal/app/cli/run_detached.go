package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// runDetached creates a sandbox that stays, starts the command in it, and prints the ID of the
// sandbox. It needs a server.
func (o *runCommand) runDetached(ctx context.Context, a *app) error {
	if o.interactive || o.terminal || o.stats {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "--detach cannot be combined with -i, -t or --stats: run does not wait for the command"),
			"leave them out, and see the output with sandpit logs")
	}
	cfg, err := a.loadConfig(slices.Concat(o.toOverrides(), a.serverOverride())...)
	if err != nil {
		return err
	}
	cfg.URL = cfg.ServerURL()
	spec, err := o.toRemoteSpec(a, cfg)
	if err != nil {
		return err
	}
	if err := o.screenCommand(ctx, a, cfg); err != nil {
		return err
	}
	if o.script == nil && len(o.command) == 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--detach needs a command: with a server, the default command of image %s is unknown here", o.image),
			"add a command: sandpit run --detach "+shellQuote(o.image)+" COMMAND")
	}
	c, err := newConfiguredClient(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	secrets, err := o.rules.readSecrets(a)
	if err != nil {
		return err
	}
	request := client.CreateRequest{
		Spec: spec, Secrets: secrets.programs, NetworkSecrets: secrets.network, Provider: chosenProvider(cfg, o.provider), Offline: o.networkSet && !o.network,
		AllowPaths: o.allowed,
	}
	if o.remove {
		request.Policy = sandpit.Policy{IdleTimeout: abandonedRunTimeout, IdleAction: sandpit.ActionKill}
	}
	s, err := c.Sandboxes.Create(ctx, request)
	if err != nil {
		return a.signalOr(ctx, explainDetach(o.explainImage(err)))
	}
	a.printPublishedPorts(spec.Ports, s.Spec.Ports)
	if err := o.startDetached(ctx, s); err != nil {
		const limit = 30 * time.Second
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if e := s.Delete(cleanup); e != nil { // the first error is more important
			fmt.Fprintf(a.Err, "sandpit: sandbox %s was not removed: %s\n", s.ID, escapeLines(e.Error()))
		}
		return a.signalOr(ctx, toRunError(a, err))
	}
	_, err = fmt.Fprintln(a.Out, s.ID)
	return err
}

// startDetached starts the command in a sandbox that stays.
func (o *runCommand) startDetached(ctx context.Context, s *client.Sandbox) error {
	command := sandpit.Command{ID: newCommandID(), Args: o.command, Timeout: o.timeout}
	if o.script != nil {
		dir := cmp.Or(s.Spec.WorkDir, sandpit.DefaultWorkDir)
		args, err := o.script.copyInto(ctx, s.Guest(), s.Spec.User, dir)
		if err != nil {
			return setupError{err}
		}
		command.Args = slices.Concat(args, o.command)
	}
	_, err := s.Guest().Start(ctx, command)
	return err
}

// explainDetach adds what to do if there is no server.
func explainDetach(err error) error {
	if sandpit.CodeOf(err) != sandpit.Unavailable {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "--detach needs a server: %w", err),
		"start one with: sandpit serve; or leave --detach out and run it in the background of the shell: sandpit run ... &")
}
