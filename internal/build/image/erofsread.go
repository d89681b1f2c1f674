//nolint:gosec // numbers have the widths that the format has, and are compared with the file's size
package image

import (
	"encoding/binary"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// reader reads the tree of an image that writer has written. The file is in the cache,
// where other users cannot write, but it may be damaged.
type reader struct {
	f    *os.File
	size int64
	meta int64 // offset of the inodes
	left limits
	seen map[uint64]*node
}

// openTree returns the tree of a finished image and the offset where its contents end. Files
// have their blocks in the image.
func openTree(f *os.File, lim limits) (root *node, end int64, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	r := &reader{f: f, size: info.Size(), left: lim, seen: map[uint64]*node{}}
	super, err := r.readAt(superOffset, 128)
	if err != nil {
		return nil, 0, err
	}
	le := binary.LittleEndian
	if le.Uint32(super) != superMagic || super[12] != blockBits {
		return nil, 0, errDamagedImage(f)
	}
	r.meta = int64(le.Uint32(super[40:])) << blockBits
	root, err = r.readInode(uint64(le.Uint16(super[14:])), 0)
	if err == nil && !root.isDir() {
		err = errDamagedImage(f)
	}
	return root, r.meta, err
}

// readAt reads size bytes at an offset.
func (r *reader) readAt(at, size int64) ([]byte, error) {
	const most = 256 << 20
	if at < 0 || size < 0 || size > most || at+size > r.size {
		return nil, errDamagedImage(r.f)
	}
	data := make([]byte, size)
	_, err := r.f.ReadAt(data, at)
	return data, err
}

// readInode reads a node and the tree below it.
func (r *reader) readInode(nid uint64, depth int) (*node, error) {
	if n := r.seen[nid]; n != nil {
		if n.isDir() { // a directory has one name
			return nil, errDamagedImage(r.f)
		}
		return n, nil
	}
	at := r.meta + int64(nid<<slotBits)
	b, err := r.readAt(at, inodeSize)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	n := &node{
		mode: uint32(le.Uint16(b[4:])), size: int64(le.Uint64(b[8:])), uid: le.Uint32(b[24:]), gid: le.Uint32(b[28:]),
		mtime: stamp{sec: int64(le.Uint64(b[32:])), nsec: le.Uint32(b[40:])},
	}
	r.seen[nid] = n
	if err := r.left.countFile("", n, n.size); err != nil {
		return nil, err
	}
	if n.kind() == unix.S_IFREG {
		n.block = le.Uint32(b[16:])
		if n.size < 0 || int64(n.block)<<blockBits+n.size > r.size {
			return nil, errDamagedImage(r.f)
		}
		return n, nil
	}
	if le.Uint16(b)>>1 == layoutInline {
		at += inodeSize
	} else {
		at = int64(le.Uint32(b[16:])) << blockBits
	}
	data, err := r.readAt(at, n.size)
	if err != nil {
		return nil, err
	}
	return n, r.decodeContents(n, data, depth)
}

// decodeContents decodes a link target or a directory into a node.
func (r *reader) decodeContents(n *node, data []byte, depth int) error {
	n.size = 0
	switch n.kind() {
	case unix.S_IFLNK:
		n.target = string(data)
		return nil
	case unix.S_IFDIR:
	default:
		return nil
	}
	if depth > maxPath/2 {
		return errDamagedImage(r.f)
	}
	n.children = map[string]*node{}
	for len(data) > 0 {
		block := data[:min(len(data), blockSize)]
		data = data[len(block):]
		if err := r.readEntries(n, block, depth); err != nil {
			return err
		}
	}
	return nil
}

// readEntries reads one block of a directory.
func (r *reader) readEntries(dir *node, block []byte, depth int) error {
	le := binary.LittleEndian
	if len(block) < entrySize {
		return errDamagedImage(r.f)
	}
	first := int(le.Uint16(block[8:])) // the names begin where the entries end
	if first < entrySize || first%entrySize != 0 || first > len(block) {
		return errDamagedImage(r.f)
	}
	for e := block[:first]; len(e) > 0; e = e[entrySize:] {
		start, end := int(le.Uint16(e[8:])), len(block)
		if len(e) > entrySize {
			end = int(le.Uint16(e[entrySize+8:]))
		}
		if start > end || end > len(block) {
			return errDamagedImage(r.f)
		}
		name := cString(block[start:end])
		if name == "." || name == ".." {
			continue
		}
		if checkName(name) != nil {
			return errDamagedImage(r.f)
		}
		child, err := r.readInode(le.Uint64(e), depth+1)
		if err != nil {
			return err
		}
		dir.children[name] = child
	}
	return nil
}

// cString returns the text before the first zero byte.
func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// copyContents copies the contents of an image up to the offset end to the same offsets of
// out, without holes. Both share blocks if the file system supports it.
func copyContents(out, from *os.File, end int64) error {
	for at := int64(blockSize); at < end; {
		data, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) || err == nil && data >= end {
			return nil // only holes follow
		}
		if err != nil {
			return err
		}
		hole, err := from.Seek(data, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		at = min(hole, end)
		if _, err := from.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := out.Seek(data, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.CopyN(out, from, at-data); err != nil {
			return err
		}
	}
	return nil
}
