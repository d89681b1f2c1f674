package manager

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// The bounds of the journal.
const (
	eventQueueSize  = 4096                   // events that wait to be written; more are lost and counted
	eventBatchSize  = 500                    // events written at once
	eventWritePause = 200 * time.Millisecond // between two writes
	eventRetryPause = 2 * time.Second        // after one that failed
)

// eventQueue writes events in batches.
type eventQueue struct {
	store    *store.Store
	log      *slog.Logger
	refusals refusals
	limiter  *eventLimiter

	writing sync.Mutex // held while a batch is written, so that batches stay in order

	mu      sync.Mutex
	waiting []store.Event
	files   map[string]int // where in waiting the last event about a file is
	lost    int            // since the last event that says so
	allLost int64
	signal  chan struct{} // holds one: something waits
}

func startEventQueue(t *tasks, s *store.Store, log *slog.Logger, sus Suspicion) *eventQueue {
	j := &eventQueue{
		store: s, log: log, signal: make(chan struct{}, 1),
		files: make(map[string]int), refusals: refusals{o: sus, actors: make(map[string]*offender)}, limiter: newEventLimiter(),
	}
	t.start(j.run)
	return j
}

// addEvent adds an event, and reports whether it is recorded by itself.
func (j *eventQueue) addEvent(e store.Event, class eventClass) bool {
	limitText(&e)
	if class == classFile && j.mergeFileEvent(e) {
		return true
	}
	if !j.limiter.allow(e, class) {
		return false
	}
	j.enqueue(e, class)
	return true
}

// fileKey is what events have in common that may be merged, and that others of the moment have
// not: see merge.
func fileKey(e store.Event) string {
	return string(e.Sandbox) + "\x00" + e.Action + "\x00" + e.Actor + "\x00" + e.Args["path"]
}

// mergeFileEvent adds an event about a file to one that waits, if there is one that says the same.
func (j *eventQueue) mergeFileEvent(e store.Event) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	at, waits := j.files[fileKey(e)]
	return waits && mergeEvents(&j.waiting[at], e)
}

func (j *eventQueue) enqueue(e store.Event, class eventClass) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.waiting) >= eventQueueSize {
		j.lost++
		j.allLost++
		return
	}
	if class == classFile {
		j.files[fileKey(e)] = len(j.waiting)
	}
	j.waiting = append(j.waiting, e)
	select {
	case j.signal <- struct{}{}:
	default:
	}
}

// run writes what comes until ctx ends; flush writes the rest.
func (j *eventQueue) run(ctx context.Context) {
	omitted := time.NewTicker(omittedEvery)
	defer omitted.Stop()
	for {
		select {
		case <-j.signal:
		case <-omitted.C:
			j.enqueueOmitted(false)
			continue
		case <-ctx.Done():
			return
		}
		pause := eventWritePause
		if err := j.flush(ctx); err != nil && ctx.Err() == nil {
			j.log.ErrorContext(ctx, "events cannot be written and wait", slog.Any("error", err))
			pause = eventRetryPause
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// enqueueOmitted adds what stands for events that were omitted.
func (j *eventQueue) enqueueOmitted(all bool) {
	for _, e := range j.limiter.takeOmitted(all) {
		j.enqueue(e, classOperation)
	}
}

// flush writes all that waits.
func (j *eventQueue) flush(ctx context.Context) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	for {
		batch := j.takeBatch()
		if len(batch) == 0 {
			return nil
		}
		call, cancel := context.WithTimeout(ctx, storeLimit)
		err := j.store.AppendEvents(call, batch...)
		cancel()
		if err != nil {
			j.returnBatch(batch)
			return err
		}
	}
}

// close is flush for the last time.
func (j *eventQueue) close(ctx context.Context) error {
	err := j.flush(ctx)
	if err == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Errorf("%d events were lost: %w", len(j.waiting)+j.lost, err)
}

func (j *eventQueue) takeBatch() []store.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lost > 0 && len(j.waiting) < eventBatchSize { // while nothing can be written, one stands for all
		j.waiting = append(j.waiting, store.Event{
			Actor: actorManager, Action: "events lost", Result: string(sandpit.Exhausted),
			Args: map[string]string{"events": strconv.Itoa(j.lost)},
		})
		j.lost = 0
	}
	clear(j.files) // what is written does not change
	n := min(len(j.waiting), eventBatchSize)
	batch := j.waiting[:n:n]
	j.waiting = j.waiting[n:]
	return batch
}

func (j *eventQueue) returnBatch(batch []store.Event) {
	j.mu.Lock()
	defer j.mu.Unlock()
	clear(j.files)
	j.waiting = append(batch, j.waiting...)
	select {
	case j.signal <- struct{}{}:
	default:
	}
}

// limitText keeps what a client says in bounds.
func limitText(e *store.Event) {
	const name = 200
	e.Actor, e.Action = cutText(e.Actor, name), cutText(e.Action, name)
	e.Message = cutText(e.Message, store.MaxEventText)
	if e.Actor == "" {
		e.Actor = actorManager
	}
	if e.Sandbox.Validate() != nil {
		e.Sandbox = ""
	}
}

func cutText(s string, limit int) string {
	return textlen.Cut(strings.ToValidUTF8(s, "?"), limit)
}
