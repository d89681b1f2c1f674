package daemon

import (
	"path/filepath"
	"slices"

	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/debian"
)

// debianSource is where images of Debian's packages come from: the mirrors that are
// configured for Debian's own, and that.
func debianSource(cfg config.Config) *debian.Source {
	return &debian.Source{
		Dir:     filepath.Join(cfg.CacheDir, "debian"),
		Mirrors: append(slices.Clone(cfg.Image.Mirrors[debian.Host]), debian.Host),
	}
}
