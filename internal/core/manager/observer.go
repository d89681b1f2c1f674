package manager

import (
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Observer is called with what a manager does, for metrics. Its methods are called concurrently,
// also while locks are held: they must return at once, and must not call the manager.
type Observer interface {
	// Done is called for everything that becomes an event: what was done, or refused.
	Done(r Report)
	// Asked is called when a sandbox of a pool's kind was requested, and whether there was a spare.
	Asked(provider string, image sandpit.Image, found bool)
	// PassedOn is called when a provider did not create a sandbox, and why, so that the request was
	// passed on to another provider or failed.
	PassedOn(provider string, err error)
	// Handled is called when a message of the queue was handled. One that failed is retried or given
	// up.
	Handled(kind queue.Kind, err error)
	// Ended is called when a command in a sandbox has ended, whatever API started it, with its
	// duration and its status, or the error if that is unknown.
	Ended(took time.Duration, status sandpit.ExitStatus, err error)
}

// noObserver is an Observer that does nothing.
type noObserver struct{}

func (noObserver) Done(Report) {}

func (noObserver) Asked(string, sandpit.Image, bool) {}

func (noObserver) PassedOn(string, error) {}

func (noObserver) Handled(queue.Kind, error) {}

func (noObserver) Ended(time.Duration, sandpit.ExitStatus, error) {}
