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

// connection is a connection to the process of a service, for one request.
type connection struct {
	id      uint64 // of the request whose replies are read
	input   chan []byte
	replies chan reply
	closed  chan struct{}
	hangUp  func()        // closes closed and stops following the process
	ended   chan struct{} // closed when the process is no longer followed
	err     error         // the reason, once ended is closed

	rest    []byte // of input, for Read
	partial []byte // of a line, for Write
	// memory is the account for the current line; reserved is the length of a line for which it has reserved.
	memory   *memory.Account
	reserved int
}

// lineCost is how many bytes of memory each byte of a line takes: as received, as an event, and in what the caller
// makes of it.
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
			return 0, sandpit.Errorf(sandpit.Exhausted, "the interpreter sent a line of more than %d bytes", maxReplyLine)
		}
		if !found {
			return len(p), nil
		}
		var t reply
		// The first piece may be the end of an earlier line.
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

// connectService connects to a service.
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
		_, _ = follower.Wait(context.WithoutCancel(ctx)) // the connection has ended
		err = ctx.Err()
	}
	if err != nil {
		c.hangUp()
		if sandpit.CodeOf(err) == sandpit.NotFound {
			err = errEnded
		}
		return nil, err
	}
	go func() { // ends with the process or the connection; close waits for it
		defer close(c.ended)
		_, err := follower.Wait(context.WithoutCancel(ctx))
		c.err = r.explainEnd(following, err)
	}()
	return c, nil
}

// explainEnd returns why a connection ended: the end of the service, of the sandbox, or of the connection only.
func (r *Remote) explainEnd(ctx context.Context, err error) error {
	if err == nil {
		return errEnded
	}
	if ctx.Err() != nil {
		return ctx.Err() // the caller ended it
	}
	ctx, cancel := context.WithTimeout(ctx, guestTime)
	defer cancel()
	if _, asked := r.guest.ListProcesses(ctx); sandpit.CodeOf(asked) == sandpit.Gone {
		return asked
	}
	return sandpit.Errorf(sandpit.Unavailable, "the connection to the interpreter broke; the code may keep running: %w", err)
}

// close ends the connection. The service keeps running.
func (c *connection) close() {
	c.hangUp()
	<-c.ended
}

// exchange is one request and its replies.
type exchange struct {
	remote  *Remote
	process sandpit.Process
	request remoteRequest
	emit    func(Event) error

	conn    *connection
	sending bool // it holds remote.sending
	begun   bool
	cut     bool  // an interrupt is to be sent
	failed  error // error of emit; it is not called again
	ack     <-chan time.Time
	late    <-chan time.Time
}

// runRequest sends the request and follows it to its end.
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

// sendRequest sends a request. The caller holds remote.sending until the service confirms the request: the parts of a
// long line arrive one after the other and must not be mixed with another line.
func (x *exchange) sendRequest(a remoteRequest) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	if len(data) > maxReplyLine-2 {
		return sandpit.Errorf(sandpit.Invalid, "code and environment are larger than %d bytes", maxReplyLine)
	}
	// The first newline ends what a broken connection may have left.
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

// followReplies handles the service's replies until the request is done.
func (x *exchange) followReplies(ctx context.Context, cut func()) error {
	gone := ctx.Done()
	var turn chan struct{} // set while the interrupt waits for it
	for {
		select {
		case t := <-x.conn.replies:
			if t.Done {
				return x.resultOf(ctx, t)
			}
			x.handleReply(t, cut)
		case <-gone:
			gone, x.cut, x.late = nil, true, time.After(interruptTime)
			if !x.sending { // otherwise the service has not confirmed the request yet
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

// sendInterrupt asks the service to interrupt the request. The caller holds remote.sending.
func (x *exchange) sendInterrupt() {
	x.cut = false
	_ = x.sendRequest(remoteRequest{ID: x.request.ID, Do: askInterrupt}) // it is short and can be encoded
}

// handleReply handles one reply of the service.
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
		code = sandpit.Internal // a program in a sandbox may not cause other codes
	}
	return sandpit.Errorf(code, "%.4000s", t.Error.Message)
}

// killService kills a service that does not answer.
func (x *exchange) killService(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	if err := x.process.Signal(ctx, sandpit.SIGKILL); err != nil && sandpit.CodeOf(err) != sandpit.Gone {
		return err
	}
	x.remote.forgetService(x.process)
	return sandpit.Errorf(sandpit.Timeout, "the interpreter did not answer and was killed: all variables are lost")
}
