// Package guestbin holds the guest program for each architecture, if it was
// built in: go generate ./internal/guestbin before building does that. Without
// it the main program plays the guest, at the price of more memory for each
// sandbox.
package guestbin

import (
	"bytes"
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

// Digest names the content of an architecture's guest, or is "" if there is
// none.
func Digest(arch string) string {
	data, err := files.ReadFile("bin/" + FileName(arch))
	if err != nil {
		return ""
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Open returns an architecture's guest. It is an error to ask for one that
// Digest does not know.
func Open(arch string) (io.ReadCloser, error) {
	data, err := files.ReadFile("bin/" + FileName(arch))
	if err != nil {
		return nil, fmt.Errorf("open the guest for %s: %w", arch, err)
	}
	return gzip.NewReader(bytes.NewReader(data))
}
