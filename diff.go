package sandpit

// FileDiff lists the differences between the files of two sandboxes, snapshots or images.
type FileDiff struct {
	// Changes are sorted by path.
	Changes []FileChange `json:"changes"`
	// Truncated says that some changes or patches are omitted.
	Truncated bool `json:"truncated,omitempty"`
}

// FileChange is one file that differs. A zero field is unknown or does not apply.
type FileChange struct {
	// Path is absolute.
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	// Type is "file", "directory", "link" or "other".
	Type string `json:"type,omitempty"`
	// Mode (permission bits) and Size (bytes) are those of the second side, or of the first
	// if the file was removed.
	Mode    uint32 `json:"mode,omitempty"`
	Size    int64  `json:"size"`
	OldMode uint32 `json:"old_mode,omitempty"`
	OldSize int64  `json:"old_size,omitempty"`
	// Patch is a unified diff of the texts.
	Patch string `json:"patch,omitempty"`
}

// ChangeKind is the kind of a FileChange.
type ChangeKind string

// The kinds.
const (
	DiffAdded   ChangeKind = "added"
	DiffChanged ChangeKind = "changed"
	DiffRemoved ChangeKind = "removed"
	// DiffWritten is a file that the second side wrote and the first has as in the image,
	// which is not compared: it was added or changed.
	DiffWritten ChangeKind = "written"
	// DiffRestored is a file that the first side wrote or removed and the second has as in
	// the image.
	DiffRestored ChangeKind = "restored"
)
