package cli

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/sandpit-dev/sandpit"
)

// terminalOf returns the descriptor of a stream that is a terminal.
func terminalOf(stream any) (fd int, ok bool) {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}

// terminalSize returns the size of the terminal behind any of the streams, or the
// usual one.
func (a *app) terminalSize() sandpit.TerminalSize {
	for _, stream := range []any{a.Out, a.In, a.Err} {
		fd, ok := terminalOf(stream)
		if !ok {
			continue
		}
		if cols, rows, err := term.GetSize(fd); err == nil && cols > 0 && rows > 0 {
			return sandpit.TerminalSize{Cols: uint16(min(cols, 1<<16-1)), Rows: uint16(min(rows, 1<<16-1))}
		}
	}
	return sandpit.TerminalSize{Cols: 80, Rows: 24}
}

// setTerminalRaw hands the keyboard over. The returned function takes it back.
func setTerminalRaw(in io.Reader) (restore func(), err error) {
	fd, ok := terminalOf(in)
	if !ok {
		return func() {}, nil
	}
	saved, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, saved) }, nil // nothing can be done about a terminal that is gone
}

// followSize tells the process each new size of the terminal until ctx ends.
func (a *app) followSize(ctx context.Context, p sandpit.Process) (stop func()) {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer close(done)
		for {
			select {
			case <-changed:
				_ = p.Resize(ctx, a.terminalSize()) // it may just have ended; a wrong size is no reason to stop
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		cancel()
		<-done
	}
}
