package daemon

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
)

// Examine checks the machine: first its own providers, then the network and other providers. Then
// the configured provider creates a real sandbox and runs a command in it. show receives each
// finding as soon as it is known. It reports whether sandboxes work here.
func Examine(ctx context.Context, cfg config.Config, show func(registration.Finding)) bool {
	ok := true
	report := func(list ...registration.Finding) {
		for _, f := range list {
			show(f)
			ok = ok && !f.Failed
		}
	}
	list := registrations()
	for _, p := range list {
		if p.Used == nil {
			report(examineProvider(ctx, cfg, p)...)
		}
	}
	report(examineNetwork(cfg))
	for _, p := range list {
		if p.Used != nil {
			report(examineProvider(ctx, cfg, p)...)
		}
	}
	report(tryOut(ctx, cfg))
	return ok
}

// examineProvider checks a provider. The hint of a finding says if the configured provider works
// without it.
func examineProvider(ctx context.Context, cfg config.Config, p registration.Provider) []registration.Finding {
	if p.Examine == nil {
		return nil
	}
	list := p.Examine(ctx, newSurroundings(cfg))
	_, unknown := findRegistration(registrations(), cfg.Provider)
	for i, f := range list {
		if f.Hint != "" && p.Name != cfg.Provider && unknown == nil {
			list[i].Hint = "provider " + cfg.Provider + " does not need it; " + f.Hint
		}
	}
	return list
}

// examineNetwork reports what the configuration lets sandboxes reach.
func examineNetwork(cfg config.Config) registration.Finding {
	return registration.Finding{Name: "network", Text: cfg.Network.String()}
}

// tryOut makes a sandbox of the default image and runs a command in it.
func tryOut(ctx context.Context, cfg config.Config) registration.Finding {
	f := registration.Finding{Name: "a sandbox"}
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
	p, _ := findRegistration(registrations(), cfg.Provider) // opening an unknown one fails
	return cmp.Or(p.TrialImage, DefaultImage(cfg))
}

func runOne(ctx context.Context, cfg config.Config) (text string, err error) {
	local, err := OpenLocal(ctx, cfg, Listeners{})
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
