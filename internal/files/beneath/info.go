package beneath

import (
	"io/fs"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fileInfo is an fs.FileInfo from a stat call.
type fileInfo struct {
	name string
	stat syscall.Stat_t
}

func newFileInfo(name string, s *unix.Stat_t) *fileInfo {
	return &fileInfo{name: name, stat: syscall.Stat_t{
		Dev: s.Dev, Ino: s.Ino, Nlink: s.Nlink, Mode: s.Mode, Uid: s.Uid, Gid: s.Gid, Rdev: s.Rdev,
		Size: s.Size, Blksize: s.Blksize, Blocks: s.Blocks,
		Atim: syscall.Timespec(s.Atim), Mtim: syscall.Timespec(s.Mtim), Ctim: syscall.Timespec(s.Ctim),
	}}
}

func (i *fileInfo) Name() string       { return i.name }
func (i *fileInfo) Size() int64        { return i.stat.Size }
func (i *fileInfo) IsDir() bool        { return i.Mode().IsDir() }
func (i *fileInfo) Sys() any           { return &i.stat }
func (i *fileInfo) ModTime() time.Time { return time.Unix(i.stat.Mtim.Unix()) }

func (i *fileInfo) Mode() fs.FileMode {
	mode := fs.FileMode(i.stat.Mode & 0o777)
	switch i.stat.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		mode |= fs.ModeDir
	case unix.S_IFLNK:
		mode |= fs.ModeSymlink
	case unix.S_IFBLK:
		mode |= fs.ModeDevice
	case unix.S_IFCHR:
		mode |= fs.ModeDevice | fs.ModeCharDevice
	case unix.S_IFIFO:
		mode |= fs.ModeNamedPipe
	case unix.S_IFSOCK:
		mode |= fs.ModeSocket
	}
	if i.stat.Mode&unix.S_ISUID != 0 {
		mode |= fs.ModeSetuid
	}
	if i.stat.Mode&unix.S_ISGID != 0 {
		mode |= fs.ModeSetgid
	}
	if i.stat.Mode&unix.S_ISVTX != 0 {
		mode |= fs.ModeSticky
	}
	return mode
}
