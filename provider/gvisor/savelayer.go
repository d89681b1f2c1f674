package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"

	"gvisor.dev/gvisor/pkg/control/client"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"

	"github.com/sandpit-dev/sandpit"
)

// heldFile names a file that the engine holds for a sandbox.
type heldFile string

const (
	heldRoot     heldFile = "root"
	heldGuest    heldFile = "guest"
	heldIdentity heldFile = "identity"
)

// saveStopped freezes the sandbox and writes its layer to the files, which are those of
// layerFileNames. The sandbox stays frozen, so that what was saved does not change. If that fails
// or is canceled, the sandbox continues unchanged.
func (sb *engineSandbox) saveStopped(ctx context.Context, files []*os.File) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	if len(files) != len(layerFileNames()) {
		return sandpit.Errorf(sandpit.Invalid, "save: %d files, want %d", len(files), len(layerFileNames()))
	}
	if sb.paused && !sb.isSaved { // after a save whose caller was killed, another one may save it
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused", sb.id)
	}
	if !sb.paused {
		if err := sb.container.Pause(); err != nil {
			return sb.kernelErrorLocked("pause", err)
		}
		sb.paused = true
	}
	sb.isSaved = true
	sb.guard.setDisabled(true)
	err := sb.limits.raiseMemory()
	if err == nil {
		err = sb.saveLayer(files)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	return sb.kernelErrorLocked("save", errors.Join(err, sb.undoSaveLocked()))
}

// undoSaveLocked continues a sandbox that was saved to be stopped or suspended. The caller holds
// mu.
func (sb *engineSandbox) undoSaveLocked() error {
	if sb.paused {
		if err := sb.container.Resume(); err != nil {
			return err
		}
	}
	sb.paused, sb.isSaved = false, false
	sb.guard.setDisabled(false)
	var err error
	if sb.guestSettings != nil {
		err = sb.continueGuestLocked(context.Background(), false) // which has a limit of its own
	}
	return errors.Join(err, sb.limits.lowerMemory())
}

// saveLayer has the kernel write the layer. The files come from the provider, so neither engine
// nor kernel opens a path.
func (sb *engineSandbox) saveLayer(files []*os.File) error {
	conn, err := client.ConnectTo(sb.container.Sandbox.ControlSocketPath)
	if err != nil {
		return fmt.Errorf("reach the kernel: %w", err)
	}
	defer conn.Close()
	args := boot.FSSaveArgs{FilePayload: urpc.FilePayload{Files: files}}
	if err := conn.Call(boot.ContMgrFSSave, &args, nil); err != nil {
		return fmt.Errorf("write the layer: %w", err)
	}
	return nil
}

// linkLayer returns a directory in which gVisor finds the files of a saved layer.
func (sb *engineSandbox) linkLayer(files []*os.File) (string, error) {
	return sb.linkFiles("saved", layerFileNames(), files)
}

// openHeld returns another descriptor of a held file.
func (sb *engineSandbox) openHeld(which heldFile) (*os.File, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	f := map[heldFile]*os.File{heldRoot: sb.root, heldGuest: sb.guest, heldIdentity: sb.identity}[which]
	if f == nil {
		return nil, sandpit.Errorf(sandpit.Gone, "sandbox %s has no %q", sb.id, string(which))
	}
	return duplicateFile(f)
}

// setIdentity replaces the identity.
func (sb *engineSandbox) setIdentity(files []*os.File) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if len(files) != 1 || sb.identity == nil {
		return sandpit.Errorf(sandpit.Gone, "set the identity of sandbox %s: it is gone, or the file is missing", sb.id)
	}
	next, err := duplicateFile(files[0])
	if err != nil {
		return err
	}
	_ = sb.identity.Close() // memory only
	sb.identity = next
	return nil
}

// markStopped records that the end of the kernel is not the end of the sandbox.
func (sb *engineSandbox) markStopped() {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.stopped = true
}

func (sb *engineSandbox) wasStopped() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.stopped
}
