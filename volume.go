package sandpit

import (
	"context"
	"regexp"
	"time"
)

// Volume is a directory that several sandboxes can see at the same time, and that
// outlives them.
type Volume struct {
	// Name is what its owner calls it.
	Name string `json:"name"`
	// Owner is whose sandboxes may have it.
	Owner string `json:"owner,omitempty"`
	// Provider keeps it; only sandboxes of the same one can have it.
	Provider  string    `json:"provider"`
	CreatedAt time.Time `json:"created_at"`
	// Size is how many bytes its files take on disk. Default: nobody has counted, or
	// can.
	Size *int64 `json:"size,omitempty"`
	// Sandboxes are those that have it, running or not. Default: none, or nobody has
	// looked.
	Sandboxes []ID `json:"sandboxes,omitempty"`
}

// VolumeKeeper is an optional ability of a Provider: it keeps volumes, and the mounts
// of its sandboxes may name them. Names are as CheckVolumeName wants them, and whose
// they are is not its business.
//
// A new volume is empty, and its directory belongs to root of the sandboxes. Whoever
// has it sees at once what others write. Deleting a sandbox, or closing the provider,
// does not touch it. Create answers NotFound for a sandbox whose volume is not there.
type VolumeKeeper interface {
	// CreateVolume makes a volume. One that is there already stays as it is.
	//
	// Unsupported: volumes cannot be kept here.
	CreateVolume(ctx context.Context, name string) error

	// RemoveVolume removes a volume with all of its files. What is not there is no
	// error.
	//
	// Conflict: a sandbox has it.
	RemoveVolume(ctx context.Context, name string) error

	// VolumeSize counts the bytes that the files of a volume take on disk.
	//
	// NotFound: no such volume. Unsupported: they cannot be counted.
	VolumeSize(ctx context.Context, name string) (int64, error)
}

var volumePattern = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,62}$`)

// CheckVolumeName returns an Invalid error unless name can be that of a volume: use it
// on every name that comes from outside, for names become those of files.
func CheckVolumeName(name string) error {
	if !volumePattern.MatchString(name) {
		return WithHint(Errorf(Invalid, "volume %.100q: want letters, digits, and inside also - _ and dots, at most 63", name),
			"a directory of the machine starts with / or ./")
	}
	return nil
}

// CheckSource returns an Invalid error unless m says in one way what shall be seen.
// The path itself is not looked at.
func (m Mount) CheckSource() error {
	if m.Temporary && m.ReadOnly {
		return Errorf(Invalid, "mount on %.200q: a temporary directory that nobody may write would stay empty", m.Target)
	}
	if m.Keep && !m.Temporary {
		return Errorf(Invalid, "mount on %.200q: only a temporary directory is removed, so only that can be kept", m.Target)
	}
	if m.Volume == "" {
		return nil
	}
	if m.Source != "" || m.Temporary {
		return Errorf(Invalid, "mount on %.200q: it has a source and a volume, or is a temporary one, too; want one of them", m.Target)
	}
	return CheckVolumeName(m.Volume)
}
