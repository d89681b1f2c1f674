package guestbin_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"runtime"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
)

func TestDigest(t *testing.T) {
	t.Parallel()
	if !guestbin.Has(runtime.GOARCH) {
		t.Skip("no guest is built in: run go generate ./internal/inside/guestbin")
	}
	program, err := guestbin.Open(runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	h := sha256.New()
	if _, err := io.Copy(h, program); err != nil {
		t.Fatal(err)
	}
	if got, want := guestbin.Digest(runtime.GOARCH), hex.EncodeToString(h.Sum(nil)); got != want {
		t.Errorf("the header has the digest %q, the guest %q", got, want)
	}
}

func TestNoGuest(t *testing.T) {
	t.Parallel()
	if guestbin.Has("mips") || guestbin.Digest("mips") != "" {
		t.Error("there is a guest for mips")
	}
	if _, err := guestbin.Open("mips"); err == nil {
		t.Error("the guest for mips can be opened")
	}
}
