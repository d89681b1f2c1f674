package toolbox

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// reconnectPause is how long to wait after a failed attempt to reconnect to a program.
const reconnectPause = 100 * time.Millisecond

// resumes lets programs wait until a paused sandbox runs again. All methods may be called
// concurrently.
type resumes struct {
	manager *manager.Manager

	mu      sync.Mutex
	changed chan struct{} // closed at the next change of the state of any sandbox
}

// newResumes returns resumes that learn of all changes of states.
func newResumes(m *manager.Manager) *resumes {
	r := &resumes{manager: m, changed: make(chan struct{})}
	m.OnState(func(sandpit.Sandbox, sandpit.State) {
		r.mu.Lock()
		defer r.mu.Unlock()
		close(r.changed)
		r.changed = make(chan struct{})
	})
	return r
}

// await waits until a sandbox runs. Conflict, NotFound: it was stopped or deleted, or is broken.
func (r *resumes) await(ctx context.Context, id sandpit.ID) error {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		about, err := r.manager.Get(id)
		if err != nil {
			return err
		}
		switch about.State {
		case sandpit.StateRunning:
			return nil
		case sandpit.StatePausing, sandpit.StatePaused, sandpit.StateResuming:
		default:
			return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", id, about.State)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// resumedGuest is a guest whose programs are followed until they end, also while their sandbox is
// paused: a pause breaks the connection to a program, and not the program.
type resumedGuest struct {
	sandpit.Guest

	await func(context.Context) error // waits until the sandbox runs
}

// Unwrap returns the guest, for its abilities.
func (g resumedGuest) Unwrap() any { return g.Guest }

// Start implements sandpit.Processes.
func (g resumedGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	journal, ok := sandpit.As[sandpit.Journal](g.Guest)
	if !ok {
		return g.Guest.Start(ctx, cmd)
	}
	p := &resumedProcess{
		guest: g, journal: journal, stdout: &countedWriter{to: cmd.Stdout}, stderr: &countedWriter{to: cmd.Stderr}, ended: make(chan struct{}),
	}
	cmd.Stdout, cmd.Stderr = p.stdout, p.stderr
	if cmd.Stdin != nil {
		p.input = &sharedInput{source: cmd.Stdin, terminal: cmd.Terminal != nil, turn: make(chan struct{}, 1)}
	}
	for {
		connection := p.input.connect()
		if connection != nil {
			cmd.Stdin = connection
		}
		started, err := g.Guest.Start(ctx, cmd)
		if err == nil {
			p.Process, p.connection = started, connection
			go p.follow(ctx) // ends with the process, or ctx
			return p, nil
		}
		connection.disconnect()
		if sandpit.CodeOf(err) != sandpit.Conflict || ctx.Err() != nil || g.await(ctx) != nil {
			return nil, err
		}
		if !sleep(ctx, reconnectPause) {
			return nil, err
		}
	}
}

// sleep waits. It reports false if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// resumedProcess is a process of a resumedGuest. Signals and the size of a terminal go to it
// directly.
type resumedProcess struct {
	sandpit.Process // as it was started

	guest          resumedGuest
	journal        sandpit.Journal
	input          *sharedInput // nil: it has none
	connection     *connectedInput
	stdout, stderr *countedWriter
	ended          chan struct{} // closed when the following are set
	status         sandpit.ExitStatus
	err            error
}

// Wait implements sandpit.Process.
func (p *resumedProcess) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case <-p.ended:
		return p.status, p.err
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
}

// follow waits for the end of the process.
func (p *resumedProcess) follow(ctx context.Context) {
	defer close(p.ended)
	ctx = memory.WithAccount(ctx, nil) // that of the request that started the process has ended
	p.status, p.err = p.Process.Wait(ctx)
	for range maxReconnects {
		if !isBroken(p.err) || ctx.Err() != nil || p.guest.await(ctx) != nil {
			return
		}
		if lost := p.connection.disconnect(); lost {
			p.err = sandpit.Errorf(sandpit.Unavailable, "the sandbox was paused while the program got input: %w", p.err)
			_ = killProcess(ctx, p.Process) // fails only if the sandbox has ended, or does not respond
			return
		}
		if p.status, p.err = p.reconnect(ctx); isBroken(p.err) && !sleep(ctx, reconnectPause) {
			return
		}
	}
}

// maxReconnects is how often the connection to a process may break.
const maxReconnects = 1000

// isBroken reports whether an error is about the connection to a process, which may still run: the
// sandbox is paused, its connections are not restored yet, or it has ended.
func isBroken(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Conflict, sandpit.Gone, sandpit.Unavailable:
		return err != nil
	default:
		return false
	}
}

// reconnect continues to give the process input, and to receive its output, until it ends.
// An error is as from isBroken if the sandbox was paused again.
func (p *resumedProcess) reconnect(ctx context.Context) (sandpit.ExitStatus, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if p.connection = p.input.connect(); p.connection != nil {
		_, err := p.guest.Connect(ctx, p.PID(), sandpit.Streams{Stdin: p.connection})
		if err != nil && sandpit.CodeOf(err) != sandpit.NotFound { // otherwise it has just ended
			return sandpit.ExitStatus{}, err
		}
	}
	got, err := p.journal.Follow(ctx, p.ID(), sandpit.FollowOptions{
		From: sandpit.Offsets{Stdout: p.stdout.count, Stderr: p.stderr.count}, Stdout: p.stdout, Stderr: p.stderr,
	})
	switch {
	case err != nil:
		return sandpit.ExitStatus{}, err
	case got.Missing != sandpit.Offsets{}:
		return sandpit.ExitStatus{}, sandpit.Errorf(sandpit.Exhausted, "output was dropped before it was read")
	case got.Command.TimedOut:
		return sandpit.ExitStatus{}, sandpit.Errorf(sandpit.Timeout, "the process was killed at its deadline")
	}
	return got.Command.Status, nil
}

// countedWriter counts what is written. It is for one goroutine at a time.
type countedWriter struct {
	to    io.Writer // nil discards
	count int64
}

// Write implements io.Writer.
func (w *countedWriter) Write(b []byte) (n int, err error) {
	if n = len(b); w.to != nil {
		n, err = w.to.Write(b)
	}
	w.count += int64(n)
	return n, err
}

// sharedInput is the input of a process for one connection after the other. What a connection has
// read too late is for the next one.
type sharedInput struct {
	source   io.Reader
	terminal bool
	turn     chan struct{} // held while the source is read

	mu      sync.Mutex
	pending []byte // read from the source for a connection that has ended
	err     error  // of the source
}

// connectedInput is the input of one connection. Its zero methods on nil are for processes without
// input.
type connectedInput struct {
	input *sharedInput
	gone  chan struct{} // closed when the connection has ended

	mu      sync.Mutex
	ended   bool
	unknown []byte // read, and perhaps not sent yet
}

var errDisconnected = errors.New("the connection to the process has ended")

// connect returns the input for a new connection; nil for nil.
func (s *sharedInput) connect() *connectedInput {
	if s == nil {
		return nil
	}
	return &connectedInput{input: s, gone: make(chan struct{})}
}

// disconnect ends a connection. It reports whether input may be lost: it is unknown whether the
// process has got what the connection read last. A terminal gets it again.
func (c *connectedInput) disconnect() (lost bool) {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return false
	}
	c.ended = true
	close(c.gone)
	if len(c.unknown) == 0 {
		return false
	}
	c.input.keep(c.unknown, nil)
	return !c.input.terminal
}

// keep stores input for the next connection.
func (s *sharedInput) keep(b []byte, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = append(s.pending, b...)
	s.err = errors.Join(s.err, err)
}

// take returns input that was stored, or the error of the source.
func (s *sharedInput) take(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := copy(b, s.pending)
	s.pending = s.pending[n:]
	if n > 0 {
		return n, nil
	}
	if s.err != nil {
		return 0, io.EOF
	}
	return 0, nil
}

// Read implements io.Reader, for the connection.
func (c *connectedInput) Read(b []byte) (int, error) {
	c.mu.Lock()
	c.unknown = nil // what was read before is sent
	c.mu.Unlock()
	select {
	case c.input.turn <- struct{}{}:
	case <-c.gone:
		return 0, errDisconnected
	}
	defer func() { <-c.input.turn }()
	n, err := c.input.take(b)
	if n == 0 && err == nil {
		n, err = c.input.source.Read(b)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		c.input.keep(b[:n], err)
		return 0, errDisconnected
	}
	if err != nil {
		c.input.keep(nil, err)
	}
	c.unknown = append([]byte(nil), b[:n]...)
	return n, err
}
