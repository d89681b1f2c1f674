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
	mu     sync.Mutex
	volume string
	open   func() (io.ReadCloser, error)
	filled bool

	filling chan struct{} // full while this provider fills it
}

const selfExe = "/proc/self/exe"

// volumeName returns the volume's name, which changes with its content.
func (g *guestVolume) volumeName(ctx context.Context, p *Provider) (string, error) {
	f, err := p.engineFacts(ctx)
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
	if digest == "" || p.o.Guest != "" {
		file := p.o.Guest
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

// digestProgram names the content of a program that can be a guest.
func digestProgram(file, arch string) (string, error) {
	machine := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	program, err := elf.Open(file)
	if err != nil {
		return "", sandpit.Errorf(sandpit.Invalid, "guest program %s: %w", file, err)
	}
	defer program.Close()
	if program.Machine != machine {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this sandpit has no guest program for %s, which the docker engine runs on", arch),
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

// completeName is the file that is put into the volume last.
const completeName = "complete"

// ensureVolume sees to it that the volume, which a container of that image has, holds
// the guest.
func (g *guestVolume) ensureVolume(ctx context.Context, p *Provider, container, image string) error {
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
		done, err := g.findVolume(ctx, p, container)
		if err == nil && !done {
			done, err = g.fillVolume(ctx, p, image)
		}
		if err != nil || done {
			g.mu.Lock()
			g.filled = err == nil
			g.mu.Unlock()
			return err
		}
		select { // somebody else is about it
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// markLost says that a container did not find the guest: the volume was removed
// meanwhile, and made again without it.
func (g *guestVolume) markLost() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.filled = false
}

// findVolume reports whether the volume of a container is complete.
func (g *guestVolume) findVolume(ctx context.Context, p *Provider, container string) (bool, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	_, err := p.api.ContainerStatPath(limited, container, client.ContainerStatPathOptions{Path: guestDir + "/" + completeName})
	if isNotFound(err) {
		return false, nil
	}
	return err == nil, p.engineError(ctx, "look for the guest", err)
}

// staleHelper is how old the container of somebody who fills the volume may be.
const staleHelper = 5 * time.Minute

// fillVolume fills the volume by means of a container that never runs, and whose name
// keeps others from doing so at the same time. It returns false if others do.
func (g *guestVolume) fillVolume(ctx context.Context, p *Provider, image string) (done bool, err error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ContainerCreate(limited, client.ContainerCreateOptions{
		Name: g.volume,
		Config: &container.Config{
			Image: image, Entrypoint: []string{guestDir + "/" + guest.Name},
			Labels: map[string]string{labelPart: "guest", labelFiller: p.o.Manager},
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
		return false, p.removeStale(ctx, g.volume)
	}
	if err != nil {
		return false, p.engineError(ctx, "bring in the guest", err)
	}
	defer func() { err = errors.Join(err, p.removeUseless(ctx, res.ID)) }()
	program, err := g.open()
	if err != nil {
		return false, fmt.Errorf("open the guest: %w", err)
	}
	defer program.Close()
	r, w := io.Pipe()
	packed := make(chan struct{})
	go func() {
		defer close(packed)
		_ = w.CloseWithError(packGuest(w, program)) // never fails; the reader hears
	}()
	_, err = p.api.CopyToContainer(limited, res.ID, client.CopyToContainerOptions{DestinationPath: guestDir, Content: r})
	_ = r.Close() // never fails
	<-packed
	if isNotFound(err) { // somebody took this for the container of a dead one
		return false, nil
	}
	return err == nil, p.engineError(ctx, "bring in the guest", err)
}

// removeStale removes the container of somebody who was killed, or whose engine was,
// while filling the volume. Of this provider's own state directory that is everybody
// else, since one of them fills at a time.
func (p *Provider) removeStale(ctx context.Context, name string) error {
	c, err := p.inspectContainer(ctx, name)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	made, err := time.Parse(time.RFC3339Nano, c.Created)
	if err == nil && time.Since(made) < staleHelper && c.Config.Labels[labelFiller] != p.o.Manager {
		return nil
	}
	return p.removeUseless(ctx, c.ID)
}

// removeFillers removes the containers by which those of this state directory filled a
// volume who were killed.
func (p *Provider) removeFillers(ctx context.Context) error {
	select {
	case p.guest.filling <- struct{}{}:
		defer func() { <-p.guest.filling }()
	default: // there is one that is in use, and who uses it removes the others
		return nil
	}
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ContainerList(limited, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelFiller+"="+p.o.Manager),
	})
	if err != nil {
		return p.engineError(ctx, "list the containers", err)
	}
	for _, c := range res.Items {
		if err := p.removeUseless(ctx, c.ID); err != nil {
			return err
		}
	}
	return nil
}

// packGuest writes the volume's content.
func packGuest(w io.Writer, program io.Reader) error {
	f, err := os.CreateTemp("", "sandpit-guest-")
	if err != nil {
		return err
	}
	defer func() {
		_ = f.Close()
		_ = os.Remove(f.Name()) // it has no more use
	}()
	size, err := io.Copy(f, program) // a tar wants the size first
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
