package workspace

import (
	"bytes"
	"context"
	"crypto/rand"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/fileserver"
)

const (
	// serverStartLimit bounds the start of a file server.
	serverStartLimit = 30 * time.Second
	// serverOutputLimit bounds the kept output of a file server that does not start, in bytes.
	serverOutputLimit = 4 << 10
)

// ShowFiles starts a file server for a directory inside at a port, as a command of the
// sandbox's default user that outlives ctx, and returns when the server listens. If it runs
// already, ShowFiles does nothing. A relative directory is below the working directory.
//
// Conflict: the server cannot listen, or the directory does not exist; the error has the
// server's message. Unsupported: the sandbox's guest has no file server. Also the errors of
// sandpit.Processes.Start.
func ShowFiles(ctx context.Context, g sandpit.Processes, dir string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, serverStartLimit)
	defer cancel()
	args := fileserver.Command(dir, port)
	running, err := g.ListProcesses(ctx)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(running, func(p sandpit.ProcessInfo) bool { return slices.Equal(p.Args, args) }) {
		return nil
	}
	waiting, done := context.WithCancel(ctx)
	defer done()
	listens := &outputSignal{want: fileserver.Ready + "\n", said: done}
	words := NewWindow(serverOutputLimit)
	process, err := g.Start(ctx, sandpit.Command{
		Args: args, ID: strings.ToLower(rand.Text()), Stdout: listens, Stderr: words,
	})
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return sandpit.Errorf(sandpit.Unsupported, "the sandbox has no program that shows files: %w", err)
	}
	if err != nil {
		return err
	}
	_, err = process.Wait(waiting)
	switch {
	case err == nil:
		return sandpit.Errorf(sandpit.Conflict, "show the files of %s at port %d: %s", dir, port, strings.TrimSpace(words.String()))
	case waiting.Err() != nil && ctx.Err() == nil:
		return nil // the server listens
	default:
		return err
	}
}

// outputSignal is a writer that waits for the first output. One goroutine uses it.
type outputSignal struct {
	want string
	said func()
	got  bytes.Buffer
}

// Write implements io.Writer.
func (w *outputSignal) Write(b []byte) (int, error) {
	if w.got.Len() < len(w.want) {
		w.got.Write(b[:min(len(b), len(w.want)-w.got.Len())])
		if w.got.String() == w.want {
			w.said()
		}
	}
	return len(b), nil
}
