package gvisor

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"

	"github.com/sandpit-dev/sandpit"
)

// pause holds every program of the sandbox still. Its kernel goes on, and with it what
// is on its way in its network stack and its files.
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

// resume lets them go on.
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

// isPaused reports whether the sandbox is held still.
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
	if sb.container == nil || sb.container.Sandbox == nil || sb.destroyed { // gVisor forgets a kernel that did not start
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", sb.id)
	}
	return nil
}

// kernelErrorLocked is for a call that the kernel did not answer as it should, which it
// does not when it has ended meanwhile: then that is known in a moment. The caller holds mu
// and returns with the error; others may have mu while this waits.
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

// isKernelReachableLocked reports whether the kernel takes calls at all. One that was killed does not,
// some time before its end is known. The caller holds mu.
func (sb *engineSandbox) isKernelReachableLocked() bool {
	conn, err := client.ConnectTo(sb.container.Sandbox.ControlSocketPath)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was asked
	return true
}
