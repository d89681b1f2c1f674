package agent

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// renewInterval is the time between two calls of Sandbox.Renew.
	renewInterval = 5 * time.Minute
	// maxUnused is how long after the last call of a tool they continue. It is longer than a person may take
	// for an answer, with what the model and other tools take.
	maxUnused = askTimeout + time.Hour
)

// keeper renews a sandbox while the agent does not use it: while the model thinks, and while a person answers or
// has not given the next task.
type keeper struct {
	cancel context.CancelFunc
	done   chan struct{}
	used   atomic.Pointer[time.Time]
}

// newKeeper starts to renew a sandbox. Notify reports a failure, once until the next success. The caller must stop the
// keeper.
func newKeeper(renew func(context.Context) error, notify func(string)) *keeper {
	ctx, cancel := context.WithCancel(context.Background())
	k := &keeper{cancel: cancel, done: make(chan struct{})}
	k.noteUse()
	go func() {
		defer close(k.done)
		k.run(ctx, renew, notify)
	}()
	return k
}

// noteUse begins the time without use anew.
func (k *keeper) noteUse() {
	now := time.Now()
	k.used.Store(&now)
}

func (k *keeper) run(ctx context.Context, renew func(context.Context) error, notify func(string)) {
	ticker := time.NewTicker(renewInterval)
	defer ticker.Stop()
	failed := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if time.Since(*k.used.Load()) > maxUnused {
			continue // until the next use
		}
		err := renewSafely(ctx, renew)
		switch {
		case ctx.Err() != nil || errors.Is(err, sandpit.Gone) || errors.Is(err, sandpit.NotFound):
			return // the next call of a tool finds out
		case err != nil && !failed:
			notify("keep the sandbox: " + err.Error())
		}
		failed = err != nil
	}
}

// renewSafely calls a function of Options with a time limit, and converts a panic to an error.
func renewSafely(ctx context.Context, renew func(context.Context) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	defer func() {
		if cause := recover(); cause != nil {
			err = errPanic(cause)
		}
	}()
	return renew(ctx)
}

// stop ends the renewals and waits for the last one.
func (k *keeper) stop() {
	k.cancel()
	<-k.done
}
