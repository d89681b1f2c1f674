package gvisor

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/klauspost/compress/zstd"

	"github.com/sandpit-dev/sandpit"
)

// pack writes the files of a stopped sandbox as a compressed tar. The record in it has
// neither environment nor key: an archive may be somebody else's machine.
func pack(to io.Writer, k kept, files keptFiles) error {
	z, err := zstd.NewWriter(to, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(packWindow))
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	k.Record.Spec.Env, k.Record.Token = nil, ""
	data, err := json.Marshal(k)
	if err != nil {
		return errors.Join(err, z.Close())
	}
	err = w.WriteHeader(&tar.Header{Name: keptRecord, Mode: 0o600, Size: int64(len(data))})
	if err == nil {
		_, err = w.Write(data)
	}
	for i, name := range append(layerFiles(), keptRoot) {
		if err != nil {
			break
		}
		f := files.root
		if name != keptRoot {
			f = files.layer[i]
		}
		err = packFile(w, name, f, k.Sizes[name])
	}
	if err == nil {
		err = w.Close()
	}
	return errors.Join(err, z.Close())
}

// packWindow bounds the memory that packing and unpacking take.
const packWindow = 4 << 20

func packFile(w *tar.Writer, name string, f *os.File, size int64) error {
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: keptMode, Size: size}); err != nil {
		return err
	}
	n, err := io.Copy(w, io.NewSectionReader(f, 0, size))
	if err == nil && n != size {
		err = fmt.Errorf("%s has %d bytes, want %d", name, n, size)
	}
	return err
}

// unpack writes what pack has written to a directory, but for the record. What it reads
// is hostile: names, their order and sizes must be those that are known.
func unpack(dir string, from io.Reader, k kept) error {
	z, err := zstd.NewReader(from, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(packWindow))
	if err != nil {
		return err
	}
	defer z.Close()
	r := tar.NewReader(z)
	damaged := func(name string, err error) error {
		if err == nil {
			err = errors.New("it has another name or size")
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it ends too soon")
		}
		return sandpit.Errorf(sandpit.Internal, "the archive is damaged at %s: %w", name, err)
	}
	if h, err := r.Next(); err != nil || h.Name != keptRecord || h.Size > maxKeptRecord {
		return damaged(keptRecord, err)
	}
	for _, name := range append(layerFiles(), keptRoot) {
		h, err := r.Next()
		if err != nil || h.Name != name || h.Size != k.Sizes[name] {
			return damaged(name, err)
		}
		f, err := newKeptFile(filepath.Join(dir, name), 0)
		if err != nil {
			return err
		}
		_, err = io.CopyN(f, r, h.Size)
		if err == nil {
			err = f.Sync()
		}
		err = errors.Join(err, f.Close())
		if sandpit.CodeOf(err) == sandpit.Internal || errors.Is(err, io.ErrUnexpectedEOF) {
			return damaged(name, err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
