package sandpit

// FileDiff is what differs between the files of two sandboxes, snapshots or images.
type FileDiff struct {
	// Changes are in the order of their paths.
	Changes []FileChange `json:"changes"`
	// Truncated says that there are more changes, or patches, than are told.
	Truncated bool `json:"truncated,omitempty"`
}

// FileChange is one file that differs. What is zero is not known, or does not apply.
type FileChange struct {
	// Path is absolute.
	Path string     `json:"path"`
	Kind ChangeKind `json:"kind"`
	// Type is "file", "directory", "link" or "other".
	Type string `json:"type,omitempty"`
	// Mode and Size are those of the second, or of the first if it was removed: permission
	// bits, and bytes.
	Mode    uint32 `json:"mode,omitempty"`
	Size    int64  `json:"size"`
	OldMode uint32 `json:"old_mode,omitempty"`
	OldSize int64  `json:"old_size,omitempty"`
	// Patch is how one text becomes the other, as a unified diff.
	Patch string `json:"patch,omitempty"`
}

// ChangeKind says what became of a file.
type ChangeKind string

// The kinds.
const (
	DiffAdded   ChangeKind = "added"
	DiffChanged ChangeKind = "changed"
	DiffRemoved ChangeKind = "removed"
	// DiffWritten is one that the second has written and the first has as in the image,
	// which was not looked at: it was added or changed.
	DiffWritten ChangeKind = "written"
	// DiffRestored is one that the first has written, or removed, and the second has as in
	// the image.
	DiffRestored ChangeKind = "restored"
)
