package guest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
)

// describer tells about files. It lives as long as one call; not for concurrent
// use.
type describer struct {
	names names
	// within are the directories that links may be followed into; empty means
	// all.
	within []string
}

// describeTarget tells about a place.
func (d *describer) describeTarget(p *target) (*filesystem.EntryInfo, error) {
	entry, err := d.describeFile(p.root, p.rel, p.real)
	if err != nil {
		return nil, err
	}
	entry.Name, entry.Path = path.Base(p.path), p.path
	return entry, nil
}

// describeFile tells about the file rel below root, which is real from the machine's
// root. A symbolic link has the type and mode of what it leads to, and all else
// of its own.
func (d *describer) describeFile(root *beneath.Root, rel, real string) (*filesystem.EntryInfo, error) {
	own, err := root.Lstat(rel)
	if err != nil {
		return nil, err
	}
	entry := &filesystem.EntryInfo{
		Name:         strings.ToValidUTF8(path.Base(real), "\uFFFD"),
		Path:         strings.ToValidUTF8(real, "\uFFFD"),
		Size:         own.Size(),
		Permissions:  own.Mode().String(),
		ModifiedTime: timestamppb.New(own.ModTime()),
	}
	if st, ok := own.Sys().(*syscall.Stat_t); ok {
		entry.Owner, entry.Group = d.names.userName(st.Uid), d.names.groupName(st.Gid)
	}
	final := own
	if own.Mode()&fs.ModeSymlink != 0 {
		target, info := d.followLink(root, rel, real)
		target = strings.ToValidUTF8(target, "\uFFFD")
		entry.SymlinkTarget = &target
		if info == nil {
			return entry, nil
		}
		final = info
	}
	entry.Mode = uint32(final.Mode().Perm())
	switch {
	case final.IsDir():
		entry.Type = filesystem.FileType_FILE_TYPE_DIRECTORY
	case final.Mode().IsRegular():
		entry.Type = filesystem.FileType_FILE_TYPE_FILE
	}
	if own.Mode().IsRegular() || own.IsDir() {
		entry.Metadata = readMetadata(root, rel)
	}
	return entry, nil
}

// followLink returns where a link leads and what is there, nil if nothing or nothing
// that may be looked at.
func (d *describer) followLink(root *beneath.Root, rel, real string) (target string, info fs.FileInfo) {
	target, err := realPath(real, true)
	if err == nil && d.mayStat(target) {
		if info, err = os.Lstat(target); err == nil {
			return target, info
		}
	}
	link, err := root.Readlink(rel)
	if err != nil {
		return target, nil // it has become something else
	}
	if !path.IsAbs(link) {
		link = path.Join(path.Dir(real), link)
	}
	return link, nil
}

func (d *describer) mayStat(p string) bool {
	for _, dir := range d.within {
		if real, err := realPath(path.Clean(dir), true); err == nil && isWithin(real, p) {
			return true
		}
	}
	return len(d.within) == 0
}

// metadataPrefix is where E2B keeps the marks of a file.
const metadataPrefix = "user.e2b."

// maxMetadata bounds the names of one file's extended attributes, in bytes, and
// each value.
const maxMetadata = 64 << 10

// readMetadata returns the marks of a file or directory. One that cannot be
// asked has none.
func readMetadata(root *beneath.Root, rel string) map[string]string {
	f, err := root.OpenFile(rel, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	fd := int(f.Fd())
	size, err := unix.Flistxattr(fd, nil)
	if err != nil || size <= 0 {
		return nil
	}
	list := make([]byte, min(size, maxMetadata))
	if size, err = unix.Flistxattr(fd, list); err != nil {
		return nil
	}
	var marks map[string]string
	for name := range strings.SplitSeq(string(list[:size]), "\x00") {
		key, ours := strings.CutPrefix(name, metadataPrefix)
		if !ours {
			continue
		}
		value := make([]byte, maxMetadata)
		n, err := unix.Fgetxattr(fd, name, value)
		if err != nil {
			continue // taken away meanwhile
		}
		if marks == nil {
			marks = make(map[string]string)
		}
		marks[strings.ToValidUTF8(key, "\uFFFD")] = strings.ToValidUTF8(string(value[:n]), "\uFFFD")
	}
	return marks
}

// writeMetadata gives marks to a file that has none.
func writeMetadata(f *os.File, marks map[string]string) error {
	for key, value := range marks {
		err := unix.Fsetxattr(int(f.Fd()), metadataPrefix+key, []byte(value), 0)
		if errors.Is(err, unix.ENOTSUP) {
			return &fs.PathError{Op: "keep metadata of", Path: f.Name(), Err: errors.ErrUnsupported}
		}
		if err != nil {
			return &fs.PathError{Op: "set metadata " + strconv.Quote(key) + " of", Path: f.Name(), Err: err}
		}
	}
	return nil
}
