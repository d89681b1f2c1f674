package mcpclient

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// startTimeout is how long the sandbox may take to start one.
	startTimeout = 30 * time.Second
	// exitTimeout is how long a program may take to end by itself once its input has.
	exitTimeout = 2 * time.Second
	// killTimeout bounds the killing of one.
	killTimeout = 10 * time.Second
	// maxStderr is how much is kept of the end of a program's second output, in bytes.
	maxStderr = 2000
)

// program is a process in the sandbox whose streams are ours. Its owner must stop it.
type program struct {
	process sandpit.Process
	input   *io.PipeWriter
	output  *io.PipeReader
	// stderr is the end of its second output.
	stderr  *tailBuffer
	release context.CancelFunc
	ended   chan struct{}
	// status is how it ended, "" if nobody has heard; set before ended is closed.
	status string
}

// startProgram starts a program. It outlives ctx.
//
// Unavailable: the sandbox does not answer.
func startProgram(ctx context.Context, g sandpit.Processes, cmd sandpit.Command) (*program, error) {
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	life, release := context.WithCancel(context.WithoutCancel(ctx))
	p := &program{input: input, output: output, stderr: &tailBuffer{}, release: release, ended: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, p.stderr
	// A start that is given up half way might leave a process that nobody knows: so that is
	// not done when ctx ends, but only to a sandbox that does not answer.
	impatient := time.AfterFunc(startTimeout, release)
	process, err := g.Start(life, cmd)
	if !impatient.Stop() && err != nil {
		err = sandpit.Errorf(sandpit.Unavailable, "the sandbox has not started the program within %s", startTimeout)
	}
	if err != nil {
		release()
		return nil, err
	}
	p.process = process
	go func() {
		defer close(p.ended)
		status, err := process.Wait(life)
		if err == nil {
			p.status = status.String()
		}
		_ = stdout.Close() // never fails
		_ = stdin.Close()
	}()
	return p, nil
}

// stopProgram ends the input and, should that not end the program, kills it with all that it has
// started.
func (p *program) stopProgram(ctx context.Context, grace time.Duration) {
	_, _ = p.input.Close(), p.output.Close() // never fail
	select {
	case <-p.ended:
	case <-time.After(grace):
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	// It may have ended, with others left in its session; and a sandbox that does not
	// answer is ending itself.
	_ = p.process.Signal(ctx, sandpit.SIGKILL)
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	p.release()
	<-p.ended
}

// tailBuffer keeps the end of what is written to it. It may be used concurrently.
type tailBuffer struct {
	mu   sync.Mutex
	data []byte
}

func (t *tailBuffer) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, data[max(0, len(data)-maxStderr):]...)
	t.data = t.data[max(0, len(t.data)-maxStderr):]
	return len(data), nil
}

func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.data)
}

// receiveBudget bounds what a server may send until it is asked again, and takes it from the
// account of memory of the request that has come last.
type receiveBudget struct {
	left    atomic.Int64
	account atomic.Pointer[memory.Account]
}

// receivedCost is how many bytes each byte of a server takes: as it comes, as a message, and as
// what is made of that.
const receivedCost = 3

// maxReceived is how much a server may send for one request, in bytes, with what it sends
// unasked.
const maxReceived = 24 << 20

func (m *receiveBudget) resetFor(account *memory.Account) {
	m.left.Store(maxReceived)
	m.account.Store(account)
}

// meterReader is a reader that is metered.
func (m *receiveBudget) meterReader(r io.ReadCloser) io.ReadCloser { return &meteredReader{r, m} }

type meteredReader struct {
	io.ReadCloser

	meter *receiveBudget
}

func (r *meteredReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if r.meter.left.Add(-int64(n)) < 0 {
		return 0, sandpit.Errorf(sandpit.Exhausted, "the server has sent more than %d bytes for one request", maxReceived)
	}
	// What comes when the request has ended is read at once and dropped.
	if reserveErr := r.meter.account.Load().Reserve(int64(n) * receivedCost); sandpit.CodeOf(reserveErr) == sandpit.Exhausted {
		return 0, reserveErr
	}
	return n, err
}
