package interpreter

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

const (
	// ackTime is how long a service may take to confirm a request.
	ackTime = 30 * time.Second
	// interruptTime is how long a run may take to end after an interrupt. A kernel that keeps running is killed
	// before that.
	interruptTime = Patience + 10*time.Second
	// closeTime is how long a service may take to end.
	closeTime = 10 * time.Second
	// guestTime is how long a call to the sandbox may take.
	guestTime = 30 * time.Second
)

// RemoteOptions configure the service of a Remote.
type RemoteOptions struct {
	// User as in sandpit.Command. Default: the sandbox's.
	User string
	// Dir is the working directory of kernels; it must exist. Default: the sandbox's.
	Dir string
	// Environ returns the environment of all runs, in addition to the sandbox's. The result may change between calls.
	// nil means none.
	Environ func() map[string]string
}

// Remote runs code in a sandbox, with a Service of its own there that it starts for the first run. It uses the
// streams of the service's process, so no other program in the sandbox can use or impersonate the service, except
// programs of the same user. Between two runs there is no connection, so a sandbox can be paused, suspended and
// resumed with its variables.
//
// The output of a service is as trustworthy as any other output of a sandbox. All methods may be called concurrently.
type Remote struct {
	guest sandpit.Processes
	o     RemoteOptions

	sending chan struct{} // held by the request that is being sent

	mu      sync.Mutex
	process sandpit.Process // nil: no service is running
	last    uint64
	closed  bool

	requests sync.WaitGroup  // requests
	ctx      context.Context //nolint:containedctx // of the Remote itself, until it is closed
	cancel   context.CancelFunc
}

// Cell is code for a Remote.
type Cell struct {
	// Context names the context in which runs share variables. The first run creates it. A Remote can have 64.
	Context string
	// Language of the context: Python, JavaScript, TypeScript or Bash.
	Language string
	Code     string
	// Dir is the working directory of the context, if this run creates it. Default: that of the Remote.
	Dir string
	// Env is added to the environment of this run only.
	Env map[string]string
}

// NewRemote returns a Remote. It starts no service yet. The caller must Close it.
func NewRemote(g sandpit.Processes, o RemoteOptions) *Remote {
	ctx, cancel := context.WithCancel(context.Background())
	return &Remote{guest: g, o: o, sending: make(chan struct{}, 1), ctx: ctx, cancel: cancel}
}

// Run runs code and passes its events to emit, End included unless the run is cut off. Errors in the code are events;
// an error of Run says that nothing was run, or that ctx or emit ended the run. The code is then interrupted, and the
// events until its end still go to emit, unless emit has failed. Calls of emit are not concurrent.
//
// Unsupported: the image has no program for the language. Exhausted: too many contexts. Unavailable: the connection
// broke. Gone: the Remote is closed, or the sandbox has ended. Errors as of sandpit.Processes.Start.
func (r *Remote) Run(ctx context.Context, c Cell, emit func(Event) error) error {
	return r.doRequest(ctx, remoteRequest{
		Do: askRun, Context: c.Context, Language: c.Language, Dir: cmp.Or(c.Dir, r.o.Dir), Code: c.Code, Env: c.Env,
	}, emit)
}

// Restart gives a context a new kernel, even while the old one runs code. Errors as of Run.
func (r *Remote) Restart(ctx context.Context, name string) error {
	return r.doRequest(ctx, remoteRequest{Do: askRestart, Context: name}, nil)
}

// Remove deletes a context, even while it runs code. An unknown context is not an error. Errors as of Run.
func (r *Remote) Remove(ctx context.Context, name string) error {
	return r.doRequest(ctx, remoteRequest{Do: askRemove, Context: name}, nil)
}

// Close cuts off running code, and ends the service with its kernels. It is idempotent.
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

// endService asks a service to end its kernels, and waits for its end.
func (r *Remote) endService(ctx context.Context, p sandpit.Process) error {
	err := p.Signal(ctx, sandpit.SIGTERM)
	if err == nil {
		r.waitForEnd(ctx, p)
		err = p.Signal(ctx, sandpit.SIGKILL) // if it is still running
	}
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil
	}
	return err
}

func (r *Remote) waitForEnd(ctx context.Context, p sandpit.Process) {
	c, err := r.connectService(ctx, p, 0)
	if err != nil {
		return // it has ended or cannot be reached
	}
	defer c.close()
	select {
	case <-c.ended:
	case <-time.After(closeTime / 2):
	}
}

// enterRequest counts a request until done is called.
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

// errEnded is the error for a service that has ended.
var errEnded = sandpit.Errorf(sandpit.Unavailable, "the interpreter has ended: all variables are lost, and the next run has new kernels")

// doRequest performs a request. It replaces a service that has ended.
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

// takeSending waits until the caller may send.
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

// readyService returns the service, and starts it if none is running.
func (r *Remote) readyService(ctx context.Context) (sandpit.Process, error) {
	if err := r.takeSending(ctx); err != nil { // prevents two starts at once
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

// blockedInput is an input without data and without an end.
type blockedInput struct{}

// Read implements io.Reader.
func (blockedInput) Read([]byte) (int, error) { return 0, errDetached }

// errDetached ends a reader without ending the input of the process.
var errDetached = errors.New("detached")

// startService starts a service that keeps running while no connection follows it.
func (r *Remote) startService(ctx context.Context) (sandpit.Process, error) {
	// A start that is canceled halfway could leave an unknown process.
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
	_, _ = p.Wait(context.WithoutCancel(ctx)) // until the process is no longer followed
	return p, nil
}

// forgetService clears the process of a service that has ended.
func (r *Remote) forgetService(p sandpit.Process) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.process == p {
		r.process = nil
	}
}
