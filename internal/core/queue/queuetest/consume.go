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
		m := message()
		m.Due = start().Add(time.Duration(s) * time.Second)
		byDue[s] = b.schedule(m).ID
	}
	want = byDue
	b.claimNone(start().Add(-time.Millisecond))
	// Messages with an expired claim return to their places.
	b.same("first", want[:6], claimed(b.claim(start().Add(5*time.Second))))
	claims, err := b.q.Claim(b.ctx(), start().Add(time.Hour), []string{topic}, 7, stay)
	b.must("claim", err)
	b.same("seven of all", want[:7], claimed(claims))
	b.same("the rest", want[7:], claimed(b.claim(start().Add(time.Hour))))
	b.claimNone(start().Add(time.Hour))
}

func testTopics(b bench) {
	mine, foreign := message(), message()
	foreign.Topic = other
	m, f := b.schedule(mine), b.schedule(foreign)
	b.same("mine", []string{m.ID}, claimed(b.claim(start())))
	b.claimNone(start().Add(time.Second))
	b.wantNext(start().Add(stay))
	claims, err := b.q.Claim(b.ctx(), start(), []string{"nobody"}, 9, stay)
	if len(claims) != 0 || err != nil {
		b.Errorf("claimed %+v, error %v; want nothing", claims, err)
	}
	claims, err = b.q.Claim(b.ctx(), start().Add(stay), []string{other, topic, other}, 9, stay)
	b.must("claim", err)
	got := claimed(claims)
	slices.Sort(got)
	b.same("both", []string{m.ID, f.ID}, got)
}

func testNext(b bench) {
	b.wantNext(time.Time{})
	m := message()
	m.Topic = other
	b.schedule(m)
	b.wantNext(time.Time{})
	late, soon := message(), message()
	late.Due = start().Add(time.Hour)
	b.schedule(late)
	b.wantNext(late.Due)
	b.schedule(soon)
	b.wantNext(start())
	c := b.claimOne(start())
	b.wantNext(c.Until)
	_, err := b.q.Extend(b.ctx(), c, start().Add(2*time.Hour))
	b.must("extend", err)
	b.wantNext(late.Due)
	c = b.claimOne(late.Due)
	b.must("retry", b.q.Retry(b.ctx(), c, start().Add(30*time.Minute), "x"))
	b.wantNext(start().Add(30 * time.Minute))
	c = b.claimOne(late.Due)
	b.must("bury", b.q.Bury(b.ctx(), c, "x"))
	b.wantNext(start().Add(2 * time.Hour))
}

func testVisibility(b bench) {
	b.schedule(message())
	was := b.claimOne(start())
	b.claimNone(was.Until.Add(-time.Millisecond))
	now := b.claimOne(was.Until)
	if now.Token == was.Token {
		b.Error("both claims have the same token")
	}
	b.same("message", was.Message, now.Message)
	b.wantLost(was)
	b.same("stats", queue.Stats{Claimed: 1}, b.stats())
	b.must("complete", b.q.Complete(b.ctx(), now))
	b.wantLost(now)
	b.claimNone(start().Add(24 * time.Hour))
}

func testLateAnswer(b bench) {
	b.schedule(message())
	c := b.claimOne(start())
	older := message()
	older.Due = start().Add(-time.Hour)
	b.schedule(older)
	// After the claim has expired, another worker claims an older message.
	claims, err := b.q.Claim(b.ctx(), c.Until.Add(time.Hour), []string{topic}, 1, stay)
	if len(claims) != 1 || err != nil {
		b.Fatalf("claimed %+v, error %v; want the older one", claims, err)
	}
	longer, err := b.q.Extend(b.ctx(), c, c.Until.Add(2*time.Hour))
	b.must("extend late", err)
	b.must("complete", b.q.Complete(b.ctx(), longer))
	b.must("complete", b.q.Complete(b.ctx(), claims[0]))
	b.same("stats", queue.Stats{}, b.stats())
}

func testExtend(b bench) {
	m := b.schedule(message())
	c := b.claimOne(start())
	longer, err := b.q.Extend(b.ctx(), c, start().Add(time.Hour).Add(time.Microsecond))
	b.must("extend", err)
	want := c
	want.Until = start().Add(time.Hour)
	b.same("extended", want, longer)
	b.claimNone(start().Add(time.Hour - time.Millisecond))
	// The token did not change, so a completion that was sent before the extension is valid.
	back, err := b.q.Extend(b.ctx(), c, start().Add(time.Second))
	b.must("give back", err)
	b.wantNext(start().Add(time.Second))
	got := b.claimOne(start().Add(time.Second))
	b.same("given back", m, got.Message)
	b.wantLost(back)
}

func testLostClaim(b bench) {
	m := message()
	b.schedule(m)
	c := b.claimOne(start())
	forged := c
	forged.Token = "0123456789abcdef"
	b.wantLost(forged)
	forged.Token = ""
	b.wantLost(forged)
	b.must("retry", b.q.Retry(b.ctx(), c, start(), "x"))
	b.wantLost(c) // pending again: neither the old token nor an empty one is valid
	c.Token = ""
	b.wantLost(c)
	c = b.claimOne(start())
	b.must("bury", b.q.Bury(b.ctx(), c, "x"))
	b.wantLost(c)
	b.same("stats", queue.Stats{Dead: 1}, b.stats())
}

func testRetry(b bench) {
	m := message()
	m.Metadata = map[string]string{"a": "b"}
	want := b.schedule(m)
	for n := 1; n <= 3; n++ {
		c := b.claimOne(start().Add(time.Duration(n-1) * time.Hour))
		due := start().Add(time.Duration(n) * time.Hour)
		b.must("retry", b.q.Retry(b.ctx(), c, due, strings.Repeat("é", 400)+"\xff"))
		b.claimNone(due.Add(-time.Millisecond))
		got := b.list(queue.Filter{})[0]
		if !utf8.ValidString(got.LastError) || len(got.LastError) != queue.MaxError {
			b.Errorf("last error of %d bytes: %q", len(got.LastError), got.LastError)
		}
		want.Attempts, want.LastError, want.Due = n, got.LastError, due
		b.same("message", want, got)
	}
	moved, err := b.q.Reschedule(b.ctx(), m.Sandbox, m.Kind, start())
	if !moved || err != nil {
		b.Errorf("reschedule what is retried: %t, error %v", moved, err)
	}
	if n, err := b.q.Cancel(b.ctx(), m.Sandbox); n != 1 || err != nil {
		b.Errorf("cancel what is retried: %d, error %v", n, err)
	}
	b.claimNone(start().Add(24 * time.Hour))
}

func testNewerWaits(b bench) {
	m := message()
	b.schedule(m)
	c := b.claimOne(start())
	m.Metadata = map[string]string{"newer": "yes"}
	newer := b.schedule(m)
	b.claimNone(c.Until.Add(-time.Millisecond))
	b.wantNext(c.Until)
	b.same("stats", queue.Stats{Pending: 1, Claimed: 1, OldestDue: newer.Due}, b.stats())
	longer, err := b.q.Extend(b.ctx(), c, start().Add(time.Hour))
	b.must("extend", err)
	b.claimNone(start().Add(30 * time.Minute))
	b.must("complete", b.q.Complete(b.ctx(), longer))
	b.same("left", []queue.Message{newer}, b.list(queue.Filter{}))
	b.wantNext(newer.Due)
	b.same("newer", newer, b.claimOne(start()).Message)
}

func testNewerAtRetry(b bench) {
	m := message()
	b.schedule(m)
	c := b.claimOne(start())
	newer := b.schedule(m)
	b.must("retry", b.q.Retry(b.ctx(), c, start(), "x"))
	b.same("left", []queue.Message{newer}, b.list(queue.Filter{}))
	b.wantLost(c)
	b.same("newer", newer, b.claimOne(start()).Message)
}

func testNewerAtLapse(b bench) {
	m := message()
	b.schedule(m)
	c := b.claimOne(start())
	m.Due = start().Add(time.Hour)
	newer := b.schedule(m)
	b.wantNext(c.Until)
	b.claimNone(c.Until)
	b.wantLost(c)
	b.same("left", []queue.Message{newer}, b.list(queue.Filter{}))
	b.wantNext(newer.Due)
	c = b.claimOne(newer.Due)
	m.Due = start()
	newest := b.schedule(m)
	b.same("newest", newest, b.claimOne(c.Until).Message)
	b.same("stats", queue.Stats{Claimed: 1}, b.stats())
}

func testNewerAtBury(b bench) {
	m := message()
	old := b.schedule(m)
	c := b.claimOne(start())
	newer := b.schedule(m)
	b.must("bury", b.q.Bury(b.ctx(), c, "x"))
	b.same("dead", []string{old.ID}, ids(b.list(queue.Filter{Dead: true})))
	b.wantCode("revive", b.q.Revive(b.ctx(), old.ID, start()), sandpit.Conflict)
	b.same("newer", newer, b.claimOne(start()).Message)
}

// testNewerElsewhere has the newer message in another topic, as after another server has taken over a
// sandbox.
func testNewerElsewhere(b bench) {
	for _, dropper := range []string{topic, other} {
		m := message()
		b.schedule(m)
		c := b.claimOne(start())
		m.Topic = other
		newer := b.schedule(m)
		claim := func(topic string, now time.Time) []string {
			claims, err := b.q.Claim(b.ctx(), now, []string{topic}, 9, stay)
			b.must("claim", err)
			return claimed(claims)
		}
		b.same("before", 0, len(claim(other, c.Until.Add(-time.Millisecond))))
		next, ok, err := b.q.Next(b.ctx(), []string{other})
		if !ok || err != nil || !next.Equal(c.Until) {
			b.Errorf("next = %v, %t, error %v; want the end of the claim it waits for", next, ok, err)
		}
		if dropper == topic {
			b.same("the replaced one", 0, len(claim(topic, c.Until)))
		}
		b.same("the newer one", []string{newer.ID}, claim(other, c.Until))
		b.wantLost(c)
		if n, err := b.q.Cancel(b.ctx(), m.Sandbox); n != 1 || err != nil {
			b.Errorf("cancelled %d, error %v; want the newer one", n, err)
		}
	}
}

func testDeadLetters(b bench) {
	want := b.schedule(message())
	c := b.claimOne(start())
	b.must("retry", b.q.Retry(b.ctx(), c, start(), "first"))
	c = b.claimOne(start())
	b.must("bury", b.q.Bury(b.ctx(), c, "final failure"))
	want.Attempts, want.LastError = 2, "final failure"
	b.same("dead", []queue.Message{want}, b.list(queue.Filter{Dead: true}))
	b.same("alive", 0, len(b.list(queue.Filter{})))
	b.claimNone(start().Add(24 * time.Hour))
	b.wantNext(time.Time{})
	b.must("drop", b.q.Drop(b.ctx(), want.ID))
	b.wantCode("drop again", b.q.Drop(b.ctx(), want.ID), sandpit.NotFound)
	live := b.schedule(message())
	b.wantCode("drop what is pending", b.q.Drop(b.ctx(), live.ID), sandpit.NotFound)
	b.wantCode("revive a pending message", b.q.Revive(b.ctx(), live.ID, start()), sandpit.NotFound)
	b.same("stats", queue.Stats{Pending: 1, OldestDue: start()}, b.stats())
}

func testRevive(b bench) {
	m := message()
	want := b.schedule(m)
	b.must("bury", b.q.Bury(b.ctx(), b.claimOne(start()), "why"))
	b.schedule(m)
	b.wantCode("while one is pending", b.q.Revive(b.ctx(), want.ID, start()), sandpit.Conflict)
	c := b.claimOne(start())
	b.wantCode("while one is claimed", b.q.Revive(b.ctx(), want.ID, start()), sandpit.Conflict)
	b.must("complete", b.q.Complete(b.ctx(), c))
	b.must("revive", b.q.Revive(b.ctx(), want.ID, start().Add(time.Minute)))
	b.wantCode("revive again", b.q.Revive(b.ctx(), want.ID, start()), sandpit.NotFound)
	want.Due, want.LastError = start().Add(time.Minute), "why"
	b.same("stats", queue.Stats{Pending: 1, OldestDue: want.Due}, b.stats())
	b.wantNext(want.Due)
	b.same("revived", want, b.claimOne(want.Due).Message)
}

func testDeadBound(b bench) {
	foreign := message()
	foreign.Topic = other
	b.schedule(foreign)
	claims, err := b.q.Claim(b.ctx(), start(), []string{other}, 1, stay)
	b.must("claim", err)
	b.must("bury", b.q.Bury(b.ctx(), claims[0], "x"))
	const more = 3
	var made []string
	for len(made) < queue.MaxDead+more {
		for range min(100, queue.MaxDead+more-len(made)) {
			made = append(made, b.schedule(message()).ID)
		}
		for _, c := range b.claim(start()) {
			b.must("bury", b.q.Bury(b.ctx(), c, "x"))
		}
	}
	b.same("kept", made[more:], ids(b.list(queue.Filter{Dead: true, Topic: topic, Limit: queue.MaxList})))
	b.same("of the other topic", 1, len(b.list(queue.Filter{Dead: true, Topic: other})))
	b.same("stats", queue.Stats{Dead: queue.MaxDead + 1}, b.stats())
}

func testList(b bench) {
	kinds := []queue.Kind{"idle", "deadline", "archive"}
	box := sandpit.NewID()
	var all []queue.Message
	for i := range 30 {
		m := message()
		m.Kind = kinds[i%3]
		if i%5 == 0 {
			m.Topic = other
		}
		if i < 3 {
			m.Sandbox = box
		}
		all = append(all, b.schedule(m))
	}
	b.claim(start()) // claimed messages are listed like pending ones
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
		b.same(name, want, ids(b.list(tc.filter)))
		var paged []string
		tc.filter.Limit = 4
		for {
			page := ids(b.list(tc.filter))
			paged = append(paged, page...)
			if len(page) < tc.filter.Limit {
				break
			}
			tc.filter.After = page[len(page)-1]
		}
		b.same(name+" in pages", want, paged)
	}
	for range queue.DefaultList {
		b.schedule(message())
	}
	b.same("without a limit", queue.DefaultList, len(b.list(queue.Filter{})))
}

func testStats(b bench) {
	b.same("empty", queue.Stats{}, b.stats())
	late, early := message(), message()
	late.Due, early.Topic = start().Add(time.Hour), other
	b.schedule(late)
	b.schedule(early)
	b.schedule(message())
	b.claimOne(start())
	b.same("some", queue.Stats{Pending: 2, Claimed: 1, OldestDue: start()}, b.stats())
}

func testShift(b bench) {
	far, foreign, dead := message(), message(), message()
	foreign.Topic = other
	b.schedule(dead)
	b.must("bury", b.q.Bury(b.ctx(), b.claimOne(start()), "x"))
	held := b.schedule(message())
	c := b.claimOne(start())
	far.Due = start().Add(time.Hour)
	far = b.schedule(far)
	foreign = b.schedule(foreign)
	b.must("shift", b.q.Shift(b.ctx(), []string{topic}, 24*time.Hour+time.Microsecond))
	held.Due, far.Due = held.Due.Add(24*time.Hour), far.Due.Add(24*time.Hour)
	b.same("moved", []queue.Message{held, far, foreign}, b.list(queue.Filter{}))
	b.same("dead", start(), b.list(queue.Filter{Dead: true})[0].Due)
	b.wantNext(c.Until.Add(24 * time.Hour))
	b.claimNone(c.Until.Add(24*time.Hour - time.Millisecond)) // a jump does not end a claim
	b.must("shift back", b.q.Shift(b.ctx(), []string{topic, other}, -48*time.Hour))
	b.wantNext(c.Until.Add(-24 * time.Hour))
	b.must("complete", b.q.Complete(b.ctx(), c))
	b.wantNext(start().Add(-23 * time.Hour))
	b.claimOne(start().Add(-23 * time.Hour))
}
