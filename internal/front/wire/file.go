package wire

import (
	"fmt"
	"io/fs"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The types of files.
const (
	TypeFile      = "file"
	TypeDirectory = "directory"
	TypeSymlink   = "symlink"
	TypeOther     = "other"
)

// Entry describes one file inside a sandbox.
type Entry struct {
	Name string `json:"name"`
	Path string `json:"path" doc:"Absolute."`
	Type string `json:"type" enum:"file,directory,symlink,other"`
	// Mode is the permissions in octal, such as "0644".
	Mode       string            `json:"mode" doc:"Permissions in octal, such as 0644."`
	Size       int64             `json:"size" doc:"Bytes."`
	Owner      string            `json:"owner,omitempty"`
	Group      string            `json:"group,omitempty"`
	ModifiedAt time.Time         `json:"modified_at,omitzero" doc:"By the sandbox's clock."`
	LinkTarget string            `json:"link_target,omitempty" doc:"Where a symbolic link leads, absolute."`
	Metadata   map[string]string `json:"metadata,omitempty" doc:"The marks that it was written with."`
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

// MakeDir asks for a directory, with its parents.
type MakeDir struct {
	Path string `json:"path" minLength:"1"`
	User string `json:"user,omitempty" doc:"Whom it belongs to. Default: the sandbox's user."`
}

// Move asks for a file or directory to be renamed.
type Move struct {
	From string `json:"from" minLength:"1"`
	To   string `json:"to" minLength:"1" doc:"Its new path. Missing directories are made."`
	User string `json:"user,omitempty" doc:"Where relative paths begin. Default: the sandbox's user."`
}
