package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// Finding is the result of one check of Examine.
type Finding = gvisor.Finding

// Examine looks at the machine, and then has the configured provider make a real
// sandbox and runs a command in it. Every finding is handed to show as soon as it is
// known. It reports whether sandboxes work here.
func Examine(ctx context.Context, cfg config.Config, show func(Finding)) bool {
	ok := true
	if cfg.Provider == nameGVisor {
		for _, f := range gvisor.Examine(cfg.Engine) {
			show(f)
			ok = ok && !f.Failed
		}
	}
	show(examineNetwork(cfg))
	show(examineDocker(ctx, cfg))
	f := tryOut(ctx, cfg)
	show(f)
	return ok && !f.Failed
}

// examineDocker checks the docker engine, which matters only if it is the provider: then
// trying fails.
func examineDocker(ctx context.Context, cfg config.Config) Finding {
	f := Finding{Name: "docker"}
	text, err := askDocker(ctx, cfg)
	if err != nil {
		f.Text = "provider docker cannot be used: " + err.Error()
		f.Hint = "provider " + cfg.Provider + " does not need it; for containers as sandboxes start an engine, or name one by docker.host"
		switch {
		case cfg.Provider == nameDocker:
			f.Hint = sandpit.HintOf(err)
		case !slices.Contains(ProviderNames(), cfg.Provider):
			f.Hint = "for containers as sandboxes start an engine, or name one by docker.host"
		}
		return f
	}
	f.Text = text
	return f
}

// examineNetwork reports what the configuration lets sandboxes reach.
func examineNetwork(cfg config.Config) Finding {
	return Finding{Name: "network", Text: cfg.Network.String()}
}

func askDocker(ctx context.Context, cfg config.Config) (text string, err error) {
	o, err := dockerOptions(cfg)
	if err != nil {
		return "", err
	}
	o.Ephemeral = true
	p, err := openIfAnswering(ctx, o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	version, err := p.Version(ctx)
	return fmt.Sprintf("%s at %s", version, p.Endpoint()), err
}

// tryOut makes a sandbox of the default image and runs a command in it.
func tryOut(ctx context.Context, cfg config.Config) Finding {
	f := Finding{Name: "a sandbox"}
	text, err := runOne(ctx, cfg)
	if err != nil {
		f.Text, f.Hint, f.Failed = err.Error(), sandpit.HintOf(err), true
		return f
	}
	f.Text = text
	return f
}

// imageToTry is one that needs no network, if there is one.
func imageToTry(cfg config.Config) sandpit.Image {
	if cfg.Provider == nameGVisor {
		return sandpit.HostImage
	}
	return DefaultImage(cfg)
}

func runOne(ctx context.Context, cfg config.Config) (text string, err error) {
	local, err := OpenLocal(cfg, Listeners{})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	begin := time.Now()
	box, err := local.Create(ctx, sandpit.Spec{Image: imageToTry(cfg)})
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	process, err := box.Guest().Start(ctx, sandpit.Command{
		Args: []string{"uname", "-srm"}, Stdout: &out, Timeout: 30 * time.Second,
	})
	if err != nil {
		return "", err
	}
	status, err := process.Wait(ctx)
	if err != nil {
		return "", err
	}
	if status.Code != 0 {
		return "", fmt.Errorf("uname in the sandbox: %s", status)
	}
	return fmt.Sprintf("started and ran a command in %s: %s",
		time.Since(begin).Round(time.Millisecond), strings.TrimSpace(out.String())), nil
}
