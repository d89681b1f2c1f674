package manager

import (
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Observer hears of what a manager does, for figures. Its methods are called by many
// at the same time, some of whom hold locks: they must return at once, and not call
// the manager.
type Observer interface {
	// Done hears of everything that becomes an event: what was done, or refused.
	Done(r Report)
	// Asked hears that somebody wanted a sandbox of a pool's kind, and whether one
	// waited there.
	Asked(provider string, image sandpit.Image, found bool)
	// Handled hears that a message of the queue was handled. One that failed will be
	// tried again, or is given up.
	Handled(kind queue.Kind, err error)
	// Ended hears that a command in a sandbox has ended, by whichever way it was started: how
	// long it took, and how it ended or why nobody knows.
	Ended(took time.Duration, status sandpit.ExitStatus, err error)
}

// noObserver observes.
type noObserver struct{}

func (noObserver) Done(Report) {}

func (noObserver) Asked(string, sandpit.Image, bool) {}

func (noObserver) Handled(queue.Kind, error) {}

func (noObserver) Ended(time.Duration, sandpit.ExitStatus, error) {}
