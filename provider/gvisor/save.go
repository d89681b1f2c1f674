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

// heldFile names a file that the engine keeps for a sandbox.
type heldFile string

const (
	heldRoot     heldFile = "root"
	heldGuest    heldFile = "guest"
	heldIdentity heldFile = "identity"
)

// save holds the sandbox still and writes its layer to the files, which are those of
// layerFileNames. It stays still: nothing may change any more that was saved. When that
// fails, or nobody waits for it any more, it goes on as if nothing had been.
func (b *box) save(ctx context.Context, files []*os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.thereLocked(); err != nil {
		return err
	}
	if len(files) != len(layerFileNames()) {
		return sandpit.Errorf(sandpit.Invalid, "save: %d files, want %d", len(files), len(layerFileNames()))
	}
	if b.paused && !b.saved { // who saved it may have been killed, and somebody tries again
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused", b.id)
	}
	if !b.paused {
		if err := b.container.Pause(); err != nil {
			return b.kernelErrorLocked("pause", err)
		}
		b.paused = true
	}
	b.saved = true
	b.guard.setDisabled(true)
	err := b.limits.raiseMemory()
	if err == nil {
		err = b.saveLayer(files)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	return b.kernelErrorLocked("save", errors.Join(err, b.unsaveLocked()))
}

// unsaveLocked lets a sandbox go on that was to be stopped or paused on disk. The caller
// holds mu.
func (b *box) unsaveLocked() error {
	if b.paused {
		if err := b.container.Resume(); err != nil {
			return err
		}
	}
	b.paused, b.saved = false, false
	b.guard.setDisabled(false)
	var err error
	if b.settings != nil {
		err = b.letGoLocked(context.Background(), false) // which has a limit of its own
	}
	return errors.Join(err, b.limits.lowerMemory())
}

// saveLayer has the kernel write the layer. The files come from the provider, so
// neither engine nor kernel has to find any path.
func (b *box) saveLayer(files []*os.File) error {
	conn, err := client.ConnectTo(b.container.Sandbox.ControlSocketPath)
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

// savedDir is a directory where gVisor finds the files of a saved layer.
func (b *box) savedDir(files []*os.File) (string, error) {
	return b.linked("saved", layerFileNames(), files)
}

// heldFile returns a descriptor of the caller's own.
func (b *box) heldFile(which heldFile) (*os.File, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	f := map[heldFile]*os.File{heldRoot: b.root, heldGuest: b.guest, heldIdentity: b.identity}[which]
	if f == nil {
		return nil, sandpit.Errorf(sandpit.Gone, "sandbox %s has no %q", b.id, string(which))
	}
	return duplicate(f)
}

// identify replaces the identity.
func (b *box) identify(files []*os.File) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(files) != 1 || b.identity == nil {
		return sandpit.Errorf(sandpit.Gone, "sandbox %s cannot get another identity", b.id)
	}
	next, err := duplicate(files[0])
	if err != nil {
		return err
	}
	_ = b.identity.Close() // memory only
	b.identity = next
	return nil
}

// markStopped says that the end of the kernel is not that of the sandbox.
func (b *box) markStopped() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
}

func (b *box) wasStopped() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stopped
}
