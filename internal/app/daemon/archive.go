package daemon

import (
	"errors"
	"io/fs"

	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// archiveDisk returns the disk of the archive, or nil if the archive is not a directory of
// this machine or does not exist yet.
func (s *service) archiveDisk() (*diskspace.Disk, error) {
	if s.cfg.Archive.S3 != "" {
		return nil, nil
	}
	disk, err := s.disks.At(s.cfg.ArchiveDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return disk, err
}
