// Package tree transfers trees of files as tar streams: Pack writes one, Unpack reads one into a directory.
//
// The first member, "./", is the directory itself; the names of the others are relative to it. A single file is a
// stream of one member with its base name. Symbolic links stay links, and files with several names inside the tree
// stay one file. Modes and times (to the nanosecond) are kept; owners, sockets, devices, pipes and extended
// attributes are not.
//
// A stream is assumed to be hostile. Both directions walk from a beneath.Root with one open directory for each level,
// and access files only by a single name relative to such a directory, without following a link; only the Root
// resolves a link in the middle of a name. So nothing outside can be reached, even if other processes replace
// directories by links meanwhile. The Root's own methods would give the same result with more system calls for each
// file, which is the main cost of many small files inside a sandbox.
package tree

import "slices"

const (
	// bufferSize is how much is read or written at once, in bytes.
	bufferSize = 256 << 10
	// maxDepth is how many levels of directories are allowed. Each level takes an open descriptor.
	maxDepth = 512
	// maxSkipped is how many names a Report lists.
	maxSkipped = 100
)

// Options configure Unpack. The zero value stays in the target directory without any bound on size; set the bounds
// for a stream from a sandbox.
type Options struct {
	// Owner is the owner of all created files. Existing directories, the target included, keep theirs. Default: the
	// user of the process.
	Owner *Owner
	// OutsideLinks keeps symbolic links that lead out of the tree. Default: they are skipped. A link counts as
	// leading out if it is absolute, if it begins with more ".." than there are directories above it, or if it has
	// ".." after a name, because that name may become a link itself. Existing links are not checked.
	OutsideLinks bool
	// SpecialBits keeps setuid, setgid and sticky bits. Default: they are dropped; an existing directory keeps its
	// own.
	SpecialBits bool
	// KeepTop leaves the mode and time of the target directory unchanged. Default: it gets those of the member "./".
	KeepTop bool
	// MaxBytes bounds the content of all files together, holes of sparse files included, in bytes. Exhausted: the
	// stream has more. Default: no bound.
	MaxBytes int64
	// MaxEntries bounds the number of members, skipped ones included. Exhausted: the stream has more. Default: no
	// bound.
	MaxEntries int
	// Reserve is called before bytes are written, except for holes of sparse files, and with MemberBytes before each
	// member is created. An error ends Unpack. Default: no call.
	Reserve func(bytes int64) error
}

// MemberBytes is about how much disk space a member takes besides its content.
const MemberBytes = 4 << 10

// Owner is a user and a group by number.
type Owner struct{ UID, GID int }

// Report says what Unpack has done, also after an error.
type Report struct {
	Files int // regular files
	Dirs  int // directories, without the target itself
	Links int // symbolic and hard links
	// Bytes is the content of the files.
	Bytes int64
	// Skipped holds the names of the first 100 members that were left out: devices, pipes, sockets, and links that
	// lead outside. The names come from the stream unchanged.
	Skipped []string
	// SkippedMore is how many further members were left out.
	SkippedMore int
}

func (r *Report) addSkipped(name string) {
	if len(r.Skipped) == maxSkipped {
		r.SkippedMore++
		return
	}
	r.Skipped = append(r.Skipped, name)
}

// detach returns a copy that later changes do not affect.
func (r *Report) detach() Report {
	c := *r
	c.Skipped = slices.Clone(r.Skipped)
	return c
}
