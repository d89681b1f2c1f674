package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

type createCommand struct {
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

func newCreate(a *app) *cobra.Command {
	var o createCommand
	cmd := &cobra.Command{
		Use:   "create [flags] [IMAGE]",
		Short: "Create a sandbox",
		Long: `Create a sandbox and print its ID. It exists until it is deleted or its deadline passes.
After an hour without use it is suspended: its memory and files are saved to disk, and
its next use resumes it. --idle-timeout and --on-idle change that.

IMAGE is the sandbox's root file system, as the server knows it: "host" (the server
machine's own programs), an image of a registry such as python:3.12-slim, or
snapshot:NAME, which is a saved sandbox (see sandpit snapshot). The default is the
server's.
Directories that -v names are on the server's machine; the server must allow them.`,
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
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd, "print the ID only (the default)")
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "`name` of the sandbox, which commands accept like its ID")
	f.StringArrayVar(&o.labels, "label", nil, "label `NAME=VALUE` of the sandbox")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment `NAME=VALUE` of all commands, or NAME to pass this shell's value")
	f.StringVarP(&o.workDir, "workdir", "w", "", "`directory` where commands start (default the image's, else \"/workspace\")")
	f.StringVarP(&o.user, "user", "u", "", "`user` of commands (default the image's, else root of the sandbox)")
	f.StringVar(&o.hostname, "hostname", "", "host `name` inside the sandbox (default \"sandpit\")")
	f.StringArrayVarP(&o.volumes, "volume", "v", nil, "mount a directory of the server's machine, read-only without :rw, or a volume by its name: `HOST:SANDBOX[:ro|rw]`")
	addAllowVolume(f, &o.allowed)
	f.StringArrayVar(&o.temps, "temporary", nil, "mount a new directory of the server's machine, which is deleted with the sandbox: `SANDBOX[:keep]`")
	addPublish(f, &o.ports)
	f.StringVar(&o.provider, "provider", "", "`name` of the provider, or several with commas between them, see sandpit providers (default the server's)")
	f.StringVar(&o.key, "idempotency-key", "", "`text` that makes it safe to repeat this command: the same text returns the same sandbox")
	f.StringVar(&o.timeout, "timeout", "", "`time` until the deadline, such as 30m or 2d, or never (default the server's)")
	addChoice(cmd, &o.onTimeout, "on-timeout", "`ACTION` at the deadline: kill, stop, pause or suspend (default kill)", actionNames()...)
	f.DurationVar(&o.createTimeout, "create-timeout", 0, "`time` that the creation may take (default the server's)")
	o.limits.addFlags(f)
	f.BoolVar(&o.network, "network", false, "let the sandbox reach the internet, but neither the server's machine nor private networks")
	o.rules.addFlags(f)
	o.policy.addFlags(cmd, f)
	o.repository.addFlags(f)
	return cmd
}

func (o *createCommand) run(ctx context.Context, a *app, c *client.Client, args []string) error {
	r, err := o.toRequest(a, args)
	if err != nil {
		return err
	}
	s, err := c.Sandboxes.Create(ctx, r, client.WithIdempotencyKey(o.key))
	if err != nil {
		return err
	}
	if o.quiet || o.isJSON() {
		return a.showListing(o.output, listing{document: s.Sandbox, ids: []string{string(s.ID)}})
	}
	a.printPublishedPorts(r.Spec.Ports, s.Spec.Ports)
	_, err = fmt.Fprintln(a.Out, s.ID)
	return err
}

func (o *createCommand) toRequest(a *app, args []string) (client.CreateRequest, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return client.CreateRequest{}, err
	}
	spec, err := remoteFlags{
		name: o.name, user: o.user, workDir: o.workDir, env: o.env, labels: o.labels, volumes: o.volumes, temps: o.temps, ports: o.ports, limits: o.limits,
	}.toSpec(a)
	if err != nil {
		return client.CreateRequest{}, err
	}
	spec.Hostname = o.hostname
	if spec.Network, err = o.rules.toPolicy(o.network); err != nil {
		return client.CreateRequest{}, err
	}
	secrets, err := o.rules.readSecrets(a)
	if err != nil {
		return client.CreateRequest{}, err
	}
	if len(args) > 0 {
		spec.Image = sandpit.Image(args[0])
	}
	repository, err := o.repository.toRepository(a)
	if err != nil {
		return client.CreateRequest{}, err
	}
	timeout, err := parseDurationOrNever("--timeout", o.timeout)
	if err != nil {
		return client.CreateRequest{}, err
	}
	policy, err := o.policy.toPolicy()
	return client.CreateRequest{
		Spec: spec, Provider: chosenProvider(cfg, o.provider), Policy: policy, Secrets: secrets.programs, NetworkSecrets: secrets.network,
		AllowPaths: o.allowed, Timeout: timeout, OnTimeout: sandpit.Action(o.onTimeout), CreateTimeout: o.createTimeout, Repository: repository,
	}, err
}
