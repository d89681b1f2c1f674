package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.LayerReader = (*Instance)(nil)

// copyLayer writes the sandbox's layer to the files, which are those of layerFiles,
// and has it go on. Programs stand still meanwhile.
func (b *box) copyLayer(ctx context.Context, files []*os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.thereLocked(); err != nil {
		return err
	}
	if len(files) != len(layerFiles()) {
		return sandpit.Errorf(sandpit.Invalid, "copy the layer: %d files, want %d", len(files), len(layerFiles()))
	}
	if b.saved {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is being stopped", b.id)
	}
	b.guard.sleep(true)
	err := b.limits.giveRoom()
	if err == nil {
		err = b.saveLayer(files)
	}
	b.guard.sleep(false)
	if err = errors.Join(err, b.limits.takeRoom(), ctx.Err()); err != nil {
		return b.kernelErrorLocked("copy the layer of", err)
	}
	return nil
}

// ReadLayer implements sandpit.LayerReader for a sandbox that runs or is paused. It
// stands still while its layer is copied to the disk, and goes on before ReadLayer
// returns; so what is read is of one moment. The copy has no name, and is gone with
// the reader.
//
// Where a file has large holes, it is sparse in the stream too, in the way of GNU tar.
// Sockets are left out. A file whose name begins with ".wh." ends the stream with
// Unsupported, for that is how layers write that something is not there.
func (i *Instance) ReadLayer(ctx context.Context) (io.ReadCloser, error) {
	files, err := i.provider.scratchLayer()
	if err != nil {
		return nil, fmt.Errorf("read the layer of sandbox %s: %w", i.id, err)
	}
	_, _, err = i.call(ctx, request{Op: opLayer, ID: i.id}, files...)
	if err == nil {
		var r io.ReadCloser
		if r, err = streamLayer(files); err == nil {
			return r, nil
		}
	}
	closeAll(files)
	return nil, fmt.Errorf("read the layer of sandbox %s: %w", i.id, keeper{dir: i.provider.cfg.ScratchDir}.explain(err))
}

// scratchLayer makes the files for a layer, without names.
func (p *Provider) scratchLayer() ([]*os.File, error) {
	var files []*os.File
	for range layerFiles() {
		f, err := namelessFile(p.cfg.ScratchDir)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("make room for a copy: %w", err)
		}
		files = append(files, f)
	}
	return files, nil
}

// namelessFile makes a file that ends with its last descriptor.
func namelessFile(dir string) (*os.File, error) {
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

// layerStream is a layer that is converted while it is read.
type layerStream struct {
	*io.PipeReader
	ended sync.WaitGroup
}

// Close gives the layer up and waits for its conversion to end.
func (s *layerStream) Close() error {
	err := s.PipeReader.Close()
	s.ended.Wait()
	return err
}

// streamLayer reads a saved layer as that of an OCI image. The files are those of
// layerFiles; if there is no error they are the stream's, which closes them.
func streamLayer(files []*os.File) (io.ReadCloser, error) {
	saved, err := openSavedLayer(files)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	s := &layerStream{PipeReader: r}
	s.ended.Go(func() {
		defer closeAll(files)
		_ = w.CloseWithError(saved.convert(w)) // never fails
	})
	return s, nil
}
