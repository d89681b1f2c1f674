package queuetest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// testEachOnce lets many workers claim many messages.
func testEachOnce(b bench) {
	const workers, messages = 8, 400
	for range messages {
		b.scheduleMessage(newMessage())
	}
	var done sync.Map
	var count atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				claims, err := b.q.Claim(b.ctx(), startTime(), []string{topic}, 7, stay)
				if err != nil {
					b.Errorf("claim: %v", err)
					return
				}
				if len(claims) == 0 {
					return
				}
				for _, c := range claims {
					if _, again := done.LoadOrStore(c.ID, true); again {
						b.Errorf("%s was claimed twice", c.ID)
					}
					if err := b.q.Complete(b.ctx(), c); err != nil {
						b.Errorf("complete: %v", err)
					}
					count.Add(1)
				}
			}
		})
	}
	all.Wait()
	if count.Load() != messages {
		b.Errorf("%d were done, want %d", count.Load(), messages)
	}
	b.requireEqual("stats", queue.Stats{}, b.queueStats())
}

// testStorm performs all operations on a few sandboxes concurrently. Two workers never hold
// messages of the same sandbox and kind, and at the end no message remains.
func testStorm(b bench) {
	boxes := make([]sandpit.ID, 4)
	for i := range boxes {
		boxes[i] = sandpit.NewID()
	}
	var held sync.Map
	claims := func() error {
		list, err := b.q.Claim(b.ctx(), startTime(), []string{topic}, 2, stay)
		if err != nil {
			return err
		}
		for i, c := range list {
			key := string(c.Sandbox) + string(c.Kind)
			if _, both := held.LoadOrStore(key, true); both {
				return fmt.Errorf("two hold %s at the same time", key)
			}
			if err := secondError(b.q.Next(b.ctx(), []string{topic})); err != nil { // takes a moment
				return err
			}
			held.Delete(key) // before the response, after which another worker may hold it
			switch i % 2 {
			case 0:
				err = b.q.Complete(b.ctx(), c)
			default:
				err = b.q.Retry(b.ctx(), c, startTime(), "x")
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	steps := []func(i int) error{
		func(i int) error {
			m := newMessage()
			m.Sandbox = boxes[i%len(boxes)]
			return firstError(b.q.Schedule(b.ctx(), m))
		},
		func(int) error { return claims() },
		func(i int) error {
			return firstError(b.q.Reschedule(b.ctx(), boxes[i%len(boxes)], "deadline", startTime()))
		},
		func(int) error { return secondError(b.q.Next(b.ctx(), []string{topic})) },
		func(int) error { return firstError(b.q.Stats(b.ctx())) },
		func(int) error { return firstError(b.q.List(b.ctx(), queue.Filter{})) },
	}
	var all sync.WaitGroup
	for g := range 6 {
		all.Go(func() {
			for i := range 60 {
				if err := steps[(i+g)%len(steps)](i); err != nil {
					b.Errorf("step %d of %d: %v", i, g, err)
				}
			}
		})
	}
	all.Wait()
	b.drainQueue()
}

// drainQueue completes all remaining messages, and checks that the queue is empty.
func (b bench) drainQueue() {
	b.Helper()
	for {
		claims := b.claimDue(startTime().Add(time.Hour))
		if len(claims) == 0 {
			break
		}
		for _, c := range claims {
			if err := b.q.Complete(b.ctx(), c); err != nil && !errors.Is(err, sandpit.Conflict) {
				b.Fatalf("complete: %v", err)
			}
		}
	}
	b.requireEqual("stats", queue.Stats{}, b.queueStats())
}
