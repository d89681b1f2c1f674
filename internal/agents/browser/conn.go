package browser

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// maxMessage bounds a message in either direction, in bytes. A larger one is discarded, and
	// its call fails.
	maxMessage = 32 << 20
	// maxDiscarded is how many bytes of one message are discarded before the browser counts as
	// broken.
	maxDiscarded = 1 << 30
)

// protocolConn is a connection of the DevTools protocol: JSON messages, each terminated by a NUL
// byte. The browser's output is written to it. Its methods may be called concurrently.
type protocolConn struct {
	in *inputBuffer
	// event is called with each event, sequentially. It must not block.
	event func(event)

	mu      sync.Mutex
	last    int
	waiting map[int]pendingCall
	broken  error // the error of all later calls

	// The following fields are used only by Write.
	message   []byte
	discarded int // discarded bytes of a message that is too large
	// memory is the account for messages, reserved the memory of the current message.
	memory   *memory.Account
	reserved int64
}

// messageCost is the memory for each byte of a message: raw, as a response, and decoded.
const messageCost = 3

// headSize is how many bytes of a message are always kept: they contain its ID.
const headSize = 64

type pendingCall struct {
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

// protocolError is the browser's error response to a call.
type protocolError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (r *protocolError) Error() string { return truncate(r.Message, 500) }

func newConn(event func(event), account *memory.Account) *protocolConn {
	return &protocolConn{in: newInputBuffer(), event: event, waiting: map[int]pendingCall{}, memory: account}
}

// call calls a method of a session ("": of the browser) and returns its result.
//
// Unavailable: the browser or the page has ended. Exhausted: the response is too large. An error
// response of the browser is a *protocolError.
func (c *protocolConn) call(ctx context.Context, session, method string, params any) (json.RawMessage, error) {
	id, came, err := c.sendRequest(session, method, params)
	if err != nil {
		return nil, err
	}
	defer c.forgetCall(id)
	select {
	case a := <-came:
		return a.result, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// callAsync calls a method without waiting for its result.
func (c *protocolConn) callAsync(session, method string, params any) {
	if id, _, err := c.sendRequest(session, method, params); err == nil { // otherwise the browser has ended
		c.forgetCall(id)
	}
}

func (c *protocolConn) sendRequest(session, method string, params any) (int, <-chan answer, error) {
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
	c.waiting[c.last] = pendingCall{session, came}
	if !c.in.putMessage(append(data, 0)) {
		delete(c.waiting, c.last)
		return 0, nil, sandpit.Errorf(sandpit.Unavailable, "the browser does not read its input")
	}
	return c.last, came, nil
}

func (c *protocolConn) forgetCall(id int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.waiting, id)
}

// failAll fails all running and later calls.
func (c *protocolConn) failAll(err error) {
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

func (c *protocolConn) isAlive() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.broken == nil
}

// failSession fails the running calls of a session.
func (c *protocolConn) failSession(session string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, w := range c.waiting {
		if w.session == session {
			w.answer <- answer{err: err}
			delete(c.waiting, id)
		}
	}
}

var errOutputTooLarge = errors.New("the browser sent a message that is too large")

// Write implements io.Writer, for one goroutine.
func (c *protocolConn) Write(p []byte) (int, error) {
	written := len(p)
	for {
		piece, rest, ended := bytes.Cut(p, []byte{0})
		if err := c.addPiece(piece); err != nil {
			return 0, err
		}
		if !ended {
			return written, nil
		}
		c.endMessage()
		p = rest
	}
}

// addPiece adds a part of a message.
func (c *protocolConn) addPiece(piece []byte) error {
	room := maxMessage - len(c.message)
	if cost := int64(min(len(piece), room)) * messageCost; c.discarded > 0 || c.memory.Reserve(cost) != nil {
		room = max(headSize-len(c.message), 0)
	} else {
		c.reserved += cost
	}
	if len(piece) > room {
		c.discarded += len(piece) - room
		piece = piece[:room]
	}
	if c.discarded > maxDiscarded {
		c.failAll(sandpit.Errorf(sandpit.Unavailable, "%w", errOutputTooLarge))
		return errOutputTooLarge
	}
	c.message = append(c.message, piece...)
	return nil
}

// idPattern matches the call ID at the beginning of a response.
var idPattern = pattern.New(`^\{"id":(\d{1,9}),`)

// endMessage handles a complete message.
func (c *protocolConn) endMessage() {
	message, passed, reserved := c.message, c.discarded, c.reserved
	c.message, c.discarded, c.reserved = nil, 0, 0
	defer c.memory.Return(reserved)
	if passed > 0 {
		if m := idPattern().FindSubmatch(message[:min(len(message), headSize)]); m != nil {
			id, _ := strconv.Atoi(string(m[1])) // nine digits always parse
			c.deliverAnswer(id, answer{err: sandpit.Errorf(sandpit.Exhausted, "the browser's response has %d bytes; the limit is %d bytes, or less when memory is short", len(message)+passed, maxMessage)})
		}
		return
	}
	var m struct {
		event

		ID     int             `json:"id"`
		Result json.RawMessage `json:"result"`
		Error  *protocolError  `json:"error"`
	}
	if json.Unmarshal(message, &m) != nil {
		return // an invalid message counts as no response
	}
	switch {
	case m.ID == 0:
		c.event(m.event)
	case m.Error != nil:
		c.deliverAnswer(m.ID, answer{err: m.Error})
	default:
		c.deliverAnswer(m.ID, answer{result: m.Result})
	}
}

// deliverAnswer delivers the response of a call. It discards responses without a waiting call.
func (c *protocolConn) deliverAnswer(id int, a answer) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w, waited := c.waiting[id]; waited {
		w.answer <- a
		delete(c.waiting, id)
	}
}

// truncate returns at most limit bytes of a text from the browser as valid UTF-8, and "…" if it was
// longer.
func truncate(text string, limit int) string {
	return textlen.Shorten(text, limit)
}
