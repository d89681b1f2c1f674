package browser

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// mute is a guest that has been stopped by a program inside, when it has started a process,
// or just before it says that it has.
type mute struct {
	sandpit.Processes

	late   bool
	killed *atomic.Int64
}

func (m mute) ListProcesses(context.Context) ([]sandpit.ProcessInfo, error) { return nil, nil }

func (m mute) Start(ctx context.Context, _ sandpit.Command) (sandpit.Process, error) {
	if m.late {
		<-ctx.Done()
	}
	return muteProcess{killed: m.killed}, nil
}

type muteProcess struct {
	sandpit.Process

	killed *atomic.Int64
}

func (p muteProcess) Signal(ctx context.Context, _ sandpit.Signal) error {
	p.killed.Add(1)
	<-ctx.Done()
	return ctx.Err()
}

func (p muteProcess) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	<-ctx.Done()
	return sandpit.ExitStatus{}, ctx.Err()
}

// TestMuteGuest has a start end although the sandbox answers nothing, and has what was
// started be killed if that can be.
func TestMuteGuest(t *testing.T) {
	t.Parallel()
	for name, late := range map[string]bool{"started": false, "too late": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				killed := &atomic.Int64{}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				begin := time.Now()
				if _, err := Start(ctx, mute{late: late, killed: killed}, Options{Profile: "/profile"}); err == nil {
					t.Error("a browser that says nothing has started")
				}
				if took := time.Since(begin); took > 20*time.Second || killed.Load() == 0 {
					t.Errorf("it took %s, and was killed %d times", took, killed.Load())
				}
			})
		})
	}
}
