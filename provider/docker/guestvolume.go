package docker

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
)

// guestVolume is the volume of an engine that holds the guest program.
type guestVolume struct {
	engine *engine

	mu     sync.Mutex
	volume string
	open   func() (io.ReadCloser, error)
	filled bool

	filling chan struct{} // full while this provider fills the volume
}

func newGuestVolume(e *engine) *guestVolume {
	return &guestVolume{engine: e, filling: make(chan struct{}, 1)}
}

const selfExe = "/proc/self/exe"

// volumeName returns the name of the volume, which depends on its content.
func (g *guestVolume) volumeName(ctx context.Context) (string, error) {
	f, err := g.engine.readFacts(ctx)
	if err != nil {
		return "", err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.volume != "" {
		return g.volume, nil
	}
	digest := guestbin.Digest(f.arch)
	open := func() (io.ReadCloser, error) { return guestbin.Open(f.arch) }
	if digest == "" || g.engine.o.Guest != "" {
		file := g.engine.o.Guest
		if file == "" {
			file = selfExe
		}
		if digest, err = digestProgram(file, f.arch); err != nil {
			return "", err
		}
		open = func() (io.ReadCloser, error) { return os.Open(file) }
	}
	g.open = open
	g.volume = "sandpit-guest-" + f.arch + "-" + digest[:32]
	return g.volume, nil
}

// digestProgram returns the digest of a program, or an error if it cannot be a guest.
func digestProgram(file, arch string) (string, error) {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	program, err := elf.Open(file)
	if err != nil {
		return "", sandpit.Errorf(sandpit.Invalid, "guest program %s: %w", file, err)
	}
	defer program.Close()
	if program.Machine != machine {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this sandpit has no guest program for %s, the architecture of the docker engine", arch),
			"build it with: go generate ./internal/inside/guestbin && CGO_ENABLED=0 go build ./cmd/sandpit")
	}
	for _, part := range program.Progs {
		if part.Type == elf.PT_INTERP {
			return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the guest program is not linked statically, and images may have no linker"),
				"build it with: CGO_ENABLED=0 go build ./cmd/sandpit")
		}
	}
	f, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("read the guest program: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// completeName is the last file that is written to the volume.
const completeName = "complete"

// ensureVolume fills the volume of a container with the guest, unless it is complete. The image is
// that of the container.
func (g *guestVolume) ensureVolume(ctx context.Context, container, image string) error {
	g.mu.Lock()
	filled := g.filled
	g.mu.Unlock()
	if filled {
		return nil
	}
	select {
	case g.filling <- struct{}{}:
		defer func() { <-g.filling }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		done, err := g.findVolume(ctx, container)
		if err == nil && !done {
			done, err = g.fillVolume(ctx, image)
		}
		if err != nil || done {
			g.mu.Lock()
			g.filled = err == nil
			g.mu.Unlock()
			return err
		}
		select { // another provider is filling it
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// markLost records that a container may not have found the guest: the volume may have been removed,
// and created again without it.
func (g *guestVolume) markLost() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.filled = false
}

// findVolume reports whether the volume of a container is complete.
func (g *guestVolume) findVolume(ctx context.Context, container string) (bool, error) {
	limited, cancel := g.engine.callContext(ctx)
	defer cancel()
	_, err := g.engine.api.ContainerStatPath(limited, container, client.ContainerStatPathOptions{Path: guestDir + "/" + completeName})
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, g.engine.wrapError(ctx, "find the guest", err)
}

// staleHelper is the age at which a container that fills the volume counts as abandoned.
const staleHelper = 5 * time.Minute

// fillVolume fills the volume through a container that never runs. The name of the container is the
// lock: it returns false if another provider holds it.
func (g *guestVolume) fillVolume(ctx context.Context, image string) (done bool, err error) {
	limited, cancel := g.engine.callContext(ctx)
	defer cancel()
	res, err := g.engine.api.ContainerCreate(limited, client.ContainerCreateOptions{
		Name: g.volume,
		Config: &container.Config{
			Image: image, Entrypoint: []string{guestDir + "/" + guest.Name},
			Labels: map[string]string{labelPart: "guest", labelFiller: g.engine.o.Manager},
		},
		HostConfig: &container.HostConfig{
			NetworkMode: "none",
			Mounts: []mount.Mount{{
				Type: mount.TypeVolume, Source: g.volume, Target: guestDir,
				VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{labelPart: "guest"}},
			}},
		},
	})
	if cerrdefs.IsConflict(err) || cerrdefs.IsAlreadyExists(err) {
		return false, g.removeStale(ctx, g.volume)
	}
	if err != nil {
		return false, g.engine.wrapError(ctx, "copy the guest", err)
	}
	defer func() { err = errors.Join(err, g.engine.removeUseless(ctx, res.ID)) }()
	program, err := g.open()
	if err != nil {
		return false, fmt.Errorf("open the guest: %w", err)
	}
	defer program.Close()
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		_ = w.CloseWithError(packGuest(w, program)) // never fails; the reader gets the error
	}()
	_, err = g.engine.api.CopyToContainer(limited, res.ID, client.CopyToContainerOptions{DestinationPath: guestDir, Content: r})
	_ = r.Close() // never fails
	<-packed
	if isNotFound(err) { // another provider removed it as stale
		return false, nil
	}
	return err == nil, g.engine.wrapError(ctx, "copy the guest", err)
}

// removeStale removes the container of a provider that was killed while it filled the volume.
// Another container of this provider's own state directory is always stale, because the provider
// fills one at a time.
func (g *guestVolume) removeStale(ctx context.Context, name string) error {
	c, err := g.engine.inspectContainer(ctx, name)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	made, err := time.Parse(time.RFC3339Nano, c.Created)
	if err == nil && time.Since(made) < staleHelper && c.Config.Labels[labelFiller] != g.engine.o.Manager {
		return nil
	}
	return g.engine.removeUseless(ctx, c.ID)
}

// removeFillers removes the containers that killed providers of this state directory left while
// they filled a volume.
func (g *guestVolume) removeFillers(ctx context.Context) error {
	select {
	case g.filling <- struct{}{}:
		defer func() { <-g.filling }()
	default: // the call that fills the volume removes stale ones
		return nil
	}
	limited, cancel := g.engine.callContext(ctx)
	defer cancel()
	res, err := g.engine.api.ContainerList(limited, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelFiller+"="+g.engine.o.Manager),
	})
	if err != nil {
		return g.engine.wrapError(ctx, "list the containers", err)
	}
	for _, c := range res.Items {
		if err := g.engine.removeUseless(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// packGuest writes the content of the volume as a tar stream.
func packGuest(w io.Writer, program io.Reader) error {
	f, err := os.CreateTemp("", "sandpit-guest-")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // a temporary file
	}()
	size, err := io.Copy(f, program) // a tar header needs the size
	if err != nil {
		return fmt.Errorf("unpack the guest: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	out := tar.NewWriter(w)
	if err := out.WriteHeader(&tar.Header{Name: guest.Name, Mode: 0o755, Size: size, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	if _, err := io.Copy(out, f); err != nil {
		return err
	}
	if err := out.WriteHeader(&tar.Header{Name: completeName, Mode: 0o444, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	return out.Close()
}
