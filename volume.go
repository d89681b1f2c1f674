package sandpit

import (
	"context"
	"io/fs"
	"strings"
	"time"
)

// Volume is a directory that outlives sandboxes and can be mounted in several at the same
// time.
type Volume struct {
	// Name is unique for its Owner.
	Name string `json:"name"`
	// Owner is the owner whose sandboxes may mount it.
	Owner string `json:"owner,omitempty"`
	// Provider stores it; only sandboxes of the same provider can mount it.
	Provider  string    `json:"provider"`
	CreatedAt time.Time `json:"created_at"`
	// Size is the size of its files on disk, in bytes. Default: unknown.
	Size *int64 `json:"size,omitempty"`
	// Sandboxes are the sandboxes that mount it, running or not. Default: none or unknown.
	Sandboxes []ID `json:"sandboxes,omitempty"`
}

// VolumeKeeper is an optional ability of a Provider: it stores volumes, and mounts of its
// sandboxes may name them. Names pass CheckVolumeName. The provider does not know owners.
//
// A new volume is empty, and its directory belongs to root of the sandboxes. A sandbox that
// mounts it sees at once what others write. Deleting a sandbox or closing the provider does
// not change it. Create returns NotFound for a sandbox whose volume does not exist.
type VolumeKeeper interface {
	// CreateVolume creates a volume. An existing one is not changed.
	//
	// Unsupported: this provider cannot store volumes.
	CreateVolume(ctx context.Context, name string) error

	// RemoveVolume removes a volume with all of its files. A missing volume is not an
	// error.
	//
	// Conflict: a sandbox mounts it.
	RemoveVolume(ctx context.Context, name string) error

	// VolumeSize returns the size of a volume's files on disk, in bytes.
	//
	// NotFound: no such volume. Unsupported: the size is unknown. Exhausted: there are too many
	// files, or directories are nested too deeply, to measure it.
	VolumeSize(ctx context.Context, name string) (int64, error)
}

var volumePattern = newPattern(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// CheckVolumeName returns an Invalid error unless name is a valid volume name. Use it on
// every name from outside: names become file names.
func CheckVolumeName(name string) error {
	if !volumePattern().MatchString(name) {
		return WithHint(Errorf(Invalid, "volume %.100q: want letters, digits, and inside also - _ and dots, at most 63", name),
			"a directory of the machine starts with / or ./")
	}
	return nil
}

// maxSubpath bounds Mount.Subpath, in bytes.
const maxSubpath = 1024

// CheckSource returns an Invalid error unless m has exactly one kind of source. It does not
// check the path itself.
func (m Mount) CheckSource() error {
	if m.Temporary && m.ReadOnly {
		return Errorf(Invalid, "mount on %.200q: a temporary directory cannot be read-only: it would stay empty", m.Target)
	}
	if m.Keep && !m.Temporary {
		return Errorf(Invalid, "mount on %.200q: keep is only for a temporary directory", m.Target)
	}
	if m.Subpath != "" && (m.Volume == "" || !fs.ValidPath(m.Subpath) || m.Subpath == "." || len(m.Subpath) > maxSubpath || strings.Contains(m.Subpath, "\x00")) {
		return Errorf(Invalid, "mount on %.200q: subpath %.200q: want a relative path of a directory in a volume, without . and ..", m.Target, m.Subpath)
	}
	if m.Volume == "" {
		return nil
	}
	if m.Source != "" || m.Temporary {
		return Errorf(Invalid, "mount on %.200q: want one of a source, a volume and a temporary directory", m.Target)
	}
	return CheckVolumeName(m.Volume)
}
