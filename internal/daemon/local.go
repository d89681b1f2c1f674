// Package daemon wires the parts together. It is the only package that knows
// all of them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// Local makes sandboxes without a server: they end with this process, however
// it ends.
type Local struct {
	cfg      config.Config
	provider *gvisor.Provider
}

// OpenLocal prepares the directories that cfg names. Progress, which may be
// nil, hears about images being converted.
//
// Unsupported: cfg asks for what this version cannot enforce, or this program
// cannot hold a sandbox.
func OpenLocal(cfg config.Config, progress func(done, total int64)) (*Local, error) {
	if err := refuseUnenforced(cfg); err != nil {
		return nil, err
	}
	scratch := filepath.Join(cfg.StateDir, "scratch")
	images := filepath.Join(cfg.CacheDir, "images")
	for _, dir := range []string{cfg.StateDir, cfg.CacheDir, cfg.RuntimeDir, scratch, images} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	store, err := image.Open(images)
	if err != nil {
		return nil, err
	}
	provider, err := gvisor.New(gvisor.Config{
		RuntimeDir: cfg.RuntimeDir,
		ScratchDir: scratch,
		Images:     store,
		Engine:     cfg.Engine,
		Memory:     cfg.Sandbox.MemoryLimit / 2, // a layer in memory must leave room for programs
		Progress:   progress,
	})
	if err != nil {
		return nil, err
	}
	return &Local{cfg: cfg, provider: provider}, nil
}

// refuseUnenforced keeps the promise that a limit somebody asked for is either
// enforced or refused.
func refuseUnenforced(cfg config.Config) error {
	var errs []error
	for _, key := range []config.Key{config.KeyMemoryLimit, config.KeyCPULimit} {
		if cfg.Explicit(key) {
			errs = append(errs, sandpit.WithHint(
				sandpit.Errorf(sandpit.Unsupported, "%s: %s cannot be enforced by this version", cfg.Sources[key], key),
				"leave it out"))
		}
	}
	if cfg.Sandbox.NetworkEnabled {
		errs = append(errs, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "%s: sandboxes are always offline in this version",
				cfg.Sources[config.KeyNetworkEnabled]),
			"leave network_enabled out, or set it to false"))
	}
	return errors.Join(errs...)
}

// Create makes a sandbox, with the configuration's defaults for what spec
// leaves open.
func (l *Local) Create(ctx context.Context, spec sandpit.Spec) (sandpit.Instance, error) {
	spec = spec.Clone()
	if spec.Image == "" {
		spec.Image = l.cfg.Sandbox.Image
	}
	if spec.WorkDir == "" {
		spec.WorkDir = l.cfg.Sandbox.WorkDir
	}
	env := map[string]string{
		"PYTHONUNBUFFERED": "1", // output is seen as it comes
		"LANG":             "C.UTF-8",
	}
	maps.Copy(env, spec.Env)
	spec.Env = env
	return l.provider.Create(ctx, sandpit.NewID(), spec)
}

// Close destroys every sandbox it made.
func (l *Local) Close() error {
	if err := l.provider.Close(); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}
