package tree

import (
	"bytes"
	"encoding/binary"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// listed is one entry of a directory.
type listed struct {
	name string
	kind byte // DT_REG and so on
}

// readDir lists an open directory, sorted by name.
func (p *packer) readDir(fd int) ([]listed, error) {
	var all []listed
	for {
		n := 0
		err := retryInterrupted(func() (err error) {
			n, err = unix.Getdents(fd, p.list)
			return err
		})
		if err != nil {
			return nil, err
		}
		if n == 0 {
			break
		}
		all = appendListed(all, p.list[:n])
	}
	slices.SortFunc(all, func(a, b listed) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// appendListed parses the kernel's records: 8 bytes inode, 8 bytes offset, 2 bytes length of the record, 1 byte type,
// and the name, ended by a zero byte.
func appendListed(all []listed, records []byte) []listed {
	const lengthAt, kindAt, nameAt = 16, 18, 19
	for len(records) > nameAt {
		size := int(binary.NativeEndian.Uint16(records[lengthAt:]))
		if size <= nameAt || size > len(records) {
			break
		}
		name, _, _ := bytes.Cut(records[nameAt:size], []byte{0})
		if s := string(name); s != "." && s != ".." {
			all = append(all, listed{name: s, kind: records[kindAt]})
		}
		records = records[size:]
	}
	return all
}
