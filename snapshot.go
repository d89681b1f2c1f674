package sandpit

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"io"
	"regexp"
	"strings"
	"time"
)

// SnapshotID names a snapshot for its whole life.
type SnapshotID string

var snapshotPattern = regexp.MustCompile(`^snap[a-z2-7]{16}$`)

// NewSnapshotID returns a SnapshotID with 80 bits of randomness.
func NewSnapshotID() SnapshotID {
	raw := make([]byte, 10)
	_, _ = rand.Read(raw) // never fails: crypto/rand ends the program instead
	return SnapshotID("snap" + strings.ToLower(base32.StdEncoding.EncodeToString(raw)))
}

// Validate returns an Invalid error unless id has the form NewSnapshotID gives it. Use
// it on every SnapshotID that comes from outside: they become file names.
func (id SnapshotID) Validate() error {
	if !snapshotPattern.MatchString(string(id)) {
		return Errorf(Invalid, "snapshot id %q: want \"snap\" and 16 lower-case letters and digits", string(id))
	}
	return nil
}

// CheckSnapshotName returns an Invalid error unless name can be what an owner calls a
// snapshot. What looks like an ID is no name.
func CheckSnapshotName(name string) error {
	if !volumePattern.MatchString(name) || snapshotPattern.MatchString(name) {
		return Errorf(Invalid, "snapshot %.100q: want letters, digits, and inside also - _ and dots, at most 63", name)
	}
	return nil
}

const snapshotImage = "snapshot:"

// SnapshotImage is what a Spec has for its Image when the sandbox shall begin as the
// snapshot.
//
// Such a sandbox has the snapshot's image, mounts, limits and network mode; what its Spec
// says of them must be the same, or nothing. Labels, environment, user, working
// directory and network rules are the Spec's own, and count for commands that are
// started from then on. If the snapshot has memory, its programs go on.
func SnapshotImage(id SnapshotID) Image { return Image(snapshotImage + string(id)) }

// Snapshot returns which snapshot an image is, if it is one.
func (i Image) Snapshot() (SnapshotID, bool) {
	id, ok := strings.CutPrefix(string(i), snapshotImage)
	return SnapshotID(id), ok
}

// Snapshot is a saved sandbox that others can start from.
type Snapshot struct {
	ID SnapshotID `json:"id"`
	// Name is what its owner calls it, Owner whose it is, and Provider who keeps it.
	// Whoever answers for it knows them; providers leave them empty.
	Name     string `json:"name,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Provider string `json:"provider,omitempty"`
	// Sandbox is what it was taken of, which may be gone.
	Sandbox ID `json:"sandbox,omitempty"`
	// Spec is that of the sandbox, without its environment.
	Spec Spec `json:"spec"`
	// Memory says that programs are in it as they ran, and not files alone.
	Memory bool `json:"memory,omitempty"`
	// Size is in bytes on disk.
	Size int64 `json:"size"`
	// Unloadable is why no sandbox can be made of it here, "" if one can be. Its files
	// can be read all the same.
	Unloadable string    `json:"unloadable,omitempty"`
	CreatedAt  time.Time `json:"created_at"`
}

// The interfaces below are optional abilities of an Instance.

// Snapshotter saves a sandbox, which goes on.
type Snapshotter interface {
	// Snapshot saves a running or paused sandbox under an ID of the caller's. It is there
	// when Snapshot returns nil; after an error nothing of it is left, and the sandbox is
	// as before in any case. Until then ListSnapshots does not tell of it.
	//
	// AlreadyExists: the ID is in use. Conflict: it is stopped. Exhausted: no room.
	// Unsupported: a sandbox such as this one cannot be saved; the error tells why.
	Snapshot(ctx context.Context, id SnapshotID) (Snapshot, error)
}

// Rollbacker makes a sandbox again what it was.
type Rollbacker interface {
	// Rollback makes a running or paused sandbox what a snapshot of it was: it runs, with
	// the files, and the programs if the snapshot has memory. ID, handle and key stay.
	// After an error it is as it was before.
	//
	// NotFound: no such snapshot. Invalid: of another sandbox. Conflict: it is stopped.
	Rollback(ctx context.Context, id SnapshotID) error
}

// Suspender pauses a sandbox on disk.
type Suspender interface {
	// Suspend writes a running or paused sandbox to disk, programs and all, and gives its
	// memory back. It is paused then: Pauser.Resume has it go on, also after the machine
	// was started anew. Connections into and out of it are closed. After an error it is as
	// before.
	//
	// Conflict: it is stopped, or on disk already. Exhausted: no room on disk.
	// Unsupported: a sandbox such as this one cannot be saved; the error tells why.
	Suspend(ctx context.Context) error
}

// Checkpointer saves the files of a running sandbox, so that a crash of what it runs in
// loses no more than what was written since.
type Checkpointer interface {
	// Checkpoint replaces the one before, when it is complete and on disk. Reviver.Revive
	// starts from it. After an error the one before is there still, and the sandbox runs.
	//
	// Conflict: it does not run. Exhausted: no room on disk.
	Checkpoint(ctx context.Context) error
}

// LayerReader tells what a sandbox has changed.
type LayerReader interface {
	// ReadLayer opens what differs between the sandbox's files and its image, as a layer
	// of an OCI image: a tar stream in which ".wh." files stand for what was removed.
	// Mounts are not part of it. What changes while it is read may be in it half. The
	// caller closes it.
	//
	// Conflict: it does not run.
	ReadLayer(ctx context.Context) (io.ReadCloser, error)
}

// SnapshotKeeper is an ability that a Provider has whose Instances are Snapshotters.
type SnapshotKeeper interface {
	// ListSnapshots returns all that are complete. What a crash left half is removed by
	// the provider itself.
	ListSnapshots(ctx context.Context) ([]Snapshot, error)
	// RemoveSnapshot is idempotent. Sandboxes that were made of it go on.
	RemoveSnapshot(ctx context.Context, id SnapshotID) error
	// ReadSnapshotLayer is LayerReader.ReadLayer for a snapshot, also for one that is
	// Unloadable. NotFound.
	ReadSnapshotLayer(ctx context.Context, id SnapshotID) (io.ReadCloser, error)
	// ExportSnapshot writes a snapshot as one stream, with all that it needs. NotFound.
	ExportSnapshot(ctx context.Context, id SnapshotID, to io.Writer) error
	// ImportSnapshot adds what ExportSnapshot wrote, maybe elsewhere, under an ID of the
	// caller's. What it reads is hostile. After an error nothing of it is left.
	//
	// AlreadyExists: the ID is in use. Invalid: not such a stream. Exhausted: no room.
	ImportSnapshot(ctx context.Context, id SnapshotID, from io.Reader) (Snapshot, error)
}
