package interpreter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// ackTime is how long a service may take to say that a request has come.
	ackTime = 30 * time.Second
	// interruptTime is how long after an interrupt a run may take to end; a kernel that goes on is killed before.
	interruptTime = Patience + 10*time.Second
	// closeTime is how long the end of a service may take.
	closeTime = 10 * time.Second
	// guestTime is how long the sandbox may take to be spoken to.
	guestTime = 30 * time.Second
)

// RemoteOptions say how the service of a Remote runs.
type RemoteOptions struct {
	// User as in sandpit.Command. Default: the sandbox's.
	User string
	// Dir is where kernels work; it must be there. Default: the sandbox's.
	Dir string
	// Environ returns the environment of all runs, beside the sandbox's. It may change. nil means none.
	Environ func() map[string]string
}

// Remote runs code in a sandbox, by a Service of its own there that is started for the first run. It speaks to the
// service by the streams of its process, so no other program inside can speak to it or in its place, but for those of
// the same user. Between two runs nothing is connected, so a sandbox may be frozen, and wake, with its variables.
//
// What a service tells is as trustworthy as any other output of a sandbox. All methods may be called concurrently.
type Remote struct {
	guest sandpit.Processes
	o     RemoteOptions

	sending chan struct{} // held by the one whose request is on its way

	mu      sync.Mutex
	process sandpit.Process // nil: none runs
	last    uint64
	closed  bool

	requests sync.WaitGroup  // requests
	ctx      context.Context //nolint:containedctx // of what this value itself does, until it is closed
	cancel   context.CancelFunc
}

// Cell is code for a Remote.
type Cell struct {
	// Context names where runs share their variables; it is made for the first one. There may be 64.
	Context string
	// Language of the context: Python, JavaScript, TypeScript or Bash.
	Language string
	Code     string
}

// NewRemote returns a Remote that has done nothing yet. The caller must Close it.
func NewRemote(g sandpit.Processes, o RemoteOptions) *Remote {
	ctx, cancel := context.WithCancel(context.Background())
	return &Remote{guest: g, o: o, sending: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
}

// Run runs code and tells what happens, the End included, unless the run is cut off. What is wrong with the code is told as an
// event; an error says that nothing was run, or that ctx or emit has ended the run. Then the code is interrupted, and what it tells until it
// has ended goes to emit, unless that has failed. emit is called by one goroutine at a time.
//
// Unsupported: the image has no program for the language. Exhausted: too many contexts. Unavailable: the connection
// broke. Gone: the Remote is closed, or the sandbox has ended. Errors as of sandpit.Processes.Start.
func (r *Remote) Run(ctx context.Context, c Cell, emit func(Event) error) error {
	return r.doRequest(ctx, remoteRequest{Do: askRun, Context: c.Context, Language: c.Language, Dir: r.o.Dir, Code: c.Code}, emit)
}

// Restart gives a context a new kernel, also while the old one runs something. Errors as of Run.
func (r *Remote) Restart(ctx context.Context, name string) error {
	return r.doRequest(ctx, remoteRequest{Do: askRestart, Context: name}, nil)
}

// Remove ends a context, also while it runs something; absent is fine. Errors as of Run.
func (r *Remote) Remove(ctx context.Context, name string) error {
	return r.doRequest(ctx, remoteRequest{Do: askRemove, Context: name}, nil)
}

// Close cuts off what runs, and ends the service with its kernels. It is idempotent.
func (r *Remote) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.cancel()
	r.requests.Wait()
	r.mu.Lock()
	p := r.process
	r.process = nil
	r.mu.Unlock()
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	return r.endService(ctx, p)
}

// endService has a service end its kernels, and waits for that.
func (r *Remote) endService(ctx context.Context, p sandpit.Process) error {
	err := p.Signal(ctx, sandpit.SIGTERM)
	if err == nil {
		r.waitForEnd(ctx, p)
		err = p.Signal(ctx, sandpit.SIGKILL) // what is left of it
	}
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil
	}
	return err
}

func (r *Remote) waitForEnd(ctx context.Context, p sandpit.Process) {
	c, err := r.connectService(ctx, p, 0)
	if err != nil {
		return // it has ended, or cannot be spoken to
	}
	defer c.close()
	select {
	case <-c.ended:
	case <-time.After(closeTime / 2):
	}
}

// enterRequest counts a request. It is one no more when done is called.
func (r *Remote) enterRequest() (id uint64, done func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return 0, nil, errClosed()
	}
	r.requests.Add(1)
	r.last++
	return r.last, r.requests.Done, nil
}

func errClosed() error { return sandpit.Errorf(sandpit.Gone, "the interpreter is closed") }

// errEnded is the end of the service itself.
var errEnded = sandpit.Errorf(sandpit.Unavailable, "the interpreter has ended: all variables are lost, and the next run has new kernels")

// doRequest has a service do something. One that has ended is replaced.
func (r *Remote) doRequest(ctx context.Context, a remoteRequest, emit func(Event) error) error {
	id, done, err := r.enterRequest()
	if err != nil {
		return err
	}
	defer done()
	a.ID = id
	if r.o.Environ != nil {
		a.Environ = r.o.Environ()
	}
	for again := true; ; again = false {
		p, err := r.readyService(ctx)
		if err != nil {
			return err
		}
		x := exchange{remote: r, process: p, request: a, emit: emit}
		err = x.runRequest(ctx)
		if !errors.Is(err, errEnded) {
			return err
		}
		r.forgetService(p)
		if x.begun || !again {
			return err
		}
		if emit != nil {
			const note = "(the interpreter had ended: the variables of earlier runs are lost)\n"
			if err := emit(Output{Stream: Stderr, Text: note, Time: time.Now().UTC()}); err != nil {
				return err
			}
		}
	}
}

// takeSending waits for the turn to send.
func (r *Remote) takeSending(ctx context.Context) error {
	select {
	case r.sending <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-r.ctx.Done():
		return errClosed()
	}
}

// readyService returns the service, started if there is none.
func (r *Remote) readyService(ctx context.Context) (sandpit.Process, error) {
	if err := r.takeSending(ctx); err != nil { // so that two do not start it
		return nil, err
	}
	defer func() { <-r.sending }()
	r.mu.Lock()
	p := r.process
	r.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := r.startService(ctx)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.process = p
	return p, nil
}

// blockedInput is an input that nothing comes from, and that does not end.
type blockedInput struct{}

// Read implements io.Reader.
func (blockedInput) Read([]byte) (int, error) { return 0, errDetached }

// errDetached ends a reader without ending the input of the process.
var errDetached = errors.New("detached")

// startService starts a service, which runs on when nobody follows it.
func (r *Remote) startService(ctx context.Context) (sandpit.Process, error) {
	// One that is given up half way might leave a process that nobody knows.
	following, cancel := context.WithTimeout(context.WithoutCancel(ctx), guestTime)
	defer cancel()
	cmd := sandpit.Command{Args: []string{sandpit.GuestProgram, Arg, "-stdio"}, User: r.o.User, Dir: r.o.Dir, Stdin: blockedInput{}}
	if r.o.Environ != nil {
		cmd.Env = r.o.Environ()
	}
	p, err := r.guest.Start(following, cmd)
	if err != nil {
		return nil, err
	}
	cancel()
	_, _ = p.Wait(context.WithoutCancel(ctx)) // until nobody follows it
	return p, nil
}

// forgetService lets go of a service that has ended.
func (r *Remote) forgetService(p sandpit.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == p {
		r.process = nil
	}
}
