package fake

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.SnapshotKeeper = (*Provider)(nil)

// ListSnapshots implements sandpit.SnapshotKeeper.
func (p *Provider) ListSnapshots(ctx context.Context) ([]sandpit.Snapshot, error) {
	var list []sandpit.Snapshot
	err := p.performOp(ctx, OpListSnapshots, "", func() error {
		p.world.mu.Lock()
		defer p.world.mu.Unlock()
		for _, s := range p.world.snapshots {
			s.Spec = s.Spec.Clone()
			list = append(list, s)
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	return list, nil
}

// RemoveSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	err := p.performOp(ctx, OpRemoveSnapshot, "", func() error {
		p.world.mu.Lock()
		_, known := p.world.snapshots[id]
		delete(p.world.snapshots, id)
		p.world.mu.Unlock()
		if !known {
			return nil
		}
		return removeAll(filepath.Join(p.world.snapshotDir(), string(id)))
	})
	if err != nil {
		return fmt.Errorf("remove snapshot %s: %w", id, err)
	}
	return nil
}

// ReadSnapshotLayer implements sandpit.SnapshotKeeper.
func (p *Provider) ReadSnapshotLayer(ctx context.Context, id sandpit.SnapshotID) (io.ReadCloser, error) {
	var layer io.ReadCloser
	err := p.performOp(ctx, OpReadLayer, "", func() error {
		s, err := p.findSnapshot(id)
		if err == nil {
			layer = packDir(ctx, filepath.Join(p.world.snapshotDir(), string(id)), s.Spec.Mounts)
		}
		return err
	})
	return closeOnError(layer, err)
}

// ReadLayer implements sandpit.LayerReader. The image is empty, so the layer contains all files.
func (i *Instance) ReadLayer(ctx context.Context) (io.ReadCloser, error) {
	var layer io.ReadCloser
	err := i.performOp(ctx, OpReadLayer, func() error {
		if err := i.box.lockInState(ctx, Running); err != nil {
			return err
		}
		defer i.box.unlock()
		spec, _ := i.box.identityOf()
		layer = packDir(ctx, i.box.dir, spec.Mounts)
		return nil
	})
	return closeOnError(layer, err)
}

// closeOnError closes a stream that cannot be returned because of an error.
func closeOnError(layer io.ReadCloser, err error) (io.ReadCloser, error) {
	if err == nil {
		return layer, nil
	}
	if layer != nil {
		_ = layer.Close()
	}
	return nil, err
}

func (p *Provider) findSnapshot(id sandpit.SnapshotID) (sandpit.Snapshot, error) {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	s, known := p.world.snapshots[id]
	if !known {
		return s, noSnapshot(id)
	}
	return s, nil
}

// packed is a tar stream that is written while it is read.
type packed struct {
	*io.PipeReader

	done chan struct{}
}

// Close implements io.Closer. It waits for the writer of the stream.
func (p *packed) Close() error {
	_ = p.PipeReader.Close() // always nil
	<-p.done
	return nil
}

func packDir(ctx context.Context, dir string, mounts []sandpit.Mount) io.ReadCloser {
	r, w := io.Pipe()
	p := &packed{r, make(chan struct{})}
	go func() {
		defer close(p.done)
		out := tar.NewWriter(w)
		err := packTree(ctx, out, dir, "", mounts)
		if err == nil {
			err = out.Close()
		}
		_ = w.CloseWithError(err) // always nil
	}()
	return p
}

// packTree writes the files below dir, under a prefix. It skips mounts, and files that are removed
// meanwhile.
func packTree(ctx context.Context, out *tar.Writer, dir, prefix string, mounts []sandpit.Mount) error {
	return filepath.WalkDir(dir, func(at string, e fs.DirEntry, err error) error {
		rel, relErr := filepath.Rel(dir, at)
		mounted := slices.ContainsFunc(mounts, func(m sandpit.Mount) bool { return m.Target == "/"+rel })
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, fs.ErrNotExist), rel == ".", mounted:
			return nil
		case err != nil || relErr != nil:
			return errors.Join(err, relErr)
		}
		return packFile(out, at, path.Join(prefix, rel), e)
	})
}

func packFile(out *tar.Writer, at, name string, e fs.DirEntry) error {
	info, err := e.Info()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil || info.Mode()&(fs.ModeSocket|fs.ModeDevice|fs.ModeNamedPipe) != 0 {
		return err
	}
	target := ""
	if info.Mode()&fs.ModeSymlink != 0 {
		if target, err = os.Readlink(at); err != nil {
			return err
		}
	}
	h, err := tar.FileInfoHeader(info, target)
	if err != nil {
		return err
	}
	h.Name = name
	if info.IsDir() {
		h.Name += "/"
	}
	if !info.Mode().IsRegular() {
		return out.WriteHeader(h)
	}
	f, err := os.Open(at)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := out.WriteHeader(h); err != nil {
		return err
	}
	_, err = io.CopyN(out, f, h.Size)
	return err
}

// The parts of an exported snapshot. After the tar stream comes its SHA-256.
const (
	exportedInfo  = "snapshot.json"
	exportedFiles = "files"
	maxInfo       = 1 << 20
)

// ExportSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) ExportSnapshot(ctx context.Context, id sandpit.SnapshotID, to io.Writer) error {
	err := p.performOp(ctx, OpExportSnapshot, "", func() error {
		s, err := p.findSnapshot(id)
		if err != nil {
			return err
		}
		info, err := json.Marshal(s)
		if err != nil {
			return err
		}
		sum := sha256.New()
		out := tar.NewWriter(io.MultiWriter(to, sum))
		if err := out.WriteHeader(&tar.Header{Name: exportedInfo, Mode: 0o600, Size: int64(len(info))}); err != nil {
			return err
		}
		if _, err := out.Write(info); err != nil {
			return err
		}
		if err := packTree(ctx, out, filepath.Join(p.world.snapshotDir(), string(id)), exportedFiles, nil); err != nil {
			return err
		}
		if err := out.Close(); err != nil {
			return err
		}
		_, err = to.Write(sum.Sum(nil))
		return err
	})
	if err != nil {
		return fmt.Errorf("export snapshot %s: %w", id, err)
	}
	return nil
}

// ImportSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) ImportSnapshot(ctx context.Context, id sandpit.SnapshotID, from io.Reader) (sandpit.Snapshot, error) {
	var s sandpit.Snapshot
	err := p.performOp(ctx, OpImportSnapshot, "", func() error {
		data, err := readWhole(from)
		if err != nil {
			return err
		}
		in := tar.NewReader(bytes.NewReader(data))
		h, err := in.Next()
		if err != nil || h.Name != exportedInfo || h.Size > maxInfo {
			return sandpit.Errorf(sandpit.Invalid, "not a snapshot of a fake sandbox")
		}
		if err := json.NewDecoder(in).Decode(&s); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "decode its description: %w", err)
		}
		s.ID, s.Unloadable, s.CreatedAt, s.Spec.Env = id, "", time.Now(), nil
		s, err = p.world.addSnapshot(s, func(dir string) error { return unpackTree(ctx, in, dir) })
		return err
	})
	if err != nil {
		return sandpit.Snapshot{}, fmt.Errorf("import snapshot: %w", err)
	}
	return s, nil
}

// readWhole reads a stream to its end and checks its digest.
func readWhole(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	n := max(0, len(data)-sha256.Size)
	if sum := sha256.Sum256(data[:n]); !bytes.Equal(sum[:], data[n:]) {
		return nil, sandpit.Errorf(sandpit.Invalid, "not a snapshot of a fake sandbox, or a damaged one")
	}
	return data[:n], nil
}

// unpackTree writes the files of a stream into a new directory, and to no other place.
func unpackTree(ctx context.Context, in *tar.Reader, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for ctx.Err() == nil {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return sandpit.Errorf(sandpit.Invalid, "not a tar stream: %w", err)
		}
		name, below := strings.CutPrefix(h.Name, exportedFiles+"/")
		name = path.Clean(name)
		if !below || !filepath.IsLocal(name) {
			return sandpit.Errorf(sandpit.Invalid, "unexpected file %.100q", h.Name)
		}
		if err := unpackFile(root, in, h, name); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func unpackFile(root *os.Root, in *tar.Reader, h *tar.Header, name string) error {
	mode := fs.FileMode(h.Mode & 0o777)
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o700)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return sandpit.Errorf(sandpit.Invalid, "file %.100q: %w", name, err)
		}
		_, err = io.Copy(f, in)
		if err := errors.Join(err, f.Close()); err != nil {
			return sandpit.Errorf(sandpit.Invalid, "file %.100q: %w", name, err)
		}
		return nil
	}
	return sandpit.Errorf(sandpit.Invalid, "file %.100q has an unsupported type", name)
}
