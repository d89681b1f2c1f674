// Package liveness bounds calls into a sandbox. The guest that answers them is a program
// inside: root can stop it, other programs can starve it of processor time, and a hostile
// guest can send a byte a minute, or nothing.
//
// A Monitor belongs to one sandbox. While calls wait for the guest and it sends nothing, the
// Monitor probes it. If the guest does not answer the probe, all calls end with ErrSilent's
// error. Calls may take any time while the guest answers, unless they have a limit of their
// own (see Options). Calls into a sandbox that the provider knows to be paused do not end.
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
	// Quiet is how long the guest may send nothing, while calls wait for it, before the first
	// probe. Default: 5 s.
	Quiet time.Duration
	// Interval is the same after an answered probe, while the same calls wait. Default: 15 s.
	Interval time.Duration
	// Patience is how long the guest may take to answer a probe. A sandbox with busy
	// processors answers late. Default: 25 s.
	Patience time.Duration
	// Recheck replaces Patience for a guest that did not answer the last probe, so that
	// further calls fail soon. Default: 5 s.
	Recheck time.Duration
	// Call is how long a live guest may take for the whole response of an ordinary call, for
	// the beginning of a stream, and to read a piece of an upload. Default: 2 min.
	Call time.Duration
	// Change is the same for calls that change many files. Default: 10 min.
	Change time.Duration
	// Stream is how long a stream may bring no whole message. The guest is asked to send
	// keepalive messages three times as often. Default: 90 s.
	Stream time.Duration
	// Pace is how long the guest may take for PaceBytes of a file. Defaults: 1 min, 64 KiB.
	Pace      time.Duration
	PaceBytes int64
	// Reach is how long the provider may take to deliver a probe to the guest. Default: 5 min.
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

// Probe asks the guest for a sign of life. It calls asked when only the guest's answer is
// missing: from then on the guest's time counts, and ctx ends when that has passed. It returns
// nil if the guest has answered, ErrSilent if it certainly does not answer, and another error
// if that is unknown, for instance while the sandbox is paused.
type Probe func(ctx context.Context, asked func()) error

// ErrSilent is the error of a Probe that the guest does not answer.
var ErrSilent = errors.New("the guest does not answer")

// Monitor watches the calls into one sandbox. All methods may be called concurrently.
type Monitor struct {
	id    sandpit.ID
	probe Probe
	o     Options

	mu        sync.Mutex
	calls     map[*call]struct{}
	lastSign  time.Time // when the guest last sent something, or the first of calls began
	silent    bool      // the guest did not answer the last probe
	answered  bool      // it has answered a probe since the first of calls began
	asking    bool
	timer     *time.Timer
	stopProbe context.CancelFunc // ends the running probe; nil without one
}

// New returns a Monitor of a sandbox.
func New(id sandpit.ID, probe Probe, o Options) *Monitor {
	return &Monitor{id: id, probe: probe, o: o.withDefaults(), calls: make(map[*call]struct{})}
}

// exempt is the context key of calls that the Monitor does not bound.
type exempt struct{}

// Exempt returns a context whose calls are not watched, for calls to a starting guest. The
// caller must bound the context.
func Exempt(ctx context.Context) context.Context { return context.WithValue(ctx, exempt{}, true) }

func isExempt(ctx context.Context) bool { return ctx.Value(exempt{}) != nil }

// silentError returns the error for calls to a guest that does not answer.
func (m *Monitor) silentError() error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "sandbox %s does not answer: the first process inside is stopped, or gets no processor time", m.id),
		"end its processes and keep its files with: sandpit stop "+string(m.id)+" && sandpit start "+string(m.id)+
			" (or delete it: sandpit rm "+string(m.id)+")")
}

// lateError returns the error for a call that a live guest did not answer in time.
func (m *Monitor) lateError(limit time.Duration) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "sandbox %s is alive but did not complete the call within %v", m.id, limit),
		"try again; if this persists, end its processes and keep its files with: sandpit stop "+string(m.id)+" && sandpit start "+string(m.id))
}

// Watch watches an operation that waits for the guest until the caller calls done. It calls
// end with the reason, at most once, when the guest does not answer, and also when limit has
// passed, unless that is zero.
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

// addCall adds a watched call.
func (m *Monitor) addCall(end func(error)) *call {
	c := &call{monitor: m, end: end}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.calls[c] = struct{}{}
	if len(m.calls) == 1 {
		m.lastSign, m.answered = time.Now(), false
		m.armLocked(m.quietLocked())
	}
	return c
}

// quietLocked returns how long the guest may be silent before a probe: 0 after an unanswered
// one.
func (m *Monitor) quietLocked() time.Duration {
	switch {
	case m.silent:
		return min(m.o.Quiet, m.o.Recheck) / 5
	case m.answered:
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

// removeCall removes a call, and reports whether it was watched.
func (m *Monitor) removeCall(c *call) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.calls[c]; !ok {
		return false
	}
	delete(m.calls, c)
	if len(m.calls) == 0 {
		m.timer.Stop()
		if m.stopProbe != nil {
			m.stopProbe()
		}
	}
	return true
}

// recordSign records that the guest sent something.
func (m *Monitor) recordSign() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastSign, m.silent = time.Now(), false
}

// probeIfQuiet probes the guest if it was silent for a while, and ends all calls if it does
// not answer.
func (m *Monitor) probeIfQuiet() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	patience, before, due := m.beginProbe(cancel)
	if !due {
		return
	}
	for _, c := range m.recordFinding(m.probeGuest(ctx, patience), before) {
		c.stopLimit()
		c.end(m.silentError())
	}
}

// beginProbe reports whether a probe is due, how long the guest may take, and when it last
// sent something. The Monitor calls stop when no call waits any more.
func (m *Monitor) beginProbe(stop context.CancelFunc) (patience time.Duration, heard time.Time, due bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.asking || len(m.calls) == 0 {
		return 0, m.lastSign, false
	}
	if left := m.quietLocked() - time.Since(m.lastSign); left > 0 {
		m.armLocked(left)
		return 0, m.lastSign, false
	}
	m.asking, m.stopProbe = true, stop
	if m.silent {
		return m.o.Recheck, m.lastSign, true
	}
	return m.o.Patience, m.lastSign, true
}

// recordFinding records the result of a probe, and removes and returns the calls to end.
func (m *Monitor) recordFinding(found finding, heard time.Time) (over []*call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asking, m.stopProbe = false, nil
	switch {
	case found != isSilent:
		m.lastSign, m.silent, m.answered = time.Now(), false, true
	case m.lastSign.Equal(heard): // the guest sent nothing else meanwhile
		m.silent = true
		over = slices.Collect(maps.Keys(m.calls))
		clear(m.calls)
	}
	if len(m.calls) > 0 {
		m.armLocked(m.quietLocked())
	}
	return over
}

// finding is the result of a probe.
type finding int

const (
	isUnknown finding = iota
	isThere
	isSilent
)

// probeGuest probes the guest, which has patience to answer.
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

// countdownParts is the number of parts of a countdown. A pause of the machine or of this
// program counts as at most one part, because the guest had no time meanwhile.
const countdownParts = 5

// countdown calls a function after a time during which this program ran.
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
		if last { // left may belong to the next countdown
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
