// Command build builds the guest programs that package guestbin contains. The same sources and Go version give
// identical files.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
)

func main() {
	for _, arch := range []string{"amd64", "arm64"} {
		if err := buildGuest(arch); err != nil {
			fmt.Fprintln(os.Stderr, "build:", err)
			os.Exit(1)
		}
	}
}

func buildGuest(arch string) error {
	dir, err := os.MkdirTemp("", "sandpit-guest-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "guest")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", //nolint:noctx // ends by itself
		"-o", program, "github.com/sandpit-dev/sandpit/cmd/sandpit-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("compile for %s: %w", arch, err)
	}
	data, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	var packed bytes.Buffer
	if err := guestbin.Pack(&packed, data); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("bin", guestbin.FileName(arch)), packed.Bytes(), 0o644)
}
