package watch

import (
	"context"
	"strings"
	"sync"

	sandpit "github.com/sandpit-dev/sandpit"
)

var (
	errLost   = sandpit.Errorf(sandpit.Exhausted, "events were lost: too many are waiting")
	errClosed = sandpit.Errorf(sandpit.Gone, "the watch is closed")
	errGone   = sandpit.Errorf(sandpit.Gone, "the watched directory is gone")
)

// queue holds events that were not taken yet, and errors that stand for missing events. Its methods may be called
// concurrently.
type queue struct {
	limit int

	mu    sync.Mutex
	items []item
	bytes int           // of the names in items
	over  error         // what follows the last item, once the watch has ended
	more  chan struct{} // closed and replaced when an empty queue gets an item
}

// item is an event, or an error that stands for missing events.
type item struct {
	event Event
	err   error
}

func newQueue(limit int) *queue { return &queue{limit: limit, more: make(chan struct{})} }

// pushEvent adds an event. If the queue is full it drops the event, and adds one error for all dropped events in a
// row.
func (q *queue) pushEvent(e Event) {
	e.Name = strings.ToValidUTF8(e.Name, "\uFFFD")
	q.mu.Lock()
	defer q.mu.Unlock()
	if n := len(q.items); e.Type == sandpit.FileWritten && n > 0 && q.items[n-1].event == e {
		return // one event for many small writes
	}
	if len(q.items) >= q.limit || q.bytes+len(e.Name) > maxEventBytes {
		q.addLocked(item{err: errLost})
		return
	}
	q.addLocked(item{event: e})
}

// pushError records that events are missing from here on, and why.
func (q *queue) pushError(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addLocked(item{err: err})
}

// addLocked adds an item; the lock must be held. Errors do not count for the limit: two are never adjacent.
func (q *queue) addLocked(i item) {
	n := len(q.items)
	if q.over != nil || i.err != nil && n > 0 && q.items[n-1].err != nil {
		return
	}
	q.items = append(q.items, i)
	q.bytes += len(i.event.Name)
	if n == 0 {
		q.notifyLocked()
	}
}

// notifyLocked wakes waiting callers; the lock must be held.
func (q *queue) notifyLocked() {
	close(q.more)
	q.more = make(chan struct{})
}

// endWith ends the queue with a reason. The first reason stays.
func (q *queue) endWith(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.over == nil {
		q.over = err
		q.notifyLocked()
	}
}

// dropAll drops all items and closes the queue.
func (q *queue) dropAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items, q.bytes, q.over = nil, 0, errClosed
	q.notifyLocked()
}

// nextItem waits for the next item and returns it.
func (q *queue) nextItem(ctx context.Context) (Event, error) {
	for {
		// First, so that a busy directory cannot delay a canceled caller.
		if err := ctx.Err(); err != nil {
			return Event{}, err
		}
		i, found, more := q.popItem()
		if found {
			return i.event, i.err
		}
		select {
		case <-ctx.Done():
		case <-more:
		}
	}
}

// popItem takes the first item, or returns the channel that is closed when there is one.
func (q *queue) popItem() (i item, found bool, more <-chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return item{err: q.over}, q.over != nil, q.more
	}
	i, q.items[0] = q.items[0], item{}
	q.items = q.items[1:]
	q.bytes -= len(i.event.Name)
	return i, true, nil
}

// takeEvents takes all events up to the first error, or that error if it is first.
func (q *queue) takeEvents() ([]Event, error) {
	var events []Event
	q.mu.Lock()
	defer q.mu.Unlock()
	for n, i := range q.items {
		if i.err == nil {
			events = append(events, i.event)
			q.bytes -= len(i.event.Name)
			continue
		}
		if n > 0 {
			q.items = q.items[n:]
			return events, nil
		}
		q.items = q.items[1:]
		return nil, i.err
	}
	q.items = nil
	if len(events) == 0 {
		return nil, q.over
	}
	return events, nil
}
