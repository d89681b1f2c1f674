package debian

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

const (
	arMagic  = "!<arch>\n"
	arHeader = 60 // bytes before each member
)

// openFiles returns the uncompressed archive of a package's files. The caller closes it.
//
// Invalid: not a package.
func openFiles(deb io.Reader) (io.ReadCloser, error) {
	magic := make([]byte, len(arMagic))
	if _, err := io.ReadFull(deb, magic); err != nil || string(magic) != arMagic {
		return nil, sandpit.Errorf(sandpit.Invalid, "not a Debian package")
	}
	for {
		name, size, err := readMember(deb)
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(name, "data.tar") {
			files, err := newUnpacker(name, io.LimitReader(deb, size))
			if err != nil {
				return nil, sandpit.Errorf(sandpit.Invalid, "%s: %w", name, err)
			}
			return files, nil
		}
		if _, err := io.CopyN(io.Discard, deb, size+size%2); err != nil { // members begin at even offsets
			return nil, sandpit.Errorf(sandpit.Invalid, "the package is truncated")
		}
	}
}

// readMember reads the header of a member.
func readMember(deb io.Reader) (name string, size int64, err error) {
	header := make([]byte, arHeader)
	if _, err := io.ReadFull(deb, header); err != nil {
		return "", 0, sandpit.Errorf(sandpit.Invalid, "the package has no files")
	}
	name = strings.TrimSuffix(strings.TrimRight(string(header[:16]), " "), "/")
	size, err = strconv.ParseInt(strings.TrimRight(string(header[48:58]), " "), 10, 64)
	if err != nil || size < 0 || !bytes.HasSuffix(header, []byte("`\n")) {
		return "", 0, sandpit.Errorf(sandpit.Invalid, "a member of the package has an invalid size")
	}
	return name, size, nil
}

// mergedDirs are directories that are links to directories of the same name in /usr.
// Packages may contain files in them.
var mergedDirs = []string{"bin", "lib", "lib32", "lib64", "libx32", "sbin"}

// toImagePath returns the path in the image of a package's file; "" is the root.
//
// Invalid: the path is outside of the image.
func toImagePath(name string) (string, error) {
	clean := path.Clean("/" + name)[1:]
	if strings.ContainsRune(name, 0) || strings.Contains("/"+name+"/", "/../") {
		return "", sandpit.Errorf(sandpit.Invalid, "invalid file name %.200q", name)
	}
	first, _, below := strings.Cut(clean, "/")
	if below && isMerged(first) {
		return "usr/" + clean, nil
	}
	return clean, nil
}

// isMerged reports whether writeRoot creates a link of this name.
func isMerged(name string) bool { return slices.Contains(mergedDirs, name) }

// copyFiles adds the files of a package to an archive and subtracts their sizes from *left.
//
// Invalid: not a package. Exhausted: it has more than *left bytes.
func copyFiles(to *tar.Writer, deb io.Reader, left *int64) error {
	files, err := openFiles(deb)
	if err != nil {
		return err
	}
	in := tar.NewReader(files)
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files.Close()
		}
		if err != nil {
			return sandpit.Errorf(sandpit.Invalid, "read the package's files: %w", err)
		}
		if err := copyFile(to, h, in, left); err != nil {
			return errors.Join(err, files.Close())
		}
	}
}

func copyFile(to *tar.Writer, h *tar.Header, contents io.Reader, left *int64) error {
	name, err := toImagePath(h.Name)
	if err != nil || name == "" || isMerged(name) {
		return err
	}
	out := &tar.Header{
		Typeflag: h.Typeflag, Name: name, Linkname: h.Linkname, Mode: h.Mode & 0o7777, Uid: h.Uid, Gid: h.Gid,
		ModTime: h.ModTime, Size: h.Size, Format: tar.FormatPAX,
	}
	switch h.Typeflag {
	case tar.TypeDir:
		out.Name += "/"
	case tar.TypeLink:
		if out.Linkname, err = toImagePath(h.Linkname); err != nil {
			return err
		}
	case tar.TypeReg:
		if *left -= h.Size; *left < 0 {
			return sandpit.Errorf(sandpit.Exhausted, "the packages have more than %d bytes", int64(maxRoot))
		}
	case tar.TypeSymlink:
	default:
		return nil // devices; a sandbox has its own
	}
	if err := to.WriteHeader(out); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%.200q: %w", h.Name, err)
	}
	if _, err = io.Copy(to, contents); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "%.200q: %w", h.Name, err)
	}
	return nil
}
