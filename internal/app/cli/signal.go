package cli

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"
)

// signalError is the cause of a context that a signal ended.
type signalError struct{ sig syscall.Signal }

// Error names the signal.
func (e signalError) Error() string { return e.sig.String() }

// WithSignals returns a context that ends at the first signal that asks this program to end. A
// second one ends the program at once. Stop stops the handling of signals.
func WithSignals(ctx context.Context) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case s := <-signals:
			signal.Stop(signals)
			sig, _ := s.(syscall.Signal) // always is, on Linux
			cancel(signalError{sig})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
		<-done
	}
}

// signalStatus returns the exit status for a context that a signal ended.
func signalStatus(ctx context.Context) (status exitStatus, ok bool) {
	e, ok := errors.AsType[signalError](context.Cause(ctx))
	if !ok {
		return 0, false
	}
	return exitStatus(statusSignal + int(e.sig)), true
}
