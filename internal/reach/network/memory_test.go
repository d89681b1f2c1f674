package network_test

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/network"
)

func writeFile(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
}

// TestNamesEnd forgets answers when they are over, however long they claim to be.
func TestNamesEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := network.NewNames()
		a := netip.MustParseAddr("93.184.215.14")
		n.Learn("short.example", a, time.Second)
		n.Learn("long.example", a, 30*24*time.Hour)
		time.Sleep(5 * time.Minute)
		if got := n.Of(a); len(got) != 2 {
			t.Errorf("after 5 minutes: %v", got)
		}
		time.Sleep(2 * time.Second)
		if got := n.Of(a); len(got) != 1 || got[0] != "long.example" {
			t.Errorf("after what is short ended: %v", got)
		}
		time.Sleep(5 * time.Minute)
		if got := n.Of(a); len(got) != 0 {
			t.Errorf("after everything ended: %v", got)
		}
	})
}

// TestNamesAreBounded learns more than there is room for: what is oldest goes.
func TestNamesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		n := network.NewNames()
		addr := func(i int) netip.Addr {
			return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(0x5db80000+i))))
		}
		for i := range network.MaxAnswers + 10 {
			n.Learn("a.example", addr(i), time.Minute)
			time.Sleep(time.Millisecond)
		}
		for range 2 * network.MaxAnswers { // many names of one address
			n.Learn("x"+strconv.Itoa(len(n.Of(addr(7))))+".example", addr(7), time.Minute)
		}
		counted, there := n.Count()
		if counted != there || counted > network.MaxAnswers {
			t.Errorf("counted %d, there are %d", counted, there)
		}
		if len(n.Of(addr(0))) != 0 {
			t.Error("the oldest is still there")
		}
	})
}

// TestJournal counts equal decisions, keeps the newest, and gives what is new.
func TestJournal(t *testing.T) {
	t.Parallel()
	j := network.NewJournal()
	first := sandpit.NetworkDecision{Protocol: "tcp", Address: "1.2.3.4:5", Reason: "x"}
	j.Add(first)
	seq := j.After(0, 10)[0].Seq
	for range 2 * network.MaxDecisions {
		j.Add(sandpit.NetworkDecision{Protocol: "tcp", Address: "1.2.3.4:6", Reason: "x"})
	}
	if got := j.After(0, 10); len(got) != 2 || got[0].Count != 1 || got[1].Count != 2*network.MaxDecisions {
		t.Errorf("got %+v", got)
	}
	if got := j.After(seq, 10); len(got) != 1 || got[0].Address != "1.2.3.4:6" {
		t.Errorf("new: %+v", got)
	}
	for i := range 2 * network.MaxDecisions {
		j.Add(sandpit.NetworkDecision{Protocol: "tcp", Address: strconv.Itoa(i), Reason: "x"})
	}
	got := j.After(0, 10*network.MaxDecisions)
	if len(got) != network.MaxDecisions || got[len(got)-1].Address != strconv.Itoa(2*network.MaxDecisions-1) {
		t.Errorf("%d decisions, the last %+v", len(got), got[len(got)-1])
	}
	j.Add(first)
	if got := j.After(got[len(got)-1].Seq, 10); len(got) != 1 || got[0].Count != 1 {
		t.Errorf("what was forgotten counts anew: %+v", got)
	}
	if got := j.After(0, 3); len(got) != 3 {
		t.Errorf("limit: %d", len(got))
	}
	j.Add(sandpit.NetworkDecision{Protocol: "dns", Name: strings.Repeat("\x00\"é", 1000), Reason: "y\n\x1b[31m"})
	got = j.After(0, 10*network.MaxDecisions)
	if d := got[len(got)-1]; len(d.Name) > 253 || strings.Trim(d.Name, "?") != "" || d.Reason != "y??[31m" {
		t.Errorf("hostile text: %q, %q", d.Name, d.Reason)
	}
}

// FuzzPacket takes whatever comes by a link.
func FuzzPacket(f *testing.F) {
	for _, seed := range []string{
		"\x45\x00\x00\x1c\x00\x00\x00\x00\x40\x01\x00\x00\x0a\x00\x02\x0f\x01\x02\x03\x04\x08\x00\xf7\xff\x00\x00\x00\x00",
		"\x45\x00\x00\x28\x00\x00\x00\x00\x40\x06\x00\x00\x0a\x00\x02\x0f\x01\x02\x03\x04\x10\x00\x00\x50\x00\x00\x00\x01\x00\x00\x00\x00\x50\x02\xff\xff\x00\x00\x00\x00",
		"\x60\x00\x00\x00\x00\x08\x3a\x40\xfd\x73\x70\x69\x74\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x0f\x26\x06\x28\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x80\x00\x00\x00\x00\x00\x00\x00",
		"", "\x40", "\x60",
	} {
		f.Add([]byte(seed))
	}
	deliver := network.NewDeliverer(f)
	f.Fuzz(func(_ *testing.T, data []byte) { deliver(data) })
}

// TestJournalRecalls has a journal take over what another one had: in order, added to what
// it knows, and no more than may be remembered.
func TestJournalRecalls(t *testing.T) {
	t.Parallel()
	entry := func(i int) sandpit.NetworkDecision {
		return sandpit.NetworkDecision{Protocol: "tcp", Address: strconv.Itoa(i), Reason: "x"}
	}
	before := network.NewJournal()
	for i := range network.MaxDecisions {
		before.Add(entry(i))
	}
	time.Sleep(2 * time.Millisecond) // the second one's numbers grow with time
	after := network.NewJournal()
	after.Add(entry(5)) // before it has recalled anything
	after.Add(entry(-1))
	for old := before.After(0, 100); len(old) > 0; old = before.After(old[len(old)-1].Seq, 100) {
		after.Recall(old)
	}
	all := after.After(0, 2*network.MaxDecisions)
	if len(all) != network.MaxDecisions || !slices.IsSortedFunc(all, func(a, b sandpit.NetworkDecision) int { return cmp.Compare(a.Seq, b.Seq) }) {
		t.Fatalf("%d entries, out of order or too many", len(all))
	}
	first, last := all[0], all[len(all)-2:]
	if first.Address != "1" || last[0].Address != "5" || last[0].Count != 2 || last[1].Address != "-1" || last[1].Count != 1 {
		t.Errorf("the first is %+v, the last are %+v", first, last)
	}
	after.Recall([]sandpit.NetworkDecision{{Seq: last[1].Seq + 1e9, Count: 1, Protocol: "tcp", Reason: "later", Name: "a\x1b"}})
	after.Add(entry(-2))
	all = after.After(last[1].Seq, 10)
	if len(all) != 2 || all[0].Name != "a?" || all[1].Address != "-2" {
		t.Errorf("after a clock that was ahead: %+v", all)
	}
}
