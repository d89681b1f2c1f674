package mcpclient

import (
	"context"
	"io"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// startTimeout bounds the start of a program.
	startTimeout = 30 * time.Second
	// exitTimeout is how long a program may run after the end of its input.
	exitTimeout = 2 * time.Second
	// killTimeout bounds the killing of a program.
	killTimeout = 10 * time.Second
	// maxStderr is how many of the last bytes of standard error are kept.
	maxStderr = 2000
)

// program is a process in the sandbox with its streams. The caller must stop it.
type program struct {
	process sandpit.Process
	input   *io.PipeWriter
	output  *io.PipeReader
	// stderr is the end of its second output.
	stderr  *textlen.Tail
	release context.CancelFunc
	ended   chan struct{}
	// status is the exit status, "" if unknown; set before ended is closed.
	status string
}

// starter starts processes: a guest in its sandbox, or hostProcesses on this machine.
type starter interface {
	Start(ctx context.Context, c sandpit.Command) (sandpit.Process, error)
}

// startProgram starts a program. It outlives ctx.
//
// Unavailable: the sandbox does not respond.
func startProgram(ctx context.Context, g starter, cmd sandpit.Command) (*program, error) {
	stdin, input := io.Pipe()
	output, stdout := io.Pipe()
	life, release := context.WithCancel(context.WithoutCancel(ctx))
	p := &program{input: input, output: output, stderr: textlen.NewTail(maxStderr), release: release, ended: make(chan struct{})}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, p.stderr
	// Canceling a start could leave an unknown process. The start therefore ignores the end of
	// ctx, and is canceled only if the sandbox does not respond.
	impatient := time.AfterFunc(startTimeout, release)
	process, err := g.Start(life, cmd)
	if !impatient.Stop() && err != nil {
		err = sandpit.Errorf(sandpit.Unavailable, "the program did not start within %s", startTimeout)
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

// stopProgram closes the input, waits for grace, and kills the program with its session.
func (p *program) stopProgram(ctx context.Context, grace time.Duration) {
	_, _ = p.input.Close(), p.output.Close() // never fail
	select {
	case <-p.ended:
	case <-time.After(grace):
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), killTimeout)
	defer cancel()
	// The program may have ended and left others in its session. An error means that the
	// sandbox does not respond, which ends the program too.
	_ = p.process.Signal(ctx, sandpit.SIGKILL)
	select {
	case <-p.ended:
	case <-ctx.Done():
	}
	p.release()
	<-p.ended
}

// receiveBudget bounds how many bytes a server may send per request, and reserves their memory in
// the account of the last request.
type receiveBudget struct {
	left    atomic.Int64
	account atomic.Pointer[memory.Account]
}

// receivedCost is the memory for each received byte: raw, as a message, and decoded.
const receivedCost = 3

// maxReceived bounds the bytes that a server may send for one request, including notifications.
const maxReceived = 24 << 20

func (m *receiveBudget) resetFor(account *memory.Account) {
	m.left.Store(maxReceived)
	m.account.Store(account)
}

// meterReader returns a reader that counts against the budget.
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
	// Bytes that arrive after the end of the request are read and discarded.
	if reserveErr := r.meter.account.Load().Reserve(int64(n) * receivedCost); sandpit.CodeOf(reserveErr) == sandpit.Exhausted {
		return 0, reserveErr
	}
	return n, err
}
