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
	"regexp"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/jsonstream"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

var idPattern = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)

// isPath tells a file from the name of an image.
func isPath(text string) bool {
	return strings.HasPrefix(text, "/") || strings.HasPrefix(text, "./") || strings.HasPrefix(text, "../")
}

// archive is a tar file of this machine with an image in it.
type archive struct {
	path string
	tag  string // by which the engine knows what was loaded of it
}

const archiveName = "sandpit-archive"

// openArchive describes a file. What it is called in the engine changes when the
// file does.
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
		return archive{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s is no file, and a docker engine takes files and names", abs),
			"make a tar of it: tar -C "+abs+" -cf image.tar .")
	}
	about := fmt.Sprint(abs, "\x00", info.Size(), "\x00", info.ModTime().UnixNano())
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		about += fmt.Sprint("\x00", st.Dev, st.Ino)
	}
	sum := sha256.Sum256([]byte(about))
	return archive{path: abs, tag: archiveName + ":" + hex.EncodeToString(sum[:16])}, nil
}

// loadArchive gives the engine what is in a file: an image as docker save or an OCI
// layout has it, else the files of a root file system.
func (p *Provider) loadArchive(ctx context.Context, a archive) error {
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
		res, err := p.api.ImageImport(ctx, client.ImageImportSource{Source: f, SourceName: "-"}, a.tag, client.ImageImportOptions{})
		if err != nil {
			return p.engineError(ctx, "import the archive", err)
		}
		defer res.Close()
		_, err = loadedImage(res)
		return p.archiveError(ctx, err)
	}
	res, err := p.api.ImageLoad(ctx, f)
	if err != nil {
		return p.engineError(ctx, "load the archive", err)
	}
	defer res.Close()
	loaded, err := loadedImage(res)
	if err != nil {
		return p.archiveError(ctx, err)
	}
	if len(loaded) != 1 {
		return sandpit.Errorf(sandpit.Unsupported, "the archive holds %d images, want one", len(loaded))
	}
	_, err = p.api.ImageTag(ctx, client.ImageTagOptions{Source: loaded[0], Target: a.tag})
	return p.engineError(ctx, "name the image", err)
}

func (p *Provider) archiveError(ctx context.Context, err error) error {
	if told, ok := errors.AsType[*jsonstream.Error](err); ok {
		return sandpit.Errorf(sandpit.Invalid, "load the archive: %s", shortenText(told.Message))
	}
	return p.engineError(ctx, "load the archive", err)
}

// loadedImage reads the engine's messages and returns what was loaded.
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
			return false, sandpit.Errorf(sandpit.Invalid, "%s is no tar file, plain or gzip: %w", name, err)
		}
		if clean := path.Clean(h.Name); clean == "manifest.json" || clean == "oci-layout" {
			return true, nil
		}
	}
}

// untilDone reads until a context ends: a small file may unpack to more than anybody can
// wait for.
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
