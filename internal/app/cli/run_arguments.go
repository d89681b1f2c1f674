package cli

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// parseArgs distinguishes image, script and command. Flags end at the first argument, so that the
// flags of a command are not parsed.
func (o *runCommand) parseArgs(a *app, cmd *cobra.Command, args []string) error {
	switch {
	case cmd.ArgsLenAtDash() == 0: // run -- COMMAND
		o.command = args
	case len(args) > 1 && args[1] == "--": // run IMAGE -- COMMAND
		o.image, o.command = args[0], args[2:]
	case len(args) == 0:
		return usageError(cmd, "nothing to run")
	default:
		return o.parseScript(a, args)
	}
	if len(o.command) == 0 {
		return usageError(cmd, "no command after --")
	}
	return nil
}

// parseScript is parseArgs without two dashes: SCRIPT [ARG...] or IMAGE [COMMAND...].
func (o *runCommand) parseScript(a *app, args []string) error {
	if s, ok := findScript(args[0]); ok {
		o.script, o.command = &s, args[1:]
		return nil
	}
	if o.image != "" {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "%s is not a script on this machine", args[0]),
			"write two dashes before a command: sandpit run "+shellQuote(o.image)+" -- "+shellCommand(args...))
	}
	may, isWord := mayBeImage(args[0])
	if len(args) > 1 {
		path, _ := lookupEnv(a.options.Environ, "PATH")
		may = may && (!isWord || !isOnPath(args[0], path)) || args[0] == string(sandpit.HostImage)
	}
	if !may || isProgramFile(args[0]) {
		return notRunnable(args)
	}
	o.image, o.isPlainWord, o.command = args[0], isWord, args[1:]
	return nil
}

// mayBeImage reports whether the first argument of run can be an image. A plain word alone is an
// image only if it is in the cache.
func mayBeImage(name string) (may, isWord bool) {
	if name == string(sandpit.HostImage) || strings.HasPrefix(name, "-") {
		return false, false
	}
	if scriptInterpreters()[filepath.Ext(name)] != nil {
		return false, false // a script that does not exist
	}
	return true, !strings.ContainsAny(name, ":/@")
}

// isOnPath reports whether a shell on this machine would take a word for a program.
func isOnPath(name, path string) bool {
	return slices.ContainsFunc(filepath.SplitList(path), func(dir string) bool {
		return isExecutable(filepath.Join(dir, name))
	})
}

// isProgramFile reports whether name is the path of a compiled program.
func isProgramFile(name string) bool {
	f, err := os.Open(name)
	if err != nil {
		return false
	}
	defer f.Close()
	magic := make([]byte, len(elfMagic))
	_, err = io.ReadFull(f, magic)
	return err == nil && string(magic) == elfMagic
}

// elfMagic begins programs of Linux.
const elfMagic = "\x7fELF"

// explainImage adds a hint to an error about an image that was a plain word: it may have been
// meant as a command.
func (o *runCommand) explainImage(err error) error {
	if !o.isPlainWord || len(o.command) == 0 {
		return err
	}
	hint := "if " + shellQuote(o.image) + " is a program: sandpit run -- " + shellCommand(append([]string{o.image}, o.command...)...)
	if other := sandpit.HintOf(err); other != "" {
		hint = other + "; " + hint
	}
	return sandpit.WithHint(err, hint)
}

// chosenWorkDir returns the working directory that was configured explicitly, or "": an image's
// own takes precedence over the default.
func chosenWorkDir(cfg config.Config) string {
	if cfg.Explicit(config.KeyWorkDir) {
		return cfg.Sandbox.WorkDir
	}
	return ""
}

// readImageConfig takes the command, user and working directory from the image where they were
// not given.
func (o *runCommand) readImageConfig(ctx context.Context, local *daemon.Local, spec *sandpit.Spec) error {
	isScript := o.script != nil
	if len(o.command) > 0 && !isScript {
		return nil
	}
	if o.isPlainWord {
		known, err := local.HasImage(ctx, string(spec.Image))
		if err != nil {
			return err
		}
		if !known {
			return notRunnable([]string{string(spec.Image)})
		}
	}
	var c image.Config
	if spec.Image != sandpit.HostImage {
		var err error
		if c, err = local.ImageConfig(ctx, spec.Image); err != nil {
			return err
		}
	}
	if isScript { // the script is copied there first
		spec.WorkDir = cmp.Or(spec.WorkDir, c.WorkDir, sandpit.DefaultWorkDir)
		spec.User = cmp.Or(spec.User, c.User)
		return nil
	}
	if o.command = c.Command(); len(o.command) == 0 {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "image %s has no default command", spec.Image),
			"add a command: sandpit run "+shellQuote(string(spec.Image))+" COMMAND")
	}
	return nil
}

// notRunnable returns the error for arguments that are neither a script nor an image.
func notRunnable(args []string) error {
	name := args[0]
	switch _, err := os.Stat(name); {
	case err != nil && scriptInterpreters()[filepath.Ext(name)] != nil:
		return sandpit.Errorf(sandpit.Invalid, "no script %s", name)
	case err == nil && isProgramFile(name):
		inside := "/workspace/" + filepath.Base(name)
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "%s is a program of this machine, not a script or an image", name),
			"mount it: sandpit run -v "+shellQuote(name+":"+inside)+" -- "+shellCommand(append([]string{inside}, args[1:]...)...))
	}
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Invalid, "%s is not a script on this machine", name),
		"write two dashes before a command: sandpit run -- "+shellCommand(args...))
}
