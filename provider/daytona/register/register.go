// Package register describes provider daytona to the programs of sandpit.
package register

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/provider/daytona"
)

const name = "daytona"

// Provider returns the description of the provider.
func Provider() registration.Provider {
	return registration.Provider{
		Name:         name,
		Endpoint:     func(cfg config.Config) string { return cfg.Daytona.ServerURL },
		Instance:     (*daytona.Instance)(nil),
		Open:         openProvider,
		Used:         isUsed,
		DefaultImage: defaultImage,
		OwnLimits:    true,
		Examine:      examineAccount,
	}
}

func stateDir(cfg config.Config) string { return filepath.Join(cfg.StateDir, name) }

// isUsed reports whether the provider was ever opened here.
func isUsed(cfg config.Config) bool {
	_, err := os.Stat(stateDir(cfg))
	return !errors.Is(err, fs.ErrNotExist)
}

// defaultImage replaces the machine's own programs, which a cloud does not have.
func defaultImage(cfg config.Config) sandpit.Image {
	if cfg.Sandbox.Image == sandpit.HostImage || !cfg.Explicit(config.KeyImage) || cfg.Explicit(config.KeyDaytonaImage) {
		return cfg.Daytona.Image
	}
	return cfg.Sandbox.Image
}

// Options returns the options that the configuration sets.
func Options(s registration.Surroundings) daytona.Options {
	d := s.Config.Daytona
	o := daytona.Options{
		Endpoint: d.ServerURL, Key: string(d.Key), Target: d.Target, Manager: s.Identity, Ephemeral: !s.Lasting,
		Image: d.Image, Entrypoint: d.Entrypoint, VNCPassword: string(d.VNCPassword),
		Defaults: sandpit.Resources{CPUs: d.CPU, Memory: d.Memory, Disk: d.Disk}, Public: d.Public,
		AutoStop: d.AutoStop, AutoArchive: d.AutoArchive, AutoDelete: d.AutoDelete, CreateTimeout: d.CreateTimeout,
		Toolbox: d.Toolbox, Log: s.Log,
	}
	if !o.Ephemeral {
		o.StateDir = stateDir(s.Config)
	}
	return o
}

func openProvider(ctx context.Context, s registration.Surroundings) (sandpit.Provider, error) {
	o := Options(s)
	if s.Log != nil {
		for name, present := range map[string]bool{"API key": o.Key != "", "server URL": o.Endpoint != "", "target": o.Target != ""} {
			s.Log.DebugContext(ctx, "daytona: setting", slog.String("name", name), slog.Bool("configured", present))
		}
	}
	if o.Ephemeral {
		return daytona.New(o)
	}
	probe := o
	probe.Ephemeral = true
	p, err := openChecked(ctx, probe) // an account that never worked leaves no state directory
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.Close(), config.MakePrivate(o.StateDir, os.Geteuid())); err != nil {
		return nil, err
	}
	return daytona.New(o)
}

// openChecked returns a provider whose account has just answered.
func openChecked(ctx context.Context, o daytona.Options) (*daytona.Provider, error) {
	p, err := daytona.New(o)
	if err != nil {
		return nil, err
	}
	if err := p.Check(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// examineAccount checks the account. The finding never fails: if daytona is the configured provider,
// creating a sandbox fails.
func examineAccount(ctx context.Context, s registration.Surroundings) []registration.Finding {
	f := registration.Finding{Name: name}
	if s.Config.Daytona.Key == "" && s.Config.Provider != name {
		f.Text, f.Hint = "provider daytona has no API key", "for sandboxes in Daytona's cloud set DAYTONA_API_KEY"
		return []registration.Finding{f}
	}
	text, err := readAccount(ctx, s)
	if err == nil {
		f.Text = text
	} else {
		f.Text, f.Hint = "provider daytona cannot be used: "+err.Error(), sandpit.HintOf(err)
	}
	return []registration.Finding{f}
}

func readAccount(ctx context.Context, s registration.Surroundings) (text string, err error) {
	o := Options(s)
	o.Ephemeral = true
	p, err := daytona.New(o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	a, err := p.ReadAccount(ctx)
	return "the API key works at " + a.Endpoint, err
}
