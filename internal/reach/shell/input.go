package shell

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// Input is the input of a command that gets its bytes while it runs: that of a RunRequest, or
// the Stdin of a sandpit.Command. It is for one command. All methods may be called
// concurrently.
type Input struct{ queue *inputQueue }

// NewInput returns an Input without bytes.
func NewInput() *Input { return &Input{newInputQueue(inputLimit)} }

// Write gives bytes to the command. It waits while 64 KiB are unread. Gone: the command has
// ended, or the input.
func (i *Input) Write(ctx context.Context, p []byte) error { return i.queue.queueInput(ctx, p) }

// Close ends the input after the bytes that were written. It is idempotent.
func (i *Input) Close() { i.queue.closeInput() }

// Abandon ends the input at once. It is idempotent.
func (i *Input) Abandon() { i.queue.abandonInput() }

// Read implements io.Reader, for the command.
func (i *Input) Read(p []byte) (int, error) { return i.queue.Read(p) }

// feedScript copies its input to a named pipe until either side ends.
const feedScript = `exec cat >"$1"`

// openInput creates a named pipe in the sandbox and starts a program that copies an input to
// it. The caller must call closeInput after the command.
func (s *Session) openInput(ctx context.Context, in *Input) (name string, closeInput func(), err error) {
	if err := s.memory.Reserve(inputLimit); err != nil {
		return "", nil, err
	}
	name = "/tmp/.sandpit-" + newToken()
	_, err = runScript(ctx, s.guest, script{user: s.o.User, text: `umask 077 && mkfifo "$1"`, args: []string{name}})
	if err != nil {
		s.memory.Return(inputLimit)
		return "", nil, err
	}
	feeder, err := s.startFeeder(ctx, in, name)
	if err != nil {
		in.Abandon()
		s.removeFile(ctx, name)
		s.memory.Return(inputLimit)
		return "", nil, err
	}
	return name, func() {
		in.Abandon()
		feeder(ctx)
		s.removeFile(ctx, name)
		s.memory.Return(inputLimit)
	}, nil
}

// startFeeder starts the program that copies an input to a named pipe, and returns a function
// that ends it.
func (s *Session) startFeeder(ctx context.Context, in *Input, name string) (stop func(context.Context), err error) {
	// A start that is canceled halfway could leave an unknown process.
	following, cancel := context.WithCancel(context.WithoutCancel(ctx))
	process, err := s.guest.Start(following, sandpit.Command{
		Args: []string{"sh", "-c", feedScript, "sh", name}, User: s.o.User, Dir: "/", Stdin: in,
	})
	if err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = process.Wait(following) // it ends with the command or is killed
	}()
	return func(ctx context.Context) {
		defer cancel()
		_ = discardProcess(ctx, process) // fails only if its sandbox has ended
		ctx, stopWaiting := context.WithTimeout(context.WithoutCancel(ctx), killWithin)
		defer stopWaiting()
		select {
		case <-ended:
		case <-ctx.Done():
			cancel()
			<-ended
		}
	}, nil
}
