package gvisor

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
)

// StaticBuildCommand is a command that builds this program so that it can run sandboxes.
const StaticBuildCommand = "CGO_ENABLED=0 go run ./cmd/sandpit run -- sh -c 'uname -a'"

// selfExe is a path of the running binary that works after its file was removed, and without
// access to the directories above it.
const selfExe = "/proc/self/exe"

// engineBinary is a sandpit program that can be an engine.
type engineBinary struct {
	path    string
	buildID string // changes with the content
}

// readBinary checks the program at path, or the running one if path is empty.
//
// Unsupported: the program cannot be a sandbox's kernel. Such a process has an empty root
// directory, without a dynamic linker, and arranges its memory in ways that the race detector does
// not support.
func readBinary(path string) (engineBinary, error) {
	if runtime.GOOS != "linux" {
		return engineBinary{}, sandpit.Errorf(sandpit.Unsupported, "sandboxes need Linux, this is %s", runtime.GOOS)
	}
	own := path == ""
	if own {
		path = selfExe
	}
	f, err := elf.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return engineBinary{}, sandpit.Errorf(sandpit.NotFound, "engine binary %s does not exist", path)
	}
	if err != nil {
		return engineBinary{}, sandpit.Errorf(sandpit.Invalid, "engine binary %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return engineBinary{}, newNotStaticError("this sandpit is linked with cgo and cannot start a sandbox")
		}
	}
	if own && raceEnabled {
		return engineBinary{}, newNotStaticError("this sandpit is built with the race detector and cannot start a sandbox")
	}
	id, err := buildID(f)
	if err != nil {
		return engineBinary{}, sandpit.Errorf(sandpit.Invalid, "engine binary %s: %w", path, err)
	}
	return engineBinary{path: path, buildID: id}, nil
}

func newNotStaticError(text string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s", text),
		"build it as a static program: "+StaticBuildCommand)
}

// buildID returns the ID that the Go linker writes into every program, which changes with its
// content.
func buildID(f *elf.File) (string, error) {
	s := f.Section(".note.go.buildid")
	if s == nil {
		return "", errors.New("not a Go program")
	}
	note, err := s.Data()
	if err != nil {
		return "", err
	}
	const header = 16 // three sizes and the name "Go\x00\x00"
	id := bytes.TrimRight(note[min(header, len(note)):], "\x00")
	if len(id) == 0 {
		return "", errors.New("no build id; build without -buildid=")
	}
	return hex.EncodeToString(id), nil
}

// guestImage returns the file with the program that runs inside: the small guest if it is built
// in, otherwise the engine's own binary, which can play it.
func (p *Provider) guestImage(ctx context.Context) (string, error) {
	key := p.guestDigest
	open := func() (io.ReadCloser, error) { return guestbin.Open(runtime.GOARCH) }
	if key == "" {
		key = p.binary.buildID
		open = func() (io.ReadCloser, error) { return os.Open(p.binary.path) }
	}
	path, err := p.cfg.Images.Single(ctx, key, guest.Name, open)
	if err != nil {
		return "", fmt.Errorf("prepare the guest: %w", err)
	}
	return path, nil
}
