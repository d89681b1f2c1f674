package data

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// wantsEvents reports whether a request asks for a stream of events.
func wantsEvents(r *http.Request) bool {
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Accept"), ","), ",") {
		kind, _, _ := strings.Cut(item, ";")
		if strings.EqualFold(strings.TrimSpace(kind), api.ContentTypeStream) {
			return true
		}
	}
	return false
}

// events is a stream of server-sent events. All methods may be called concurrently.
type events struct {
	c    *call
	ctx  context.Context //nolint:containedctx // of the call that sends them
	quit chan struct{}
	beat sync.WaitGroup

	mu   sync.Mutex
	sent time.Time
	err  error // the first; nothing is sent after it
}

// openEvents begins a stream, with heartbeats. The caller must close it.
func (s *Server) openEvents(ctx context.Context, c *call) (*events, error) {
	h := c.w.Header()
	setSafeHeaders(h)
	h.Set("Content-Type", api.ContentTypeStream)
	h.Set("X-Accel-Buffering", "no") // of proxies
	e := &events{c: c, ctx: ctx, quit: make(chan struct{}), sent: time.Now()}
	e.writeText("retry: 1000\n\n")
	if e.err != nil {
		return nil, e.err
	}
	e.beat.Go(func() { e.sendHeartbeats(s.o.Heartbeat) })
	return e, nil
}

func (e *events) sendHeartbeats(pause time.Duration) {
	ticker := time.NewTicker(pause)
	defer ticker.Stop()
	for {
		select {
		case <-e.quit:
			return
		case <-ticker.C:
			e.mu.Lock()
			if time.Since(e.sent) >= pause/2 {
				e.writeText(": here\n\n")
			}
			e.mu.Unlock()
		}
	}
}

// sendEvent sends an event. An error means that the client has disconnected.
func (e *events) sendEvent(name, id string, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.writeText(fmt.Sprintf("%sevent: %s\ndata: %s\n\n", id, name, text))
	return e.err
}

// writeText sends text. e.mu is held. A client that does not read for too long counts as
// disconnected.
func (e *events) writeText(text string) {
	if e.err != nil {
		return
	}
	if e.err = e.c.w.setWriteDeadline(sendTimeout); e.err != nil {
		return
	}
	if _, e.err = e.c.w.Write([]byte(text)); e.err == nil {
		e.err = e.c.w.flushResponse()
	}
	e.sent = time.Now()
}

// sendFailure sends the reason of the stream's end as its last event.
func (e *events) sendFailure(err error) error {
	if e.ctx.Err() != nil {
		err = context.Cause(e.ctx)
	}
	return e.sendEvent("error", "", api.ProblemOf(e.c.r.Context(), err))
}

// closeStream ends the stream and waits for pending writes: late output of a command must not
// be written to a response that has ended.
func (e *events) closeStream() {
	close(e.quit)
	e.beat.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = cmp.Or(e.err, errCallEnded)
}
