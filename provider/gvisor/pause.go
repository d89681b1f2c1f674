package gvisor

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"

	"github.com/sandpit-dev/sandpit"
)

// pause freezes every program of the sandbox. Its kernel keeps running, and with it the network
// stack and file systems.
func (sb *engineSandbox) pause() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	if sb.paused {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused already", sb.id)
	}
	if err := sb.container.Pause(); err != nil {
		return sb.kernelErrorLocked("pause", err)
	}
	sb.paused = true
	return nil
}

// resume continues the programs of a paused sandbox.
func (sb *engineSandbox) resume() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	if !sb.paused {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is not paused", sb.id)
	}
	if err := sb.undoSaveLocked(); err != nil {
		return sb.kernelErrorLocked("resume", err)
	}
	return nil
}

// isPaused reports whether the sandbox is paused.
func (sb *engineSandbox) isPaused() bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.paused
}

// checkRunningLocked returns Gone for a sandbox that has ended. The caller holds mu.
func (sb *engineSandbox) checkRunningLocked() error {
	if err := sb.endedError(); err != nil {
		return err
	}
	if sb.container == nil || sb.container.Sandbox == nil || sb.destroyed { // gVisor removes a kernel that did not start
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", sb.id)
	}
	return nil
}

// kernelErrorLocked returns the error of a failed call to the kernel. If the kernel does not
// respond, it waits until the end of the sandbox is known, and returns that instead. The caller
// holds mu, which is released while this waits.
func (sb *engineSandbox) kernelErrorLocked(doing string, err error) error {
	if sb.checkRunningLocked() == nil && !sb.isKernelReachableLocked() {
		sb.mu.Unlock()
		select {
		case <-sb.ended:
		case <-time.After(endReportLimit):
		}
		sb.mu.Lock()
	}
	if gone := sb.checkRunningLocked(); gone != nil {
		return gone
	}
	return fmt.Errorf("%s sandbox %s: %w", doing, sb.id, err)
}

// isKernelReachableLocked reports whether the kernel accepts calls. A killed kernel does not, some
// time before its end is known. The caller holds mu.
func (sb *engineSandbox) isKernelReachableLocked() bool {
	conn, err := client.ConnectTo(sb.container.Sandbox.ControlSocketPath)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was requested
	return true
}
