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

// terminalOf returns the file descriptor of a stream that is a terminal.
func terminalOf(stream any) (fd int, ok bool) {
	f, ok := stream.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return 0, false
	}
	return int(f.Fd()), true
}

// terminalSize returns the size of the terminal of any stream, or 80x24.
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

// setTerminalRaw passes keys on unchanged until restore is called.
func setTerminalRaw(in io.Reader) (restore func(), err error) {
	fd, ok := terminalOf(in)
	if !ok {
		return func() {}, nil
	}
	saved, err := term.MakeRaw(fd)
	if err != nil {
		return nil, err
	}
	return func() { _ = term.Restore(fd, saved) }, nil // a terminal that is gone cannot be restored
}

// followSize sends each new size of the terminal to the process until stop is called.
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
				_ = p.Resize(ctx, a.terminalSize()) // the process may have ended; a wrong size is harmless
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
