// Package register describes provider docker to the programs of sandpit.
package register

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

const name = "docker"

var (
	_ registration.ImageKeeper = (*docker.Provider)(nil)
	_ registration.ImageReader = (*docker.Provider)(nil)
)

// Provider returns the description of the provider.
func Provider() registration.Provider {
	return registration.Provider{
		Name:         name,
		Endpoint:     describeEndpoint,
		Instance:     (*docker.Instance)(nil),
		Open:         openProvider,
		Used:         isUsed,
		DefaultImage: defaultImage,
		Examine:      examineEngine,
	}
}

// stateDir contains what an engine cannot store.
func stateDir(cfg config.Config) string { return filepath.Join(cfg.StateDir, name) }

// isUsed reports whether the provider was ever opened here.
func isUsed(cfg config.Config) bool {
	_, err := os.Stat(stateDir(cfg))
	return !errors.Is(err, fs.ErrNotExist)
}

// defaultImage replaces the machine's own programs, which a container cannot use.
func defaultImage(cfg config.Config) sandpit.Image {
	if cfg.Sandbox.Image == sandpit.HostImage || !cfg.Explicit(config.KeyImage) {
		return cfg.Docker.Image
	}
	return cfg.Sandbox.Image
}

func findEndpoint(cfg config.Config) (docker.Endpoint, error) {
	d := cfg.Docker
	return docker.FindEndpoint(docker.Surroundings{
		Host: d.Host, Context: d.Context, ConfigDir: cfg.Image.DockerConfig,
		CertPath: d.CertPath, TLSVerify: d.TLSVerify, RuntimeDir: d.RuntimeDir,
	})
}

func describeEndpoint(cfg config.Config) string {
	e, err := findEndpoint(cfg)
	if err != nil && e.Host == "" {
		return "docker context " + cfg.Docker.Context
	}
	return e.String()
}

// Options returns the options that the configuration sets.
func Options(ctx context.Context, s registration.Surroundings) (docker.Options, error) {
	e, err := findEndpoint(s.Config)
	if err != nil {
		return docker.Options{}, err
	}
	d := s.Config.Docker
	o := docker.Options{
		Endpoint: e, Defaults: s.Config.Sandbox.Limits(), Network: d.Network, Runtime: d.Runtime, Userns: d.Userns, User: d.User,
		Capabilities: d.Capabilities, ReadOnlyRoot: d.ReadOnlyRoot, TmpfsSize: d.TmpfsSize, ShmSize: d.ShmSize,
		OpenFiles: int64(d.OpenFiles), Pull: image.PullPolicy(s.Config.Image.Pull), PullTimeout: s.Config.Image.PullTimeout,
		Credentials: s.Credentials, StopGrace: d.StopGrace, CallTimeout: d.CallTimeout, Patience: d.Patience,
		Mounts:  docker.AnyMounts, // the front ends check mounts: they know the administrator's exceptions
		Manager: s.Identity, Notice: s.Notice, Progress: s.Progress,
	}
	if !guestbin.Has(runtime.GOARCH) {
		o.Guest = s.Config.Engine // has the guest's role, if it is set
	}
	if o.Ephemeral = s.Identity == ""; o.Ephemeral {
		return o, nil
	}
	o.StateDir = stateDir(s.Config)
	o.Guard, o.AcquirePull = s.Guard, s.Images.AcquirePull
	for _, ref := range s.Config.Images() {
		o.Listed = append(o.Listed, string(ref))
	}
	ctx = context.WithoutCancel(ctx)
	o.Notice = func(text string) { s.Log.WarnContext(ctx, "the docker engine", slog.String("notice", text)) }
	return o, nil
}

func openProvider(ctx context.Context, s registration.Surroundings) (sandpit.Provider, error) {
	o, err := Options(ctx, s)
	if err != nil {
		return nil, err
	}
	if !s.Lasting {
		return docker.New(o)
	}
	return OpenAnswering(ctx, o)
}

// OpenAnswering returns a provider whose engine has just answered. An engine that has never
// answered leaves no state directory.
func OpenAnswering(ctx context.Context, o docker.Options) (*docker.Provider, error) {
	if _, err := os.Stat(o.StateDir); o.Ephemeral || !errors.Is(err, fs.ErrNotExist) {
		return openIfAnswering(ctx, o)
	}
	probe := o
	probe.Ephemeral = true
	p, err := openIfAnswering(ctx, probe)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(p.Close(), config.MakePrivate(o.StateDir, os.Geteuid())); err != nil {
		return nil, err
	}
	return docker.New(o)
}

func openIfAnswering(ctx context.Context, o docker.Options) (*docker.Provider, error) {
	p, err := docker.New(o)
	if err != nil {
		return nil, err
	}
	if err := p.Check(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// examineEngine checks the engine. The finding never fails: if docker is the configured provider,
// creating a sandbox fails.
func examineEngine(ctx context.Context, s registration.Surroundings) []registration.Finding {
	f := registration.Finding{Name: name}
	text, err := readVersion(ctx, s)
	switch {
	case err == nil:
		f.Text = text
	case s.Config.Provider == name:
		f.Text, f.Hint = "provider docker cannot be used: "+err.Error(), sandpit.HintOf(err)
	default:
		f.Text = "provider docker cannot be used: " + err.Error()
		f.Hint = "for containers as sandboxes start an engine, or name one by docker.host"
	}
	return []registration.Finding{f}
}

func readVersion(ctx context.Context, s registration.Surroundings) (text string, err error) {
	o, err := Options(ctx, s)
	if err != nil {
		return "", err
	}
	p, err := openIfAnswering(ctx, o)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	version, err := p.Version(ctx)
	return fmt.Sprintf("%s at %s", version, p.Endpoint()), err
}
