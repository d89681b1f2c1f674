package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// isServerNamed reports whether the user has chosen a server for run. An address in the variables
// of other programs counts only for commands that need a server.
func isServerNamed(cfg config.Config) bool {
	source := cfg.Sources[config.KeyURL]
	return cfg.URL != "" && (source == "--server" || source == config.KeyURL.Variable() || strings.HasPrefix(source, cfg.File+":") && cfg.File != "")
}

// chooseServer reports whether a server creates the sandbox, and returns the configuration with
// its address: a named server or, for a template, this user's own if it runs, because it builds
// the templates then.
func (o *runCommand) chooseServer(cfg config.Config) (config.Config, bool) {
	if isServerNamed(cfg) {
		return cfg, true
	}
	image := cmp.Or(o.image, string(cfg.Sandbox.Image))
	if cfg.URL != "" || !strings.HasPrefix(image, sandpit.TemplatePrefix) {
		return cfg, false
	}
	url, runs := cfg.LocalServer()
	if runs {
		cfg.URL = url
	}
	return cfg, runs
}

// abandonedRunTimeout is how long a server keeps the sandbox of a run whose program was killed.
const abandonedRunTimeout = time.Minute

// runRemote runs the command in a sandbox that a server creates and deletes.
func (o *runCommand) runRemote(ctx context.Context, a *app, cfg config.Config) error {
	if o.script == nil && len(o.command) == 0 {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "image %s needs a command: with a server, its default command is unknown here", o.image),
			"add a command: sandpit run "+shellQuote(o.image)+" COMMAND")
	}
	spec, err := o.toRemoteSpec(a, cfg)
	if err != nil {
		return err
	}
	if err := o.screenCommand(ctx, a, cfg); err != nil {
		return err
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
	s, err := c.Sandboxes.Create(ctx, client.CreateRequest{
		Spec: spec, Secrets: secrets.programs, NetworkSecrets: secrets.network, Provider: chosenProvider(cfg, o.provider), Offline: o.networkSet && !o.network,
		AllowPaths: o.allowed,
		Policy:     sandpit.Policy{IdleTimeout: abandonedRunTimeout, IdleAction: sandpit.ActionKill, IgnoreBackground: true},
	})
	if err != nil {
		return a.signalOr(ctx, o.explainImage(err))
	}
	defer func() {
		const limit = 30 * time.Second
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
		defer cancel()
		if e := s.Delete(cleanup); e != nil { // the command's status is more important
			fmt.Fprintf(a.Err, "sandpit: the sandbox was not removed; the server removes it within two minutes: %s\n", escapeLines(e.Error()))
		}
	}()
	a.printPublishedPorts(spec.Ports, s.Spec.Ports)
	spec.WorkDir = cmp.Or(spec.WorkDir, s.Spec.WorkDir, sandpit.DefaultWorkDir)
	err = o.runIn(ctx, a, cfg, runSandbox{guest: s.Guest(), starter: s, statser: s, spec: spec})
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.PermissionDenied {
		// Is the program missing, or the sandbox?
		if _, e := c.Sandboxes.Get(context.WithoutCancel(ctx), s.ID); e != nil {
			return e
		}
	}
	return toRunError(a, err)
}

func (o *runCommand) toRemoteSpec(a *app, cfg config.Config) (sandpit.Spec, error) {
	if o.timeout < 0 {
		return sandpit.Spec{}, sandpit.Errorf(sandpit.Invalid, "--timeout %s: want a positive time, or 0 for none", o.timeout)
	}
	volumes := o.volumes
	here := strings.HasPrefix(cfg.URL, "unix://")
	if here { // the server is on this machine
		volumes = nil
	}
	spec, err := remoteFlags{
		name: o.name, user: o.user, workDir: o.workDir, env: o.env, labels: o.labels, volumes: volumes, temps: o.temps, ports: o.ports, limits: o.limits,
	}.toSpec(a)
	if err != nil {
		return spec, err
	}
	spec.Image = sandpit.Image(o.image)
	if spec.Network, err = o.rules.toPolicy(o.network); err != nil { // this machine's configuration does not apply
		return spec, err
	}
	if here {
		rules, err := mountRules(cfg, o.allowed)
		if err != nil {
			return spec, err
		}
		mounts, err := parseVolumes(o.volumes, rules, a.Err)
		spec.Mounts = append(spec.Mounts, mounts...)
		return spec, err
	}
	if i := slices.IndexFunc(spec.Mounts, func(m sandpit.Mount) bool { return m.Volume == "" && !m.Temporary && !strings.HasPrefix(m.Source, "/") }); i >= 0 {
		return spec, sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "volume %q: a directory of the server needs an absolute path", spec.Mounts[i].Source),
			"copy files of this machine into a sandbox with: sandpit cp")
	}
	return spec, nil
}
