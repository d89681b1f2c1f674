package envdtest

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"net/http"
	"strconv"
	"strings"
)

const (
	tarType = "application/x-tar"
	block   = 512
)

// member is the head of one member, encoded by hand, because no library writes some of those below.
// The size may be false.
type member struct {
	kind         byte // a file by default
	name         string
	link         string
	mode         int64 // 0755 by default
	size         int64
	major, minor int64
}

func (m member) encode() []byte {
	if m.kind == 0 {
		m.kind = tar.TypeReg
	}
	if m.mode == 0 {
		m.mode = 0o755
	}
	var long []byte
	if len(m.name) > 100 {
		long = append(member{kind: tar.TypeGNULongName, name: "././@LongLink", size: int64(len(m.name))}.encode(), content(m.name)...)
	}
	h := make([]byte, block)
	copy(h[:100], m.name)
	copy(h[100:], fmt.Sprintf("%07o\x00%07o\x00%07o\x00%s%011o\x00", m.mode, 0, 0, sizeField(m.size), 0))
	h[156] = m.kind
	copy(h[157:257], m.link)
	copy(h[257:], "ustar\x0000")
	copy(h[329:], fmt.Sprintf("%07o\x00%07o\x00", m.major, m.minor))
	return append(long, patched(h, 0, "")...)
}

// sizeField is the size in digits or, if they are not enough, in binary.
func sizeField(size int64) string {
	if size < 1<<33 {
		return fmt.Sprintf("%011o\x00", size)
	}
	return "\x80\x00\x00\x00" + string(binary.BigEndian.AppendUint64(nil, uint64(size)))
}

func members(all ...member) []byte {
	var b []byte
	for _, m := range all {
		b = append(b, m.encode()...)
	}
	return b
}

// ending is the end of a tar stream.
func ending() []byte { return make([]byte, 2*block) }

func content(text string) []byte {
	return append([]byte(text), make([]byte, (block-len(text)%block)%block)...)
}

func file(name, text string) []byte {
	return append(members(member{name: name, size: int64(len(text))}), content(text)...)
}

func link(kind byte, name, target string) []byte {
	return members(member{kind: kind, name: name, link: target})
}

func dir(name string) []byte { return members(member{kind: tar.TypeDir, name: name}) }

// patched returns a header with other bytes at an offset, and a correct checksum.
func patched(header []byte, offset int, b string) []byte {
	copy(header[offset:], b)
	copy(header[148:156], "        ")
	sum := 0
	for _, c := range header[:block] {
		sum += int(c)
	}
	copy(header[148:156], fmt.Sprintf("%06o\x00 ", sum))
	return header
}

// pax is a member with records, valid or not.
func pax(kind string, records ...string) []byte {
	var all strings.Builder
	for i := 0; i+1 < len(records); i += 2 {
		rest := " " + records[i] + "=" + records[i+1] + "\n"
		size := len(rest)
		for len(strconv.Itoa(size))+len(rest) != size {
			size = len(strconv.Itoa(size)) + len(rest)
		}
		all.WriteString(strconv.Itoa(size) + rest)
	}
	header := members(member{name: "pax", size: int64(all.Len())})
	return append(patched(header, 156, kind), content(all.String())...)
}

// tree answers with a tar stream of parts, with a regular end.
func tree(parts ...[]byte) answers {
	return treeThen(ended0, parts...)
}

// ended0 ends a tar.
func ended0(c *call) { c.send(ending()...) }

func treeThen(then func(*call), parts ...[]byte) answers {
	return answers{pack: func(c *call) {
		c.drain()
		c.status(http.StatusOK, "Content-Type", tarType)
		if c.repeat(bytes.Join(append([][]byte{dir("./")}, parts...), nil), 1) {
			then(c)
		}
	}}
}

func again(b []byte) func(*call) {
	return func(c *call) { c.repeat(bytes.Repeat(b, 1+64*kib/len(b)), -1) }
}

// treeLies are about trees, in the responses to GET /tree.
func treeLies() map[string]answers {
	lies := memberLies()
	maps.Copy(lies, escapeLies())
	for name, text := range map[string]string{"1mib": strings.Repeat("t", mib), "20kib": strings.Repeat("t", 20*kib), "escapes": "\x1b[2Jno"} {
		lies["tree-trailer-"+name] = answers{pack: func(c *call) {
			c.drain()
			c.status(http.StatusOK, "Trailer", "Sandpit-Error")
			c.send(ending()...)
			c.w.Header().Set("Sandpit-Error", text)
		}}
	}
	return lies
}

// memberLies are about sizes, numbers and forms.
func memberLies() map[string]answers {
	huge := int64(1) << 60
	numbered := func(c *call) {
		for i := 0; c.send(bytes.Join([][]byte{file(fmt.Sprint("./f", i), ""), file(fmt.Sprint("./g", i), "")}, nil)...); i++ {
			continue
		}
	}
	deep := func(c *call) {
		for i := 1; i < 100_000 && c.send(dir("./"+strings.Repeat("d/", i%2000))...); i++ {
			continue
		}
	}
	return map[string]answers{
		"tree-type":           tree(patched(file("./x", "x"), 156, "Q")),
		"tree-size-huge":      treeThen(silent, members(member{name: "./huge", size: huge})),
		"tree-size-minus":     tree(patched(file("./x", ""), 124, "-0000000001\x00")),
		"tree-sparse":         tree(pax("x", "GNU.sparse.major", "1", "GNU.sparse.minor", "0", "GNU.sparse.name", "./sparse", "GNU.sparse.realsize", strconv.FormatInt(huge, 10)), file("./x", "0\n")),
		"tree-sparse-map":     tree(pax("x", "GNU.sparse.size", strconv.FormatInt(huge, 10), "GNU.sparse.numblocks", "1", "GNU.sparse.map", "0,1"), file("./x", "x")),
		"tree-pax-size":       tree(pax("x", "size", strconv.FormatInt(huge, 10)), file("./x", "x")),
		"tree-pax-path":       tree(pax("x", "path", "../escaped", "linkpath", "/etc/passwd"), file("./x", "x")),
		"tree-pax-time":       tree(pax("x", "mtime", "99999999999999999999.9", "atime", "-1", "uid", "-5"), file("./x", "x")),
		"tree-pax-global":     tree(pax("g", "path", "../escaped"), file("./x", "x")),
		"tree-pax-garbage":    tree(patched(file("./x", "9999999999 path=x\n"), 156, "x"), file("./x", "x")),
		"tree-pax-endless":    treeThen(again(make([]byte, block)), patched(members(member{name: "./x", size: huge}), 156, "x")),
		"tree-global-endless": treeThen(again(pax("g", "comment", "x"))),
		"tree-long-endless":   treeThen(again(make([]byte, block)), patched(members(member{name: "./x", size: huge}), 156, "L")),
		"tree-name-1mib":      tree(file("./"+strings.Repeat("n", mib), "x")),
		"tree-path-1mib":      tree(file("./"+strings.Repeat("n/", mib/2)+"x", "x")),
		"tree-name-bytes":     tree(file("./\xff\x1b[2J", "x")),
		"tree-name-nul":       tree(pax("x", "path", "./a\x00b"), file("./x", "x")),
		"tree-same":           treeThen(again(file("./same", ""))),
		"tree-many":           treeThen(numbered),
		"tree-deep":           treeThen(deep),
		"tree-links":          treeThen(again(link(tar.TypeSymlink, "./l", "x"))),
		"tree-endless":        treeThen(again(make([]byte, 64*kib)), members(member{name: "./endless", size: huge})),
		"tree-zeros":          treeThen(again(make([]byte, 64*kib)), ending()),
		"tree-cut":            treeThen(cutOff, members(member{name: "./x", size: 100})),
		"tree-hang-up":        treeThen(func(*call) { panicAbort() }, members(member{name: "./x", size: 100})),
		"tree-garbage":        treeThen(cutOff, []byte(strings.Repeat("garbage", 1000))),
		"tree-silent":         treeThen(silent),
		"tree-empty":          {pack: func(c *call) { c.drain() }},
		"tree-not-first":      {pack: answer(http.StatusOK, string(file("escaped", "x")))},
		"tree-one-file":       {pack: answer(http.StatusOK, string(append(file("../escaped", "x"), ending()...)))},
	}
}

// escapeLies would write to other places, or other things than files.
func escapeLies() map[string]answers {
	return map[string]answers{
		"tree-up":            tree(file("../escaped", "x")),
		"tree-up-inside":     tree(file("./a/../../escaped", "x")),
		"tree-absolute":      tree(file("/tmp/sandpit-escaped", "x")),
		"tree-dot":           tree(file(".", "x"), file("./", "x"), file("..", "x")),
		"tree-nothing":       tree(patched(file("x", "x"), 0, "\x00")),
		"tree-hard-passwd":   tree(link(tar.TypeLink, "./passwd", "/etc/passwd")),
		"tree-hard-up":       tree(link(tar.TypeLink, "./outside", "../outside"), file("./outside", "changed")),
		"tree-hard-self":     tree(link(tar.TypeLink, "./self", "./self")),
		"tree-hard-dir":      tree(dir("./d"), link(tar.TypeLink, "./e", "./d")),
		"tree-link-up":       tree(link(tar.TypeSymlink, "./l", ".."), file("./l/escaped", "x")),
		"tree-link-absolute": tree(link(tar.TypeSymlink, "./l", "/tmp"), file("./l/sandpit-escaped", "x")),
		"tree-link-file":     tree(link(tar.TypeSymlink, "./l", "../outside"), file("./l", "changed")),
		"tree-link-hard":     tree(link(tar.TypeSymlink, "./l", "../outside"), link(tar.TypeLink, "./h", "./l"), file("./h", "changed")),
		"tree-link-swap":     tree(dir("./d"), link(tar.TypeSymlink, "./d", ".."), file("./d/escaped", "x")),
		"tree-link-chain":    tree(link(tar.TypeSymlink, "./a", "b"), link(tar.TypeSymlink, "./b", "c/.."), link(tar.TypeSymlink, "./c", ".."), file("./a/escaped", "x")),
		"tree-link-loop":     tree(link(tar.TypeSymlink, "./a", "b"), link(tar.TypeSymlink, "./b", "a"), file("./a/x", "x")),
		"tree-link-root":     tree(link(tar.TypeSymlink, "./", ".."), file("./escaped", "x")),
		"tree-link-dir-mode": tree(link(tar.TypeSymlink, "./l", "../.."), members(member{kind: tar.TypeDir, name: "./l", mode: 0o777})),
		"tree-device":        tree(members(member{kind: tar.TypeBlock, name: "./sda", major: 8}, member{kind: tar.TypeChar, name: "./mem", major: 1, minor: 1}, member{kind: tar.TypeFifo, name: "./pipe"})),
		"tree-pipe-write":    tree(members(member{kind: tar.TypeFifo, name: "./pipe"}), file("./pipe", "x")),
		"tree-setuid":        tree(members(member{name: "./su", mode: 0o6777}, member{kind: tar.TypeDir, name: "./closed", mode: 0o001})),
		"tree-no-modes":      tree(members(member{kind: tar.TypeDir, name: "./closed", mode: 0o001}), file("./closed/file", "x")),
		"tree-file-dir":      tree(file("./x", "x"), file("./x/y", "y"), dir("./x")),
	}
}
