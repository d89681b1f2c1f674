package wire

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The values of Entry.Type.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeOther     = "other"
)

// Entry describes one file inside a sandbox.
type Entry struct {
	Name       string            `json:"name"`
	Path       string            `json:"path" doc:"Absolute path."`
	Type       string            `json:"type" enum:"file,directory,symlink,other"`
	Mode       string            `json:"mode" doc:"Permissions in octal, such as 0644."`
	Size       int64             `json:"size" doc:"Bytes."`
	Owner      string            `json:"owner,omitempty"`
	Group      string            `json:"group,omitempty"`
	ModifiedAt time.Time         `json:"modified_at,omitzero" doc:"By the clock of the sandbox."`
	LinkTarget string            `json:"link_target,omitempty" doc:"Target of a symbolic link, as an absolute path."`
	Metadata   map[string]string `json:"metadata,omitempty" doc:"Metadata that was given when the file was written."`
}

// EntryOf describes f.
func EntryOf(f sandpit.File) Entry {
	kind := TypeOther
	switch {
	case f.Mode&fs.ModeSymlink != 0:
		kind = TypeSymlink
	case f.Mode.IsDir():
		kind = TypeDirectory
	case f.Mode.IsRegular():
		kind = TypeFile
	}
	return Entry{
		Name: f.Name, Path: f.Path, Type: kind, Mode: fmt.Sprintf("%04o", f.Mode.Perm()), Size: f.Size,
		Owner: f.Owner, Group: f.Group, ModifiedAt: f.ModifiedAt, LinkTarget: f.LinkTarget, Metadata: f.Metadata,
	}
}

// MakeDir is a request to create a directory and its parents.
type MakeDir struct {
	Path string `json:"path" minLength:"1"`
	User string `json:"user,omitempty" doc:"The user that owns the directory. Default: the sandbox's user."`
}

// Move is a request to rename a file or directory.
type Move struct {
	From string `json:"from" minLength:"1"`
	To   string `json:"to" minLength:"1" doc:"The new path. Missing directories are created."`
	User string `json:"user,omitempty" doc:"The user in whose home directory relative paths start. Default: the sandbox's user."`
}
