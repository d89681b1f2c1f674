package queuetest

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func testSchedule(b bench) {
	m := newMessage()
	m.Metadata = map[string]string{"reason": "idle", "ünï\x00code\"": "{}\n"}
	m.ID, m.Attempts, m.LastError = "mine", 7, "mine"
	m.Due = startTime().Add(1_999_999 * time.Nanosecond).In(time.FixedZone("east", 3600))
	before := time.Now().Add(-time.Second)
	kept := b.scheduleMessage(m)
	if kept.ID == "" || kept.ID == "mine" || kept.CreatedAt.Before(before) || kept.CreatedAt.After(time.Now().Add(time.Second)) {
		b.Errorf("ID %q, made at %v", kept.ID, kept.CreatedAt)
	}
	want := m
	want.ID, want.CreatedAt, want.Attempts, want.LastError = kept.ID, kept.CreatedAt, 0, ""
	want.Due = startTime().Add(time.Millisecond)
	want.Metadata = maps.Clone(m.Metadata)
	m.Metadata["reason"] = "changed by the caller"
	b.requireEqual("scheduled", want, kept)
	kept.Metadata["reason"] = "changed again"
	b.requireEqual("listed", []queue.Message{want}, b.listMessages(queue.Filter{}))
	c := b.claimOne(want.Due)
	b.requireEqual("claimed", want, c.Message)
	if !c.Until.Equal(want.Due.Add(stay)) || c.Token == "" {
		b.Errorf("token %q until %v", c.Token, c.Until)
	}
	if later := b.scheduleMessage(newMessage()); later.ID <= kept.ID {
		b.Errorf("IDs %q, then %q; want them to rise", kept.ID, later.ID)
	}
}

func testReplace(b bench) {
	first := newMessage()
	first.Metadata = map[string]string{"n": "1"}
	second := first
	second.Topic, second.Metadata = other, nil
	second.Due = startTime().Add(time.Hour)
	otherKind, otherBox := first, first
	otherKind.Kind, otherBox.Sandbox = "idle", sandpit.NewID()
	b.scheduleMessage(first)
	k, s := b.scheduleMessage(otherKind), b.scheduleMessage(otherBox)
	kept := b.scheduleMessage(second)
	b.requireEqual("left", []queue.Message{k, s, kept}, b.listMessages(queue.Filter{}))
	claims := b.claimDue(startTime().Add(2 * time.Hour))
	if len(claims) != 2 {
		b.Errorf("the old topic still has %d messages, want the 2 others", len(claims))
	}
	found, err := b.q.Claim(b.ctx(), startTime().Add(time.Hour), []string{other}, 9, stay)
	b.must("claim", err)
	if len(found) != 1 || found[0].ID != kept.ID {
		b.Errorf("the new topic has %+v", found)
	}
}

func testScheduleRace(b bench) {
	m := newMessage()
	kept := make(chan queue.Message, 160)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 10 {
				k, err := b.q.Schedule(b.ctx(), m)
				if err != nil {
					b.Errorf("schedule: %v", err)
					return
				}
				kept <- k
			}
		})
	}
	all.Wait()
	close(kept)
	var made []queue.Message
	for k := range kept {
		made = append(made, k)
	}
	left := b.listMessages(queue.Filter{})
	if len(left) != 1 || !slices.Contains(messageIDs(made), left[0].ID) {
		b.Fatalf("%d messages are left, want one of the %d", len(left), len(made))
	}
	b.claimOne(startTime())
	b.claimNone(startTime())
	if n, err := b.q.Cancel(b.ctx(), m.Sandbox); n != 1 || err != nil {
		b.Errorf("cancelled %d messages, error %v; want 1", n, err)
	}
	b.requireEqual("stats", queue.Stats{}, b.queueStats())
}

func testReschedule(b bench) {
	m := newMessage()
	m.Metadata = map[string]string{"a": "b"}
	move := func(m queue.Message, due time.Time) bool {
		ok, err := b.q.Reschedule(b.ctx(), m.Sandbox, m.Kind, due)
		b.must("reschedule", err)
		return ok
	}
	if move(m, startTime()) {
		b.Error("moved a missing message")
	}
	kept := b.scheduleMessage(m)
	if !move(m, startTime().Add(time.Hour+time.Microsecond)) {
		b.Error("did not move a pending message")
	}
	kept.Due = startTime().Add(time.Hour)
	b.requireEqual("moved", []queue.Message{kept}, b.listMessages(queue.Filter{}))
	b.wantNext(kept.Due)
	b.claimNone(startTime())
	if !move(m, startTime().Add(time.Minute)) {
		b.Error("did not move it back")
	}
	kept.Due = startTime().Add(time.Minute)
	b.requireEqual("claimed", kept, b.claimOne(startTime().Add(time.Minute)).Message)
	if move(m, startTime()) {
		b.Error("moved a claimed message")
	}
}

func testCancel(b bench) {
	m := newMessage()
	schedule := func(kinds ...queue.Kind) {
		for _, k := range kinds {
			m.Kind = k
			b.scheduleMessage(m)
		}
	}
	cancel := func(want int, kinds ...queue.Kind) {
		b.Helper()
		n, err := b.q.Cancel(b.ctx(), m.Sandbox, kinds...)
		if n != want || err != nil {
			b.Errorf("cancel %q: %d, error %v; want %d", kinds, n, err, want)
		}
	}
	neighbour := b.scheduleMessage(newMessage())
	cancel(0)
	cancel(0, "idle")
	schedule("idle", "deadline", "archive", "delete")
	cancel(1, "idle")
	cancel(0, "idle")
	cancel(2, "archive", "deadline", "never", "archive")
	cancel(1)
	cancel(0)
	b.requireEqual("left", []queue.Message{neighbour}, b.listMessages(queue.Filter{}))
	b.requireEqual("claimed", neighbour, b.claimOne(startTime()).Message)
	schedule("idle") // the queue has capacity again
	b.claimOne(startTime())
}

func testCancelClaimed(b bench) {
	m := newMessage()
	b.scheduleMessage(m)
	dead := b.claimOne(startTime())
	b.must("bury", b.q.Bury(b.ctx(), dead, "x"))
	b.scheduleMessage(m)
	claim := b.claimOne(startTime())
	b.scheduleMessage(m)
	n, err := b.q.Cancel(b.ctx(), m.Sandbox, m.Kind)
	if n != 2 || err != nil {
		b.Errorf("cancelled %d, error %v; want the claimed and the pending one", n, err)
	}
	b.wantLost(claim)
	b.claimNone(startTime().Add(time.Hour))
	b.wantNext(time.Time{})
	b.requireEqual("dead letters", []string{dead.ID}, messageIDs(b.listMessages(queue.Filter{Dead: true})))
	b.requireEqual("stats", queue.Stats{Dead: 1}, b.queueStats())
	after := b.scheduleMessage(m)
	b.requireEqual("claimed", after, b.claimOne(startTime()).Message)
}

func testBounds(b bench) {
	year := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, change := range map[string]func(*queue.Message){
		"no topic":       func(m *queue.Message) { m.Topic = "" },
		"bad topic":      func(m *queue.Message) { m.Topic = "a:b" },
		"long topic":     func(m *queue.Message) { m.Topic = longText(129) },
		"bad sandbox":    func(m *queue.Message) { m.Sandbox = "../../etc" },
		"no kind":        func(m *queue.Message) { m.Kind = "" },
		"bad kind":       func(m *queue.Message) { m.Kind = "Kind" },
		"long kind":      func(m *queue.Message) { m.Kind = queue.Kind(longText(65)) },
		"no due":         func(m *queue.Message) { m.Due = time.Time{} },
		"far due":        func(m *queue.Message) { m.Due = year },
		"odd metadata":   func(m *queue.Message) { m.Metadata = map[string]string{"k": "\xff"} },
		"large metadata": func(m *queue.Message) { m.Metadata = map[string]string{"k": longText(queue.MaxMetadata - 7)} },
	} {
		m := newMessage()
		change(&m)
		_, err := b.q.Schedule(b.ctx(), m)
		b.wantCode("schedule with "+name, err, sandpit.Invalid)
	}
	box := sandpit.NewID()
	claim := func(now time.Time, topics []string, n int, d time.Duration) error {
		_, err := b.q.Claim(b.ctx(), now, topics, n, d)
		return err
	}
	for name, err := range map[string]error{
		"no topics":     claim(startTime(), nil, 1, stay),
		"many topics":   claim(startTime(), slices.Repeat([]string{topic}, queue.MaxTopics+1), 1, stay),
		"a bad topic":   claim(startTime(), []string{topic, "*"}, 1, stay),
		"n":             claim(startTime(), []string{topic}, 0, stay),
		"no visibility": claim(startTime(), []string{topic}, 1, 0),
		"visibility":    claim(startTime(), []string{topic}, 1, queue.MaxVisibility+1),
		"now":           claim(year, []string{topic}, 1, stay),
		"next":          secondError(b.q.Next(b.ctx(), nil)),
		"shift":         b.q.Shift(b.ctx(), nil, 1),
		"reschedule":    firstError(b.q.Reschedule(b.ctx(), "x", "idle", startTime())),
		"its kind":      firstError(b.q.Reschedule(b.ctx(), box, "?", startTime())),
		"its due":       firstError(b.q.Reschedule(b.ctx(), box, "idle", year)),
		"cancel":        firstError(b.q.Cancel(b.ctx(), "x")),
		"cancel's kind": firstError(b.q.Cancel(b.ctx(), box, "")),
		"many kinds":    firstError(b.q.Cancel(b.ctx(), box, slices.Repeat([]queue.Kind{"idle"}, queue.MaxKinds+1)...)),
		"list topic":    firstError(b.q.List(b.ctx(), queue.Filter{Topic: "*"})),
		"list sandbox":  firstError(b.q.List(b.ctx(), queue.Filter{Sandbox: "*"})),
		"list kind":     firstError(b.q.List(b.ctx(), queue.Filter{Kind: "*"})),
		"list limit":    firstError(b.q.List(b.ctx(), queue.Filter{Limit: -1})),
		"list after":    firstError(b.q.List(b.ctx(), queue.Filter{After: longText(65)})),
		"extend":        firstError(b.q.Extend(b.ctx(), queue.Claim{}, year)),
		"retry":         b.q.Retry(b.ctx(), queue.Claim{}, year, "x"),
		"revive":        b.q.Revive(b.ctx(), "x", year),
	} {
		b.wantCode(name, err, sandpit.Invalid)
	}
	b.requireEqual("stats", queue.Stats{}, b.queueStats())
}

// testAtBounds uses the maximum of each bound.
func testAtBounds(b bench) {
	m := newMessage()
	m.Topic, m.Kind = longText(128), queue.Kind(longText(64))
	m.Metadata = map[string]string{"k": longText(queue.MaxMetadata - 8)}
	m.Due = time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC)
	kept := b.scheduleMessage(m)
	topics := append(slices.Repeat([]string{topic}, queue.MaxTopics-1), m.Topic)
	claims, err := b.q.Claim(b.ctx(), startTime(), topics, 1<<30, queue.MaxVisibility)
	b.must("claim", err)
	if len(claims) != 1 {
		b.Fatalf("claimed %d messages, want 1", len(claims))
	}
	b.requireEqual("claimed", kept, claims[0].Message)
	b.must("retry", b.q.Retry(b.ctx(), claims[0], time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), longText(1000)+"ü"))
	list := b.listMessages(queue.Filter{Limit: 1 << 30})
	if len(list) != 1 || list[0].LastError != longText(queue.MaxError) || list[0].Due.Year() != 9999 {
		b.Errorf("after a retry: %+v", list)
	}
	for range queue.MaxClaims + 5 {
		b.scheduleMessage(newMessage())
	}
	claims, err = b.q.Claim(b.ctx(), startTime(), []string{topic}, 1<<30, stay)
	if len(claims) != queue.MaxClaims || err != nil {
		b.Errorf("claimed %d, error %v; want %d", len(claims), err, queue.MaxClaims)
	}
}

func longText(n int) string { return string(slices.Repeat([]byte("x"), n)) }

func firstError[T any](_ T, err error) error { return err }

func secondError[T, U any](_ T, _ U, err error) error { return err }
