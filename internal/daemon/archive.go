package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/archive"
	"github.com/sandpit-dev/sandpit/internal/config"
)

// openArchive opens where the files of archived sandboxes go. A store that is elsewhere is
// not asked yet: a server starts without it.
func openArchive(cfg config.Config) (archive.Store, error) {
	c := cfg.Archive
	if c.S3 == "" {
		dir := c.Dir
		if dir == "" {
			dir = filepath.Join(cfg.StateDir, "archive")
		}
		return archive.OpenDir(dir)
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
