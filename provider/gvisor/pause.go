package gvisor

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/control/client"

	"github.com/sandpit-dev/sandpit"
)

// pause holds every program of the sandbox still. Its kernel goes on, and with it what
// is on its way in its network stack and its files.
func (b *box) pause() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.thereLocked(); err != nil {
		return err
	}
	if b.paused {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused already", b.id)
	}
	if err := b.container.Pause(); err != nil {
		return b.kernelErrorLocked("pause", err)
	}
	b.paused = true
	return nil
}

// resume lets them go on.
func (b *box) resume() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.thereLocked(); err != nil {
		return err
	}
	if !b.paused {
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is not paused", b.id)
	}
	if err := b.unsaveLocked(); err != nil {
		return b.kernelErrorLocked("resume", err)
	}
	return nil
}

// isPaused reports whether the sandbox is held still.
func (b *box) isPaused() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.paused
}

// thereLocked returns Gone for a sandbox that has ended. The caller holds mu.
func (b *box) thereLocked() error {
	if err := b.endedError(); err != nil {
		return err
	}
	if b.container == nil || b.container.Sandbox == nil || b.destroyed { // gVisor forgets a kernel that did not start
		return sandpit.Errorf(sandpit.Gone, "sandbox %s is gone", b.id)
	}
	return nil
}

// kernelErrorLocked is for a call that the kernel did not answer as it should, which it
// does not when it has ended meanwhile: then that is known in a moment. The caller holds mu
// and returns with the error; others may have mu while this waits.
func (b *box) kernelErrorLocked(doing string, err error) error {
	if b.thereLocked() == nil && !b.hearsLocked() {
		b.mu.Unlock()
		select {
		case <-b.ended:
		case <-time.After(endReportLimit):
		}
		b.mu.Lock()
	}
	if gone := b.thereLocked(); gone != nil {
		return gone
	}
	return fmt.Errorf("%s sandbox %s: %w", doing, b.id, err)
}

// hearsLocked reports whether the kernel takes calls at all. One that was killed does not,
// some time before its end is known. The caller holds mu.
func (b *box) hearsLocked() bool {
	conn, err := client.ConnectTo(b.container.Sandbox.ControlSocketPath)
	if err != nil {
		return false
	}
	_ = conn.Close() // nothing was asked
	return true
}
