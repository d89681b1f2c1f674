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

// describer describes files for one call. It is not safe for concurrent use.
type describer struct {
	names names
	// within says which directories links may lead into.
	within confinement
}

// describeTarget returns the entry of a target.
func (d *describer) describeTarget(p *target) (*filesystem.EntryInfo, error) {
	entry, err := d.describeFile(p.root, p.rel, p.real)
	if err != nil {
		return nil, err
	}
	entry.Name, entry.Path = path.Base(p.path), p.path
	return entry, nil
}

// describeFile returns the entry of the file rel below root, whose path from the machine's root is real. A symbolic
// link has the type and mode of its target; everything else describes the link itself.
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

// followLink returns where a link leads and the file there. The file is nil if it does not exist or the caller may
// not see it.
func (d *describer) followLink(root *beneath.Root, rel, real string) (target string, info fs.FileInfo) {
	target, err := realPath(real, true)
	if err == nil && d.mayStat(target) {
		if info, err = os.Lstat(target); err == nil {
			return target, info
		}
	}
	link, err := root.Readlink(rel)
	if err != nil {
		return target, nil // no longer a link
	}
	if !path.IsAbs(link) {
		link = path.Join(path.Dir(real), link)
	}
	return link, nil
}

func (d *describer) mayStat(p string) bool {
	_, err := d.within.findBase(&target{real: p})
	return err == nil
}

// metadataPrefix begins the names of the extended attributes in which E2B stores a file's metadata.
const metadataPrefix = "user.e2b."

// maxMetadata bounds the names of one file's extended attributes, and each value, in bytes.
const maxMetadata = 64 << 10

// readMetadata returns the metadata of a file or directory, nil if it cannot be read.
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
			continue // removed meanwhile
		}
		if marks == nil {
			marks = make(map[string]string)
		}
		marks[strings.ToValidUTF8(key, "\uFFFD")] = strings.ToValidUTF8(string(value[:n]), "\uFFFD")
	}
	return marks
}

// writeMetadata sets the metadata of a new file.
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
