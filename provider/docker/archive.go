package docker

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

var idPattern = pattern.New(`^sha256:[0-9a-f]{64}$`)

// isPath reports whether text is the path of a file rather than the name of an image.
func isPath(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

// archive is a tar file on this machine that contains an image.
type archive struct {
	path string
	tag  string // of the image that the engine loads from it
}

const archiveName = "sandpit-archive"

// openArchive describes the archive in a file. Its tag changes when the file changes.
func openArchive(name string) (archive, error) {
	abs, err := filepath.Abs(name)
	if err != nil {
		return archive{}, err
	}
	info, err := os.Stat(abs)
	if err != nil {
		return archive{}, sandpit.Errorf(sandpit.CodeOf(err), "%w", err)
	}
	if !info.Mode().IsRegular() {
		return archive{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "image %q is not a regular file; a docker engine loads images from files and names", abs),
			"create a tar file: tar -C "+abs+" -cf image.tar .")
	}
	about := fmt.Sprint(abs, "\x00", info.Size(), "\x00", info.ModTime().UnixNano())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		about += fmt.Sprint("\x00", st.Dev, st.Ino)
	}
	sum := sha256.Sum256([]byte(about))
	return archive{path: abs, tag: archiveName + ":" + hex.EncodeToString(sum[:16])}, nil
}

// loadArchive loads an archive into the engine: an image in the format of docker save or an OCI
// layout, otherwise the files of a root file system.
func (s *imageStore) loadArchive(ctx context.Context, a archive) error {
	isImage, err := holdsImage(ctx, a.path)
	if err != nil {
		return err
	}
	f, err := os.Open(a.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if !isImage {
		res, err := s.engine.api.ImageImport(ctx, client.ImageImportSource{Source: f, SourceName: "-"}, a.tag, client.ImageImportOptions{})
		if err != nil {
			return s.engine.wrapError(ctx, "import the archive", err)
		}
		defer res.Close()
		_, err = loadedImage(res)
		return s.archiveError(ctx, err)
	}
	res, err := s.engine.api.ImageLoad(ctx, f)
	if err != nil {
		return s.engine.wrapError(ctx, "load the archive", err)
	}
	defer res.Close()
	loaded, err := loadedImage(res)
	if err != nil {
		return s.archiveError(ctx, err)
	}
	if len(loaded) != 1 {
		return sandpit.Errorf(sandpit.Unsupported, "the archive contains %d images, want 1", len(loaded))
	}
	_, err = s.engine.api.ImageTag(ctx, client.ImageTagOptions{Source: loaded[0], Target: a.tag})
	return s.engine.wrapError(ctx, "name the image", err)
}

func (s *imageStore) archiveError(ctx context.Context, err error) error {
	if failure, ok := errors.AsType[*jsonstream.Error](err); ok {
		return sandpit.Errorf(sandpit.Invalid, "load the archive: %s", shortenText(failure.Message))
	}
	return s.engine.wrapError(ctx, "load the archive", err)
}

// loadedImage reads the engine's messages and returns the names of the loaded images.
func loadedImage(r io.Reader) (names []string, err error) {
	decoder := json.NewDecoder(r)
	for {
		var m jsonstream.Message
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return names, nil
		} else if err != nil {
			return nil, err
		}
		if m.Error != nil {
			return nil, m.Error
		}
		for _, prefix := range []string{"Loaded image ID: ", "Loaded image: "} {
			if name, ok := strings.CutPrefix(strings.TrimSpace(m.Stream), prefix); ok {
				names = append(names, name)
				break
			}
		}
	}
}

// holdsImage reports whether a tar file is an image rather than a root file system.
func holdsImage(ctx context.Context, name string) (bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var r io.Reader = f
	buffered := bufio.NewReader(f)
	if start, err := buffered.Peek(2); err == nil && start[0] == 0x1f && start[1] == 0x8b {
		if r, err = gzip.NewReader(buffered); err != nil {
			return false, sandpit.Errorf(sandpit.Invalid, "%s: %w", name, err)
		}
	} else if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	members := tar.NewReader(untilDone{ctx, r})
	for {
		h, err := members.Next()
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		if err != nil {
			return false, sandpit.Errorf(sandpit.Invalid, "%q is not a tar file, plain or gzip: %w", name, err)
		}
		if clean := path.Clean(h.Name); clean == "manifest.json" || clean == "oci-layout" {
			return true, nil
		}
	}
}

// untilDone reads until its context ends, because a small file may unpack to very much data.
type untilDone struct {
	ctx context.Context //nolint:containedctx // of the one call that reads
	r   io.Reader
}

// Read implements io.Reader.
func (u untilDone) Read(p []byte) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.r.Read(p)
}
