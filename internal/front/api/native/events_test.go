package native_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestEvents checks which owner gets which events.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	anns, bobs := r.make(t, r.ann, `{}`), r.make(t, r.bob, `{}`)
	r.want(t, ask{method: "DELETE", path: "/v1/sandboxes/" + string(anns.ID), key: r.admin}, http.StatusNoContent, nil)
	list := func(key, query string) (ids []sandpit.ID) {
		var page wire.Page[wire.Event]
		r.want(t, ask{method: "GET", path: "/v1/events" + query, key: key}, http.StatusOK, &page)
		for _, e := range page.Items {
			ids = append(ids, e.Sandbox)
		}
		return ids
	}
	eventually(t, "all is written", func() bool { return len(list(r.admin, "?action=delete")) == 1 && len(list(r.bob, "")) > 0 })
	for _, id := range list(r.ann, "") {
		if id != anns.ID {
			t.Errorf("ann sees %s", id)
		}
	}
	if got := list(r.ann, "?action=delete&actor=root"); len(got) != 1 {
		t.Errorf("ann sees %d deletions by root, want hers", len(got))
	}
	if got := list(r.bob, "?sandbox="+string(anns.ID)); len(got) != 0 {
		t.Errorf("bob sees ann's: %v", got)
	}
	if got := list(r.bob, "?actor=ann"); len(got) != 0 {
		t.Errorf("bob sees ann: %v", got)
	}
	if all := list(r.admin, ""); len(all) < 3 {
		t.Errorf("an administrator sees %v", all)
	}
	var first, second wire.Page[wire.Event]
	r.want(t, ask{method: "GET", path: "/v1/events?limit=1", key: r.admin}, http.StatusOK, &first)
	r.want(t, ask{method: "GET", path: "/v1/events?limit=1&after=" + first.Next, key: r.admin}, http.StatusOK, &second)
	if first.Items[0].Seq >= second.Items[0].Seq || first.Next != strconv.FormatInt(first.Items[0].Seq, 10) {
		t.Errorf("pages %+v, then %+v", first, second)
	}
	var v wire.Verdict
	r.want(t, ask{method: "GET", path: "/v1/events/verify", key: r.admin}, http.StatusOK, &v)
	if !v.OK || v.Events < 3 {
		t.Errorf("verdict %+v", v)
	}
	if bobs.ID == anns.ID {
		t.Error("two sandboxes of one name")
	}
}

// message is one server-sent event.
type message struct{ id, name, data string }

// listener hears server-sent events.
type listener struct {
	lines *bufio.Reader
	end   context.CancelFunc
}

// listen asks for events. The listener goes away with the test.
func (r *rig) listen(tb testing.TB, a ask) *listener {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	req, err := http.NewRequestWithContext(ctx, a.method, r.url+a.path, strings.NewReader(a.body))
	if err != nil {
		tb.Fatal(err)
	}
	req.Header.Set(wire.HeaderKey, a.key)
	if a.body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for name, value := range a.header {
		req.Header.Set(name, value)
	}
	resp, err := r.client.Do(req)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { cancel(); resp.Body.Close() })
	if resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Type") != api.ContentTypeStream {
		text, _ := io.ReadAll(resp.Body)
		tb.Fatalf("%s %s: %s %s", a.method, a.path, resp.Status, text)
	}
	return &listener{bufio.NewReader(resp.Body), cancel}
}

// next waits for an event, and passes over heartbeats.
func (l *listener) next() (m message, err error) {
	for {
		line, err := l.lines.ReadString('\n')
		if err != nil {
			return m, err
		}
		line = strings.TrimSuffix(line, "\n")
		field, value, _ := strings.Cut(line, ": ")
		switch field {
		case "id":
			m.id = value
		case "event":
			m.name = value
		case "data":
			m.data = value
		case "":
			if m.data != "" {
				return m, nil
			}
		}
	}
}

func (l *listener) event(tb testing.TB) wire.Event {
	tb.Helper()
	m, err := l.next()
	if err != nil {
		tb.Fatal(err)
	}
	var e wire.Event
	if err := json.Unmarshal([]byte(m.data), &e); err != nil || m.name != "" || m.id != strconv.FormatInt(e.Seq, 10) {
		tb.Fatalf("heard %+v: %v", m, err)
	}
	return e
}

// TestEventStream listens while things happen, goes away, and comes back.
func TestEventStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	live := r.listen(t, ask{method: "GET", path: "/v1/events/stream", key: r.ann})
	r.make(t, r.bob, `{}`)
	s := r.make(t, r.ann, `{}`)
	first := live.event(t)
	if first.Sandbox != s.ID || first.Action != "create" {
		t.Errorf("heard %+v, want the making of %s", first, s.ID)
	}
	live.end()
	for _, verb := range []string{"pause", "resume"} {
		r.want(t, ask{method: "POST", path: "/v1/sandboxes/" + string(s.ID) + "/" + verb, key: r.ann}, http.StatusOK, nil)
	}
	again := r.listen(t, ask{
		method: "GET", path: "/v1/events/stream?after=0", key: r.ann,
		header: map[string]string{"Last-Event-ID": strconv.FormatInt(first.Seq, 10)},
	})
	for _, want := range []string{"pause", "resume"} {
		if e := again.event(t); e.Action != want || e.Sandbox != s.ID {
			t.Errorf("heard %+v, want %s", e, want)
		}
	}
	all := r.listen(t, ask{method: "GET", path: "/v1/events/stream?after=0&action=create", key: r.admin})
	for range 2 {
		if e := all.event(t); e.Action != "create" {
			t.Errorf("heard %+v", e)
		}
	}
	r.stop()
	for {
		m, err := again.next()
		if err != nil {
			t.Fatalf("it ended without a word: %v", err)
		}
		if m.name == "error" {
			var p wire.Problem
			if err := json.Unmarshal([]byte(m.data), &p); err != nil || p.Code != sandpit.Unavailable {
				t.Errorf("the last words: %+v, %v", m, err)
			}
			break
		}
	}
	if _, err := again.next(); !errors.Is(err, io.EOF) {
		t.Errorf("after the last words: %v", err)
	}
}

// TestManyStreams listens to more than one may.
func TestManyStreams(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	listen := ask{method: "GET", path: "/v1/events/stream", key: r.ann}
	var first *listener
	for range 100 {
		l := r.listen(t, listen)
		if first == nil {
			first = l
		}
	}
	r.fails(t, listen, http.StatusTooManyRequests, sandpit.Exhausted, "100 streams")
	listen.key = r.bob
	r.listen(t, listen)
	first.end()
	listen.key = r.ann
	eventually(t, "there is room again", func() bool {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url+listen.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(wire.HeaderKey, r.ann)
		resp, err := r.client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
}

// TestPull fetches images.
func TestPull(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	l := r.listen(t, ask{method: "POST", path: "/v1/images/pull", key: r.ann, body: `{"name":"python:3"}`})
	progress := 0
	for {
		m, err := l.next()
		if err != nil {
			t.Fatal(err)
		}
		if m.name == "progress" {
			progress++
			continue
		}
		var img wire.Image
		if err := json.Unmarshal([]byte(m.data), &img); err != nil || m.name != "result" || img.Name != "python:3" {
			t.Errorf("heard %+v, %v", m, err)
		}
		break
	}
	if progress == 0 {
		t.Error("heard of no progress")
	}
	var page wire.Page[wire.Image]
	r.want(t, ask{method: "GET", path: "/v1/images", key: r.ann}, http.StatusOK, &page)
	if len(page.Items) != 1 {
		t.Fatalf("images %+v", page)
	}
	r.want(t, ask{method: "DELETE", path: "/v1/images/" + page.Items[0].ID, key: r.admin}, http.StatusNoContent, nil)
	for name, code := range map[string]sandpit.Code{"none": sandpit.NotFound, "panic": sandpit.Internal} {
		m, err := r.listen(t, ask{method: "POST", path: "/v1/images/pull", key: r.ann, body: `{"name":"` + name + `"}`}).next()
		var p wire.Problem
		if err == nil {
			err = json.Unmarshal([]byte(m.data), &p)
		}
		if err != nil || m.name != "error" || p.Code != code {
			t.Errorf("%s: heard %+v, %v, want %s", name, m, err, code)
		}
	}
	// A client that goes away ends the pull; goleak fails otherwise.
	r.listen(t, ask{method: "POST", path: "/v1/images/pull", key: r.ann, body: `{"name":"slow"}`}).end()
}
