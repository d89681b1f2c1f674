package queuetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// testModel performs random operations and compares every result with that of the memory queue.
func testModel(t *testing.T, open func(t *testing.T) queue.Queue) {
	t.Helper()
	rapid.Check(t, func(rt *rapid.T) {
		subject, model := open(t), queue.NewMemory()
		defer func() { _ = subject.Close() }()
		w := &walk{T: rt, t: t, both: [2]queue.Queue{model, subject}, now: startTime(), names: [2]map[string]int{{}, {}}}
		for range 3 {
			w.boxes = append(w.boxes, sandpit.NewID())
		}
		rt.Repeat(map[string]func(*rapid.T){
			"":           func(*rapid.T) { w.compareState() },
			"schedule":   w.scheduleMessage,
			"reschedule": w.rescheduleMessage,
			"cancel":     w.cancelMessage,
			"claim":      w.claimMessages,
			"answer":     w.answerClaim,
			"letter":     w.handleDeadLetter,
			"shift":      w.shiftTime,
			"wait":       func(rt *rapid.T) { w.now = w.now.Add(drawDuration(rt, 0)) },
		})
	})
}

// walk is a random series of operations on two queues: the model and the tested one.
type walk struct {
	*rapid.T
	t      *testing.T
	both   [2]queue.Queue
	now    time.Time
	boxes  []sandpit.ID
	claims [2][]queue.Claim  // all claims ever, of both queues
	names  [2]map[string]int // messages by number, because IDs differ
	next   int
}

// compareCall calls both queues and compares the results without tokens and IDs.
func (w *walk) compareCall(what string, call func(i int, q queue.Queue) (any, error)) {
	var answers [2]any
	var codes [2]sandpit.Code
	for i, q := range w.both {
		answer, err := call(i, q)
		answers[i], codes[i] = answer, sandpit.CodeOf(err)
	}
	if diff := cmp.Diff(answers[0], answers[1]); diff != "" || codes[0] != codes[1] {
		w.Fatalf("%s: codes %q and %q (-model +got):\n%s", what, codes[0], codes[1], diff)
	}
}

// plainMessage returns a message as both queues must return it.
func (w *walk) plainMessage(i int, m queue.Message) string {
	return fmt.Sprint(w.names[i][m.ID], m.Topic, m.Sandbox, m.Kind, m.Metadata, m.Due, m.Attempts, m.LastError)
}

func (w *walk) plainMessages(i int, list []queue.Message) (out []string) {
	for _, m := range list {
		out = append(out, w.plainMessage(i, m))
	}
	return out
}

func (w *walk) compareState() {
	topics := []string{topic, other}
	for _, dead := range []bool{false, true} {
		w.compareCall("list", func(i int, q queue.Queue) (any, error) {
			list, err := q.List(w.t.Context(), queue.Filter{Dead: dead})
			return w.plainMessages(i, list), err
		})
	}
	w.compareCall("stats", func(_ int, q queue.Queue) (any, error) { return q.Stats(w.t.Context()) })
	w.compareCall("next", func(_ int, q queue.Queue) (any, error) {
		at, ok, err := q.Next(w.t.Context(), topics)
		return fmt.Sprint(at, ok), err
	})
}

func (w *walk) scheduleMessage(rt *rapid.T) {
	m := queue.Message{
		Topic: rapid.SampledFrom([]string{topic, topic, other}).Draw(rt, "topic"), Sandbox: w.drawSandbox(rt), Kind: drawKind(rt),
		Due:      w.now.Add(drawDuration(rt, -100)),
		Metadata: rapid.SampledFrom([]map[string]string{nil, {"a": "1"}}).Draw(rt, "metadata"),
	}
	w.next++
	w.compareCall("schedule", func(i int, q queue.Queue) (any, error) {
		kept, err := q.Schedule(w.t.Context(), m)
		w.names[i][kept.ID] = w.next
		return w.plainMessage(i, kept), err
	})
}

func (w *walk) rescheduleMessage(rt *rapid.T) {
	box, kind, due := w.drawSandbox(rt), drawKind(rt), w.now.Add(drawDuration(rt, -100))
	w.compareCall("reschedule", func(_ int, q queue.Queue) (any, error) { return q.Reschedule(w.t.Context(), box, kind, due) })
}

func (w *walk) cancelMessage(rt *rapid.T) {
	box := w.drawSandbox(rt)
	kinds := rapid.SliceOfN(rapid.Custom(drawKind), 0, 1).Draw(rt, "kinds")
	w.compareCall("cancel", func(_ int, q queue.Queue) (any, error) { return q.Cancel(w.t.Context(), box, kinds...) })
}

func (w *walk) claimMessages(rt *rapid.T) {
	topics := rapid.SampledFrom([][]string{{topic}, {other}, {topic, other}}).Draw(rt, "topics")
	n := rapid.IntRange(1, 4).Draw(rt, "n")
	w.compareCall("claim", func(i int, q queue.Queue) (any, error) {
		claims, err := q.Claim(w.t.Context(), w.now, topics, n, 50*time.Second)
		w.claims[i] = append(w.claims[i], claims...)
		var out []string
		for _, c := range claims {
			out = append(out, w.plainMessage(i, c.Message)+c.Until.String())
		}
		return out, err
	})
}

func (w *walk) answerClaim(rt *rapid.T) {
	if len(w.claims[0]) == 0 {
		rt.Skip("nothing was claimed")
	}
	// Old claims are used too, mostly without effect.
	which := rapid.IntRange(max(0, len(w.claims[0])-4), len(w.claims[0])-1).Draw(rt, "claim")
	verb := rapid.SampledFrom([]string{"complete", "retry", "bury", "extend"}).Draw(rt, "verb")
	at := w.now.Add(drawDuration(rt, -20))
	w.compareCall(verb, func(i int, q queue.Queue) (any, error) {
		c := w.claims[i][which]
		switch verb {
		case "complete":
			return nil, q.Complete(w.t.Context(), c)
		case "retry":
			return nil, q.Retry(w.t.Context(), c, at, "again")
		case "bury":
			return nil, q.Bury(w.t.Context(), c, "for good")
		default:
			longer, err := q.Extend(w.t.Context(), c, at)
			return longer.Until, err
		}
	})
}

func (w *walk) handleDeadLetter(rt *rapid.T) {
	var letters [2][]queue.Message
	for i, q := range w.both {
		list, err := q.List(w.t.Context(), queue.Filter{Dead: true})
		if err != nil {
			rt.Fatal(err)
		}
		letters[i] = list
	}
	if len(letters[0]) == 0 || len(letters[0]) != len(letters[1]) {
		rt.Skip("nothing is dead, or look will complain")
	}
	which := rapid.IntRange(0, len(letters[0])-1).Draw(rt, "letter")
	drop := rapid.Bool().Draw(rt, "drop")
	w.compareCall("letter", func(i int, q queue.Queue) (any, error) {
		if drop {
			return nil, q.Drop(w.t.Context(), letters[i][which].ID)
		}
		return nil, q.Revive(w.t.Context(), letters[i][which].ID, w.now)
	})
}

func (w *walk) shiftTime(rt *rapid.T) {
	by := drawDuration(rt, -100)
	topics := rapid.SampledFrom([][]string{{topic}, {topic, other}}).Draw(rt, "topics")
	w.compareCall("shift", func(_ int, q queue.Queue) (any, error) { return nil, q.Shift(w.t.Context(), topics, by) })
}

func (w *walk) drawSandbox(rt *rapid.T) sandpit.ID { return rapid.SampledFrom(w.boxes).Draw(rt, "box") }

func drawKind(rt *rapid.T) queue.Kind {
	return rapid.SampledFrom([]queue.Kind{"deadline", "idle"}).Draw(rt, "kind")
}

// drawDuration returns a multiple of 10 s, up to 100 s, so that times coincide.
func drawDuration(rt *rapid.T, from int) time.Duration {
	return time.Duration(rapid.IntRange(from/10, 10).Draw(rt, "seconds")) * 10 * time.Second
}
