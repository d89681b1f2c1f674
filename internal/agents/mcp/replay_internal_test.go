package mcp

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"testing"
)

// kept reads an answer from an index on; false if it cannot be told.
func kept(p *replayStore, stream string, index int) ([]string, bool) {
	var all []string
	for m, err := range p.After(context.Background(), "", stream, index) {
		if err != nil {
			return nil, false
		}
		all = append(all, string(m))
	}
	return all, true
}

// TestReplayIsBounded fills a store by count and by size: what is kept is whole, and the
// rest is refused rather than told in part.
func TestReplayIsBounded(t *testing.T) {
	t.Parallel()
	p := &replayStore{}
	open := func(stream string, messages ...[]byte) {
		t.Helper()
		if err := p.Open(t.Context(), "", stream); err != nil {
			t.Fatal(err)
		}
		for _, m := range messages {
			if err := p.Append(t.Context(), "", stream, m); err != nil {
				t.Fatal(err)
			}
		}
	}
	open("")
	for i := range 10 * maxReplayStreams {
		open(strconv.Itoa(i), nil, []byte("a"), []byte("b"))
	}
	last := strconv.Itoa(10*maxReplayStreams - 1)
	if got, ok := kept(p, last, 0); !ok || fmt.Sprint(got) != "[a b]" {
		t.Errorf("the last answer after its first message: %q, %v", got, ok)
	}
	if got, ok := kept(p, last, 5); !ok || len(got) != 0 {
		t.Errorf("after what has not come yet: %q, %v", got, ok)
	}
	if _, ok := kept(p, "0", 0); ok || len(p.streams) > maxReplayStreams {
		t.Errorf("%d answers are kept, the first: %v", len(p.streams), ok)
	}
	if err := p.Append(t.Context(), "", "0", []byte("late")); err != nil {
		t.Error(err)
	}
	if _, ok := kept(p, "0", -1); ok {
		t.Error("the rest of a forgotten answer is sent as if it were complete")
	}
	for range 8 {
		open("large", bytes.Repeat([]byte("x"), maxReplay/3))
	}
	open("huge", bytes.Repeat([]byte("x"), maxReplay+1))
	if _, ok := kept(p, "huge", -1); ok || p.size > maxReplay {
		t.Errorf("%d bytes are kept, a message beyond the bound: %v", p.size, ok)
	}
	if _, ok := kept(p, "", -1); !ok {
		t.Error("what belongs to no answer cannot be listened to")
	}
	if err := p.SessionClosed(t.Context(), ""); err != nil || p.size != 0 || len(p.streams) != 0 {
		t.Errorf("after the end: %d bytes, %v", p.size, err)
	}
}
