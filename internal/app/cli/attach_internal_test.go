package cli

import (
	"context"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// hungStarter is a sandbox that never starts a command.
type hungStarter struct{ asked chan struct{} }

func (h hungStarter) Start(ctx context.Context, _ sandpit.Command) (sandpit.Process, error) {
	close(h.asked)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestSignalBeforeStart: a signal ends the wait for a command that does not start.
func TestSignalBeforeStart(t *testing.T) { //nolint:paralleltest // it signals this process
	h := hungStarter{make(chan struct{})}
	go func() {
		<-h.asked
		_ = syscall.Kill(os.Getpid(), syscall.SIGUSR2)
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	done := make(chan struct{})
	var status sandpit.ExitStatus
	var err error
	go func() {
		defer close(done)
		status, err = attachment{signals: true}.executeWithSignals(ctx, new(app), h, sandpit.Command{Args: []string{"x"}})
	}()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("it did not hear the signal")
	}
	if want := statusSignal + int(syscall.SIGUSR2); err != nil || !status.Signaled || status.Code != want {
		t.Errorf("got %+v, %v, want the status %d", status, err, want)
	}
}

// slowStarter is a sandbox in which a command runs for some time before its start returns. The command ends when it gets
// a signal.
type slowStarter struct {
	sandpit.Process

	signaled chan sandpit.Signal
}

func (s slowStarter) Start(context.Context, sandpit.Command) (sandpit.Process, error) {
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM) // as after the first output
	time.Sleep(startGrace / 10)
	return s, nil
}

func (s slowStarter) Signal(_ context.Context, sig sandpit.Signal) error {
	s.signaled <- sig
	return nil
}

func (s slowStarter) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case sig := <-s.signaled:
		return sandpit.ExitStatus{Code: int(sig)}, nil
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
}

// TestSignalDuringStart: a command that runs already gets the signal, although its start has not returned.
func TestSignalDuringStart(t *testing.T) { //nolint:paralleltest // it signals this process
	s := slowStarter{signaled: make(chan sandpit.Signal, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	status, err := attachment{signals: true}.executeWithSignals(ctx, new(app), s, sandpit.Command{Args: []string{"x"}, Timeout: 10 * time.Second})
	if err != nil || status.Signaled || status.Code != int(syscall.SIGTERM) {
		t.Errorf("got %+v, %v, want a command that got SIGTERM", status, err)
	}
}

// TestStartInTime: the time limit of a command also counts while it does not start.
func TestStartInTime(t *testing.T) {
	t.Parallel()
	h := hungStarter{make(chan struct{})}
	_, err := startInTime(t.Context(), h, sandpit.Command{Timeout: time.Nanosecond})
	if sandpit.CodeOf(err) != sandpit.Timeout || sandpit.HintOf(err) == "" {
		t.Errorf("got %v, want a timeout and what to do", err)
	}
}
