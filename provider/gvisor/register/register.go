// Package register describes provider gvisor to the programs of sandpit.
package register

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

const name = "gvisor"

// Provider returns the description of the provider.
func Provider() registration.Provider {
	return registration.Provider{
		Name:              name,
		Endpoint:          func(cfg config.Config) string { return cmp.Or(cfg.Engine, "built in") },
		Instance:          (*gvisor.Instance)(nil),
		Open:              openProvider,
		UsesImageCache:    true,
		TrialImage:        sandpit.HostImage,
		EndsSandboxes:     true,
		CheckLimits:       gvisor.CheckLimits,
		EnforceableLimits: gvisor.EnforceableLimits,
		Examine:           examineMachine,
		EnterGroup:        func(memory int64) (registration.Group, error) { return gvisor.EnterServerGroup(memory) },
		UpgradeState:      upgradeState,
	}
}

func openProvider(ctx context.Context, s registration.Surroundings) (sandpit.Provider, error) {
	if s.Lasting {
		c, err := serverConfig(ctx, s)
		if err != nil {
			return nil, err
		}
		return gvisor.New(c)
	}
	c, err := localConfig(s)
	if err != nil {
		return nil, err
	}
	return gvisor.New(c)
}

// localConfig configures a provider whose sandboxes end with this program.
func localConfig(s registration.Surroundings) (gvisor.Config, error) {
	c := gvisor.Config{
		RuntimeDir: s.Config.RuntimeDir,
		ScratchDir: filepath.Join(s.Config.StateDir, "scratch"),
		Images:     s.Images,
		Engine:     s.Config.Engine,
		Defaults:   s.Config.Sandbox.Limits(),
		Notice:     s.Notice,
		Progress:   s.Progress,
	}
	return c, makeDirs(s.Config.StateDir, c.RuntimeDir, c.ScratchDir)
}

// serverConfig configures a provider whose sandboxes outlive the server.
func serverConfig(ctx context.Context, s registration.Surroundings) (gvisor.Config, error) {
	c, err := localConfig(s)
	if err != nil {
		return c, err
	}
	state := s.Config.StateDir
	c.VolumeDir, c.KeepDir = filepath.Join(state, "volumes"), filepath.Join(state, "stopped")
	c.SnapshotDir, c.SuspendDir = filepath.Join(state, "snapshots"), filepath.Join(state, "suspended")
	c.CheckpointBytes, c.CheckpointAge = s.Config.Manager.MaxCheckpointBytes, s.Config.Manager.MaxCheckpointAge
	c.Lasting = true
	c.ServerGroup, _ = s.Group.(*gvisor.ServerGroup)
	c.EngineLost = func(words string) {
		s.Log.ErrorContext(ctx, "provider: engine lost", slog.String("provider", name), slog.String("words", words))
	}
	c.Notice = func(text string) {
		s.Log.WarnContext(ctx, "a default limit cannot be enforced", slog.String("limit", text))
	}
	c.Archive, err = openArchive(s.Config)
	return c, errors.Join(err, makeDirs(c.KeepDir))
}

func makeDirs(dirs ...string) error {
	for _, dir := range dirs {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return err
		}
	}
	return nil
}

// openArchive opens the storage of archived sandboxes. It does not connect to a store that is
// elsewhere, so a server starts without it.
func openArchive(cfg config.Config) (archive.Store, error) {
	c := cfg.Archive
	if c.S3 == "" {
		return archive.OpenDir(cfg.ArchiveDir())
	}
	o := archive.S3Options{URL: c.S3, Region: c.S3Region, Access: c.S3AccessKey.Reveal(), Secret: c.S3SecretKey.Reveal()}
	if c.S3CA != "" {
		var err error
		if o.Roots, err = os.ReadFile(c.S3CA); err != nil {
			return nil, fmt.Errorf("read the authorities of the archive: %w", err)
		}
	}
	return archive.OpenS3(o)
}

// examineMachine checks this machine if its sandboxes are gVisor's.
func examineMachine(_ context.Context, s registration.Surroundings) (list []registration.Finding) {
	if s.Config.Provider != name {
		return nil
	}
	for _, f := range gvisor.Examine(s.Config.Engine) {
		list = append(list, registration.Finding(f))
	}
	return list
}

func upgradeState(ctx context.Context, s registration.Surroundings) (list []registration.Upgraded, err error) {
	c, err := serverConfig(ctx, s)
	if err != nil {
		return nil, err
	}
	c.Lasting = false // what is loaded for the upgrade ends with this program
	p, err := gvisor.New(c)
	if err != nil {
		return nil, err
	}
	upgraded, err := p.UpgradeState(ctx)
	for _, u := range upgraded {
		list = append(list, registration.Upgraded(u))
	}
	return list, errors.Join(err, p.Close())
}
