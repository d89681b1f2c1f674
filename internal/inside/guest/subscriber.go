package guest

import (
	"sync"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// subscriber is a client that follows a process.
type subscriber struct {
	mu     sync.Mutex
	send   func(*process.ProcessEvent) error
	closed bool
	sent   chan struct{} // signals that something was sent; capacity 1
}

func newSubscriber(send func(*process.ProcessEvent) error) *subscriber {
	return &subscriber{send: send, sent: make(chan struct{}, 1)}
}

// sendEvent sends an event, unless the client has disconnected. It blocks while the client does not read, which also
// blocks the process.
func (s *subscriber) sendEvent(e *process.ProcessEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendEventLocked(e)
}

// sendFirstEvent calls subscribe and then sends a first event, so that every later event comes after the first one.
func (s *subscriber) sendFirstEvent(e *process.ProcessEvent, subscribe func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	subscribe()
	s.sendEventLocked(e)
}

func (s *subscriber) sendEventLocked(e *process.ProcessEvent) {
	if s.closed {
		return
	}
	if err := s.send(e); err != nil {
		s.closed = true
	}
	select {
	case s.sent <- struct{}{}:
	default:
	}
}

// close prevents further sends and waits for the current one.
func (s *subscriber) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}
