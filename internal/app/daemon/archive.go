package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/files/archive"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// archiveDir is where the files of archived sandboxes go if they go to a directory.
func archiveDir(cfg config.Config) string {
	return cmp.Or(cfg.Archive.Dir, filepath.Join(cfg.StateDir, "archive"))
}

// archiveDisk returns the disk of the archive, or nil if the archive is not a directory of
// this machine or does not exist yet.
func (s *service) archiveDisk() (*diskspace.Disk, error) {
	if s.cfg.Archive.S3 != "" {
		return nil, nil
	}
	disk, err := s.disks.At(archiveDir(s.cfg))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return disk, err
}

// openArchive opens where the files of archived sandboxes go. A store that is elsewhere is
// not asked yet: a server starts without it.
func openArchive(cfg config.Config) (archive.Store, error) {
	c := cfg.Archive
	if c.S3 == "" {
		return archive.OpenDir(archiveDir(cfg))
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
