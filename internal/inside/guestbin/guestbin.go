// Package guestbin holds the guest program for each architecture, if it was
// built in: go generate ./internal/inside/guestbin before building does that. Without
// it the main program plays the guest, at the price of more memory for each
// sandbox.
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

// FileName is what the guest of an architecture, as Go names it, is called in
// bin.
func FileName(arch string) string { return "sandpit-guest-" + arch + ".gz" }

// Has reports whether an architecture's guest is built in.
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

// Pack writes a guest to w as Open and Digest expect it.
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

// Open returns an architecture's guest. It is an error to open one that is not built in.
func Open(arch string) (io.ReadCloser, error) { return openGuest(arch) }

func openGuest(arch string) (*gzip.Reader, error) {
	f, err := files.Open("bin/" + FileName(arch))
	if err != nil {
		return nil, fmt.Errorf("open the guest for %s: %w", arch, err)
	}
	return gzip.NewReader(f) // f is in memory and needs no Close
}
