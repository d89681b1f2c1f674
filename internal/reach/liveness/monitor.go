// Package liveness bounds calls into a sandbox. The guest that answers them is a program
// inside: root can stop it, a full processor can starve it, and a hostile one answers a byte
// a minute, or never.
//
// A Monitor belongs to one sandbox. While calls wait for the guest and nothing comes from it,
// the Monitor asks whether it is there. If it does not answer, all calls end with an error
// that says so. Calls may take any time as long as the guest answers, unless they have a
// limit of their own (see Options). What the provider knows to be paused is not cut off.
package liveness

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Options are the bounds. The zero value of a field means the default stated with it.
type Options struct {
	// Quiet is how long nothing may come from the guest, while calls wait for it, until it
	// is asked whether it is there. Default: 5 s.
	Quiet time.Duration
	// Interval is the same once it has answered that, and the same calls wait. Default: 15 s.
	Interval time.Duration
	// Patience is how long the guest has to answer that. A sandbox whose processors are
	// busy answers late. Default: 25 s.
	Patience time.Duration
	// Recheck is Patience for a guest that did not answer the last time, so that further
	// calls fail soon. Default: 5 s.
	Recheck time.Duration
	// Call is how long a guest that is there may take for the whole answer of an ordinary
	// call, for the beginning of a stream, and to take a piece of an upload. Default: 2 min.
	Call time.Duration
	// Change is the same for calls that change many files. Default: 10 min.
	Change time.Duration
	// Stream is how long a stream may bring no whole message, also no sign of life, which a
	// guest is asked to send three times as often. Default: 90 s.
	Stream time.Duration
	// Pace is how long the guest may take for PaceBytes of a file. Defaults: 1 min, 64 KiB.
	Pace      time.Duration
	PaceBytes int64
	// Reach is how long the provider may take until the guest is asked. Default: 5 min.
	Reach time.Duration
}

func (o Options) withDefaults() Options {
	o.Quiet = cmp.Or(o.Quiet, 5*time.Second)
	o.Interval = cmp.Or(o.Interval, 15*time.Second)
	o.Patience = cmp.Or(o.Patience, 25*time.Second)
	o.Recheck = cmp.Or(o.Recheck, 5*time.Second)
	o.Call = cmp.Or(o.Call, 2*time.Minute)
	o.Change = cmp.Or(o.Change, 10*time.Minute)
	o.Stream = cmp.Or(o.Stream, 90*time.Second)
	o.Pace = cmp.Or(o.Pace, time.Minute)
	o.PaceBytes = cmp.Or(o.PaceBytes, 64<<10)
	o.Reach = cmp.Or(o.Reach, 5*time.Minute)
	return o
}

// Probe asks the guest whether it is there. It calls asked when everything that is not the
// guest's own doing is done: from then on the guest's time counts, and ctx ends when it is
// over. It returns nil if the guest has answered, ErrSilent if it certainly does not, and
// another error if that cannot be known, as while the sandbox is paused.
type Probe func(ctx context.Context, asked func()) error

// ErrSilent says that the guest does not answer.
var ErrSilent = errors.New("the guest does not answer")

// Monitor watches over the calls into one sandbox. All methods may be called concurrently.
type Monitor struct {
	id    sandpit.ID
	probe Probe
	o     Options

	mu      sync.Mutex
	calls   map[*call]struct{}
	heard   time.Time // when something came last, or the first of calls began
	silent  bool      // the guest did not answer the last time
	asked   bool      // it has answered since the first of calls began
	asking  bool
	timer   *time.Timer
	stopAsk context.CancelFunc // ends a probe that nobody waits for; nil if there is none
}

// New returns a Monitor of the sandbox.
func New(id sandpit.ID, probe Probe, o Options) *Monitor {
	return &Monitor{id: id, probe: probe, o: o.withDefaults(), calls: make(map[*call]struct{})}
}

// exempt marks a context whose calls have no bound but the context's own.
type exempt struct{}

// Exempt returns a context whose calls are not watched: those to a guest that is starting.
// The caller bounds it.
func Exempt(ctx context.Context) context.Context { return context.WithValue(ctx, exempt{}, true) }

func isExempt(ctx context.Context) bool { return ctx.Value(exempt{}) != nil }

// silentError is what calls end with.
func (m *Monitor) silentError() error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "sandbox %s does not answer: the first process inside is stopped, or gets no processor time", m.id),
		"end its processes and keep its files with: sandpit stop "+string(m.id)+" && sandpit start "+string(m.id)+
			" (or delete it: sandpit rm "+string(m.id)+")")
}

// lateError is what a call ends with that the guest, which is there, did not answer in time.
func (m *Monitor) lateError(limit time.Duration) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "sandbox %s answers, but not this call: nothing, or too little, came within %v", m.id, limit),
		"try again; if it stays so, end its processes and keep its files with: sandpit stop "+string(m.id)+" && sandpit start "+string(m.id))
}

// Watch watches something that waits for the guest until done is called: end is called with
// the reason, once at most, when the guest does not answer. If limit is not zero, end is also
// called when that has passed.
func (m *Monitor) Watch(ctx context.Context, limit time.Duration, end func(error)) (done func()) {
	if isExempt(ctx) {
		return func() {}
	}
	c := m.addCall(end)
	if limit > 0 {
		c.setLimit(limit)
	}
	return c.endWatch
}

// addCall adds a call.
func (m *Monitor) addCall(end func(error)) *call {
	c := &call{monitor: m, end: end}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[c] = struct{}{}
	if len(m.calls) == 1 {
		m.heard, m.asked = time.Now(), false
		m.armLocked(m.quietLocked())
	}
	return c
}

// quietLocked is how long the guest may be silent. One that did not answer is asked at once.
func (m *Monitor) quietLocked() time.Duration {
	switch {
	case m.silent:
		return min(m.o.Quiet, m.o.Recheck) / 5
	case m.asked:
		return m.o.Interval
	}
	return m.o.Quiet
}

func (m *Monitor) armLocked(after time.Duration) {
	if m.timer == nil {
		m.timer = time.AfterFunc(after, m.probeIfQuiet)
		return
	}
	m.timer.Reset(after)
}

// removeCall takes a call away, and reports whether it was there.
func (m *Monitor) removeCall(c *call) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.calls[c]; !ok {
		return false
	}
	delete(m.calls, c)
	if len(m.calls) == 0 {
		m.timer.Stop()
		if m.stopAsk != nil {
			m.stopAsk()
		}
	}
	return true
}

// recordSign notes that something came from the guest.
func (m *Monitor) recordSign() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heard, m.silent = time.Now(), false
}

// probeIfQuiet asks the guest if nothing came from it for a while, and ends all calls if it does
// not answer.
func (m *Monitor) probeIfQuiet() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	patience, before, due := m.beginAsking(cancel)
	if !due {
		return
	}
	for _, c := range m.recordFinding(m.probeGuest(ctx, patience), before) {
		c.stopLimit()
		c.end(m.silentError())
	}
}

// beginAsking reports whether the guest is to be asked now, how long it has, and when it was
// heard last. stop is called when no call waits any more.
func (m *Monitor) beginAsking(stop context.CancelFunc) (patience time.Duration, heard time.Time, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking || len(m.calls) == 0 {
		return 0, m.heard, false
	}
	if left := m.quietLocked() - time.Since(m.heard); left > 0 {
		m.armLocked(left)
		return 0, m.heard, false
	}
	m.asking, m.stopAsk = true, stop
	if m.silent {
		return m.o.Recheck, m.heard, true
	}
	return m.o.Patience, m.heard, true
}

// recordFinding notes what was found out, and takes away and returns the calls that are over.
func (m *Monitor) recordFinding(found finding, heard time.Time) (over []*call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asking, m.stopAsk = false, nil
	switch {
	case found != isSilent:
		m.heard, m.silent, m.asked = time.Now(), false, true
	case m.heard.Equal(heard): // and nothing else came meanwhile
		m.silent = true
		over = slices.Collect(maps.Keys(m.calls))
		clear(m.calls)
	}
	if len(m.calls) > 0 {
		m.armLocked(m.quietLocked())
	}
	return over
}

// finding is what a probe found out.
type finding int

const (
	isUnknown finding = iota
	isThere
	isSilent
)

// probeGuest asks the guest, which has so much time.
func (m *Monitor) probeGuest(ctx context.Context, patience time.Duration) finding {
	ctx, cancel := context.WithTimeoutCause(ctx, m.o.Reach+patience, ErrSilent)
	defer cancel()
	ctx, silence := context.WithCancelCause(ctx)
	defer silence(nil)
	var countdown countdown
	defer countdown.stopTimer()
	err := m.probe(ctx, func() { countdown.startTimer(patience, func() { silence(ErrSilent) }) })
	switch {
	case err == nil:
		return isThere
	case errors.Is(err, ErrSilent), errors.Is(context.Cause(ctx), ErrSilent) && isContextError(err):
		return isSilent
	}
	return isUnknown
}

func isContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// countdownParts is in how many parts the time of a countdown passes. A machine or program that
// stood still for a while takes one of them and no more: the guest had no time meanwhile.
const countdownParts = 5

// countdown calls a function when a time has passed in which this program ran.
type countdown struct {
	mu    sync.Mutex
	timer *time.Timer
}

func (c *countdown) startTimer(d time.Duration, over func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		return
	}
	left := countdownParts
	c.timer = time.AfterFunc(d/countdownParts, func() {
		c.mu.Lock()
		left--
		last := left == 0
		if !last {
			c.timer.Reset(d / countdownParts)
		}
		c.mu.Unlock()
		if last { // left is the next one's by now
			over()
		}
	})
}

func (c *countdown) stopTimer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.timer != nil {
		c.timer.Stop()
	}
}
