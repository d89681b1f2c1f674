package gvisor

import (
	"archive/tar"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Marks of a layer of an OCI image, and what gVisor has in their place: a device with
// the number 0 where a file is not there any more, and an attribute of a directory in
// which nothing below is to be seen.
const (
	markGone   = ".wh."
	markOpaque = ".wh..wh..opq"

	attributePrefix  = "SCHILY.xattr."
	overlayAttribute = attributePrefix + "trusted.overlay."
	opaqueAttribute  = overlayAttribute + "opaque"
	aclAttribute     = attributePrefix + "system.posix_acl_"
)

// manyHoles is how many bytes of a file must be holes before it is sparse in a layer,
// which not everybody can read.
const manyHoles = 64 << 20

// layerWriter writes a layer of an OCI image.
type layerWriter struct {
	saved *savedLayer
	out   io.Writer
	tar   *tar.Writer
	gone  map[string]struct{} // names that are not there any more; gVisor has the others as hard links to the first
}

// convert writes the layer as that of an OCI image.
func (l *savedLayer) convert(to io.Writer) error {
	w := &layerWriter{saved: l, out: to, tar: tar.NewWriter(to), gone: map[string]struct{}{}}
	r := tar.NewReader(l.tree)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.tar.Close()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // names are looked at in entry
			return badLayer("%w", err)
		}
		if err := w.entry(h, r); err != nil {
			return err
		}
	}
}

// entry writes what one header of the tree stands for.
func (w *layerWriter) entry(h *tar.Header, contents io.Reader) error {
	name, err := layerName(h.Name)
	if err != nil || name == "./" && h.Typeflag != tar.TypeDir || isOwn(name) {
		return err
	}
	if w.isGone(h) {
		dir, file := path.Split(name)
		w.gone[h.Name] = struct{}{}
		return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + markGone + file, Format: tar.FormatPAX})
	}
	n := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime,
		Devmajor: h.Devmajor, Devminor: h.Devminor, PAXRecords: attributes(h.PAXRecords), Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return w.file(n, h, contents)
	case tar.TypeDir:
		if n.Name != "./" {
			n.Name += "/"
		}
	case tar.TypeLink:
		if n.Linkname, err = layerName(h.Linkname); err != nil {
			return err
		}
	}
	if err := w.tar.WriteHeader(n); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if h.Typeflag == tar.TypeDir && h.PAXRecords[opaqueAttribute] != "" {
		return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n.Name + markOpaque, Format: tar.FormatPAX})
	}
	return nil
}

// isGone is true of what marks that a file is not there any more.
func (w *layerWriter) isGone(h *tar.Header) bool {
	if h.Typeflag == tar.TypeLink {
		_, gone := w.gone[h.Linkname]
		return gone
	}
	return h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0
}

// layerName returns a name without what it begins with in the tree. A hostile kernel
// could have written others; those and what would be a mark are refused.
func layerName(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if clean == "" || clean == "." {
		return "./", nil
	}
	for part := range strings.SplitSeq(clean, "/") {
		if part == "" || part == "." || part == ".." {
			return "", badLayer("file %q", name)
		}
		if strings.HasPrefix(part, markGone) {
			return "", sandpit.WithHint(
				sandpit.Errorf(sandpit.Unsupported, "file %q: names that begin with %q mean in a layer that something is not there", clean, markGone),
				"rename or remove it")
		}
	}
	return clean, nil
}

// isOwn is true of what is there for sandpit itself: the place of the guest.
func isOwn(name string) bool { return "/"+name == guestDir }

// attributes returns those that are the file's own.
func attributes(records map[string]string) map[string]string {
	var own map[string]string
	for key, value := range records {
		if !strings.HasPrefix(key, attributePrefix) || strings.HasPrefix(key, overlayAttribute) {
			continue
		}
		if strings.HasPrefix(key, aclAttribute) { // which gVisor encodes, and nobody else
			if raw, err := base64.RawStdEncoding.DecodeString(value); err == nil {
				value = string(raw)
			}
		}
		if own == nil {
			own = make(map[string]string)
		}
		own[key] = value
	}
	return own
}

// file writes a regular file.
func (w *layerWriter) file(n, h *tar.Header, contents io.Reader) error {
	size, parts, err := readContents(h, contents)
	if err != nil {
		return err
	}
	holes := size
	for _, s := range parts {
		holes -= int64(s.end - s.start) //nolint:gosec // at most size
	}
	n.Size = size
	if holes >= manyHoles {
		return w.sparse(n, parts, size-holes)
	}
	if err := w.tar.WriteHeader(n); err != nil {
		return fmt.Errorf("write %q: %w", n.Name, err)
	}
	var at uint64
	for _, s := range append(parts, segment{start: uint64(size), end: uint64(size)}) { //nolint:gosec // not negative
		if err := writeZeros(w.tar, int64(s.start-at)); err != nil { //nolint:gosec // at most size
			return err
		}
		if err := w.saved.copySegment(w.tar, s); err != nil {
			return err
		}
		at = s.end
	}
	return nil
}

const tarBlock = 512

// sparse writes a regular file with holes, as version 1.0 of GNU tar's format has it,
// which archive/tar can read and not write.
func (w *layerWriter) sparse(n *tar.Header, parts []segment, data int64) error {
	size := uint64(n.Size) //nolint:gosec // not negative
	if len(parts) == 0 || parts[len(parts)-1].end < size {
		parts = append(slices.Clone(parts), segment{start: size, end: size}) // so that tar knows the end
	}
	var list bytes.Buffer
	fmt.Fprintf(&list, "%d\n", len(parts))
	for _, s := range parts {
		fmt.Fprintf(&list, "%d\n%d\n", s.start, s.end-s.start)
	}
	list.Write(make([]byte, padding(int64(list.Len()))))
	records := map[string]string{
		"GNU.sparse.major": "1", "GNU.sparse.minor": "0",
		"GNU.sparse.name": n.Name, "GNU.sparse.realsize": strconv.FormatInt(n.Size, 10),
		"size": strconv.FormatInt(int64(list.Len())+data, 10), "mtime": strconv.FormatInt(n.ModTime.Unix(), 10),
		"uid": strconv.Itoa(n.Uid), "gid": strconv.Itoa(n.Gid),
	}
	maps.Copy(records, n.PAXRecords)
	if err := w.tar.Flush(); err != nil { // what follows goes past it
		return err
	}
	var head bytes.Buffer
	pax := paxRecords(records)
	head.Write(plainHeader(tar.TypeXHeader, 0o644, int64(len(pax))))
	head.WriteString(pax)
	head.Write(make([]byte, padding(int64(len(pax)))))
	head.Write(plainHeader(tar.TypeReg, n.Mode, 0))
	if _, err := list.WriteTo(&head); err != nil {
		return err
	}
	if _, err := head.WriteTo(w.out); err != nil {
		return err
	}
	for _, s := range parts {
		if err := w.saved.copySegment(w.out, s); err != nil {
			return err
		}
	}
	return writeZeros(w.out, padding(data))
}

func padding(size int64) int64 { return -size & (tarBlock - 1) }

// paxRecords are records with their lengths, which count themselves.
func paxRecords(records map[string]string) string {
	var b strings.Builder
	for key, value := range records {
		body := " " + key + "=" + value + "\n"
		length := len(body)
		for digits := 1; ; digits++ {
			if total := length + digits; len(strconv.Itoa(total)) == digits {
				b.WriteString(strconv.Itoa(total) + body)
				break
			}
		}
	}
	return b.String()
}

// plainHeader is the block before an entry whose name, owner and time are told by
// records before it.
func plainHeader(kind byte, mode, size int64) []byte {
	b := make([]byte, tarBlock)
	copy(b, "sparse")
	copy(b[100:], fmt.Sprintf("%07o", mode&0o7777))
	copy(b[108:], "0000000\x000000000\x00")
	copy(b[124:], fmt.Sprintf("%011o\x00%011o\x00", size, 0))
	copy(b[148:], "        ")
	b[156] = kind
	copy(b[257:], "ustar\x0000")
	sum := 0
	for _, c := range b {
		sum += int(c)
	}
	copy(b[148:], fmt.Sprintf("%06o\x00 ", sum))
	return b
}
