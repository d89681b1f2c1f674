package queuetest

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func testDueOrder(b bench) {
	var want []string
	dues := []int{5, 1, 9, 3, 7, 0, 8, 2, 6, 4}
	byDue := make([]string, len(dues))
	for _, s := range dues {
		m := newMessage()
		m.Due = startTime().Add(time.Duration(s) * time.Second)
		byDue[s] = b.scheduleMessage(m).ID
	}
	want = byDue
	b.claimNone(startTime().Add(-time.Millisecond))
	// Messages with an expired claim return to their places.
	b.requireEqual("first", want[:6], claimedIDs(b.claimDue(startTime().Add(5*time.Second))))
	claims, err := b.q.Claim(b.ctx(), startTime().Add(time.Hour), []string{topic}, 7, stay)
	b.must("claim", err)
	b.requireEqual("seven of all", want[:7], claimedIDs(claims))
	b.requireEqual("the rest", want[7:], claimedIDs(b.claimDue(startTime().Add(time.Hour))))
	b.claimNone(startTime().Add(time.Hour))
}

func testTopics(b bench) {
	mine, foreign := newMessage(), newMessage()
	foreign.Topic = other
	m, f := b.scheduleMessage(mine), b.scheduleMessage(foreign)
	b.requireEqual("mine", []string{m.ID}, claimedIDs(b.claimDue(startTime())))
	b.claimNone(startTime().Add(time.Second))
	b.wantNext(startTime().Add(stay))
	claims, err := b.q.Claim(b.ctx(), startTime(), []string{"nobody"}, 9, stay)
	if len(claims) != 0 || err != nil {
		b.Errorf("claimed %+v, error %v; want nothing", claims, err)
	}
	claims, err = b.q.Claim(b.ctx(), startTime().Add(stay), []string{other, topic, other}, 9, stay)
	b.must("claim", err)
	got := claimedIDs(claims)
	slices.Sort(got)
	b.requireEqual("both", []string{m.ID, f.ID}, got)
}

func testNext(b bench) {
	b.wantNext(time.Time{})
	m := newMessage()
	m.Topic = other
	b.scheduleMessage(m)
	b.wantNext(time.Time{})
	late, soon := newMessage(), newMessage()
	late.Due = startTime().Add(time.Hour)
	b.scheduleMessage(late)
	b.wantNext(late.Due)
	b.scheduleMessage(soon)
	b.wantNext(startTime())
	c := b.claimOne(startTime())
	b.wantNext(c.Until)
	_, err := b.q.Extend(b.ctx(), c, startTime().Add(2*time.Hour))
	b.must("extend", err)
	b.wantNext(late.Due)
	c = b.claimOne(late.Due)
	b.must("retry", b.q.Retry(b.ctx(), c, startTime().Add(30*time.Minute), "x"))
	b.wantNext(startTime().Add(30 * time.Minute))
	c = b.claimOne(late.Due)
	b.must("bury", b.q.Bury(b.ctx(), c, "x"))
	b.wantNext(startTime().Add(2 * time.Hour))
}

func testVisibility(b bench) {
	b.scheduleMessage(newMessage())
	was := b.claimOne(startTime())
	b.claimNone(was.Until.Add(-time.Millisecond))
	now := b.claimOne(was.Until)
	if now.Token == was.Token {
		b.Error("both claims have the same token")
	}
	b.requireEqual("message", was.Message, now.Message)
	b.wantLost(was)
	b.requireEqual("stats", queue.Stats{Claimed: 1}, b.queueStats())
	b.must("complete", b.q.Complete(b.ctx(), now))
	b.wantLost(now)
	b.claimNone(startTime().Add(24 * time.Hour))
}

func testLateAnswer(b bench) {
	b.scheduleMessage(newMessage())
	c := b.claimOne(startTime())
	older := newMessage()
	older.Due = startTime().Add(-time.Hour)
	b.scheduleMessage(older)
	// After the claim has expired, another worker claims an older message.
	claims, err := b.q.Claim(b.ctx(), c.Until.Add(time.Hour), []string{topic}, 1, stay)
	if len(claims) != 1 || err != nil {
		b.Fatalf("claimed %+v, error %v; want the older one", claims, err)
	}
	longer, err := b.q.Extend(b.ctx(), c, c.Until.Add(2*time.Hour))
	b.must("extend late", err)
	b.must("complete", b.q.Complete(b.ctx(), longer))
	b.must("complete", b.q.Complete(b.ctx(), claims[0]))
	b.requireEqual("stats", queue.Stats{}, b.queueStats())
}

func testExtend(b bench) {
	m := b.scheduleMessage(newMessage())
	c := b.claimOne(startTime())
	longer, err := b.q.Extend(b.ctx(), c, startTime().Add(time.Hour).Add(time.Microsecond))
	b.must("extend", err)
	want := c
	want.Until = startTime().Add(time.Hour)
	b.requireEqual("extended", want, longer)
	b.claimNone(startTime().Add(time.Hour - time.Millisecond))
	// The token did not change, so a completion that was sent before the extension is valid.
	back, err := b.q.Extend(b.ctx(), c, startTime().Add(time.Second))
	b.must("give back", err)
	b.wantNext(startTime().Add(time.Second))
	got := b.claimOne(startTime().Add(time.Second))
	b.requireEqual("given back", m, got.Message)
	b.wantLost(back)
}

func testLostClaim(b bench) {
	m := newMessage()
	b.scheduleMessage(m)
	c := b.claimOne(startTime())
	forged := c
	forged.Token = "0123456789abcdef"
	b.wantLost(forged)
	forged.Token = ""
	b.wantLost(forged)
	b.must("retry", b.q.Retry(b.ctx(), c, startTime(), "x"))
	b.wantLost(c) // pending again: neither the old token nor an empty one is valid
	c.Token = ""
	b.wantLost(c)
	c = b.claimOne(startTime())
	b.must("bury", b.q.Bury(b.ctx(), c, "x"))
	b.wantLost(c)
	b.requireEqual("stats", queue.Stats{Dead: 1}, b.queueStats())
}

func testRetry(b bench) {
	m := newMessage()
	m.Metadata = map[string]string{"a": "b"}
	want := b.scheduleMessage(m)
	for n := 1; n <= 3; n++ {
		c := b.claimOne(startTime().Add(time.Duration(n-1) * time.Hour))
		due := startTime().Add(time.Duration(n) * time.Hour)
		b.must("retry", b.q.Retry(b.ctx(), c, due, strings.Repeat("é", 400)+"\xff"))
		b.claimNone(due.Add(-time.Millisecond))
		got := b.listMessages(queue.Filter{})[0]
		if !utf8.ValidString(got.LastError) || len(got.LastError) != queue.MaxError {
			b.Errorf("last error of %d bytes: %q", len(got.LastError), got.LastError)
		}
		want.Attempts, want.LastError, want.Due = n, got.LastError, due
		b.requireEqual("message", want, got)
	}
	moved, err := b.q.Reschedule(b.ctx(), m.Sandbox, m.Kind, startTime())
	if !moved || err != nil {
		b.Errorf("reschedule what is retried: %t, error %v", moved, err)
	}
	if n, err := b.q.Cancel(b.ctx(), m.Sandbox); n != 1 || err != nil {
		b.Errorf("cancel what is retried: %d, error %v", n, err)
	}
	b.claimNone(startTime().Add(24 * time.Hour))
}

func testNewerWaits(b bench) {
	m := newMessage()
	b.scheduleMessage(m)
	c := b.claimOne(startTime())
	m.Metadata = map[string]string{"newer": "yes"}
	newer := b.scheduleMessage(m)
	b.claimNone(c.Until.Add(-time.Millisecond))
	b.wantNext(c.Until)
	b.requireEqual("stats", queue.Stats{Pending: 1, Claimed: 1, OldestDue: newer.Due}, b.queueStats())
	longer, err := b.q.Extend(b.ctx(), c, startTime().Add(time.Hour))
	b.must("extend", err)
	b.claimNone(startTime().Add(30 * time.Minute))
	b.must("complete", b.q.Complete(b.ctx(), longer))
	b.requireEqual("left", []queue.Message{newer}, b.listMessages(queue.Filter{}))
	b.wantNext(newer.Due)
	b.requireEqual("newer", newer, b.claimOne(startTime()).Message)
}

func testNewerAtRetry(b bench) {
	m := newMessage()
	b.scheduleMessage(m)
	c := b.claimOne(startTime())
	newer := b.scheduleMessage(m)
	b.must("retry", b.q.Retry(b.ctx(), c, startTime(), "x"))
	b.requireEqual("left", []queue.Message{newer}, b.listMessages(queue.Filter{}))
	b.wantLost(c)
	b.requireEqual("newer", newer, b.claimOne(startTime()).Message)
}

func testNewerAtLapse(b bench) {
	m := newMessage()
	b.scheduleMessage(m)
	c := b.claimOne(startTime())
	m.Due = startTime().Add(time.Hour)
	newer := b.scheduleMessage(m)
	b.wantNext(c.Until)
	b.claimNone(c.Until)
	b.wantLost(c)
	b.requireEqual("left", []queue.Message{newer}, b.listMessages(queue.Filter{}))
	b.wantNext(newer.Due)
	c = b.claimOne(newer.Due)
	m.Due = startTime()
	newest := b.scheduleMessage(m)
	b.requireEqual("newest", newest, b.claimOne(c.Until).Message)
	b.requireEqual("stats", queue.Stats{Claimed: 1}, b.queueStats())
}

func testNewerAtBury(b bench) {
	m := newMessage()
	old := b.scheduleMessage(m)
	c := b.claimOne(startTime())
	newer := b.scheduleMessage(m)
	b.must("bury", b.q.Bury(b.ctx(), c, "x"))
	b.requireEqual("dead", []string{old.ID}, messageIDs(b.listMessages(queue.Filter{Dead: true})))
	b.wantCode("revive", b.q.Revive(b.ctx(), old.ID, startTime()), sandpit.Conflict)
	b.requireEqual("newer", newer, b.claimOne(startTime()).Message)
}

// testNewerElsewhere has the newer message in another topic, as after another server has taken over a
// sandbox.
func testNewerElsewhere(b bench) {
	for _, dropper := range []string{topic, other} {
		m := newMessage()
		b.scheduleMessage(m)
		c := b.claimOne(startTime())
		m.Topic = other
		newer := b.scheduleMessage(m)
		claim := func(topic string, now time.Time) []string {
			claims, err := b.q.Claim(b.ctx(), now, []string{topic}, 9, stay)
			b.must("claim", err)
			return claimedIDs(claims)
		}
		b.requireEqual("before", 0, len(claim(other, c.Until.Add(-time.Millisecond))))
		next, ok, err := b.q.Next(b.ctx(), []string{other})
		if !ok || err != nil || !next.Equal(c.Until) {
			b.Errorf("next = %v, %t, error %v; want the end of the claim it waits for", next, ok, err)
		}
		if dropper == topic {
			b.requireEqual("the replaced one", 0, len(claim(topic, c.Until)))
		}
		b.requireEqual("the newer one", []string{newer.ID}, claim(other, c.Until))
		b.wantLost(c)
		if n, err := b.q.Cancel(b.ctx(), m.Sandbox); n != 1 || err != nil {
			b.Errorf("cancelled %d, error %v; want the newer one", n, err)
		}
	}
}

func testDeadLetters(b bench) {
	want := b.scheduleMessage(newMessage())
	c := b.claimOne(startTime())
	b.must("retry", b.q.Retry(b.ctx(), c, startTime(), "first"))
	c = b.claimOne(startTime())
	b.must("bury", b.q.Bury(b.ctx(), c, "final failure"))
	want.Attempts, want.LastError = 2, "final failure"
	b.requireEqual("dead", []queue.Message{want}, b.listMessages(queue.Filter{Dead: true}))
	b.requireEqual("alive", 0, len(b.listMessages(queue.Filter{})))
	b.claimNone(startTime().Add(24 * time.Hour))
	b.wantNext(time.Time{})
	b.must("drop", b.q.Drop(b.ctx(), want.ID))
	b.wantCode("drop again", b.q.Drop(b.ctx(), want.ID), sandpit.NotFound)
	live := b.scheduleMessage(newMessage())
	b.wantCode("drop what is pending", b.q.Drop(b.ctx(), live.ID), sandpit.NotFound)
	b.wantCode("revive a pending message", b.q.Revive(b.ctx(), live.ID, startTime()), sandpit.NotFound)
	b.requireEqual("stats", queue.Stats{Pending: 1, OldestDue: startTime()}, b.queueStats())
}

func testRevive(b bench) {
	m := newMessage()
	want := b.scheduleMessage(m)
	b.must("bury", b.q.Bury(b.ctx(), b.claimOne(startTime()), "why"))
	b.scheduleMessage(m)
	b.wantCode("while one is pending", b.q.Revive(b.ctx(), want.ID, startTime()), sandpit.Conflict)
	c := b.claimOne(startTime())
	b.wantCode("while one is claimed", b.q.Revive(b.ctx(), want.ID, startTime()), sandpit.Conflict)
	b.must("complete", b.q.Complete(b.ctx(), c))
	b.must("revive", b.q.Revive(b.ctx(), want.ID, startTime().Add(time.Minute)))
	b.wantCode("revive again", b.q.Revive(b.ctx(), want.ID, startTime()), sandpit.NotFound)
	want.Due, want.LastError = startTime().Add(time.Minute), "why"
	b.requireEqual("stats", queue.Stats{Pending: 1, OldestDue: want.Due}, b.queueStats())
	b.wantNext(want.Due)
	b.requireEqual("revived", want, b.claimOne(want.Due).Message)
}

func testDeadBound(b bench) {
	foreign := newMessage()
	foreign.Topic = other
	b.scheduleMessage(foreign)
	claims, err := b.q.Claim(b.ctx(), startTime(), []string{other}, 1, stay)
	b.must("claim", err)
	b.must("bury", b.q.Bury(b.ctx(), claims[0], "x"))
	const more = 3
	var made []string
	for len(made) < queue.MaxDead+more {
		for range min(100, queue.MaxDead+more-len(made)) {
			made = append(made, b.scheduleMessage(newMessage()).ID)
		}
		for _, c := range b.claimDue(startTime()) {
			b.must("bury", b.q.Bury(b.ctx(), c, "x"))
		}
	}
	b.requireEqual("kept", made[more:], messageIDs(b.listMessages(queue.Filter{Dead: true, Topic: topic, Limit: queue.MaxList})))
	b.requireEqual("of the other topic", 1, len(b.listMessages(queue.Filter{Dead: true, Topic: other})))
	b.requireEqual("stats", queue.Stats{Dead: queue.MaxDead + 1}, b.queueStats())
}

func testList(b bench) {
	kinds := []queue.Kind{"idle", "deadline", "archive"}
	box := sandpit.NewID()
	var all []queue.Message
	for i := range 30 {
		m := newMessage()
		m.Kind = kinds[i%3]
		if i%5 == 0 {
			m.Topic = other
		}
		if i < 3 {
			m.Sandbox = box
		}
		all = append(all, b.scheduleMessage(m))
	}
	b.claimDue(startTime()) // claimed messages are listed like pending ones
	choose := func(f func(queue.Message) bool) (out []string) {
		for _, m := range all {
			if f(m) {
				out = append(out, m.ID)
			}
		}
		return out
	}
	for name, tc := range map[string]struct {
		filter queue.Filter
		holds  func(queue.Message) bool
	}{
		"all":        {queue.Filter{}, func(queue.Message) bool { return true }},
		"topic":      {queue.Filter{Topic: other}, func(m queue.Message) bool { return m.Topic == other }},
		"sandbox":    {queue.Filter{Sandbox: box}, func(m queue.Message) bool { return m.Sandbox == box }},
		"kind":       {queue.Filter{Kind: "idle"}, func(m queue.Message) bool { return m.Kind == "idle" }},
		"everything": {queue.Filter{Kind: "deadline", Sandbox: box, Topic: topic}, func(m queue.Message) bool { return m.ID == all[1].ID }},
		"dead":       {queue.Filter{Dead: true}, func(queue.Message) bool { return false }},
	} {
		want := choose(tc.holds)
		b.requireEqual(name, want, messageIDs(b.listMessages(tc.filter)))
		var paged []string
		tc.filter.Limit = 4
		for {
			page := messageIDs(b.listMessages(tc.filter))
			paged = append(paged, page...)
			if len(page) < tc.filter.Limit {
				break
			}
			tc.filter.After = page[len(page)-1]
		}
		b.requireEqual(name+" in pages", want, paged)
	}
	for range queue.DefaultList {
		b.scheduleMessage(newMessage())
	}
	b.requireEqual("without a limit", queue.DefaultList, len(b.listMessages(queue.Filter{})))
}

func testStats(b bench) {
	b.requireEqual("empty", queue.Stats{}, b.queueStats())
	late, early := newMessage(), newMessage()
	late.Due, early.Topic = startTime().Add(time.Hour), other
	b.scheduleMessage(late)
	b.scheduleMessage(early)
	b.scheduleMessage(newMessage())
	b.claimOne(startTime())
	b.requireEqual("some", queue.Stats{Pending: 2, Claimed: 1, OldestDue: startTime()}, b.queueStats())
}

func testShift(b bench) {
	far, foreign, dead := newMessage(), newMessage(), newMessage()
	foreign.Topic = other
	b.scheduleMessage(dead)
	b.must("bury", b.q.Bury(b.ctx(), b.claimOne(startTime()), "x"))
	held := b.scheduleMessage(newMessage())
	c := b.claimOne(startTime())
	far.Due = startTime().Add(time.Hour)
	far = b.scheduleMessage(far)
	foreign = b.scheduleMessage(foreign)
	b.must("shift", b.q.Shift(b.ctx(), []string{topic}, 24*time.Hour+time.Microsecond))
	held.Due, far.Due = held.Due.Add(24*time.Hour), far.Due.Add(24*time.Hour)
	b.requireEqual("moved", []queue.Message{held, far, foreign}, b.listMessages(queue.Filter{}))
	b.requireEqual("dead", startTime(), b.listMessages(queue.Filter{Dead: true})[0].Due)
	b.wantNext(c.Until.Add(24 * time.Hour))
	b.claimNone(c.Until.Add(24*time.Hour - time.Millisecond)) // a jump does not end a claim
	b.must("shift back", b.q.Shift(b.ctx(), []string{topic, other}, -48*time.Hour))
	b.wantNext(c.Until.Add(-24 * time.Hour))
	b.must("complete", b.q.Complete(b.ctx(), c))
	b.wantNext(startTime().Add(-23 * time.Hour))
	b.claimOne(startTime().Add(-23 * time.Hour))
}
