package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"regexp"
	"strconv"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// maxMessage is the largest message in either direction, in bytes. A larger one is
	// passed over, and the call that it answers fails.
	maxMessage = 32 << 20
	// maxPassed is how much of one message is passed over until the browser counts as
	// broken.
	maxPassed = 1 << 30
)

// conn is the protocol: JSON messages, each ended by a NUL. It is the writer that takes
// the browser's output, and its methods may be called concurrently.
type conn struct {
	in *feed
	// event is told of events, one after the other. It must not wait.
	event func(event)

	mu      sync.Mutex
	last    int
	waiting map[int]call
	broken  error // why nothing more can be called

	// What follows belongs to who writes.
	message []byte
	passed  int // bytes of a message that is too large
	// memory is what messages are kept in, reserved how much of it this one has.
	memory   *memory.Account
	reserved int64
}

// messageCost is how many bytes each byte of a message takes: as it comes, as an answer, and
// as what is made of that.
const messageCost = 3

// headOf is how much of a message is always kept: its number is in it.
const headOf = 64

type call struct {
	session string
	answer  chan answer
}

type answer struct {
	result json.RawMessage
	err    error
}

type event struct {
	Method  string          `json:"method"`
	Session string          `json:"sessionId"`
	Params  json.RawMessage `json:"params"`
}

type request struct {
	ID      int    `json:"id"`
	Method  string `json:"method"`
	Session string `json:"sessionId,omitempty"`
	Params  any    `json:"params,omitempty"`
}

// refusal is the browser's answer to a call that it does not carry out.
type refusal struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (r *refusal) Error() string { return bounded(r.Message, 500) }

func newConn(event func(event), account *memory.Account) *conn {
	return &conn{in: newFeed(), event: event, waiting: map[int]call{}, memory: account}
}

// do calls a method of a session ("": of the browser) and returns its result.
//
// Unavailable: the browser or the page has ended. Exhausted: the answer is too large.
// What the browser refuses is a *refusal.
func (c *conn) do(ctx context.Context, session, method string, params any) (json.RawMessage, error) {
	id, came, err := c.send(session, method, params)
	if err != nil {
		return nil, err
	}
	defer c.forget(id)
	select {
	case a := <-came:
		return a.result, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// post calls a method and does not wait for its result.
func (c *conn) post(session, method string, params any) {
	if id, _, err := c.send(session, method, params); err == nil { // else the browser has ended, which others notice
		c.forget(id)
	}
}

func (c *conn) send(session, method string, params any) (int, <-chan answer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken != nil {
		return 0, nil, c.broken
	}
	c.last++
	data, err := json.Marshal(request{ID: c.last, Method: method, Session: session, Params: params})
	if err != nil {
		return 0, nil, err
	}
	came := make(chan answer, 1)
	c.waiting[c.last] = call{session, came}
	if !c.in.put(append(data, 0)) {
		delete(c.waiting, c.last)
		return 0, nil, sandpit.Errorf(sandpit.Unavailable, "the browser does not read what it is told")
	}
	return c.last, came, nil
}

func (c *conn) forget(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// fail ends all calls, and those to come.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = err
	}
	for id, w := range c.waiting {
		w.answer <- answer{err: c.broken}
		delete(c.waiting, id)
	}
}

func (c *conn) alive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken == nil
}

// failSession ends the calls of a session.
func (c *conn) failSession(session string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, w := range c.waiting {
		if w.session == session {
			w.answer <- answer{err: err}
			delete(c.waiting, id)
		}
	}
}

var errTooMuch = errors.New("the browser says more than anybody can take")

// Write implements io.Writer, for one goroutine.
func (c *conn) Write(p []byte) (int, error) {
	written := len(p)
	for {
		piece, rest, ended := bytes.Cut(p, []byte{0})
		if err := c.add(piece); err != nil {
			return 0, err
		}
		if !ended {
			return written, nil
		}
		c.end()
		p = rest
	}
}

// add takes a piece of a message.
func (c *conn) add(piece []byte) error {
	room := maxMessage - len(c.message)
	if cost := int64(min(len(piece), room)) * messageCost; c.passed > 0 || c.memory.Reserve(cost) != nil {
		room = max(headOf-len(c.message), 0)
	} else {
		c.reserved += cost
	}
	if len(piece) > room {
		c.passed += len(piece) - room
		piece = piece[:room]
	}
	if c.passed > maxPassed {
		c.fail(sandpit.Errorf(sandpit.Unavailable, "%w", errTooMuch))
		return errTooMuch
	}
	c.message = append(c.message, piece...)
	return nil
}

// idPattern finds the number of the call that a message answers, which comes first.
var idPattern = regexp.MustCompile(`^\{"id":(\d{1,9}),`)

// end takes the message that has ended.
func (c *conn) end() {
	message, passed, reserved := c.message, c.passed, c.reserved
	c.message, c.passed, c.reserved = nil, 0, 0
	defer c.memory.Return(reserved)
	if passed > 0 {
		if m := idPattern.FindSubmatch(message[:min(len(message), headOf)]); m != nil {
			id, _ := strconv.Atoi(string(m[1])) // nine digits are a number
			c.answer(id, answer{err: sandpit.Errorf(sandpit.Exhausted, "the browser's response has %d bytes; the limit is %d bytes, or less when memory is short", len(message)+passed, maxMessage)})
		}
		return
	}
	var m struct {
		event

		ID     int             `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *refusal        `json:"error"`
	}
	if json.Unmarshal(message, &m) != nil {
		return // a browser that talks nonsense is one that does not answer
	}
	switch {
	case m.ID == 0:
		c.event(m.event)
	case m.Error != nil:
		c.answer(m.ID, answer{err: m.Error})
	default:
		c.answer(m.ID, answer{result: m.Result})
	}
}

// answer ends a call. One that nobody waits for is dropped.
func (c *conn) answer(id int, a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, waited := c.waiting[id]; waited {
		w.answer <- a
		delete(c.waiting, id)
	}
}

// bounded is a text from the browser as it may be told: of a length in bytes, and UTF-8.
func bounded(text string, limit int) string {
	return textlen.Shorten(text, limit)
}
