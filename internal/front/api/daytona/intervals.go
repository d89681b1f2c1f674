package daytona

import (
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	defaultStop    = 15    // minutes
	defaultArchive = 10080 // minutes: a week
	maxArchive     = 43200 // minutes: 30 days
	// noDelete is the interval of sandboxes that are not deleted by themselves.
	noDelete = -1
	// maxInterval bounds all intervals, in minutes.
	maxInterval = math.MaxInt32
	// ephemeralDelete is how long an ephemeral sandbox is stopped before it is deleted.
	ephemeralDelete = time.Second
)

// intervals are the times, in minutes, after which a sandbox changes by itself. A stop, pause
// or archive of zero means never, a delete of zero means at once when the sandbox stops.
type intervals struct{ stop, pause, archive, delete int64 }

// ephemeral reports whether the sandbox is deleted instead of stopped.
func (n intervals) ephemeral() bool { return n.delete == 0 }

// check returns an error if intervals are out of bounds or contradict each other.
func (n intervals) check() error {
	for name, value := range map[string]int64{"autoStopInterval": n.stop, "autoPauseInterval": n.pause, "autoArchiveInterval": n.archive} {
		if value < 0 || value > maxInterval {
			return sandpit.Errorf(sandpit.Invalid, "%s %d: want 0 to %d minutes", name, value, maxInterval)
		}
	}
	switch {
	case n.delete < noDelete || n.delete > maxInterval:
		return sandpit.Errorf(sandpit.Invalid, "autoDeleteInterval %d: want -1 to %d minutes", n.delete, maxInterval)
	case n.stop > 0 && n.pause > 0:
		return sandpit.Errorf(sandpit.Invalid, "autoStopInterval and autoPauseInterval are mutually exclusive")
	case n.ephemeral() && n.pause > 0:
		return sandpit.Errorf(sandpit.Invalid, "Ephemeral sandboxes cannot have auto-pause enabled")
	}
	return nil
}

func minutes(n int64) time.Duration { return time.Duration(n) * time.Minute }

// toPolicy returns the policy with these intervals. As with Daytona, programs that run in the
// sandbox do not keep it from being stopped.
func (n intervals) toPolicy(p sandpit.Policy) sandpit.Policy {
	p.IdleTimeout, p.IdleAction, p.IgnoreBackground = -1, "", true
	p.AutoStop, p.AutoSuspend, p.AutoArchive, p.AutoDelete = minutes(n.stop), minutes(n.pause), minutes(n.archive), 0
	switch {
	case n.ephemeral():
		p.AutoStop, p.AutoArchive, p.AutoDelete = 0, 0, ephemeralDelete
		if n.stop > 0 {
			p.IdleTimeout, p.IdleAction = minutes(n.stop), sandpit.ActionKill
		}
	case n.delete > 0:
		p.AutoDelete = minutes(n.delete)
	}
	return p
}

// toIntervals returns the intervals of a policy. Parts of a minute count as a minute.
func toIntervals(p sandpit.Policy) intervals {
	n := intervals{stop: countMinutes(p.AutoStop), pause: countMinutes(p.AutoSuspend), archive: countMinutes(p.AutoArchive), delete: noDelete}
	if p.AutoDelete > 0 {
		n.delete = countMinutes(p.AutoDelete)
	}
	if p.AutoDelete > 0 && p.AutoDelete <= ephemeralDelete {
		n.delete = 0
	}
	if p.IdleTimeout > 0 {
		switch p.IdleAction {
		case sandpit.ActionPause, sandpit.ActionSuspend:
			n.pause = countMinutes(p.IdleTimeout)
		default:
			n.stop = countMinutes(p.IdleTimeout)
		}
	}
	return n
}

func countMinutes(d time.Duration) int64 { return int64((d + time.Minute - 1) / time.Minute) }

// archiveInterval returns the interval that a request for one means: at most maxArchive, for
// which zero stands.
func archiveInterval(n int64) int64 {
	if n == 0 {
		return maxArchive
	}
	return min(n, maxArchive)
}

// pathInterval returns the number of minutes in the path.
func pathInterval(c *call) (int64, error) {
	text := c.r.PathValue("interval")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Invalid, "interval %.40q: want a number of minutes", text)
	}
	return n, nil
}

// setInterval returns a handler that changes one interval of a sandbox.
func (h *sandboxHandlers) setInterval(set func(n *intervals, minutes int64)) handler {
	return func(c *call) (int, any, error) {
		b, err := h.findSandbox(c)
		if err != nil {
			return 0, nil, err
		}
		value, err := pathInterval(c)
		if err != nil {
			return 0, nil, err
		}
		n := toIntervals(b.Policy)
		set(&n, value)
		if err := n.check(); err != nil {
			return 0, nil, err
		}
		if err := h.manager.SetPolicy(c.r.Context(), b.ID, n.toPolicy(b.Policy)); err != nil {
			return 0, nil, err
		}
		return h.describer.respond(c, b.ID)
	}
}

// setTTL sets the time from now after which a sandbox is deleted; 0 means never.
func (h *sandboxHandlers) setTTL(c *call) (int, any, error) {
	b, err := h.findSandbox(c)
	if err != nil {
		return 0, nil, err
	}
	value, err := pathInterval(c)
	if err != nil {
		return 0, nil, err
	}
	lease := sandpit.Lease{Action: sandpit.ActionKill}
	if lease.Deadline, err = ttlDeadline(value, time.Now()); err != nil {
		return 0, nil, err
	}
	if err := h.manager.SetDeadline(c.r.Context(), b.ID, lease); err != nil {
		return 0, nil, err
	}
	return h.describer.respond(c, b.ID)
}

// ttlDeadline returns the time that is some minutes after another. Zero minutes mean
// never, which is the zero time.
func ttlDeadline(minutes int64, from time.Time) (time.Time, error) {
	if minutes < 0 || minutes > maxInterval {
		return time.Time{}, refuse(http.StatusBadRequest, sandpit.Invalid, "ttlMinutes %d: want 0 to %d", minutes, maxInterval)
	}
	if minutes == 0 {
		return time.Time{}, nil
	}
	return from.Add(time.Duration(minutes) * time.Minute), nil
}
