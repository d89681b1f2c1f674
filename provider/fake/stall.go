package fake

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// Stall is a way in which a guest hangs. The zero value is a guest that works.
type Stall struct {
	// Stopped is a guest that does nothing, as after kill -STOP 1: responses under way stop, and
	// there are no new ones.
	Stopped bool
	// Mute is a guest that answers only health checks.
	Mute bool
	// Pause is how long the guest waits after each byte of its responses. Default: no time.
	Pause time.Duration
	// After is how many bytes of a response a guest sends before it is Mute. Default: none.
	After int
}

// Stall makes the guest of a sandbox hang until the next call of Stall. NotFound: no such sandbox.
func (w *World) Stall(id sandpit.ID, s Stall) error {
	b, err := w.findSandbox(id)
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stall = s
	return nil
}

// Hanging returns how many calls, health checks aside, the guest of a sandbox has received and not
// begun, because it hangs. NotFound: no such sandbox.
func (w *World) Hanging(id sandpit.ID) (int, error) {
	b, err := w.findSandbox(id)
	if err != nil {
		return 0, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.machine == nil {
		return 0, nil
	}
	return int(b.machine.hanging.Load()), nil
}

// SetLiveness sets the bounds of calls into sandboxes that are created or attached from then
// on. Default: those of liveness.Options.
func (w *World) SetLiveness(o liveness.Options) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.liveness = o
}

func (w *World) livenessOptions() liveness.Options {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.liveness
}

func (b *sandbox) currentStall() Stall {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stall
}

// askHealth requests the health check of the guest.
func (m *machine) askHealth(ctx context.Context) error {
	t := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return m.dialPort(ctx, guest.Port) },
		DisableKeepAlives: true,
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/health", http.NoBody)
	if err != nil {
		return err
	}
	res, err := t.RoundTrip(r)
	if err != nil {
		return err
	}
	return res.Body.Close()
}

// stallPoll is how often a guest that hangs checks whether it still does.
const stallPoll = 2 * time.Millisecond

// stallCalls returns a handler that hangs as stall says, until the machine is stopped.
func (m *machine) stallCalls(next http.Handler, stall func() Stall) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s := &stalling{ResponseWriter: w, stall: stall, off: m.off, ended: r.Context().Done()}
		s.isHealth = r.URL.Path == "/health"
		if !s.isHealth {
			m.hanging.Add(1)
		}
		works := s.awaitResume()
		if !s.isHealth {
			m.hanging.Add(-1)
		}
		if !works {
			panic(http.ErrAbortHandler) // no response
		}
		next.ServeHTTP(s, r)
	})
}

// stalling is a response of a guest that may hang.
type stalling struct {
	http.ResponseWriter

	stall    func() Stall
	off      <-chan struct{}
	ended    <-chan struct{} // the call
	isHealth bool
	sent     int
}

// awaitResume waits while the guest hangs, and reports whether it works again.
func (s *stalling) awaitResume() bool {
	for {
		now := s.stall()
		mute := now.Mute && s.sent >= now.After
		if !now.Stopped && (!mute || s.isHealth) {
			return true
		}
		select {
		case <-time.After(stallPoll):
		case <-s.off:
			return false
		case <-s.ended:
			return false
		}
	}
}

var errStalled = errors.New("the guest hangs")

// Write implements io.Writer.
func (s *stalling) Write(p []byte) (n int, err error) {
	for n < len(p) {
		if !s.awaitResume() {
			return n, errStalled
		}
		now, end := s.stall(), len(p)
		if now != (Stall{}) {
			end = n + 1
		}
		sent, err := s.ResponseWriter.Write(p[n:end])
		n, s.sent = n+sent, s.sent+sent
		if err != nil {
			return n, err
		}
		if now.Pause > 0 && !s.flushAndWait(now.Pause) {
			return n, errStalled
		}
	}
	return n, nil
}

// flushAndWait sends the buffered data and waits.
func (s *stalling) flushAndWait(pause time.Duration) bool {
	s.Flush()
	select {
	case <-time.After(pause):
		return true
	case <-s.off:
	case <-s.ended:
	}
	return false
}

// Flush implements http.Flusher.
func (s *stalling) Flush() { _ = http.NewResponseController(s.ResponseWriter).Flush() }

// Unwrap lets an http.ResponseController find the connection.
func (s *stalling) Unwrap() http.ResponseWriter { return s.ResponseWriter }
