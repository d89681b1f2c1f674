package ocilayer

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

// Whiteouts of a layer of an OCI image. gVisor has a device with the number 0 for a removed
// file, and an attribute of a directory that hides everything below it.
const (
	whiteoutPrefix = ".wh."
	opaqueWhiteout = ".wh..wh..opq"

	attributePrefix  = "SCHILY.xattr."
	overlayAttribute = attributePrefix + "trusted.overlay."
	opaqueAttribute  = overlayAttribute + "opaque"
	aclAttribute     = attributePrefix + "system.posix_acl_"
)

// minHoles is how many bytes of a file must be holes before the file is sparse in a layer:
// not every program can read sparse files.
const minHoles = 64 << 20

// layerWriter writes a layer of an OCI image.
type layerWriter struct {
	saved  *savedLayer
	out    io.Writer
	tar    *tar.Writer
	ownDir string // left out
	// removed are the names of removed files. gVisor has all but the first as hard links to it.
	removed map[string]struct{}
}

// convert writes the layer as that of an OCI image, without the directory ownDir.
func (l *savedLayer) convert(to io.Writer, ownDir string) error {
	w := &layerWriter{saved: l, out: to, tar: tar.NewWriter(to), ownDir: ownDir, removed: map[string]struct{}{}}
	r := tar.NewReader(l.tree)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.tar.Close()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // writeEntry checks the names
			return badLayer("%w", err)
		}
		if err := w.writeEntry(h, r); err != nil {
			return err
		}
	}
}

// writeEntry writes the entry for one header of the tree.
func (w *layerWriter) writeEntry(h *tar.Header, contents io.Reader) error {
	name, err := toLayerName(h.Name)
	if err != nil || name == "./" && h.Typeflag != tar.TypeDir || "/"+name == w.ownDir {
		return err
	}
	if w.isRemoved(h) {
		dir, file := path.Split(name)
		w.removed[h.Name] = struct{}{}
		return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: dir + whiteoutPrefix + file, Format: tar.FormatPAX})
	}
	n := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode, Uid: h.Uid, Gid: h.Gid, ModTime: h.ModTime,
		Devmajor: h.Devmajor, Devminor: h.Devminor, PAXRecords: toLayerAttributes(h.PAXRecords), Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeReg:
		return w.writeFile(n, h, contents)
	case tar.TypeDir:
		if n.Name != "./" {
			n.Name += "/"
		}
	case tar.TypeLink:
		if n.Linkname, err = toLayerName(h.Linkname); err != nil {
			return err
		}
	}
	if err := w.tar.WriteHeader(n); err != nil {
		return fmt.Errorf("write %q: %w", name, err)
	}
	if h.Typeflag == tar.TypeDir && h.PAXRecords[opaqueAttribute] != "" {
		return w.tar.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: n.Name + opaqueWhiteout, Format: tar.FormatPAX})
	}
	return nil
}

// isRemoved reports whether a header stands for a removed file.
func (w *layerWriter) isRemoved(h *tar.Header) bool {
	if h.Typeflag == tar.TypeLink {
		_, removed := w.removed[h.Linkname]
		return removed
	}
	return h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0
}

// toLayerName returns a name of the tree as one of a layer. Names that only a hostile kernel
// writes, and names that would be whiteouts, are errors.
func toLayerName(name string) (string, error) {
	clean := strings.TrimSuffix(strings.TrimPrefix(name, "./"), "/")
	if clean == "" || clean == "." {
		return "./", nil
	}
	for part := range strings.SplitSeq(clean, "/") {
		if part == "" || part == "." || part == ".." {
			return "", badLayer("file name %q", name)
		}
		if strings.HasPrefix(part, whiteoutPrefix) {
			return "", sandpit.WithHint(
				sandpit.Errorf(sandpit.Unsupported, "file %q: in a layer, names that begin with %q mark removed files", clean, whiteoutPrefix),
				"rename or remove it")
		}
	}
	return clean, nil
}

// toLayerAttributes returns the attributes of a file, without those of the overlay.
func toLayerAttributes(records map[string]string) map[string]string {
	var own map[string]string
	for key, value := range records {
		if !strings.HasPrefix(key, attributePrefix) || strings.HasPrefix(key, overlayAttribute) {
			continue
		}
		if strings.HasPrefix(key, aclAttribute) { // only gVisor encodes these
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

// writeFile writes a regular file.
func (w *layerWriter) writeFile(n, h *tar.Header, contents io.Reader) error {
	size, parts, err := readContents(h, contents)
	if err != nil {
		return err
	}
	holes := size
	for _, s := range parts {
		holes -= int64(s.end - s.start) //nolint:gosec // at most size
	}
	n.Size = size
	if holes >= minHoles {
		return w.writeSparseFile(n, parts, size-holes)
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

// writeSparseFile writes a regular file with holes in version 1.0 of GNU tar's format, which
// archive/tar can read but not write.
func (w *layerWriter) writeSparseFile(n *tar.Header, parts []segment, data int64) error {
	size := uint64(n.Size) //nolint:gosec // not negative
	if len(parts) == 0 || parts[len(parts)-1].end < size {
		parts = append(slices.Clone(parts), segment{start: size, end: size}) // the end of the file
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
	if err := w.tar.Flush(); err != nil { // what follows bypasses it
		return err
	}
	var head bytes.Buffer
	pax := encodePAX(records)
	head.Write(newHeader(tar.TypeXHeader, 0o644, int64(len(pax))))
	head.WriteString(pax)
	head.Write(make([]byte, padding(int64(len(pax)))))
	head.Write(newHeader(tar.TypeReg, n.Mode, 0))
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

// encodePAX returns records with their lengths, which include the length itself.
func encodePAX(records map[string]string) string {
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

// newHeader returns the header block of an entry whose name, owner and time are in PAX records
// before it.
func newHeader(kind byte, mode, size int64) []byte {
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
