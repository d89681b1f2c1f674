// Package guestbin contains the guest program for each architecture, if it was built in: run go generate
// ./internal/inside/guestbin before the build. Without it the main executable runs as the guest, which uses more
// memory for each sandbox.
package guestbin

import (
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io"
)

//go:generate go run ./build

//go:embed all:bin
var files embed.FS

// FileName returns the name in bin of the guest for an architecture, as Go names it.
func FileName(arch string) string { return "sandpit-guest-" + arch + ".gz" }

// Has reports whether the guest for an architecture is built in.
func Has(arch string) bool {
	f, err := files.Open("bin/" + FileName(arch))
	return err == nil && f.Close() == nil
}

// Digest returns the SHA-256 digest of an architecture's guest, in hexadecimal, or "" if it is
// not built in. Every command needs it, so it is read from the header and not computed.
func Digest(arch string) string {
	r, err := openGuest(arch)
	if err != nil {
		return ""
	}
	return r.Comment
}

// Pack writes a guest to w in the form that Open and Digest read.
func Pack(w io.Writer, program []byte) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(program)
	z.Comment = hex.EncodeToString(sum[:])
	if _, err := z.Write(program); err != nil {
		return err
	}
	return z.Close()
}

// Open returns the guest for an architecture. It returns an error if the guest is not built in.
func Open(arch string) (io.ReadCloser, error) { return openGuest(arch) }

// OpenPacked returns the guest for an architecture in the gzip format that Pack writes. It returns an error if the guest
// is not built in.
func OpenPacked(arch string) (io.ReadCloser, error) {
	f, err := files.Open("bin/" + FileName(arch))
	if err != nil {
		return nil, fmt.Errorf("open the guest for %s: %w", arch, err)
	}
	return f, nil
}

func openGuest(arch string) (*gzip.Reader, error) {
	f, err := files.Open("bin/" + FileName(arch))
	if err != nil {
		return nil, fmt.Errorf("open the guest for %s: %w", arch, err)
	}
	return gzip.NewReader(f) // f is in memory and needs no Close
}
