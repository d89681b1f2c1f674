package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// The names of the providers.
const (
	nameGVisor = "gvisor"
	nameDocker = "docker"
)

// dockerDir is where provider docker keeps what an engine cannot.
func dockerDir(cfg config.Config) string { return filepath.Join(cfg.StateDir, nameDocker) }

// usedDocker reports whether provider docker was ever opened here.
func usedDocker(cfg config.Config) bool {
	_, err := os.Stat(dockerDir(cfg))
	return !errors.Is(err, os.ErrNotExist)
}

func findDocker(cfg config.Config) (docker.Endpoint, error) {
	d := cfg.Docker
	return docker.FindEndpoint(docker.Surroundings{
		Host: d.Host, Context: d.Context, ConfigDir: cfg.Image.DockerConfig,
		CertPath: d.CertPath, TLSVerify: d.TLSVerify, RuntimeDir: d.RuntimeDir,
	})
}

// dockerEndpoint is the engine that would be used now, for people.
func dockerEndpoint(cfg config.Config) string {
	e, err := findDocker(cfg)
	if err != nil && e.Host == "" {
		return "docker context " + cfg.Docker.Context
	}
	return e.String()
}

// dockerOptions are those of the configuration.
func dockerOptions(cfg config.Config) (docker.Options, error) {
	e, err := findDocker(cfg)
	if err != nil {
		return docker.Options{}, err
	}
	d := cfg.Docker
	o := docker.Options{
		Endpoint: e, Defaults: defaultLimits(cfg), Network: d.Network, Runtime: d.Runtime, Userns: d.Userns, User: d.User,
		Capabilities: d.Capabilities, ReadOnlyRoot: d.ReadOnlyRoot, TmpfsSize: d.TmpfsSize, ShmSize: d.ShmSize,
		OpenFiles: int64(d.OpenFiles), Pull: image.PullPolicy(cfg.Image.Pull), PullTimeout: cfg.Image.PullTimeout,
		Credentials: registryCredentials(cfg.Image), StopGrace: d.StopGrace, CallTimeout: d.CallTimeout, Patience: d.Patience,
		Mounts: docker.AnyMounts, // those of requests are checked where the administrator's exceptions are known
	}
	if !guestbin.Has(runtime.GOARCH) {
		o.Guest = cfg.Engine // plays the part, if there is one
	}
	return o, nil
}

// dockerServerOptions are those of a server, whose sandboxes outlive it.
func dockerServerOptions(ctx context.Context, s surroundings) (docker.Options, error) {
	o, err := dockerOptions(s.cfg)
	if o.Manager = s.identity; o.Manager == "" {
		o.Ephemeral = true // it is only looked at
		return o, err
	}
	o.StateDir = dockerDir(s.cfg)
	o.Guard, o.AcquirePull = registryGuard(s.cfg), s.images.AcquirePull
	for _, ref := range listedImages(s.cfg) {
		o.Listed = append(o.Listed, string(ref))
	}
	ctx = context.WithoutCancel(ctx)
	o.Notice = func(text string) { s.log.WarnContext(ctx, "the docker engine", slog.String("notice", text)) }
	return o, err
}

// openDocker opens the provider of a server once the engine answers.
func openDocker(ctx context.Context, s surroundings) (sandpit.Provider, error) {
	o, err := dockerServerOptions(ctx, s)
	if err != nil {
		return nil, err
	}
	return openAnswering(ctx, s.cfg, o)
}

// openAnswering returns a provider whose engine has just answered.
func openAnswering(ctx context.Context, cfg config.Config, o docker.Options) (*docker.Provider, error) {
	if !o.Ephemeral && usedDocker(cfg) {
		return openIfAnswering(ctx, o)
	}
	// Nothing is left of one that has never answered.
	probe := o
	probe.Ephemeral = true
	p, err := openIfAnswering(ctx, probe)
	if err != nil || o.Ephemeral {
		return p, err
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

// defaultImage returns the default image of a provider.
func defaultImage(cfg config.Config, provider string) sandpit.Image {
	if provider == nameDocker && (cfg.Sandbox.Image == sandpit.HostImage || !cfg.Explicit(config.KeyImage)) {
		return cfg.Docker.Image
	}
	return cfg.Sandbox.Image
}

// DefaultImage returns the default image of the configured provider.
func DefaultImage(cfg config.Config) sandpit.Image { return defaultImage(cfg, cfg.Provider) }
