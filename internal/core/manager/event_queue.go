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

// The bounds of the event queue.
const (
	eventQueueSize  = 4096                   // waiting events; further ones are lost and counted
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
	files   map[string]int // the index in waiting of the last event about a file
	lost    int            // since the last event about it
	allLost int64
	signal  chan struct{} // holds one signal that events wait
}

func startEventQueue(t *tasks, s *store.Store, log *slog.Logger, sus Suspicion) *eventQueue {
	j := &eventQueue{
		store: s, log: log, signal: make(chan struct{}, 1),
		files: make(map[string]int), refusals: refusals{o: sus, actors: make(map[string]*offender)}, limiter: newEventLimiter(),
	}
	t.start(j.run)
	return j
}

// addEvent adds an event, and reports whether it is recorded as an event of its own.
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

// fileKey is equal for events that may be merged; see mergeEvents.
func fileKey(e store.Event) string {
	return string(e.Sandbox) + "\x00" + e.Action + "\x00" + e.Actor + "\x00" + e.Args["path"]
}

// mergeFileEvent merges an event about a file into a waiting one, if there is one for the same file
// and action.
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

// run writes events until ctx ends; flush writes the rest.
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
			j.log.ErrorContext(ctx, "manager: events not written; retried later", slog.Any("error", err))
			pause = eventRetryPause
		}
		if sleep(ctx, pause) != nil {
			return
		}
	}
}

// enqueueOmitted adds the events that stand for omitted ones.
func (j *eventQueue) enqueueOmitted(all bool) {
	for _, e := range j.limiter.takeOmitted(all) {
		j.enqueue(e, classOperation)
	}
}

// flush writes all waiting events.
func (j *eventQueue) flush(ctx context.Context) error {
	j.writing.Lock()
	defer j.writing.Unlock()
	for {
		batch := j.takeBatch()
		if len(batch) == 0 {
			return nil
		}
		call, cancel := context.WithTimeout(ctx, storeLimit)
		err := j.store.Events().AppendEvents(call, batch...)
		cancel()
		if err != nil {
			j.returnBatch(batch)
			return err
		}
	}
}

// close is the last flush. Its error says how many events were lost.
func (j *eventQueue) close(ctx context.Context) error {
	err := j.flush(ctx)
	if err == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return fmt.Errorf("%d events lost: %w", len(j.waiting)+j.lost, err)
}

func (j *eventQueue) takeBatch() []store.Event {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.lost > 0 && len(j.waiting) < eventBatchSize { // one event stands for all that were lost
		j.waiting = append(j.waiting, store.Event{
			Actor: actorManager, Action: "events lost", Result: string(sandpit.Exhausted),
			Args: map[string]string{"events": strconv.Itoa(j.lost)},
		})
		j.lost = 0
	}
	clear(j.files) // written events do not change
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

// limitText bounds the texts of an event that come from a client.
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
