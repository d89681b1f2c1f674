package watch

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	sandpit "github.com/sandpit-dev/sandpit"
)

func TestQueue(t *testing.T) {
	t.Parallel()
	written := Event{"f", sandpit.FileWritten}
	other := Event{"g", sandpit.FileWritten}
	created := Event{"f", sandpit.FileCreated}
	long := Event{strings.Repeat("n", maxEventBytes/2), sandpit.FileCreated}
	for name, tc := range map[string]struct {
		push  []Event
		want  []Event
		after error
	}{
		"nothing":              {nil, nil, nil},
		"order":                {[]Event{created, written, other}, []Event{created, written, other}, nil},
		"writes are merged":    {[]Event{written, written, written}, []Event{written}, nil},
		"others between":       {[]Event{written, other, written}, []Event{written, other, written}, nil},
		"creates stay":         {[]Event{created, created}, []Event{created, created}, nil},
		"too many":             {[]Event{created, created, created, created, other, created}, []Event{created, created, created, created}, sandpit.Exhausted},
		"merged at the limit":  {[]Event{created, created, created, written, written}, []Event{created, created, created, written}, nil},
		"too long":             {[]Event{long, long, created}, []Event{long, long}, sandpit.Exhausted},
		"invalid is made good": {[]Event{{"\xffa", sandpit.FileCreated}}, []Event{{"\uFFFDa", sandpit.FileCreated}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(4)
			for _, e := range tc.push {
				q.pushEvent(e)
			}
			got, err := q.takeEvents()
			if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
				t.Errorf("take: %v (-want +got):\n%s", err, diff)
			}
			if got, err := q.takeEvents(); len(got) > 0 || !errors.Is(err, tc.after) {
				t.Errorf("take again: %v, %v, want %v", got, err, tc.after)
			}
			// It continues.
			if q.pushEvent(created); q.bytes != 1 {
				t.Errorf("%d bytes are counted, want 1", q.bytes)
			}
			if got, err := q.nextItem(t.Context()); got != created || err != nil {
				t.Errorf("next: %v, %v", got, err)
			}
		})
	}
}

// TestQueueStaysBounded has a reader that never catches up.
func TestQueueStaysBounded(t *testing.T) {
	t.Parallel()
	q := newQueue(4)
	lost := 0
	for range 100 {
		for range 10 {
			q.pushEvent(Event{"f", sandpit.FileCreated})
			q.pushError(errTooMany)
		}
		if len(q.items) > 2*4 {
			t.Fatalf("%d items", len(q.items))
		}
		for range 2 {
			if _, err := q.nextItem(t.Context()); errors.Is(err, sandpit.Exhausted) {
				lost++
			}
		}
	}
	if lost != 100 { // one after each event that was kept
		t.Errorf("Exhausted %d times in 200 calls, want 100", lost)
	}
}

func TestQueueEnds(t *testing.T) {
	t.Parallel()
	q := newQueue(4)
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	q.pushEvent(Event{"f", sandpit.FileCreated})
	if _, err := q.nextItem(canceled); !errors.Is(err, context.Canceled) {
		t.Errorf("next: %v, want the context's error", err)
	}
	q.endWith(errGone)
	q.endWith(errClosed)
	q.pushEvent(Event{"late", sandpit.FileCreated})
	if e, err := q.nextItem(t.Context()); err != nil || e.Name != "f" {
		t.Errorf("next: %v, %v", e, err)
	}
	for range 2 {
		if _, err := q.nextItem(t.Context()); !errors.Is(err, errGone) {
			t.Errorf("next: %v, want %v", err, errGone)
		}
		if _, err := q.takeEvents(); !errors.Is(err, errGone) {
			t.Errorf("take: %v, want %v", err, errGone)
		}
	}
	q.dropAll()
	if _, err := q.nextItem(t.Context()); !errors.Is(err, errClosed) {
		t.Errorf("next: %v, want %v", err, errClosed)
	}
}
