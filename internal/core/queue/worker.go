package queue

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
)

// Handler does what a message says. It may be called for several messages at
// the same time, but not for two of the same Sandbox and Kind, unless a claim ran
// out because the worker could not reach the queue for as long as Visibility. It
// must cope with being called again for a message it has done. ctx ends when the
// worker has been stopped and its patience is over.
//
// Its error decides what becomes of the message, by its explicit sandpit.Code:
// none, NotFound and Gone mean that nothing is left to do; Invalid, Unsupported,
// PermissionDenied and Unauthenticated make it a dead letter; everything else
// is tried again later, MaxRetries times. A panic is an error. The text of the
// error is kept with the message: it must hold no secrets.
type Handler func(ctx context.Context, m Message) error

// Source is what a worker needs of a queue.
type Source interface {
	Consumer
	Holder
}

// WorkerOptions say how a Worker works. Zero fields mean the default.
type WorkerOptions struct {
	// Queue, Topics and Handler must be given.
	Queue   Source
	Topics  []string
	Handler Handler
	// Concurrency is how many handlers run at the same time. Default: 8.
	Concurrency int
	// Visibility is how long a claim lasts without a word from this worker, which
	// extends it while the handler runs. Default: 60 s.
	Visibility time.Duration
	// Poll is the longest sleep between two looks at the queue. It decides how late
	// a message may be that another process has scheduled, and how late a jump of
	// the clock is seen. Default: 1 s.
	Poll time.Duration
	// Backoff is how long a message waits after its first failure; the time
	// doubles with each further one, up to MaxBackoff, and varies by a fifth both
	// ways. Default: 60 s.
	Backoff time.Duration
	// MaxBackoff is the longest such wait. Default: 1 h.
	MaxBackoff time.Duration
	// MaxRetries is how often a message that failed is tried again before it
	// becomes a dead letter. Zero: never.
	MaxRetries int
	// Clock decides when messages are due. Default: clock.System.
	Clock clock.Clock
	// Jumped is called when the clock was set by so much (see clock.Watch), before
	// anything is claimed by the new time, so that it can Shift what must not
	// happen early. While it fails nothing is claimed, and it is called again.
	// Default: nothing is done about it.
	Jumped func(ctx context.Context, by time.Duration) error
	// Log receives failures. Default: none.
	Log *slog.Logger
}

// withDefaults checks o and fills in what is missing.
func (o WorkerOptions) withDefaults() (WorkerOptions, error) {
	if o.Queue == nil || o.Handler == nil {
		return o, sandpit.Errorf(sandpit.Invalid, "start a worker: it needs a queue and a handler")
	}
	if err := CheckTopics(o.Topics...); err != nil {
		return o, err
	}
	for name, d := range map[string]*time.Duration{
		"visibility":  orDefault(&o.Visibility, time.Minute),
		"poll":        orDefault(&o.Poll, time.Second),
		"backoff":     orDefault(&o.Backoff, time.Minute),
		"max backoff": orDefault(&o.MaxBackoff, time.Hour),
	} {
		if *d < time.Millisecond || *d > MaxVisibility {
			return o, sandpit.Errorf(sandpit.Invalid, "start a worker: %s %v, want 1ms to %v", name, *d, MaxVisibility)
		}
	}
	if orDefault(&o.Concurrency, 8); o.Concurrency < 0 || o.MaxRetries < 0 {
		return o, sandpit.Errorf(sandpit.Invalid, "start a worker: concurrency %d, %d retries", o.Concurrency, o.MaxRetries)
	}
	if o.Clock == nil {
		o.Clock = clock.System{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

func orDefault[T comparable](field *T, value T) *T {
	if zero := *new(T); *field == zero {
		*field = value
	}
	return field
}

const (
	callLimit  = 4 * time.Second        // for one call of the queue
	firstPause = 500 * time.Millisecond // after a call that failed; doubles
	lastPause  = 5 * time.Second        // and stays
	grace      = 10 * time.Second       // for what is left after the worker's time is over
	breath     = 5 * time.Millisecond   // between two looks when the first found nothing
)

// Worker claims messages that are due and gives them to a handler. It sleeps
// until the next one is due, so a message is late by the time a claim takes.
type Worker struct {
	options  WorkerOptions
	wake     chan struct{} // holds one
	stopping chan struct{} // closed: no new claims
	stopOnce sync.Once
	cancel   context.CancelCauseFunc // of the handlers
	done     chan struct{}           // closed: everything has ended
	health   health

	mu      sync.Mutex
	running map[string]*job // by message ID
}

// StartWorker starts a worker, which runs until Stop. When ctx ends, it stops as if Stop
// had been called with a context that has ended; Stop must still be called.
func StartWorker(ctx context.Context, o WorkerOptions) (*Worker, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	w := &Worker{
		options:  o,
		wake:     make(chan struct{}, 1),
		stopping: make(chan struct{}),
		cancel:   cancel,
		done:     make(chan struct{}),
		health:   health{log: o.Log},
		running:  make(map[string]*job),
	}
	go func() {
		defer close(w.done)
		var jobs sync.WaitGroup
		w.loop(ctx, &jobs)
		jobs.Wait()
	}()
	return w, nil
}

// Wake has the worker check the queue at once. Call it after Schedule,
// Reschedule and Shift in the same process.
func (w *Worker) Wake() {
	select {
	case w.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Stop ends the worker: it claims nothing more and waits for the handlers that
// run. When ctx ends first, the handlers' context ends, and what they leave
// undone is handed back: due at once, its attempts unchanged. It returns nil when
// everything has ended; a handler that does not heed its context 10 s longer is
// a Timeout, and the worker keeps its message from others for as long as it runs.
// Stop may be called again, and concurrently.
func (w *Worker) Stop(ctx context.Context) error {
	w.stopOnce.Do(func() { close(w.stopping) })
	select {
	case <-w.done:
		w.cancel(nil)
		return nil
	case <-ctx.Done():
	}
	w.cancel(errStopped)
	timer := w.options.Clock.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-w.done:
		return nil
	case <-timer.C:
		return sandpit.Errorf(sandpit.Timeout, "stop the worker: %s", w.describeRunning())
	}
}

var errStopped = sandpit.Errorf(sandpit.Canceled, "the worker was stopped")

// loop claims messages until the worker stops.
func (w *Worker) loop(ctx context.Context, jobs *sync.WaitGroup) {
	jump := jump{watch: clock.NewWatch(w.options.Clock)}
	pause := time.Duration(0)
	for !w.isStopped(ctx) {
		sleep, err := w.claimMessages(ctx, &jump, jobs)
		if w.health.reportHealth(ctx, err); err != nil {
			pause = min(max(2*pause, firstPause), lastPause)
			w.waitAfterFailure(ctx, pause)
			continue
		}
		pause = 0
		w.waitForWork(ctx, sleep)
	}
}

// claimMessages claims once and returns how long the worker may sleep.
func (w *Worker) claimMessages(ctx context.Context, jump *jump, jobs *sync.WaitGroup) (time.Duration, error) {
	now, err := jump.handleJump(ctx, w.options.Jumped)
	if err != nil {
		return 0, err
	}
	free := w.freeSlots()
	if free == 0 {
		return w.options.Poll, nil // the end of a handler wakes the worker
	}
	// Without a caller that waits for the answer, the claimed messages would be lost.
	call, end := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer end()
	claims, err := w.options.Queue.Claim(call, now, w.options.Topics, free, w.options.Visibility)
	for _, c := range claims {
		w.startJob(ctx, c, jobs)
	}
	if err != nil || len(claims) == free {
		return 0, err
	}
	next, ok, err := w.options.Queue.Next(call, w.options.Topics)
	if err != nil || !ok {
		return w.options.Poll, err
	}
	return min(max(next.Sub(w.options.Clock.Now()), breath), w.options.Poll), nil
}

// startJob runs a message.
func (w *Worker) startJob(ctx context.Context, c Claim, jobs *sync.WaitGroup) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if j, ok := w.running[c.ID]; ok {
		// Its claim ran out while this very program was busy with it, as when the
		// machine slept. Now it has a new one.
		j.setClaim(c)
		return
	}
	j := &job{worker: w, claim: c}
	w.running[c.ID] = j
	jobs.Go(func() {
		j.run(ctx)
		w.mu.Lock()
		delete(w.running, c.ID)
		w.mu.Unlock()
		w.Wake()
	})
}

// freeSlots returns how many more messages may be claimed now.
func (w *Worker) freeSlots() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(w.options.Concurrency-len(w.running), 0)
}

// describeRunning says what is still running.
func (w *Worker) describeRunning() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []string
	for _, j := range w.running {
		c := j.currentClaim()
		list = append(list, string(c.Kind)+" of "+string(c.Sandbox))
	}
	slices.Sort(list)
	return "still busy with " + strings.Join(list, ", ")
}

func (w *Worker) isStopped(ctx context.Context) bool {
	select {
	case <-w.stopping:
		return true
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// waitForWork waits for d, for Wake, or for the worker to be stopped.
func (w *Worker) waitForWork(ctx context.Context, d time.Duration) {
	timer := w.options.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.wake:
	case <-w.stopping:
	case <-ctx.Done():
	}
}

// waitAfterFailure waits for d and ignores Wake.
func (w *Worker) waitAfterFailure(ctx context.Context, d time.Duration) {
	timer := w.options.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.stopping:
	case <-ctx.Done():
	}
}

// jump stores by how much the clock was set, until that is handled.
type jump struct {
	watch *clock.Watch
	by    time.Duration
}

// handleJump returns the time of day by which messages may be claimed.
func (j *jump) handleJump(ctx context.Context, jumped func(context.Context, time.Duration) error) (time.Time, error) {
	now, by := j.watch.Look()
	if j.by += by; j.by == 0 || jumped == nil {
		j.by = 0
		return now, nil
	}
	if err := jumped(ctx, j.by); err != nil {
		return now, sandpit.Errorf(sandpit.CodeOf(err), "deal with a clock that was set by %v: %w", j.by, err)
	}
	j.by = 0
	return now, nil
}

// health logs a queue that fails, and that it works again, once each.
type health struct {
	log  *slog.Logger
	mu   sync.Mutex
	code sandpit.Code // of the last failure; "" while all is well
}

func (h *health) reportHealth(ctx context.Context, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	code := sandpit.CodeOf(err)
	if code == h.code || ctx.Err() != nil {
		return
	}
	h.code = code
	if err == nil {
		h.log.InfoContext(ctx, "queue: available again")
		return
	}
	h.log.ErrorContext(ctx, "queue: not available", slog.Any("error", err))
}
