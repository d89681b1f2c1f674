package owners_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"
)

type event struct {
	Seq    int64  `json:"seq"`
	Actor  string `json:"actor"`
	Action string `json:"action"`
	Result string `json:"result"`
}

// events returns the events that the party may see.
func (p party) events(t *testing.T) (all []event) {
	t.Helper()
	for after := int64(0); ; {
		var page struct {
			Items []event `json:"items"`
		}
		p.must(t, http.MethodGet, fmt.Sprintf("/v1/events?limit=999&after=%d", after), nil).decode(t, &page)
		all = append(all, page.Items...)
		if len(page.Items) < 999 {
			return all
		}
		after = page.Items[len(page.Items)-1].Seq
	}
}

// eventsUntil waits for an event, and returns all that the party may see then.
func (p party) eventsUntil(t *testing.T, is func(event) bool) []event {
	t.Helper()
	for end := time.Now().Add(callTimeout); ; time.Sleep(50 * time.Millisecond) {
		all := p.events(t)
		if slices.ContainsFunc(all, is) {
			return all
		}
		if time.Now().After(end) {
			t.Fatalf("%s: the event is missing: %+v", p.name, all)
		}
	}
}

// TestFloodOfEvents has alice do all she can to fill the audit trail.
func TestFloodOfEvents(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{server: "rate = 1000000\nburst = 1000000"})
	id := l.bob.create(t, l.image)
	var flood sync.WaitGroup
	begin := time.Now()
	for range 4 {
		flood.Go(func() {
			for range 250 {
				ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callTimeout)
				_, err := l.alice.do(ctx, http.MethodPost, "/v1/keys", map[string]any{"owner": "alice"}, nil)
				cancel()
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	flood.Wait()
	// 60 refusals at once are recorded, then one a second, and each minute the number of those that are not.
	most := 60 + 1 + int(time.Since(begin).Seconds()) + int(time.Since(begin).Minutes())
	l.alice.must(t, http.MethodDelete, "/v1/sandboxes/"+l.alice.create(t, l.image), nil)
	// Events are written in batches and in their order: when this one is there, all before it are.
	all := l.admin.eventsUntil(t, func(e event) bool { return e.Actor == "alice" && e.Action == "delete" && e.Result == "ok" })
	flooding := 0
	for _, e := range all {
		if e.Actor == "alice" && e.Result != "ok" {
			flooding++
		}
	}
	if flooding == 0 || flooding > most {
		t.Errorf("1000 refusals added %d events, want some, and at most %d", flooding, most)
	}
	for _, e := range l.bob.events(t) {
		if e.Actor == "alice" {
			t.Errorf("bob sees what alice did: %+v", e)
		}
	}
	l.alice.call(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	l.bob.must(t, http.MethodDelete, "/v1/sandboxes/"+id, nil)
	actions := map[string]bool{}
	for _, e := range l.bob.eventsUntil(t, func(e event) bool { return e.Action == "delete" }) {
		actions[e.Action] = true
		if e.Actor == "alice" {
			t.Errorf("bob sees what alice tried: %+v", e)
		}
	}
	if !actions["create"] || !actions["delete"] {
		t.Errorf("bob sees %v, want what he did", actions)
	}
}
