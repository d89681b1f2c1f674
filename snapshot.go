package sandpit

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"io"
	"strings"
	"time"
)

// SnapshotID identifies a snapshot for its whole life.
type SnapshotID string

var snapshotPattern = newPattern(`^snap[a-z2-7]{16}$`)

// NewSnapshotID returns a SnapshotID with 80 bits of randomness.
func NewSnapshotID() SnapshotID {
	raw := make([]byte, 10)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return SnapshotID("snap" + strings.ToLower(base32.StdEncoding.EncodeToString(raw)))
}

// Validate returns an Invalid error unless id has the form NewSnapshotID gives it. Use
// it on every SnapshotID from outside: they become file names.
func (id SnapshotID) Validate() error {
	if !snapshotPattern().MatchString(string(id)) {
		return Errorf(Invalid, "snapshot id %q: want \"snap\" and 16 lower-case letters and digits", string(id))
	}
	return nil
}

// CheckSnapshotName returns an Invalid error unless name is a valid snapshot name. A name
// must not look like an ID.
func CheckSnapshotName(name string) error {
	if !volumePattern().MatchString(name) || snapshotPattern().MatchString(name) {
		return Errorf(Invalid, "snapshot %.100q: want letters, digits, and inside also - _ and dots, at most 63", name)
	}
	return nil
}

const snapshotImage = "snapshot:"

// SnapshotImage returns the Spec.Image of a sandbox that starts from a snapshot.
//
// Such a sandbox has the snapshot's image, mounts, limits and network mode; the Spec must
// name the same or none. Labels, environment, user, working directory and network rules
// come from the Spec and apply to new commands. If the snapshot has memory, its programs
// continue.
func SnapshotImage(id SnapshotID) Image { return Image(snapshotImage + string(id)) }

// Snapshot returns the snapshot that i names, if it names one.
func (i Image) Snapshot() (SnapshotID, bool) {
	id, ok := strings.CutPrefix(string(i), snapshotImage)
	return SnapshotID(id), ok
}

// Snapshot is a saved state with a name, from which sandboxes can be created.
type Snapshot struct {
	ID SnapshotID `json:"id"`
	// Name, Owner and Provider are set by the manager; providers leave them empty.
	Name     string `json:"name,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Provider string `json:"provider,omitempty"`
	// Sandbox is the sandbox it was taken from, which may no longer exist.
	Sandbox ID `json:"sandbox,omitempty"`
	// Spec is that of the sandbox, without its environment.
	Spec Spec `json:"spec"`
	// Memory says that it contains running programs, not only files.
	Memory bool `json:"memory,omitempty"`
	// Size is in bytes on disk.
	Size int64 `json:"size"`
	// Unloadable is why no sandbox can be created from it here, "" if one can. Its files
	// can still be read.
	Unloadable string    `json:"unloadable,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
}

// The interfaces below are optional abilities of an Instance.

// Snapshotter saves a sandbox, which keeps running.
type Snapshotter interface {
	// Snapshot saves a running or paused sandbox under an ID chosen by the caller. The
	// sandbox itself does not change. ListSnapshots returns the snapshot only once it is
	// complete; after an error nothing of it remains.
	//
	// AlreadyExists: the ID is in use. Conflict: the sandbox is stopped. Exhausted: no
	// space. Unsupported: this sandbox cannot be saved; the error says why.
	Snapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
}

// Rollbacker returns a sandbox to one of its snapshots.
type Rollbacker interface {
	// Rollback returns a running or paused sandbox to a snapshot of it: the sandbox runs
	// with the files, and the programs if the snapshot has memory. ID, handle and key do
	// not change. After an error the sandbox is unchanged.
	//
	// NotFound: no such snapshot. Invalid: a snapshot of another sandbox. Conflict: the
	// sandbox is stopped.
	Rollback(ctx context.Context, id SnapshotID) error
}

// Suspender suspends a sandbox: it saves memory and files to disk and frees the memory.
type Suspender interface {
	// Suspend saves a running or paused sandbox with its programs. It is paused then:
	// Pauser.Resume continues it, also after a reboot of the machine. Connections into and
	// out of it are closed. After an error the sandbox is unchanged.
	//
	// Conflict: it is stopped or already suspended. Exhausted: no space on disk.
	// Unsupported: this sandbox cannot be saved; the error says why.
	Suspend(ctx context.Context) error
}

// Checkpointer saves the files of a running sandbox for recovery: a crash of the engine loses
// only what was written since.
type Checkpointer interface {
	// Checkpoint replaces the previous checkpoint once the new one is complete on disk.
	// Reviver.Revive starts from it. After an error the previous one remains, and the
	// sandbox runs.
	//
	// Conflict: the sandbox is not running. Exhausted: no space on disk.
	Checkpoint(ctx context.Context) error
}

// LayerReader returns the files that a sandbox changed.
type LayerReader interface {
	// ReadLayer opens the differences between the sandbox's files and its image as a layer
	// of an OCI image: a tar stream in which ".wh." files stand for removed files. Mounts
	// are omitted. A file that changes meanwhile may be inconsistent. The caller closes
	// the stream.
	//
	// Conflict: the sandbox is not running.
	ReadLayer(ctx context.Context) (io.ReadCloser, error)
}

// SnapshotKeeper is an ability of a Provider whose Instances are Snapshotters.
type SnapshotKeeper interface {
	// ListSnapshots returns all complete snapshots. The provider itself removes incomplete
	// ones that a crash left.
	ListSnapshots(ctx context.Context) ([]Snapshot, error)
	// RemoveSnapshot is idempotent. Sandboxes created from the snapshot are not affected.
	RemoveSnapshot(ctx context.Context, id SnapshotID) error
	// ReadSnapshotLayer is LayerReader.ReadLayer for a snapshot, also for one that is
	// Unloadable. NotFound.
	ReadSnapshotLayer(ctx context.Context, id SnapshotID) (io.ReadCloser, error)
	// ExportSnapshot writes a complete snapshot as one stream. NotFound.
	ExportSnapshot(ctx context.Context, id SnapshotID, to io.Writer) error
	// ImportSnapshot adds a snapshot that ExportSnapshot wrote, here or elsewhere, under an
	// ID chosen by the caller. The stream is untrusted. After an error nothing remains.
	//
	// AlreadyExists: the ID is in use. Invalid: not such a stream. Exhausted: no space.
	ImportSnapshot(ctx context.Context, id SnapshotID, from io.Reader) (Snapshot, error)
}
