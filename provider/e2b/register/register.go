// Package register describes provider e2b to the programs of sandpit.
package register

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/provider/e2b"
)

// Provider returns the description of the provider.
func Provider() registration.Provider {
	return registration.Provider{
		Name:         e2b.Name,
		Endpoint:     endpointOf,
		Instance:     (*e2b.Instance)(nil),
		Open:         openProvider,
		Used:         isUsed,
		DefaultImage: func(cfg config.Config) sandpit.Image { return sandpit.Image(cfg.E2BCloud.Template) },
		Examine:      examineAccount,
	}
}

// isUsed reports whether the server may have sandboxes at the cloud: only with a key.
func isUsed(cfg config.Config) bool { return cfg.E2BCloud.Key != "" }

func endpointOf(cfg config.Config) string {
	return cmp.Or(cfg.E2BCloud.APIURL, "https://api."+cfg.E2BCloud.Domain)
}

// Options returns the options that the configuration sets.
func Options(s registration.Surroundings) e2b.Options {
	c := s.Config.E2BCloud
	o := e2b.Options{
		Key: c.Key.Reveal(), Domain: c.Domain, APIURL: c.APIURL, SandboxURL: c.SandboxURL, Template: c.Template, Timeout: c.Timeout,
		Guest: e2b.GuestMode(c.Guest), Identity: s.Identity, Notice: s.Notice,
	}
	if s.Identity != "" {
		o.SnapshotDir = filepath.Join(s.Config.StateDir, e2b.Name, "snapshots")
	}
	if s.Identity != "" && s.Log != nil {
		o.Notice = func(text string) { s.Log.Warn("provider e2b", slog.String("notice", text)) }
	}
	return o
}

func openProvider(_ context.Context, s registration.Surroundings) (sandpit.Provider, error) {
	return e2b.New(Options(s))
}

// examineAccount checks the key. The finding never fails: if e2b is the configured provider, creating a sandbox fails.
func examineAccount(ctx context.Context, s registration.Surroundings) []registration.Finding {
	f := registration.Finding{Name: e2b.Name}
	if s.Config.E2BCloud.Key == "" {
		f.Text = "provider e2b cannot be used: no API key"
		f.Hint = "for sandboxes in E2B's cloud set E2B_API_KEY to a key of your account"
		return []registration.Finding{f}
	}
	account, err := readAccount(ctx, s)
	if err != nil {
		f.Text, f.Hint = "provider e2b cannot be used: "+err.Error(), sandpit.HintOf(err)
		return []registration.Finding{f}
	}
	f.Text = "the key is valid at " + account.Endpoint
	return []registration.Finding{f}
}

func readAccount(ctx context.Context, s registration.Surroundings) (a sandpit.Account, err error) {
	p, err := e2b.New(Options(s))
	if err != nil {
		return a, err
	}
	a, err = p.ReadAccount(ctx)
	if closeErr := p.Close(); err == nil {
		err = closeErr
	}
	return a, err
}
