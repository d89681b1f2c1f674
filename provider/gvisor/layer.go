package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/ocilayer"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

// copyLayer writes the sandbox's layer to the files, which are those of layerFileNames. Programs
// are frozen meanwhile.
func (sb *engineSandbox) copyLayer(ctx context.Context, files []*os.File) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	if len(files) != len(layerFileNames()) {
		return sandpit.Errorf(sandpit.Invalid, "copy the layer: %d files, want %d", len(files), len(layerFileNames()))
	}
	if sb.isSaved {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is being stopped", sb.id)
	}
	sb.guard.setDisabled(true)
	err := sb.limits.raiseMemory()
	if err == nil {
		err = sb.saveLayer(files)
	}
	sb.guard.setDisabled(false)
	if err = errors.Join(err, sb.limits.lowerMemory(), ctx.Err()); err != nil {
		return sb.kernelErrorLocked("copy the layer of", err)
	}
	return nil
}

// readLayer copies the layer of a sandbox and returns it as that of an OCI image: see
// Instance.ReadLayer.
func (l *lifecycle) readLayer(ctx context.Context) (io.ReadCloser, error) {
	scratch := l.provider.cfg.ScratchDir
	files, err := newScratchFiles(scratch, len(layerFileNames()))
	if err != nil {
		return nil, savedstate.ExplainFull(scratch, err)
	}
	_, err = l.location.run(ctx, request{Op: opLayer}, files...)
	if err == nil {
		var r io.ReadCloser
		if r, err = ocilayer.Stream(files, guestDir); err == nil {
			return r, nil
		}
	}
	closeAll(files)
	return nil, savedstate.ExplainFull(scratch, err)
}

// newScratchFiles creates files without names in a directory.
func newScratchFiles(dir string, count int) ([]*os.File, error) {
	var files []*os.File
	for range count {
		f, err := newScratchFile(dir)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("create a scratch file: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// newScratchFile creates a file that is removed with its last descriptor.
func newScratchFile(dir string) (*os.File, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), "layer"), nil
	}
	if !errors.Is(err, unix.EOPNOTSUPP) {
		return nil, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f, err := os.CreateTemp(dir, "layer-*")
	if err != nil {
		return nil, err
	}
	return f, os.Remove(f.Name())
}
