package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// never is what people write where a time could be.
const never = "never"

type createOptions struct {
	output
	name, user, workDir, hostname string
	env, labels, volumes, ports   []string
	temps, allowed                []string
	limits                        limitFlags
	network                       bool
	rules                         networkFlags
	provider, key                 string
	timeout, onTimeout            string
	policy                        policyFlags
	repository                    gitFlags
	createTimeout                 time.Duration
}

// policyFlags say what happens to a sandbox by itself.
type policyFlags struct {
	idle, action                      string
	autoStop, autoArchive, autoDelete string
	freeze, checkpointEvery           string
	recreate                          int
	ignoreBackground, wakeOnUse       bool
}

func (a *app) newCreate() *cobra.Command {
	var o createOptions
	cmd := &cobra.Command{
		Use:   "create [flags] [IMAGE]",
		Short: "Make a sandbox that stays until it is removed",
		Long: `Make a sandbox that stays until it is removed, or until a time is up, and print
its ID. After an hour without use it is suspended: its memory and files are kept on
disk, and its next use resumes it. --idle-timeout and --on-idle change that.

IMAGE is what its files start from, as the server knows it: "host" (the server
machine's own programs), an image of a registry such as python:3.12-slim, or
snapshot:NAME, which is a saved sandbox (see sandpit snapshot). The default is the
server's.
Directories that -v names are the server machine's, which must allow it.`,
		Example: `  sandpit create --name work
  sandpit create -q --timeout 2h --label project=x python:3.12-slim
  sandpit create --idle-timeout 10m --on-idle stop --auto-delete 7d
  sandpit create --name dev --freeze 10m
  sandpit create --name web -p 8080:8000
  sandpit create --network --git https://github.com/sandpit-dev/sandpit#main --git-password TOKEN
  sandpit create --secret API_TOKEN --secret DEPLOY_KEY=@key.txt
  sandpit create snapshot:before-upgrade`,
		Args:              wantArgs(0, 1, ""),
		ValidArgsFunction: a.completeImage,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			r, err := a.createRequest(o, args)
			if err != nil {
				return err
			}
			s, err := c.Sandboxes.Create(ctx, r)
			if err != nil {
				return err
			}
			if o.quiet || o.json() {
				return a.show(o.output, listing{document: s.Sandbox, ids: []string{string(s.ID)}})
			}
			a.tellPorts(r.Spec.Ports, s.Spec.Ports)
			_, err = fmt.Fprintln(a.Out, s.ID)
			return err
		}),
	}
	o.add(cmd, "print the ID only, which is also the default")
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "`name`, by which it can be called")
	f.StringArrayVar(&o.labels, "label", nil, "`NAME=VALUE` to find it by")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment `NAME=VALUE` of all commands, or NAME to pass this shell's value")
	f.StringVarP(&o.workDir, "workdir", "w", "", "`directory` where commands start (default the image's, else \"/workspace\")")
	f.StringVarP(&o.user, "user", "u", "", "`user` of commands (default the image's, else root of the sandbox)")
	f.StringVar(&o.hostname, "hostname", "", "`name` that it has inside (default \"sandpit\")")
	f.StringArrayVarP(&o.volumes, "volume", "v", nil, "show a directory of the server's machine, read only without :rw, or a volume by its name: `HOST:SANDBOX[:ro|rw]`")
	addAllowVolume(f, &o.allowed)
	f.StringArrayVar(&o.temps, "temporary", nil, "show a new directory of the server's machine inside, which is removed with the sandbox: `SANDBOX[:keep]`")
	addPublish(f, &o.ports)
	f.StringVar(&o.provider, "provider", "", "`name` of who makes it, see sandpit providers (default the server's choice)")
	f.StringVar(&o.key, "idempotency-key", "", "`text` that makes it safe to repeat this command: the same text gives the same sandbox")
	f.StringVar(&o.timeout, "timeout", "", "`time` until its end, such as 30m or 2d, or never (default the server's)")
	addChoice(cmd, &o.onTimeout, "on-timeout", "what happens then: `ACTION` kill, stop, pause or suspend (default kill)", actions()...)
	f.DurationVar(&o.createTimeout, "create-timeout", 0, "`time` that the making may take (default the server's)")
	o.limits.add(f)
	f.BoolVar(&o.network, "network", false, "let the sandbox reach the internet, but neither the server's machine nor private networks")
	o.rules.add(f)
	o.policy.add(cmd, f)
	o.repository.add(f)
	return cmd
}

// gitFlags say what a new sandbox has cloned.
type gitFlags struct {
	url, dir, password string
	depth              int
}

func (g *gitFlags) add(f *pflag.FlagSet) {
	f.StringVar(&g.url, "git", "", "clone a repository into it, by its own git and network: `URL[#REF]`, REF being a branch, tag or whole commit")
	f.StringVar(&g.dir, "git-dir", "", "`directory` to clone into (default the repository's name, in the working directory)")
	f.IntVar(&g.depth, "git-depth", 0, "clone this `number` of commits of history (default all)")
	f.StringVar(&g.password, "git-password", "", "password or token for --git: the `NAME` of a variable of this shell, or NAME=@FILE")
}

func (a *app) repository(g gitFlags) (*api.Repository, error) {
	if g.url == "" {
		if g != (gitFlags{}) {
			return nil, sandpit.Errorf(sandpit.Invalid, "--git-dir, --git-depth and --git-password go with --git URL")
		}
		return nil, nil //nolint:nilnil // none is asked for
	}
	r := api.Repository{Dir: g.dir, Depth: g.depth}
	r.URL, r.Ref, _ = strings.Cut(g.url, "#")
	if g.password == "" {
		return &r, nil
	}
	secrets, err := a.parseSecrets([]string{g.password})
	for _, value := range secrets {
		r.Password = value
	}
	return &r, err
}

// actions are what can happen to a sandbox by itself.
func actions() []string {
	return []string{
		string(sandpit.ActionKill), string(sandpit.ActionStop), string(sandpit.ActionPause), string(sandpit.ActionSuspend),
	}
}

func (p *policyFlags) add(cmd *cobra.Command, f *pflag.FlagSet) {
	f.StringVar(&p.idle, "idle-timeout", "", "`time` without use until --on-idle happens, or never (default the server's)")
	addChoice(cmd, &p.action, "on-idle", "what happens to it when it is idle: `ACTION` suspend, stop, pause or kill; all but kill keep its files, and its next use resumes it (default the server's, which is suspend where that is possible)", actions()...)
	f.StringVar(&p.autoStop, "auto-stop", "", "`time` without use until it is stopped (default never)")
	f.StringVar(&p.freeze, "freeze", "", "`time` without use, or paused in memory, until it is suspended (default never)")
	f.BoolVar(&p.wakeOnUse, "wake-on-use", false, "resume it when it is used while it is paused or stopped, whatever paused or stopped it")
	f.StringVar(&p.checkpointEvery, "checkpoint-every", "", "`time` between two times that its files are saved, for --recreate (default never)")
	f.StringVar(&p.autoArchive, "auto-archive", "", "`time` stopped until it is archived (default never)")
	f.StringVar(&p.autoDelete, "auto-delete", "", "`time` stopped or archived until it is deleted (default never)")
	f.IntVar(&p.recreate, "recreate", 0, "`number` of times that it is made again after it vanished, with its files where there is still something of it")
	f.BoolVar(&p.ignoreBackground, "ignore-background", false, "let it be idle while programs run in it")
}

func (p *policyFlags) policy() (sandpit.Policy, error) {
	var errs []error
	at := func(flag, text string) time.Duration {
		d, err := parseSpan(flag, text)
		errs = append(errs, err)
		return d
	}
	policy := sandpit.Policy{
		IdleTimeout: at("--idle-timeout", p.idle), IdleAction: sandpit.Action(p.action),
		AutoStop: max(0, at("--auto-stop", p.autoStop)), AutoArchive: max(0, at("--auto-archive", p.autoArchive)),
		AutoDelete: max(0, at("--auto-delete", p.autoDelete)), Recreate: p.recreate, IgnoreBackground: p.ignoreBackground,
		AutoSuspend: max(0, at("--freeze", p.freeze)), CheckpointEvery: max(0, at("--checkpoint-every", p.checkpointEvery)),
		WakeOnUse: p.wakeOnUse,
	}
	return policy, errors.Join(errs...)
}

// parseSpan reads a time that may be in days, or never, which is below zero. None is
// zero.
func parseSpan(flag, text string) (time.Duration, error) {
	if text == never {
		return -time.Second, nil
	}
	d, err := parseAge(flag, text)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %q: want a time such as 30m, 12h or 2d, or never", flag, text)
	}
	return d, nil
}

func (a *app) createRequest(o createOptions, args []string) (client.CreateRequest, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return client.CreateRequest{}, err
	}
	spec, err := a.remoteSpec(remoteFlags{
		name: o.name, user: o.user, workDir: o.workDir, env: o.env, labels: o.labels, volumes: o.volumes, temps: o.temps, ports: o.ports, limits: o.limits,
	})
	if err != nil {
		return client.CreateRequest{}, err
	}
	spec.Hostname = o.hostname
	if spec.Network, err = o.rules.policy(o.network); err != nil {
		return client.CreateRequest{}, err
	}
	secrets, err := a.newSecrets(o.rules)
	if err != nil {
		return client.CreateRequest{}, err
	}
	if len(args) > 0 {
		spec.Image = sandpit.Image(args[0])
	}
	repository, err := a.repository(o.repository)
	if err != nil {
		return client.CreateRequest{}, err
	}
	timeout, err := parseSpan("--timeout", o.timeout)
	if err != nil {
		return client.CreateRequest{}, err
	}
	policy, err := o.policy.policy()
	return client.CreateRequest{
		Spec: spec, Provider: chosenProvider(cfg, o.provider), Key: o.key, Policy: policy, Secrets: secrets.programs, NetworkSecrets: secrets.network,
		AllowPaths: o.allowed, Timeout: timeout, OnTimeout: sandpit.Action(o.onTimeout), CreateTimeout: o.createTimeout, Repository: repository,
	}, err
}

// remoteFlags are those that say what a server's sandbox shall be.
type remoteFlags struct {
	name, user, workDir         string
	env, labels, volumes, ports []string
	temps                       []string
	limits                      limitFlags
}

// remoteSpec is what a server is asked for. Nothing of it is looked up on this
// machine, and nothing of this machine's configuration is a limit there.
func (a *app) remoteSpec(f remoteFlags) (sandpit.Spec, error) {
	spec := sandpit.Spec{Name: f.name, User: f.user, WorkDir: f.workDir}
	var err error
	if spec.Env, err = a.parseEnv(f.env); err != nil {
		return spec, err
	}
	if spec.Labels, err = parseLabels(f.labels); err != nil {
		return spec, err
	}
	if spec.Ports, err = parsePorts(f.ports); err != nil {
		return spec, err
	}
	for _, v := range f.volumes {
		m, err := splitVolume(v)
		if err != nil {
			return spec, err
		}
		spec.Mounts = append(spec.Mounts, m)
	}
	temps, err := parseTemporary(f.temps)
	if err != nil {
		return spec, err
	}
	spec.Mounts = append(spec.Mounts, temps...)
	spec.Resources, err = a.flagLimits(f.limits)
	return spec, err
}

// flagLimits are the limits that flags give, and only those.
func (a *app) flagLimits(l limitFlags) (sandpit.Resources, error) {
	given := l.overrides()
	cfg, err := a.loadConfig(given...)
	if err != nil {
		return sandpit.Resources{}, err
	}
	var r sandpit.Resources
	for _, o := range given {
		switch o.Key {
		case config.KeyMemoryLimit:
			r.Memory = cfg.Sandbox.MemoryLimit
		case config.KeyCPULimit:
			r.CPUs = cfg.Sandbox.CPULimit
		case config.KeyDiskLimit:
			r.Disk = cfg.Sandbox.DiskLimit
		case config.KeyPIDsLimit:
			r.PIDs = cfg.Sandbox.PIDsLimit
		default: // there are no other flags for limits
		}
	}
	return r, nil
}
