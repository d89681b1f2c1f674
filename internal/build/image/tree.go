//nolint:gosec // times and sizes are hashed bit by bit, regardless of their sign
package image

import (
	"encoding/binary"
	"hash"
	"maps"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// What Linux allows.
const (
	maxName  = 255  // bytes of a file name
	maxPath  = 4095 // bytes of a path or of a link's target
	maxLinks = 40   // symbolic links followed for one path
)

// node is a file of an image that is being built. A file with hard links is one node with
// several names.
type node struct {
	mode     uint32 // type and permission bits, as in stat
	uid, gid uint32
	mtime    stamp
	size     int64            // of a regular file
	target   string           // of a symbolic link
	children map[string]*node // of a directory
	from     *source          // where to read the contents; nil if they are written or empty

	// Set while the image is written.
	block uint32 // first block of the contents
	nid   uint64 // inode number
	links uint32
}

// source is the source of a regular file's contents or of another file's metadata.
type source struct {
	text string   // contents of a generated file
	path string   // path of a file of the machine
	id   identity // that file's identity when its metadata was read
}

// identity identifies a file and its version.
type identity struct {
	dev, ino     uint64
	mode         uint32
	size         int64
	mtime, ctime stamp
}

// stamp is a time as file systems store it.
type stamp struct {
	sec  int64
	nsec uint32
}

func stampOf(t unix.Timespec) stamp {
	return stamp{sec: int64(t.Sec), nsec: uint32(t.Nsec)} //nolint:unconvert // narrower on 32 bits
}

func identityOf(st *unix.Stat_t) identity {
	return identity{
		dev: st.Dev, ino: st.Ino, mode: st.Mode, size: st.Size, mtime: stampOf(st.Mtim), ctime: stampOf(st.Ctim),
	}
}

func (n *node) kind() uint32         { return n.mode & unix.S_IFMT }
func (n *node) isDir() bool          { return n.kind() == unix.S_IFDIR }
func (n *node) childNames() []string { return slices.Sorted(maps.Keys(n.children)) }

// newDir returns an empty directory owned by root.
func newDir(perm uint32) *node {
	return &node{mode: unix.S_IFDIR | perm, children: map[string]*node{}}
}

// checkName returns an Invalid error for an invalid file name.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > maxName || strings.ContainsAny(name, "/\x00") {
		return sandpit.Errorf(sandpit.Invalid, "%s is not a file name", quoteName(name))
	}
	return nil
}

// addAt adds child at a clean path below n, and creates missing parent directories.
func (n *node) addAt(path string, child *node) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	last := len(parts) - 1
	for _, name := range parts[:last] {
		next := n.children[name]
		if next == nil || !next.isDir() {
			next = newDir(0o755)
			next.mtime = n.mtime
			n.children[name] = next
		}
		n = next
	}
	if old := n.children[parts[last]]; old != nil && old.isDir() && child.isDir() {
		child.children = old.children
	}
	n.children[parts[last]] = child
}

// hashInto hashes everything that determines the image of n.
func (n *node) hashInto(h hash.Hash) {
	buf := make([]byte, 0, 256)
	n.hashTree(h, "", &buf)
	h.Write(buf)
}

func (n *node) hashTree(h hash.Hash, name string, buf *[]byte) {
	const enough = 32 << 10
	b := appendText(*buf, name)
	for _, v := range []uint64{
		uint64(n.mode), uint64(n.uid), uint64(n.gid), uint64(n.mtime.sec), uint64(n.mtime.nsec),
		uint64(n.size), uint64(len(n.children)),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	b = appendText(b, n.target)
	if n.from != nil {
		b = n.from.appendTo(b)
	}
	if len(b) >= enough {
		h.Write(b)
		b = b[:0]
	}
	*buf = b
	for _, name := range n.childNames() {
		n.children[name].hashTree(h, name, buf)
	}
}

func (s *source) appendTo(b []byte) []byte {
	b = appendText(appendText(b, s.text), s.path)
	for _, v := range []uint64{
		s.id.dev, s.id.ino, uint64(s.id.mode), uint64(s.id.size), uint64(s.id.mtime.sec), uint64(s.id.mtime.nsec),
		uint64(s.id.ctime.sec), uint64(s.id.ctime.nsec),
	} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// quoteName quotes and shortens an untrusted name for a message.
func quoteName(name string) string {
	const maxLength = 120
	return strconv.Quote(textlen.Shorten(name, maxLength))
}
