package gvisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/config"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// saveRequest says what becomes of a sandbox once its kernel was written down.
type saveRequest struct {
	// Stay holds it still: nothing may change any more that was saved. Else it goes on.
	Stay bool `json:"stay,omitempty"`
	// Layer says that its files are written besides, to further files that come along,
	// which are those of layerFileNames: these can be read without a kernel.
	Layer bool `json:"layer,omitempty"`
	// Bare says that these are all, and nothing is written of the kernel.
	Bare bool `json:"bare,omitempty"`
}

// saveState writes the sandbox's kernel to the files, which are those of kernelFileNames, with
// all programs in it. When that fails, or nobody waits for it any more, it goes on as if
// nothing had been, but that connections into it were closed: a kernel cannot be saved
// with these.
func (b *box) saveState(ctx context.Context, req saveRequest, files []*os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.thereLocked(); err != nil {
		return err
	}
	want := len(kernelFileNames())
	if req.Layer {
		want += len(layerFileNames())
	}
	if len(files) != want {
		return sandpit.Errorf(sandpit.Invalid, "save: %d files, want %d", len(files), want)
	}
	if b.saved { // who saved it may have been killed, and somebody tries again
		if err := b.unsaveLocked(); err != nil {
			return b.kernelErrorLocked("resume", err)
		}
	}
	wasPaused := b.paused
	err := b.freezeLocked(ctx, req, files)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && req.Stay {
		b.saved, b.pauseAfter = true, wasPaused
		return nil
	}
	undo := b.unsaveLocked()
	if undo == nil && wasPaused {
		undo = b.pauseLocked()
	}
	if err = errors.Join(err, undo); err != nil {
		return b.kernelErrorLocked("save", err)
	}
	return nil
}

// freezeLocked has the guest let go, holds the sandbox still and writes it down. The
// caller holds mu.
func (b *box) freezeLocked(ctx context.Context, req saveRequest, files []*os.File) error {
	if b.paused { // the guest has something to do first
		if err := b.container.Resume(); err != nil {
			return err
		}
		b.paused = false
	}
	if err := b.holdGuestLocked(ctx); err != nil {
		return err
	}
	if err := b.pauseLocked(); err != nil {
		return err
	}
	b.guard.setDisabled(true)
	if err := b.limits.raiseMemory(); err != nil {
		return err
	}
	if !req.Bare {
		if err := b.writeState(files[:len(kernelFileNames())]); err != nil || !req.Layer {
			return err
		}
	}
	return b.saveLayer(files[len(kernelFileNames()):])
}

func (b *box) pauseLocked() error {
	if err := b.container.Pause(); err != nil {
		return err
	}
	b.paused = true
	return nil
}

// writeState has the kernel write itself down. The files come from the provider, so
// neither engine nor kernel has to find any path.
func (b *box) writeState(files []*os.File) error {
	conn, err := client.ConnectTo(b.container.Sandbox.ControlSocketPath)
	if err != nil {
		return fmt.Errorf("reach the kernel: %w", err)
	}
	defer conn.Close()
	opts := control.SaveOpts{
		FilePayload: urpc.FilePayload{Files: files}, Metadata: statefile.CompressionLevelNone.ToMetadata(),
		HavePagesFile: true, Resume: true,
	}
	if err := conn.Call(boot.ContMgrCheckpoint, &opts, nil); err != nil {
		return fmt.Errorf("write the kernel: %w", err)
	}
	return nil
}

// unsave lets a sandbox be again what it was before it was saved to stay.
func (b *box) unsave() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.thereLocked(); err != nil {
		return err
	}
	if !b.saved {
		return nil
	}
	err := b.unsaveLocked()
	if err == nil && b.pauseAfter {
		err = b.pauseLocked()
	}
	if err != nil {
		return b.kernelErrorLocked("resume", err)
	}
	return nil
}

// holdGuestLocked has the guest let go of all connections and settings.
func (b *box) holdGuestLocked(ctx context.Context) error {
	conn, err := b.order(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	settings, err := guest.Hold(conn)
	b.settings = settings // if there are any the guest has them no more, maybe
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "have the guest let go: %w", err)
	}
	return nil
}

// letGoLocked is the opposite, or has the guest of a kernel that was read from disk go on.
func (b *box) letGoLocked(ctx context.Context, renew bool) error {
	conn, err := b.order(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := guest.LetGo(conn, guest.Release{Settings: b.settings, Renew: renew}); err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "have the guest go on: %w", err)
	}
	b.settings = nil
	return nil
}

// order opens a connection for an order to the guest.
func (b *box) order(ctx context.Context) (net.Conn, error) {
	if b.conduit == nil {
		return nil, sandpit.Errorf(sandpit.Gone, "the sandbox is ending")
	}
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	if err := b.send(ctx, b.conduit, guest.OrderMessage(), unix.UnixRights(int(theirs.Fd()))); err != nil {
		return nil, fmt.Errorf("order the guest: %w", err)
	}
	return net.FileConn(ours)
}

// restore starts the kernel as the one that was written to the files. link is its
// network, nil offline.
func (b *box) restore(conf *config.Config, link *os.File, files []*os.File) error {
	dir, err := b.linked("state", kernelFileNames(), files)
	if err != nil {
		return err
	}
	var network *boot.CreateLinksAndRoutesArgs
	if link != nil {
		args := linkArgs(link)
		network = &args
	}
	return b.container.Restore(conf, dir, false, false, network)
}

// linked makes a directory in which files have names.
func (b *box) linked(name string, names []string, files []*os.File) (string, error) {
	dir := filepath.Join(b.dir(), name)
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	for i, name := range names {
		if err := os.Symlink(descriptorPath(files[i], ""), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, nil
}
