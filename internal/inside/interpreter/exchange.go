package interpreter

import (
	"bytes"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// connection is one with the process of a service, for one request.
type connection struct {
	id      uint64 // of the request whose answers are wanted
	input   chan []byte
	replies chan reply
	closed  chan struct{}
	hangUp  func()        // closes closed, and stops following the process
	ended   chan struct{} // closed when nothing follows it any more
	err     error         // why, once ended is closed

	rest    []byte // of input, for Read
	partial []byte // of a line, for Write
	// memory is what lines are kept in, reserved for how many bytes of a line it is.
	memory   *memory.Account
	reserved int
}

// lineCost is how many bytes each byte of a line takes: as it comes, as an event, and as
// what is made of that.
const lineCost = 3

// Read implements io.Reader, for the input of the process.
func (c *connection) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		select {
		case c.rest = <-c.input:
		case <-c.closed:
			return 0, errDetached
		}
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// Write implements io.Writer, for the output of the process.
func (c *connection) Write(p []byte) (int, error) {
	for rest := p; ; {
		before, after, found := bytes.Cut(rest, []byte("\n"))
		if missing := len(c.partial) + len(before) - c.reserved; missing > 0 {
			if err := c.memory.Reserve(int64(missing) * lineCost); err != nil {
				return 0, err
			}
			c.reserved += missing
		}
		c.partial = append(c.partial, before...)
		if len(c.partial) > maxReplyLine {
			return 0, sandpit.Errorf(sandpit.Exhausted, "the interpreter says a line of more than %d bytes", maxReplyLine)
		}
		if !found {
			return len(p), nil
		}
		var t reply
		// The first piece may be the end of what was said before anybody listened.
		if json.Unmarshal(c.partial, &t) == nil && t.ID == c.id {
			select {
			case c.replies <- t:
			case <-c.closed:
				return 0, errDetached
			}
		}
		c.partial, rest = c.partial[:0], after
	}
}

// connectService connects with a service.
func (r *Remote) connectService(ctx context.Context, p sandpit.Process, id uint64) (*connection, error) {
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &connection{id: id, input: make(chan []byte, 2), replies: make(chan reply), closed: make(chan struct{}), ended: make(chan struct{}), memory: memory.AccountOf(ctx)}
	c.hangUp = sync.OnceFunc(func() {
		close(c.closed)
		cancel()
	})
	impatient := time.AfterFunc(guestTime, cancel)
	unlink := context.AfterFunc(ctx, cancel)
	follower, err := r.guest.Connect(following, p.PID(), sandpit.Streams{Stdin: c, Stdout: c})
	impatient.Stop()
	if !unlink() && err == nil {
		_, _ = follower.Wait(context.WithoutCancel(ctx)) // following has ended
		err = ctx.Err()
	}
	if err != nil {
		c.hangUp()
		if sandpit.CodeOf(err) == sandpit.NotFound {
			err = errEnded
		}
		return nil, err
	}
	go func() { // ends with the process, or when following does; close waits for it
		defer close(c.ended)
		_, err := follower.Wait(context.WithoutCancel(ctx))
		c.err = r.explainEnd(following, err)
	}()
	return c, nil
}

// explainEnd says what has ended a connection: the service, the sandbox or neither.
func (r *Remote) explainEnd(ctx context.Context, err error) error {
	if err == nil {
		return errEnded
	}
	if ctx.Err() != nil {
		return ctx.Err() // we have
	}
	ctx, cancel := context.WithTimeout(ctx, guestTime)
	defer cancel()
	if _, asked := r.guest.ListProcesses(ctx); sandpit.CodeOf(asked) == sandpit.Gone {
		return asked
	}
	return sandpit.Errorf(sandpit.Unavailable, "the connection with the interpreter broke, and the code may run on: %w", err)
}

// close ends the connection, and nothing else.
func (c *connection) close() {
	c.hangUp()
	<-c.ended
}

// exchange is one request.
type exchange struct {
	remote  *Remote
	process sandpit.Process
	request remoteRequest
	emit    func(Event) error

	conn    *connection
	sending bool // it has the turn to send
	begun   bool
	cut     bool  // it is to be interrupted
	failed  error // of emit: nobody is told any more
	ack     <-chan time.Time
	late    <-chan time.Time
}

// runRequest makes the request and follows it to its end.
func (x *exchange) runRequest(ctx context.Context) error {
	var err error
	if x.conn, err = x.remote.connectService(ctx, x.process, x.request.ID); err != nil {
		return err
	}
	defer x.conn.close()
	if err := x.remote.takeSending(ctx); err != nil {
		return err
	}
	x.sending = true
	defer x.releaseSending()
	if err := x.sendRequest(x.request); err != nil {
		return err
	}
	ctx, cut := context.WithCancel(ctx)
	defer cut()
	return x.followReplies(ctx, cut)
}

// sendRequest says something. The caller has the turn, until the service says that it has come: the parts of a long line
// come one after the other, and must not be mixed with another's.
func (x *exchange) sendRequest(a remoteRequest) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(data) > maxReplyLine-2 {
		return sandpit.Errorf(sandpit.Invalid, "code and environment have more than %d bytes", maxReplyLine)
	}
	// The first line end is for what a connection that broke may have left.
	x.conn.input <- slices.Concat([]byte("\n"), data, []byte("\n"))
	x.ack = time.After(ackTime)
	return nil
}

func (x *exchange) releaseSending() {
	if x.sending {
		<-x.remote.sending
	}
	x.sending, x.ack = false, nil
}

// followReplies passes on what the service tells until the request is done.
func (x *exchange) followReplies(ctx context.Context, cut func()) error {
	gone := ctx.Done()
	var turn chan struct{} // wanted for the interrupt, or nil
	for {
		select {
		case t := <-x.conn.replies:
			if t.Done {
				return x.resultOf(ctx, t)
			}
			x.handleReply(t, cut)
		case <-gone:
			gone, x.cut, x.late = nil, true, time.After(interruptTime)
			if !x.sending { // else the request itself has not come yet
				turn = x.remote.sending
			}
		case turn <- struct{}{}:
			turn, x.sending = nil, true
			x.sendInterrupt()
		case <-x.ack:
			return x.killService(ctx)
		case <-x.late:
			return x.killService(ctx)
		case <-x.remote.ctx.Done():
			return errClosed()
		case <-x.conn.ended:
			return x.conn.err
		}
	}
}

// sendInterrupt asks the service to interrupt the request. The caller has the turn.
func (x *exchange) sendInterrupt() {
	x.cut = false
	_ = x.sendRequest(remoteRequest{ID: x.request.ID, Do: askInterrupt}) // which can be encoded, and is short
}

// handleReply takes one thing that the service tells.
func (x *exchange) handleReply(t reply, cut func()) {
	if t.Begun && x.sending {
		if first := !x.begun; first && x.cut {
			x.sendInterrupt()
		} else {
			x.releaseSending()
		}
		x.begun = true
	}
	if t.Event == nil || x.emit == nil || x.failed != nil {
		return
	}
	event, err := parseEvent(t.Event)
	if err == nil {
		err = x.emit(event)
	}
	if err != nil {
		x.failed = err
		cut()
	}
}

func (x *exchange) resultOf(ctx context.Context, t reply) error {
	switch {
	case x.failed != nil:
		return x.failed
	case ctx.Err() != nil:
		return ctx.Err()
	case t.Error == nil:
		return nil
	}
	code := t.Error.Code
	switch code {
	case sandpit.Invalid, sandpit.NotFound, sandpit.Exhausted, sandpit.Unsupported, sandpit.Unavailable, sandpit.Timeout:
	default:
		code = sandpit.Internal // all else is not for a program in a sandbox to say
	}
	return sandpit.Errorf(code, "%.4000s", t.Error.Message)
}

// killService ends a service that does not answer.
func (x *exchange) killService(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if err := x.process.Signal(ctx, sandpit.SIGKILL); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
		return err
	}
	x.remote.forgetService(x.process)
	return sandpit.Errorf(sandpit.Timeout, "the interpreter does not answer and was ended: all variables are lost")
}
