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

// saveRequest describes how a kernel is saved.
type saveRequest struct {
	// Stay leaves the sandbox frozen, so that what was saved does not change. Otherwise it
	// continues.
	Stay bool `json:"stay,omitempty"`
	// Layer means that its files are written as well, to more files of the request, which are
	// those of layerFileNames: they can be read without the kernel.
	Layer bool `json:"layer,omitempty"`
	// Bare means that only these are written, and not the kernel.
	Bare bool `json:"bare,omitempty"`
}

// saveState writes the sandbox's kernel, with all programs in it, to the files, which are those of
// kernelFileNames. If that fails or is canceled, the sandbox continues unchanged, except that
// connections into it were closed: a kernel cannot be saved with connections.
func (sb *engineSandbox) saveState(ctx context.Context, req saveRequest, files []*os.File) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	want := len(kernelFileNames())
	if req.Layer {
		want += len(layerFileNames())
	}
	if len(files) != want {
		return sandpit.Errorf(sandpit.Invalid, "save: %d files, want %d", len(files), want)
	}
	if sb.isSaved { // after a save whose caller was killed, another one may save it
		if err := sb.undoSaveLocked(); err != nil {
			return sb.kernelErrorLocked("resume", err)
		}
	}
	wasPaused := sb.paused
	err := sb.freezeAndSaveLocked(ctx, req, files)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil && req.Stay {
		sb.isSaved, sb.pauseAfter = true, wasPaused
		return nil
	}
	undo := sb.undoSaveLocked()
	if undo == nil && wasPaused {
		undo = sb.pauseLocked()
	}
	if err = errors.Join(err, undo); err != nil {
		return sb.kernelErrorLocked("save", err)
	}
	return nil
}

// freezeAndSaveLocked quiesces the guest, freezes the sandbox, and writes them. The caller holds mu.
func (sb *engineSandbox) freezeAndSaveLocked(ctx context.Context, req saveRequest, files []*os.File) error {
	if sb.paused { // the guest has to be quiesced first
		if err := sb.container.Resume(); err != nil {
			return err
		}
		sb.paused = false
	}
	if err := sb.quiesceGuestLocked(ctx); err != nil {
		return err
	}
	if err := sb.pauseLocked(); err != nil {
		return err
	}
	sb.guard.setDisabled(true)
	if err := sb.limits.raiseMemory(); err != nil {
		return err
	}
	if !req.Bare {
		if err := sb.writeState(files[:len(kernelFileNames())]); err != nil || !req.Layer {
			return err
		}
	}
	return sb.saveLayer(files[len(kernelFileNames()):])
}

func (sb *engineSandbox) pauseLocked() error {
	if err := sb.container.Pause(); err != nil {
		return err
	}
	sb.paused = true
	return nil
}

// writeState has the kernel write itself. The files come from the provider, so neither engine nor
// kernel opens a path.
func (sb *engineSandbox) writeState(files []*os.File) error {
	conn, err := client.ConnectTo(sb.container.Sandbox.ControlSocketPath)
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

// undoSave restores what a sandbox was before it was saved to stay frozen: running or paused.
func (sb *engineSandbox) undoSave() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	if !sb.isSaved {
		return nil
	}
	err := sb.undoSaveLocked()
	if err == nil && sb.pauseAfter {
		err = sb.pauseLocked()
	}
	if err != nil {
		return sb.kernelErrorLocked("resume", err)
	}
	return nil
}

// quiesceGuestLocked has the guest close all connections and return its settings. The caller holds
// mu.
func (sb *engineSandbox) quiesceGuestLocked(ctx context.Context) error {
	conn, err := sb.openOrder(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	settings, err := guest.Quiesce(conn)
	sb.guestSettings = settings // the guest may not have them any more
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "quiesce the guest: %w", err)
	}
	return nil
}

// continueGuestLocked is the opposite of quiesceGuestLocked, also for the guest of a loaded kernel.
// The caller holds mu.
func (sb *engineSandbox) continueGuestLocked(ctx context.Context, renew bool) error {
	conn, err := sb.openOrder(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := guest.Continue(conn, guest.Continuation{Settings: sb.guestSettings, Renew: renew}); err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "continue the guest: %w", err)
	}
	sb.guestSettings = nil
	return nil
}

// openOrder opens a connection for an order to the guest.
func (sb *engineSandbox) openOrder(ctx context.Context) (net.Conn, error) {
	if sb.conduit == nil {
		return nil, sandpit.Errorf(sandpit.Gone, "the sandbox is ending")
	}
	ours, theirs, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return nil, err
	}
	defer ours.Close()
	defer theirs.Close()
	if err := sb.sendToGuest(ctx, sb.conduit, guest.OrderMessage(), unix.UnixRights(int(theirs.Fd()))); err != nil {
		return nil, fmt.Errorf("send a request to the guest: %w", err)
	}
	return net.FileConn(ours)
}

// restoreKernel starts the kernel from the files. link is its network link, nil offline.
func (sb *engineSandbox) restoreKernel(conf *config.Config, link *os.File, files []*os.File) error {
	dir, err := sb.linkFiles("state", kernelFileNames(), files)
	if err != nil {
		return err
	}
	var network *boot.CreateLinksAndRoutesArgs
	if link != nil {
		args := linkArgs(link)
		network = &args
	}
	if err := sb.container.Restore(conf, dir, false, false, network); err != nil {
		return err
	}
	return sendForgetSignal(sb.container.SandboxPid())
}

// linkFiles creates a directory in which files have names.
func (sb *engineSandbox) linkFiles(name string, names []string, files []*os.File) (string, error) {
	dir := filepath.Join(sb.bundlePath(), name)
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
