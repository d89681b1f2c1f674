package cli

import (
	"cmp"
	"context"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/daemon"
)

// mayBeImage reports whether the only argument of run can be meant as an image
// whose own command shall run. A plain word is one only if it is in the cache.
func mayBeImage(name string) (may, isWord bool) {
	if name == string(sandpit.HostImage) || strings.HasPrefix(name, "-") {
		return false, false
	}
	if interpreters()[filepath.Ext(name)] != nil {
		return false, false // a script that is not there
	}
	return true, !strings.ContainsAny(name, ":/@")
}

// chosenWorkDir is the working directory that somebody has chosen, or "": an
// image's own goes before the default.
func chosenWorkDir(cfg config.Config) string {
	if cfg.Explicit(config.KeyWorkDir) {
		return cfg.Sandbox.WorkDir
	}
	return ""
}

// askImage fills in what run leaves to the image.
func (o *runOptions) askImage(ctx context.Context, local *daemon.Local, spec *sandpit.Spec) error {
	isScript := o.script != nil
	if len(o.command) > 0 && !isScript {
		return nil
	}
	if o.word {
		known, err := local.HasImage(ctx, string(spec.Image))
		if err != nil {
			return err
		}
		if !known {
			return notRunnable([]string{string(spec.Image)})
		}
	}
	var c daemon.ImageConfig
	if spec.Image != sandpit.HostImage {
		var err error
		if c, err = local.ImageConfig(ctx, spec.Image); err != nil {
			return err
		}
	}
	if isScript { // it is copied there first
		spec.WorkDir = cmp.Or(spec.WorkDir, c.WorkDir, sandpit.DefaultWorkDir)
		spec.User = cmp.Or(spec.User, c.User)
		return nil
	}
	if o.command = c.Command(); len(o.command) == 0 {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "image %s does not say what to run", spec.Image),
			"a command goes after two dashes: sandpit run "+string(spec.Image)+" -- COMMAND")
	}
	return nil
}

// notRunnable is for arguments that are neither a script nor an image.
func notRunnable(args []string) error {
	err := sandpit.Errorf(sandpit.Invalid, "%s is not a script on this machine", args[0])
	return sandpit.WithHint(err, "a command goes after two dashes: sandpit run -- "+strings.Join(args, " "))
}
