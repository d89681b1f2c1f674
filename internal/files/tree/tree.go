// Package tree carries trees of files as tar streams, both ways: Pack writes
// one, Unpack reads one into a directory.
//
// The first member, "./", is the directory itself; the others are named
// relative to it. A plain file is a stream of one member with its base name.
// Symbolic links stay links, and files with several names inside the tree stay
// one file. Modes and times (to the nanosecond) are kept; owners are not
// carried, nor are sockets, devices, pipes and extended attributes.
//
// A stream is taken to be hostile. Both directions walk from a beneath.Root with
// one open directory a level, and touch files only by a single name relative to
// such a directory, never following a link; a link in the middle of a name is
// resolved by the Root alone. So nothing outside can be reached, also while
// somebody else exchanges directories and links. The Root's own methods would do
// the same with more system calls for each file, which is what moving many small
// files costs inside a sandbox.
package tree

import "slices"

const (
	// bufferSize is how much is read or written at once, in bytes.
	bufferSize = 256 << 10
	// maxDepth is how many directories may be inside each other. Each level is
	// an open descriptor while it is worked on.
	maxDepth = 512
	// maxSkipped is how many names a Report lists.
	maxSkipped = 100
)

// Options are how Unpack unpacks. The zero value keeps to the target directory
// without any bound on size; set the bounds for a stream from a sandbox.
type Options struct {
	// Owner is given to everything that is made. Directories that were there
	// keep theirs, the target included. Default: whoever runs this.
	Owner *Owner
	// OutsideLinks keeps symbolic links that lead out of the tree. Default: they
	// are skipped. A link counts as leading out if it is absolute, if it has more
	// leading ".." than directories above it, or ".." after a name, since that
	// name may become a link itself. Links that were there before lead on to
	// where they do.
	OutsideLinks bool
	// SpecialBits keeps setuid, setgid and sticky bits. Default: they are
	// dropped, and a directory that was there keeps its own.
	SpecialBits bool
	// KeepTop leaves the mode and time of the target directory as they are.
	// Default: it gets those of the member "./".
	KeepTop bool
	// MaxBytes bounds the content of all files together, holes of sparse files
	// included, in bytes; beyond: Exhausted. Default: no bound.
	MaxBytes int64
	// MaxEntries bounds the number of members, skipped ones included; beyond:
	// Exhausted. Default: no bound.
	MaxEntries int
	// Reserve is called before bytes are written, holes of sparse files left aside, and
	// with MemberBytes before each member is made. An error ends the unpacking. Default:
	// nothing is asked.
	Reserve func(bytes int64) error
}

// MemberBytes is what a member takes on a disk besides its content, about.
const MemberBytes = 4 << 10

// Owner is a user and a group by number.
type Owner struct{ UID, GID int }

// Report says what Unpack has done, also when it ended with an error.
type Report struct {
	Files int // regular files
	Dirs  int // directories, the target itself left out
	Links int // symbolic and hard links
	// Bytes is the content of the files.
	Bytes int64
	// Skipped names what was left out, the first 100: devices, pipes, sockets,
	// and links that lead outside. The names are the stream's own words.
	Skipped []string
	// SkippedMore is how many more there were.
	SkippedMore int
}

func (r *Report) addSkipped(name string) {
	if len(r.Skipped) == maxSkipped {
		r.SkippedMore++
		return
	}
	r.Skipped = append(r.Skipped, name)
}

// detach detaches the report from its maker.
func (r *Report) detach() Report {
	c := *r
	c.Skipped = slices.Clone(r.Skipped)
	return c
}
