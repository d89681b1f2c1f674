//nolint:gosec // numbers go into the widths that the format has; what could exceed them is bounded before
package image

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The used part of the EROFS format: a superblock, then the contents of files in whole
// blocks, then the inodes, each followed by its short directory or link target. All numbers
// are little-endian.
const (
	blockBits   = 12
	blockSize   = 1 << blockBits
	superOffset = 1024
	superMagic  = 0xE0F5E1E2
	hasMtime    = 0x2 // inodes have modification times

	slotBits  = 5 // an inode's number counts slots of 32 bytes
	inodeSize = 64
	entrySize = 12 // of a directory entry without its name
	maxTail   = blockSize - inodeSize

	// The first number used. Programs take 0 for a deleted file.
	firstSlot = inodeSize >> slotBits

	layoutPlain  = 0 // contents in separate blocks
	layoutInline = 2 // contents after the inode
)

const (
	bufferSize = 1 << 20
	// holeSize is the unit of holes: zeros of this size are not written.
	holeSize = 64 << 10
)

// writer writes an EROFS file: call writeData for each regular file, then finishImage.
type writer struct {
	f     *os.File
	at    int64  // offset of buf in the file
	buf   []byte // not written yet
	zeros []byte
	space reservation // bounds the bytes written
}

func newWriter(f *os.File) *writer {
	return &writer{f: f, at: blockSize, buf: make([]byte, 0, bufferSize), zeros: make([]byte, holeSize)}
}

// writeData copies all of r as the contents of one file, and returns its first block and size.
func (w *writer) writeData(r io.Reader) (block uint32, size int64, err error) {
	block = w.nextBlock()
	for {
		if len(w.buf) == cap(w.buf) {
			if err := w.flushBuffer(); err != nil {
				return 0, 0, err
			}
		}
		n, err := r.Read(w.buf[len(w.buf):cap(w.buf)])
		w.buf = w.buf[:len(w.buf)+n]
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return block, size, w.padTo(blockSize)
		}
		if err != nil {
			return 0, 0, err
		}
	}
}

func (w *writer) offset() int64 { return w.at + int64(len(w.buf)) }

// nextBlock returns the number of the next block. Limits keep it below 32 bits.
func (w *writer) nextBlock() uint32 { return uint32(w.offset() >> blockBits) }

func (w *writer) writeBytes(p []byte) error {
	for len(p) > 0 {
		if len(w.buf) == cap(w.buf) {
			if err := w.flushBuffer(); err != nil {
				return err
			}
		}
		n := min(len(p), cap(w.buf)-len(w.buf))
		w.buf = append(w.buf, p[:n]...)
		p = p[n:]
	}
	return nil
}

// padTo writes zeros up to a multiple of unit, which is at most a block.
func (w *writer) padTo(unit int64) error {
	return w.writeBytes(w.zeros[:-w.offset()&(unit-1)])
}

// flushBuffer writes the buffer to the file. It skips long runs of zeros, which become holes.
func (w *writer) flushBuffer() error {
	for start := 0; start < len(w.buf); {
		end := start
		for end < len(w.buf) && !w.isHole(end) {
			end = min(end+holeSize, len(w.buf))
		}
		if end > start {
			if err := w.space.takeBytes(int64(end - start)); err != nil {
				return err
			}
			if _, err := w.f.WriteAt(w.buf[start:end], w.at+int64(start)); err != nil {
				return fmt.Errorf("write the image: %w", err)
			}
		}
		for start = end; start < len(w.buf) && w.isHole(start); {
			start = min(start+holeSize, len(w.buf))
		}
	}
	w.at = w.offset()
	w.buf = w.buf[:0]
	return nil
}

func (w *writer) isHole(start int) bool {
	unit := w.buf[start:min(start+holeSize, len(w.buf))]
	return bytes.Equal(unit, w.zeros[:len(unit)])
}

// inodeEntry is a node with the data for its inode.
type inodeEntry struct {
	*node
	parent *node
	names  []string // of a directory, sorted, with . and ..
	tail   int      // bytes after the inode
}

// finishImage writes the inodes and the superblock.
func (w *writer) finishImage(root *node) error {
	var inodes []inodeEntry
	listInodes(&inodes, root, root)
	size := numberInodes(inodes)
	for i := range inodes {
		if err := w.writeLarge(&inodes[i]); err != nil {
			return err
		}
	}
	meta := w.offset()
	for i := range inodes {
		if err := w.writeInode(&inodes[i], meta, uint32(i+1)); err != nil {
			return err
		}
	}
	if err := w.padTo(blockSize); err != nil {
		return err
	}
	if w.offset() < meta+size {
		return fmt.Errorf("write the image: %d bytes of inodes instead of %d", w.offset()-meta, size)
	}
	if err := w.flushBuffer(); err != nil {
		return err
	}
	return w.writeSuperblock(root, meta, len(inodes))
}

// listInodes appends the nodes below n, each directory before its entries, and counts their
// links.
func listInodes(list *[]inodeEntry, n, parent *node) {
	if n.links++; n.links > 1 { // a hard link
		return
	}
	p := inodeEntry{node: n, parent: parent}
	if !n.isDir() {
		*list = append(*list, p)
		return
	}
	n.links = 2 // . and its name; .. of each directory in it is added below
	names := n.childNames()
	p.names = withDots(names)
	*list = append(*list, p)
	for _, name := range names {
		child := n.children[name]
		if child.isDir() {
			n.links++
		}
		listInodes(list, child, n)
	}
}

// withDots adds . and .. to sorted names at their sorted position: names may begin with bytes
// below the dot.
func withDots(names []string) []string {
	all := make([]string, 0, len(names)+2)
	dots := []string{".", ".."}
	for _, name := range names {
		for len(dots) > 0 && dots[0] < name {
			all = append(all, dots[0])
			dots = dots[1:]
		}
		all = append(all, name)
	}
	return append(all, dots...)
}

// numberInodes assigns inode numbers and returns the size of all inodes. An inode and its
// inline contents are in one block.
func numberInodes(inodes []inodeEntry) int64 {
	off := int64(firstSlot << slotBits)
	for i := range inodes {
		p := &inodes[i]
		switch p.kind() {
		case unix.S_IFDIR:
			p.size = entriesSize(p.names)
		case unix.S_IFLNK:
			p.size = int64(len(p.target))
		}
		if p.kind() != unix.S_IFREG && p.size <= maxTail {
			p.tail = int(p.size)
		}
		if room := blockSize - off&(blockSize-1); room < int64(inodeSize+p.tail) {
			off += room
		}
		p.nid = uint64(off >> slotBits)
		off += int64(inodeSize + p.tail)
		off += -off & (1<<slotBits - 1)
	}
	return off
}

// writeLarge writes directories and link targets that do not fit after their inode.
func (w *writer) writeLarge(p *inodeEntry) error {
	if p.kind() == unix.S_IFREG || p.tail > 0 || p.size == 0 {
		return nil
	}
	p.block = w.nextBlock()
	if err := w.writeBytes(p.contents()); err != nil {
		return err
	}
	return w.padTo(blockSize)
}

// contents returns the encoded directory or the link target.
func (p *inodeEntry) contents() []byte {
	if p.isDir() {
		return p.encodeEntries()
	}
	return []byte(p.target)
}

// writeInode writes one inode in the extended form, which has fields for every owner and time.
func (w *writer) writeInode(p *inodeEntry, meta int64, number uint32) error {
	for start := meta + int64(p.nid<<slotBits); w.offset() < start; {
		if err := w.writeBytes(w.zeros[:min(start-w.offset(), blockSize)]); err != nil {
			return err
		}
	}
	layout := uint16(layoutPlain)
	if p.tail > 0 {
		layout = layoutInline
	}
	var b [inodeSize]byte
	le := binary.LittleEndian
	le.PutUint16(b[0:], layout<<1|1) // the lowest bit selects the extended form
	le.PutUint16(b[4:], uint16(p.mode))
	le.PutUint64(b[8:], uint64(p.size))
	le.PutUint32(b[16:], p.block)
	le.PutUint32(b[20:], number)
	le.PutUint32(b[24:], p.uid)
	le.PutUint32(b[28:], p.gid)
	le.PutUint64(b[32:], uint64(p.mtime.sec))
	le.PutUint32(b[40:], p.mtime.nsec)
	le.PutUint32(b[44:], p.links)
	if err := w.writeBytes(b[:]); err != nil {
		return err
	}
	if p.tail == 0 {
		return nil
	}
	return w.writeBytes(p.contents())
}

// countFitting returns how many names fit in one block of a directory, and their size in bytes.
func countFitting(names []string) (count, size int) {
	for _, name := range names {
		next := size + entrySize + len(name)
		if next > blockSize {
			break
		}
		size = next
		count++
	}
	return count, size
}

func entriesSize(names []string) int64 {
	var total int64
	for len(names) > 0 {
		count, size := countFitting(names)
		if names = names[count:]; len(names) > 0 {
			size = blockSize
		}
		total += int64(size)
	}
	return total
}

// encodeEntries encodes a directory: each block has the entries first, then their names.
func (p *inodeEntry) encodeEntries() []byte {
	out := make([]byte, 0, p.size)
	le := binary.LittleEndian
	for names := p.names; len(names) > 0; {
		count, _ := countFitting(names)
		nameAt := count * entrySize
		for _, name := range names[:count] {
			to := p.lookUpEntry(name)
			out = le.AppendUint64(out, to.nid)
			out = le.AppendUint16(out, uint16(nameAt))
			out = append(out, fileType(to.kind()), 0)
			nameAt += len(name)
		}
		for _, name := range names[:count] {
			out = append(out, name...)
		}
		if names = names[count:]; len(names) > 0 {
			out = append(out, make([]byte, blockSize-nameAt)...)
		}
	}
	return out
}

func (p *inodeEntry) lookUpEntry(name string) *node {
	switch name {
	case ".":
		return p.node
	case "..":
		return p.parent
	}
	return p.children[name]
}

func fileType(kind uint32) byte {
	switch kind {
	case unix.S_IFREG:
		return 1
	case unix.S_IFDIR:
		return 2
	case unix.S_IFIFO:
		return 5
	case unix.S_IFLNK:
		return 7
	}
	return 0
}

// writeSuperblock writes the superblock and sets the file's size.
func (w *writer) writeSuperblock(root *node, meta int64, inodes int) error {
	var b [128]byte
	le := binary.LittleEndian
	le.PutUint32(b[0:], superMagic)
	le.PutUint32(b[8:], hasMtime)
	b[12] = blockBits
	le.PutUint16(b[14:], uint16(root.nid))
	le.PutUint64(b[16:], uint64(inodes))
	le.PutUint64(b[24:], uint64(root.mtime.sec))
	le.PutUint32(b[32:], root.mtime.nsec)
	le.PutUint32(b[36:], uint32(w.at>>blockBits))
	le.PutUint32(b[40:], uint32(meta>>blockBits))
	_, err := w.f.WriteAt(b[:], superOffset)
	if err == nil {
		err = w.f.Truncate(w.at) // it may end in zeros that were left out
	}
	if err != nil {
		return fmt.Errorf("write the image: %w", err)
	}
	return nil
}
