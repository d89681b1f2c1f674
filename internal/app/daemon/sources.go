package daemon

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/debian"
	"github.com/sandpit-dev/sandpit/internal/build/npm"
)

// debianSource is where images of Debian's packages come from: the mirrors that are
// configured for Debian's own, and that.
func debianSource(cfg config.Config) *debian.Source {
	return &debian.Source{
		Dir:     filepath.Join(cfg.CacheDir, "debian"),
		Mirrors: append(slices.Clone(cfg.Image.Mirrors[debian.Host]), debian.Host),
	}
}

// npmSource returns the source of npm packages: the mirrors that are configured for npm,
// else the registry that npm uses on this machine.
func npmSource(cfg config.Config) *npm.Source {
	s := &npm.Source{Dir: filepath.Join(cfg.CacheDir, "npm")}
	for _, mirror := range cfg.Image.Mirrors[npm.Name] {
		scheme := "https://"
		if host, _, _ := strings.Cut(mirror, "/"); slices.Contains(cfg.Image.Insecure, host) {
			scheme = "http://"
		}
		s.Registries = append(s.Registries, scheme+mirror)
	}
	return s
}
