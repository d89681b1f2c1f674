package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

type runCommand struct {
	image   string
	env     []string
	workDir string
	user    string
	attachment
	volumes  []string
	temps    []string
	allowed  []string
	timeout  time.Duration
	name     string
	labels   []string
	limits   limitFlags
	stats    bool
	screen   string
	network  bool
	rules    networkFlags
	provider string
	ports    []string

	detach bool
	// remove is --rm, which run does unless it detaches.
	remove bool

	timeoutSet bool
	networkSet bool
	// isPlainWord means that image is a plain word, which may have been meant as a command.
	isPlainWord bool
	script      *script
	command     []string
}

func newRun(a *app) *cobra.Command {
	o := runCommand{attachment: attachment{signals: true, ends: true}}
	cmd := &cobra.Command{
		Use:   "run [flags] [IMAGE] -- COMMAND [ARG...]\n  sandpit run [flags] SCRIPT [ARG...]\n  sandpit run [flags] IMAGE [COMMAND [ARG...]]",
		Short: "Run a command or a script in a new sandbox and remove the sandbox",
		Long: `Run a command or a script in a new sandbox and remove the sandbox.

IMAGE is the sandbox's root file system: "host" (the default: this machine's own programs,
read-only), a directory, a tar file of a root file system or of "docker save", or an image
of a registry such as python:3.12-slim, which is fetched once. Without a command, the
image's default command runs. A first word that is a program of this machine is not an
image: write two dashes before a command without an image.
A SCRIPT is copied into the sandbox and run by the interpreter that its extension or its
first line names.

The sandbox has no network without --network, and sees nothing of this machine except IMAGE
and -v. It is removed when the command ends, and also when this program is killed. The exit
status is the command's; 124 means that it timed out, 125 that sandpit failed, 127 that
there is no such program, 130 Ctrl-C.

With --provider docker the sandbox is a container of a docker engine, and IMAGE is one of
the engine's images, never "host".

When --server, SANDPIT_URL or "url" in the configuration names a server, the sandbox is
created there, and IMAGE and the directories of -v are the server's. Your own server is used
without being named for template:NAME only, if it runs, because it builds the templates
then. If this program is killed, the server removes the sandbox after a minute.`,
		Example: `  sandpit run -- sh -c 'uname -a'
  sandpit run -it -- bash
  sandpit run -v ./project:/workspace:rw -- make test
  sandpit run -p 8080:8000 -- python3 -m http.server 8000
  sandpit run --timeout 10s script.py --verbose
  tar c . | sandpit run -i -- tar t
  sandpit run python:3.12-slim python3 -V
  sandpit run --detach --name web python:3.12-slim python3 -m http.server
  sandpit run ./rootfs.tar -- /bin/sh -c 'cat /etc/os-release'`,
		RunE: a.withoutClient(o.run),
	}
	cmd.ValidArgsFunction = a.completeRunnable
	f := cmd.Flags()
	f.SetInterspersed(false)
	f.StringVar(&o.image, "image", "", "`IMAGE`, for use with a script")
	o.addFlags(f)
	o.addSandboxFlags(f, "", "")
	f.StringArrayVar(&o.temps, "temporary", nil, "mount a new directory of this machine, which is deleted with the sandbox: `SANDBOX[:keep]`")
	f.DurationVar(&o.timeout, "timeout", 0, "kill the command after this `time`; 0 means never (default 5m, with -t never)")
	addPublish(f, &o.ports)
	f.StringVar(&o.screen, "screen", "", "`MODE` of the check for dangerous commands: off, warn, ask or deny (default off)")
	f.BoolVarP(&o.detach, "detach", "d", false, "leave the command running in a sandbox of a server, and print the sandbox's ID")
	f.BoolVar(&o.remove, "rm", false, "remove the sandbox, as run always does; with --detach, when it is idle")
	f.BoolVar(&o.stats, "stats", false, "print the resource usage at the end, and warn when it comes close to a limit")
	return cmd
}

// addSandboxFlags adds the flags that describe a new sandbox, with the default of its name and a remark
// on the working directory.
func (o *runCommand) addSandboxFlags(f *pflag.FlagSet, name, workDirRemark string) {
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment `NAME=VALUE`, or NAME to pass this shell's value")
	f.StringVarP(&o.workDir, "workdir", "w", "", "working `directory` in the sandbox, created if missing (default the image's, else \"/workspace\""+workDirRemark+")")
	f.StringVarP(&o.user, "user", "u", "", "`user` in the sandbox: a name, a uid or uid:gid (default the image's, else root)")
	f.StringArrayVarP(&o.volumes, "volume", "v", nil, "mount a directory or file, read-only without :rw: `HOST:SANDBOX[:rw]`")
	addAllowVolume(f, &o.allowed)
	f.StringVar(&o.name, "name", name, "`name` of the sandbox")
	f.StringArrayVar(&o.labels, "label", nil, "label `NAME=VALUE` of the sandbox")
	o.limits.addFlags(f)
	f.StringVar(&o.provider, "provider", "", "`name` of the provider, see sandpit providers (default gvisor, or the server's)")
	f.BoolVar(&o.network, "network", false, "let the sandbox reach the internet, but neither this machine nor private networks")
	o.rules.addFlags(f)
}

func (o *runCommand) run(cmd *cobra.Command, a *app, args []string) error {
	o.timeoutSet = cmd.Flags().Changed("timeout")
	o.networkSet = cmd.Flags().Changed("network")
	if err := o.parseArgs(a, cmd, args); err != nil {
		return err
	}
	if o.detach {
		return o.runDetached(cmd.Context(), a)
	}
	return o.runAttached(cmd.Context(), a)
}

// toOverrides returns the flags that override settings.
func (o *runCommand) toOverrides() []config.Override {
	list := o.limits.toOverrides()
	if o.image != "" {
		list = append(list, config.Override{Flag: "IMAGE", Key: config.KeyImage, Value: o.image})
	}
	if o.workDir != "" {
		list = append(list, config.Override{Flag: "--workdir", Key: config.KeyWorkDir, Value: o.workDir})
	}
	if o.provider != "" {
		list = append(list, config.Override{Flag: "--provider", Key: config.KeyProvider, Value: o.provider})
	}
	if o.networkSet {
		list = append(list, config.Override{Flag: "--network", Key: config.KeyNetworkEnabled, Value: strconv.FormatBool(o.network)})
	}
	if o.screen != "" {
		list = append(list, config.Override{Flag: "--screen", Key: config.KeyCommandScreen, Value: o.screen})
	}
	return list
}

func (o *runCommand) runAttached(ctx context.Context, a *app) error {
	cfg, err := a.loadConfig(slices.Concat(o.toOverrides(), a.serverOverride())...)
	if err != nil {
		return err
	}
	if there, ok := o.chooseServer(cfg); ok {
		return o.runRemote(ctx, a, there)
	}
	spec, err := o.toSpec(a, cfg)
	if err != nil {
		return err
	}
	if err := o.screenCommand(ctx, a, cfg); err != nil {
		return err
	}
	return o.runLocal(ctx, a, cfg, spec)
}

func (o *runCommand) runLocal(ctx context.Context, a *app, cfg config.Config, spec sandpit.Spec) (err error) {
	progress, clear := newProgress(a.Err, "Preparing the image")
	local, err := daemon.OpenLocal(ctx, cfg, daemon.Listeners{
		Left:     func(text string) { fmt.Fprintln(a.Err, "sandpit: "+escapeLines(text)) },
		Progress: progress, Notice: a.newNoticeOnce(cfg), Published: func(ports []sandpit.Port) { a.printPublishedPorts(spec.Ports, ports) },
	})
	if err != nil {
		return err
	}
	// The engine ends here, however the command ends.
	defer func() { err = errors.Join(err, local.Close()) }()

	if err := o.readImageConfig(ctx, local, &spec); err != nil {
		clear()
		return a.signalOr(ctx, err)
	}
	box, err := local.Create(ctx, spec)
	clear()
	if err == nil {
		err = o.rules.giveSecrets(ctx, a, box)
	}
	if err != nil {
		return a.signalOr(ctx, o.explainImage(err))
	}
	statser, _ := box.(sandpit.Statser)
	err = o.runIn(ctx, a, cfg, runSandbox{guest: box.Guest(), starter: box.Guest(), statser: statser, spec: spec})
	if spec.Image == sandpit.HostImage && sandpit.CodeOf(err) == sandpit.NotFound && len(o.command) > 0 {
		path, _ := lookupEnv(a.options.Environ, "PATH")
		rules, _ := mountRules(cfg, nil) // only allowed paths can fail
		if err = explainProgram(err, "sandpit run", o.command); sandpit.HintOf(err) == "" {
			err = explainMissing(err, o.command[0], path, rules)
		}
	}
	return toRunError(a, err)
}

// runSandbox is the sandbox of a run.
type runSandbox struct {
	guest   sandpit.Guest
	starter starter
	// statser is nil if the sandbox cannot be measured.
	statser sandpit.Statser
	spec    sandpit.Spec
}

// runIn runs the command in an existing sandbox. An exitStatus is the command's.
func (o *runCommand) runIn(ctx context.Context, a *app, cfg config.Config, p runSandbox) error {
	command := sandpit.Command{Args: o.command, Timeout: cfg.Sandbox.Timeout, Stdout: a.Out, Stderr: a.Err}
	if o.timeoutSet || o.terminal {
		command.Timeout = o.timeout
	}
	if o.script != nil {
		args, err := o.script.copyInto(ctx, p.guest, p.spec.User, p.spec.WorkDir)
		if err != nil {
			return setupError{a.signalOr(ctx, explainReadOnly(err, p.spec))}
		}
		command.Args = slices.Concat(args, o.command)
	}
	if o.stats {
		defer watchUsage(ctx, a, p.statser)()
	}
	begin := time.Now()
	status, err := o.execute(ctx, a, p.starter, command)
	o.printUsage(ctx, a, p.statser, begin, status)
	if err != nil {
		return a.signalOr(ctx, explainStart(a, err, cfg, command))
	}
	if status.Code != 0 {
		return exitStatus(status.Code)
	}
	return nil
}

// explainReadOnly explains why a script cannot be copied to a working directory that is a mount.
func explainReadOnly(err error, spec sandpit.Spec) error {
	dir := cmp.Or(spec.WorkDir, sandpit.DefaultWorkDir)
	if !slices.ContainsFunc(spec.Mounts, func(m sandpit.Mount) bool { return m.ReadOnly && m.Target == dir }) {
		return err
	}
	return sandpit.WithHint(err, "-v mounts "+dir+" read-only: add :rw to it, or run the script in it: -- INTERPRETER "+dir+"/SCRIPT")
}

// chosenImage returns the image of the command line, else the provider's default.
func (o *runCommand) chosenImage(cfg config.Config) sandpit.Image {
	if o.image != "" {
		return cfg.Sandbox.Image
	}
	return daemon.DefaultImage(cfg)
}

func (o *runCommand) toSpec(a *app, cfg config.Config) (sandpit.Spec, error) {
	spec := sandpit.Spec{
		Name:    o.name,
		Image:   o.chosenImage(cfg),
		User:    o.user,
		WorkDir: chosenWorkDir(cfg),
	}
	var err error
	if spec.Network, err = o.rules.toPolicy(cfg.Sandbox.NetworkEnabled); err != nil {
		return spec, err
	}
	if o.timeout < 0 {
		return spec, sandpit.Errorf(sandpit.Invalid, "--timeout %s: want a positive time, or 0 for none", o.timeout)
	}
	if spec.Env, err = a.parseEnv(o.env); err != nil {
		return spec, err
	}
	if spec.Labels, err = parseLabels(o.labels); err != nil {
		return spec, err
	}
	if spec.Ports, err = parsePorts(o.ports); err != nil {
		return spec, err
	}
	rules, err := mountRules(cfg, o.allowed)
	if err != nil {
		return spec, err
	}
	if spec.Mounts, err = parseVolumes(o.volumes, rules, a.Err); err != nil {
		return spec, err
	}
	temps, err := parseTemporary(o.temps)
	spec.Mounts = append(spec.Mounts, temps...)
	return spec, err
}

// explainStart explains a command that timed out.
func explainStart(a *app, err error, cfg config.Config, command sandpit.Command) error {
	if sandpit.CodeOf(err) != sandpit.Timeout {
		return err
	}
	text := fmt.Sprintf("sandpit: timeout: the command was killed after %s", command.Timeout)
	if !cfg.Explicit(config.KeyTimeout) && command.Timeout == cfg.Sandbox.Timeout {
		text += " (the default; choose another with --timeout, 0 for none)"
	} else {
		text += " (--timeout or sandbox.timeout)"
	}
	fmt.Fprintln(a.Err, text)
	return exitStatus(statusTimeout)
}

// setupError is a failure before the command starts, whose code does not describe the command.
type setupError struct{ error }

// Unwrap returns the failure.
func (e setupError) Unwrap() error { return e.error }

// toRunError gives a command that could not be executed its exit status.
func toRunError(a *app, err error) error {
	if _, ok := errors.AsType[setupError](err); ok {
		return err
	}
	switch sandpit.CodeOf(err) {
	case sandpit.PermissionDenied:
		printError(a.Err, err)
		return exitStatus(statusNotExecutable)
	case sandpit.NotFound:
		printError(a.Err, err)
		return exitStatus(statusNotFound)
	default:
		return err
	}
}
