package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// ContentTypeStream is the media type of a Stream.
const ContentTypeStream = "text/event-stream"

// HeartbeatEvery is how long a Stream may be silent: whoever has it calls Beat then.
const HeartbeatEvery = 15 * time.Second

// eventTimeout is how long one event may take to be sent.
const eventTimeout = 30 * time.Second

// Stream is an answer of server-sent events. It is for one goroutine.
type Stream struct {
	w http.ResponseWriter
	c *http.ResponseController
}

// NewStream begins an answer. Nothing must have been answered yet.
func NewStream(w http.ResponseWriter) (*Stream, error) {
	h := w.Header()
	h.Set("Content-Type", ContentTypeStream)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // a proxy must not wait for more
	s := &Stream{w: w, c: http.NewResponseController(w)}
	if err := s.c.SetWriteDeadline(time.Now().Add(eventTimeout)); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "begin a stream: %w", err)
	}
	w.WriteHeader(http.StatusOK)
	return s, s.writeText("retry: 1000\n\n")
}

// Send sends one event. The name "" is that of plain messages; id "" leaves the last
// one. An error means that whoever listens has gone.
func (s *Stream) Send(name, id string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return sandpit.Errorf(sandpit.Internal, "write an event: %w", err)
	}
	var b strings.Builder
	if id != "" {
		fmt.Fprintf(&b, "id: %s\n", oneLine(id))
	}
	if name != "" {
		fmt.Fprintf(&b, "event: %s\n", oneLine(name))
	}
	fmt.Fprintf(&b, "data: %s\n\n", text)
	return s.writeText(b.String())
}

// Beat sends something that means nothing, so that both sides know of each other.
func (s *Stream) Beat() error { return s.writeText(": \n\n") }

// Fail sends a failure as the event "error".
func (s *Stream) Fail(r *http.Request, err error) error {
	return s.Send("error", "", ProblemOf(r.Context(), err))
}

func (s *Stream) writeText(text string) error {
	if err := s.c.SetWriteDeadline(time.Now().Add(eventTimeout)); err != nil {
		return sandpit.Errorf(sandpit.Canceled, "send an event: %w", err)
	}
	_, err := s.w.Write([]byte(text))
	if err == nil {
		err = s.c.Flush()
	}
	if err != nil {
		return sandpit.Errorf(sandpit.Canceled, "send an event: %w", err)
	}
	return nil
}

// oneLine keeps a name from being more than one.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return -1
		}
		return r
	}, s)
}
