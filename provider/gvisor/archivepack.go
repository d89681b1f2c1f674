package gvisor

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/savedstate"
)

// packWindow bounds the memory of packing and unpacking, in bytes.
const packWindow = 4 << 20

// packLayer writes the files of a stopped sandbox as a compressed tar. The record in it has
// neither environment nor key: the archive may be operated by others.
func packLayer(to io.Writer, state layerState, files layerFiles) error {
	z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(packWindow))
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	state.Record.Spec.Env, state.Record.Token = nil, ""
	data, err := json.Marshal(state)
	if err != nil {
		return errors.Join(err, z.Close())
	}
	err = w.WriteHeader(&tar.Header{Name: layerDescription, Mode: 0o600, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	for i, name := range append(layerFileNames(), rootImage) {
		if err != nil {
			break
		}
		f := files.root
		if name != rootImage {
			f = files.layer[i]
		}
		err = packFile(w, name, f, state.Sizes[name])
	}
	if err == nil {
		err = w.Close()
	}
	return errors.Join(err, z.Close())
}

func packFile(w *tar.Writer, name string, f *os.File, size int64) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: savedstate.FileMode, Size: size}); err != nil {
		return err
	}
	n, err := io.Copy(w, io.NewSectionReader(f, 0, size))
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, want %d", name, n, size)
	}
	return err
}

// unpackLayer writes what packLayer has written, except for the record, to files that create
// creates. Its input may be hostile: names, their order and sizes must be those expected.
func unpackLayer(create func(name string) (*os.File, error), from io.Reader, sizes map[string]int64) error {
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(packWindow))
	if err != nil {
		return err
	}
	defer z.Close()
	r := tar.NewReader(z)
	damaged := func(name string, err error) error {
		if err == nil {
			err = errors.New("unexpected name or size")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("unexpected end")
		}
		return sandpit.Errorf(sandpit.Internal, "the archive is damaged at %s: %w", name, err)
	}
	if h, err := r.Next(); err != nil || h.Name != layerDescription || h.Size > savedstate.MaxDescription {
		return damaged(layerDescription, err)
	}
	for _, name := range append(layerFileNames(), rootImage) {
		h, err := r.Next()
		if err != nil || h.Name != name || h.Size != sizes[name] {
			return damaged(name, err)
		}
		f, err := create(name)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, r, h.Size)
		if sandpit.CodeOf(err) == sandpit.Internal || errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
