package daytona_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// listener is a client of the events.
type listener struct {
	tb   testing.TB
	conn *websocket.Conn
}

// listen connects to the events and sends a first frame.
func (r *rig) listen(tb testing.TB, first string) *listener {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, r.URL+"/api/socket.io/?EIO=4&transport=websocket", &websocket.DialOptions{HTTPClient: r.Client})
	if err != nil {
		tb.Fatal(err)
	}
	if res.Body != nil {
		_ = res.Body.Close()
	}
	tb.Cleanup(func() { _ = conn.CloseNow() })
	l := &listener{tb, conn}
	l.want(`0{"maxPayload":`)
	if first != "" {
		l.send(first)
	}
	return l
}

func (l *listener) send(frame string) {
	l.tb.Helper()
	ctx, cancel := context.WithTimeout(l.tb.Context(), long)
	defer cancel()
	if err := l.conn.Write(ctx, websocket.MessageText, []byte(frame)); err != nil {
		l.tb.Fatal(err)
	}
}

// read returns the next frame, or the error of a connection that has ended.
func (l *listener) read() (string, error) {
	l.tb.Helper()
	ctx, cancel := context.WithTimeout(l.tb.Context(), long)
	defer cancel()
	_, frame, err := l.conn.Read(ctx)
	if ctx.Err() != nil {
		l.tb.Fatal("no frame arrives")
	}
	return string(frame), err
}

func (l *listener) want(prefix string) string {
	l.tb.Helper()
	frame, err := l.read()
	if err != nil || !strings.HasPrefix(frame, prefix) {
		l.tb.Fatalf("frame %q, %v; want %q", frame, err, prefix)
	}
	return frame
}

// wantChange reads an event about a sandbox.
func (l *listener) wantChange(id, from, to string) {
	l.tb.Helper()
	frame := l.want("42")
	var event []json.RawMessage
	var change struct {
		Sandbox            box
		OldState, NewState string
	}
	if err := json.Unmarshal([]byte(frame[2:]), &event); err != nil || len(event) != 2 || string(event[0]) != `"sandbox.state.updated"` {
		l.tb.Fatalf("event %s: %v", frame, err)
	}
	if err := json.Unmarshal(event[1], &change); err != nil {
		l.tb.Fatal(err)
	}
	if change.Sandbox.ID != id || change.OldState != from || change.NewState != to || change.Sandbox.State != to || change.Sandbox.ToolboxProxyURL == "" {
		l.tb.Errorf("event %s; want %s from %s to %s", frame, id, from, to)
	}
}

// TestEvents sends an owner the changes of the owner's sandboxes, and of no others.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	made := r.made(t, `{}`)
	l := r.listen(t, `40{"token":"`+r.Ann+`"}`)
	l.want(`40{"sid":`)
	var other box
	r.do(t, r.Bob, http.MethodPost, "/sandbox", `{}`).Decode(t, &other)
	r.do(t, r.Bob, http.MethodPost, "/sandbox/"+other.ID+"/stop", "").want(t, http.StatusOK, "stopped")
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+made.ID+"/stop", "").want(t, http.StatusOK, "stopped")
	l.wantChange(made.ID, "started", "stopping")
	l.wantChange(made.ID, "stopping", "stopped")
	r.do(t, r.Ann, http.MethodDelete, "/sandbox/"+made.ID, "").want(t, http.StatusOK, "destroyed")
	l.wantChange(made.ID, "stopped", "destroying")
	l.wantChange(made.ID, "destroying", "destroyed")
	l.send("3") // the answer to a ping
	l.send("41")
	if frame, err := l.read(); err == nil {
		t.Errorf("after the client has left: %s", frame)
	}
}

// TestEventsRefused refuses clients without a valid key, and more than an owner may have.
func TestEventsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	for _, first := range []string{`40`, `40{}`, `40{"token":"wrong"}`, `40{"token":"sp_0"}`} {
		l := r.listen(t, first)
		l.want(`44{"message":"Unauthorized"}`)
		if frame, err := l.read(); err == nil {
			t.Errorf("after a refusal: %s", frame)
		}
	}
	r.listen(t, "42[]").want(`44{"message":"the first frame must connect"}`)
	r.do(t, r.Ann, http.MethodGet, "/socket.io/?EIO=4&transport=polling", "").want(t, http.StatusBadRequest, "WebSocket")
	for range 64 {
		r.listen(t, `40{"token":"`+r.Ann+`"}`).want(`40`)
	}
	r.listen(t, `40{"token":"`+r.Ann+`"}`).want(`44{"message":"too many connections`)
	r.listen(t, `40{"token":"`+r.Bob+`"}`).want(`40`)
}

// TestEventsStrangers has clients that send no key give way to one that does.
func TestEventsStrangers(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	silent := make([]*listener, 64)
	for i := range silent {
		silent[i] = r.listen(t, "")
	}
	r.listen(t, `40{"token":"`+r.Ann+`"}`).want(`40`)
	if frame, err := silent[0].read(); err == nil {
		t.Errorf("the oldest connection without a key gets %s", frame)
	}
	silent[63].send(`40{"token":"` + r.Bob + `"}`)
	silent[63].want(`40`)
}

// TestEventsEnd ends connections with the key of their client, and with the server.
func TestEventsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	l, other := r.listen(t, `40{"token":"`+r.Ann+`"}`), r.listen(t, `40{"token":"`+r.Bob+`"}`)
	l.want("40")
	other.want("40")
	keys, err := r.Keys.List(t.Context(), "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		if k.Owner == "ann" {
			if err := r.Keys.Delete(t.Context(), k.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	if frame, err := l.read(); err == nil {
		t.Errorf("after the end of the key: %s", frame)
	}
	silent := r.listen(t, "")
	ended := make(chan error, 1)
	go func() { ended <- r.server.Close() }()
	if frame, err := other.read(); err == nil {
		t.Errorf("after the end of the server: %s", frame)
	}
	if frame, err := silent.read(); err == nil {
		t.Errorf("a client without a key gets %s", frame)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(long):
		t.Error("the server waits for its clients")
	}
}

// TestEventsKeyless prefers the key of a client to the rights that programs of the machine have
// without one.
func TestEventsKeyless(t *testing.T) {
	t.Parallel()
	r := newRigOf(t, manager.Options{}, nil, func(o *api.EdgeOptions) { o.Keyless = true })
	made := r.made(t, `{}`)
	hers, local := r.listen(t, `40{"token":"`+r.Ann+`"}`), r.listen(t, `40`)
	hers.want(`40`)
	local.want(`40`)
	r.do(t, r.Ann, http.MethodPost, "/sandbox/"+made.ID+"/stop", "").want(t, http.StatusOK, "stopped")
	var own box
	r.do(t, "", http.MethodPost, "/sandbox", `{}`).Decode(t, &own)
	hers.wantChange(made.ID, "started", "stopping")
	local.wantChange(own.ID, "creating", "started")
	r.listen(t, `40{"token":"wrong"}`).want(`44{"message":"Unauthorized"}`)
}
