// Package queuetest is the test suite that every queue must pass.
package queuetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// Run tests a queue. open returns an empty queue for one test; the suite closes it. The suite does not
// wait for time to pass.
func Run(t *testing.T, open func(t *testing.T) queue.Queue) {
	t.Helper()
	for name, test := range map[string]func(bench){
		"schedule":                  testSchedule,
		"schedule replaces":         testReplace,
		"schedule concurrently":     testScheduleRace,
		"reschedule":                testReschedule,
		"cancel":                    testCancel,
		"cancel what is claimed":    testCancelClaimed,
		"due order":                 testDueOrder,
		"topics":                    testTopics,
		"next":                      testNext,
		"visibility":                testVisibility,
		"late answer counts":        testLateAnswer,
		"extend":                    testExtend,
		"answers of a lost claim":   testLostClaim,
		"retry":                     testRetry,
		"newer message waits":       testNewerWaits,
		"newer message at retry":    testNewerAtRetry,
		"newer message at lapse":    testNewerAtLapse,
		"newer message at bury":     testNewerAtBury,
		"newer message elsewhere":   testNewerElsewhere,
		"dead letters":              testDeadLetters,
		"revive":                    testRevive,
		"dead letters are bounded":  testDeadBound,
		"list":                      testList,
		"stats":                     testStats,
		"shift":                     testShift,
		"bounds":                    testBounds,
		"at the bounds":             testAtBounds,
		"context":                   testContext,
		"each once":                 testEachOnce,
		"everything at once":        testStorm,
		"does as the memory queue":  nil,
		"close more than once":      testClose,
		"errors carry a known code": testUnknown,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if test == nil {
				testModel(t, open)
				return
			}
			q := open(t)
			t.Cleanup(func() {
				if err := q.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			test(bench{T: t, q: q})
		})
	}
}

// bench is one test and its queue, with calls that must work.
type bench struct {
	*testing.T
	q queue.Queue
}

// startTime returns the time at which the tests begin.
func startTime() time.Time { return time.Date(2030, 1, 2, 3, 4, 5, 6_000_000, time.UTC) }

const (
	topic = "server-1"
	other = "server-2"
	stay  = time.Minute // the duration of claims
)

// newMessage returns a message that is due at the start.
func newMessage() queue.Message {
	return queue.Message{Topic: topic, Sandbox: sandpit.NewID(), Kind: "deadline", Due: startTime()}
}

func (b bench) ctx() context.Context { return b.Context() }

func (b bench) must(what string, err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

func (b bench) scheduleMessage(m queue.Message) queue.Message {
	b.Helper()
	kept, err := b.q.Schedule(b.ctx(), m)
	b.must("schedule", err)
	return kept
}

// claimDue claims at most 100 messages of the topic.
func (b bench) claimDue(now time.Time) []queue.Claim {
	b.Helper()
	claims, err := b.q.Claim(b.ctx(), now, []string{topic}, 100, stay)
	b.must("claim", err)
	return claims
}

// claimOne claims, and fails unless it gets exactly one message.
func (b bench) claimOne(now time.Time) queue.Claim {
	b.Helper()
	claims := b.claimDue(now)
	if len(claims) != 1 {
		b.Fatalf("claimed %d messages, want 1: %+v", len(claims), claims)
	}
	return claims[0]
}

// claimNone fails if a message can be claimed.
func (b bench) claimNone(now time.Time) {
	b.Helper()
	if claims := b.claimDue(now); len(claims) != 0 {
		b.Fatalf("claimed %+v, want nothing", claims)
	}
}

func (b bench) listMessages(f queue.Filter) []queue.Message {
	b.Helper()
	list, err := b.q.List(b.ctx(), f)
	b.must("list", err)
	return list
}

func (b bench) queueStats() queue.Stats {
	b.Helper()
	s, err := b.q.Stats(b.ctx())
	b.must("stats", err)
	return s
}

// wantNext checks the result of Next; the zero time stands for no message.
func (b bench) wantNext(want time.Time) {
	b.Helper()
	got, ok, err := b.q.Next(b.ctx(), []string{topic})
	b.must("next", err)
	if ok == want.IsZero() || !got.Equal(want) {
		b.Errorf("next = %v, %t; want %v", got, ok, want)
	}
}

// wantCode checks an error's code.
func (b bench) wantCode(what string, err error, want sandpit.Code) {
	b.Helper()
	if got := sandpit.CodeOf(err); got != want {
		b.Errorf("%s: error %v with code %q, want %q", what, err, got, want)
	}
}

// requireEqual compares messages or claims.
func (b bench) requireEqual(what string, want, got any) {
	b.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		b.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// wantLost checks that every operation on c returns Conflict.
func (b bench) wantLost(c queue.Claim) {
	b.Helper()
	b.wantCode("complete", b.q.Complete(b.ctx(), c), sandpit.Conflict)
	b.wantCode("retry", b.q.Retry(b.ctx(), c, startTime(), "late"), sandpit.Conflict)
	b.wantCode("bury", b.q.Bury(b.ctx(), c, "late"), sandpit.Conflict)
	_, err := b.q.Extend(b.ctx(), c, startTime().Add(time.Hour))
	b.wantCode("extend", err, sandpit.Conflict)
}

func messageIDs(list []queue.Message) []string {
	var out []string
	for _, m := range list {
		out = append(out, m.ID)
	}
	return out
}

func claimedIDs(list []queue.Claim) []string {
	var out []string
	for _, c := range list {
		out = append(out, c.ID)
	}
	return out
}

// testUnknown uses messages and claims that never existed.
func testUnknown(b bench) {
	b.wantLost(queue.Claim{Message: newMessage(), Token: "none"})
	b.wantLost(queue.Claim{Message: queue.Message{ID: "../*", Topic: "*"}, Token: ""})
	b.scheduleMessage(newMessage())
	pending := b.listMessages(queue.Filter{})[0]
	b.wantLost(queue.Claim{Message: pending}) // never claimed: an empty token gives no access
	for _, id := range []string{"", "none", "a:b", "\x00"} {
		b.wantCode("revive", b.q.Revive(b.ctx(), id, startTime()), sandpit.NotFound)
		b.wantCode("drop", b.q.Drop(b.ctx(), id), sandpit.NotFound)
	}
}

func testClose(b bench) { b.must("close", b.q.Close()) }

// testContext calls everything with a context that has ended.
func testContext(b bench) {
	letter := b.scheduleMessage(newMessage())
	b.must("bury", b.q.Bury(b.ctx(), b.claimOne(startTime()), "x"))
	held := newMessage()
	b.scheduleMessage(held)
	claim := b.claimOne(startTime())
	before, count := b.listMessages(queue.Filter{}), b.queueStats()
	ctx, cancel := context.WithCancel(b.ctx())
	cancel()
	for name, call := range map[string]func() error{
		"schedule":   func() error { _, err := b.q.Schedule(ctx, newMessage()); return err },
		"reschedule": func() error { _, err := b.q.Reschedule(ctx, held.Sandbox, held.Kind, startTime()); return err },
		"cancel":     func() error { _, err := b.q.Cancel(ctx, held.Sandbox); return err },
		"claim":      func() error { _, err := b.q.Claim(ctx, startTime(), []string{topic}, 1, stay); return err },
		"next":       func() error { _, _, err := b.q.Next(ctx, []string{topic}); return err },
		"extend":     func() error { _, err := b.q.Extend(ctx, claim, startTime()); return err },
		"complete":   func() error { return b.q.Complete(ctx, claim) },
		"retry":      func() error { return b.q.Retry(ctx, claim, startTime(), "x") },
		"bury":       func() error { return b.q.Bury(ctx, claim, "x") },
		"revive":     func() error { return b.q.Revive(ctx, letter.ID, startTime()) },
		"drop":       func() error { return b.q.Drop(ctx, letter.ID) },
		"list":       func() error { _, err := b.q.List(ctx, queue.Filter{}); return err },
		"stats":      func() error { _, err := b.q.Stats(ctx); return err },
		"shift":      func() error { return b.q.Shift(ctx, []string{topic}, time.Hour) },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			b.Errorf("%s: error %v, want the context's", name, err)
		}
	}
	b.requireEqual("messages", before, b.listMessages(queue.Filter{}))
	b.requireEqual("stats", count, b.queueStats())
}
