package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestConn gives calls their answers: whole, in pieces, refused, too large and foreign.
func TestConn(t *testing.T) {
	t.Parallel()
	var events []string
	c := newConn(func(e event) { events = append(events, e.Method+" "+e.Session) }, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ask := func(session, method string, say func()) (json.RawMessage, error) {
		t.Helper()
		id, came, err := c.sendRequest(session, method, object{"a": 1})
		if err != nil {
			t.Fatal(err)
		}
		if id == 0 {
			t.Fatal("a call without a number")
		}
		say()
		select {
		case a := <-came:
			return a.result, a.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	say := func(texts ...string) func() {
		return func() {
			for _, text := range texts {
				if n, err := io.WriteString(c, text); err != nil || n != len(text) {
					t.Fatalf("%d, %v", n, err)
				}
			}
		}
	}
	raw, err := ask("", "A", say("{\"method\":\"E\",\"sessionId\":\"s\",\"params\":{}}\x00{\"id\":99,\"result\":{}}\x00nonsense\x00", `{"id":1,"res`, "ult\":{\"x\":2}}\x00"))
	if err != nil || string(raw) != `{"x":2}` || !slices.Equal(events, []string{"E s"}) {
		t.Errorf("%s, %v, events %v", raw, err, events)
	}
	_, err = ask("", "B", say("{\"id\":2,\"error\":{\"code\":-32000,\"message\":\"no\"}}\x00"))
	if refused, ok := errors.AsType[*protocolError](err); !ok || refused.Code != -32000 {
		t.Errorf("refused: %v", err)
	}
	_, err = ask("", "C", say(`{"id":3,"result":{"x":"`, strings.Repeat("y", maxMessage), "\"}}\x00"))
	if sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("too large: %v", err)
	}
	if len(c.message) > 0 {
		t.Errorf("%d bytes are kept", len(c.message))
	}
	gone := sandpit.Errorf(sandpit.Unavailable, "closed")
	if _, err = ask("s", "D", func() { c.failSession("s", gone) }); !errors.Is(err, gone) {
		t.Errorf("the session ends: %v", err)
	}
	if _, err = ask("", "E", func() { c.failAll(gone) }); !errors.Is(err, gone) || c.isAlive() {
		t.Errorf("the browser ends: %v", err)
	}
	if _, err := c.call(ctx, "", "F", nil); !errors.Is(err, gone) {
		t.Errorf("after its end: %v", err)
	}
	if len(c.waiting) > 0 {
		t.Errorf("%d calls wait still", len(c.waiting))
	}
	c.in.close()
	sent, err := io.ReadAll(c.in)
	if err != nil || bytes.Count(sent, []byte{0}) != 5 || !bytes.Contains(sent, []byte(`{"id":4,"method":"D","sessionId":"s","params":{"a":1}}`)) {
		t.Errorf("sent: %s, %v", sent, err)
	}
}

// TestFeedIsBounded has a browser read none of its messages.
func TestFeedIsBounded(t *testing.T) {
	t.Parallel()
	c := newConn(func(event) {}, nil)
	text := strings.Repeat("x", 1<<20)
	for range 2 * maxMessage / len(text) {
		c.callAsync("", "A", object{"text": text})
	}
	if _, err := c.call(t.Context(), "", "B", object{"text": text}); sandpit.CodeOf(err) != sandpit.Unavailable {
		t.Errorf("what is not read: %v", err)
	}
	if len(c.in.data) > maxMessage || len(c.waiting) > 0 {
		t.Errorf("%d bytes and %d calls are kept", len(c.in.data), len(c.waiting))
	}
}

// TestPictures looks at what a browser may return as a picture.
func TestPictures(t *testing.T) {
	t.Parallel()
	encode := func(width, height int) []byte {
		var b bytes.Buffer
		if err := png.Encode(&b, image.NewGray(image.Rect(0, 0, width, height))); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	good := encode(30, 20)
	if p, err := checkPicture(good, "png"); err != nil || p.MIME != "image/png" || p.Width != 30 || p.Height != 20 {
		t.Errorf("%+v, %v", p, err)
	}
	for name, bad := range map[string][]byte{
		"nothing": nil, "text": []byte("x"), "cut": good[:len(good)-20], "wide": encode(maxSide+1, 1), "many pixels": encode(maxSide, maxPixels/maxSide+1),
	} {
		if _, err := checkPicture(bad, "png"); sandpit.CodeOf(err) != sandpit.Internal {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := checkPicture(good, "jpeg"); sandpit.CodeOf(err) != sandpit.Internal {
		t.Errorf("another format: %v", err)
	}
	if _, err := checkPicture(make([]byte, maxPicture+1), "png"); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("too many bytes: %v", err)
	}
}

// TestKeys names keys.
func TestKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"Enter": "[Enter]", "a": "[a]", "Control+Shift+K": "[Control Shift K]", "+": "[+]", "Control++": "[Control +]",
	} {
		if got, err := splitChord(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	if _, err := splitChord("a+b+c+d+e+f"); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("six keys: %v", err)
	}
	for name, want := range map[string]key{
		"ENTER": {"Enter", "Enter", 13, "\r"}, "Esc": {"Escape", "Escape", 27, ""}, "q": {"q", "KeyQ", 'Q', "q"}, "7": {"7", "Digit7", '7', "7"}, "ü": {"ü", "", 0, "ü"},
	} {
		if got, err := findKey(name); err != nil || got != want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	for _, bad := range []string{"", "Entr", "ab", "\xff"} {
		if _, err := findKey(bad); sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// FuzzOutput has a browser say anything: nothing panics, and nothing is kept beyond a
// message.
func FuzzOutput(f *testing.F) {
	f.Add([]byte("{\"id\":1,\"result\":{}}\x00"), 3)
	f.Add([]byte(`{"method":"Target.attachedToTarget","params":{"sessionId":"s","targetInfo":{"targetId":"t","type":"page"}}}`+"\x00"+
		`{"method":"Page.javascriptDialogOpening","sessionId":"s","params":{"type":"confirm"}}`+"\x00"+
		`{"method":"Target.targetCrashed","params":{"targetId":"t"}}`+"\x00"), 100)
	f.Fuzz(func(t *testing.T, output []byte, size int) {
		b := &Browser{changed: make(chan struct{}), ended: make(chan struct{})}
		b.conn = newConn(b.handleEvent, nil)
		if _, _, err := b.conn.sendRequest("s", "A", nil); err != nil {
			t.Fatal(err)
		}
		for piece := range slices.Chunk(output, max(1, size)) {
			if n, err := b.conn.Write(piece); err != nil || n != len(piece) {
				t.Fatalf("%d of %d, %v", n, len(piece), err)
			}
		}
		if len(b.tabs) > maxTabs || len(b.notes) > maxNotes {
			t.Errorf("%d pages, %d notes", len(b.tabs), len(b.notes))
		}
		for _, note := range b.Notes() {
			if len(note) > maxNote+len("…") {
				t.Errorf("a note of %d bytes", len(note))
			}
		}
	})
}
