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
	// siteLimit is how long a server of files may take to start.
	siteLimit = 30 * time.Second
	// siteWords is how much is kept of what it says if it does not, in bytes.
	siteWords = 4 << 10
)

// ShowFiles has the files of a directory inside shown at a port, as a command of the
// sandbox's default user that outlives ctx, and returns when that listens. If it runs
// already nothing happens. A relative directory is below the working directory.
//
// Conflict: it cannot listen, or there is no such directory; the message is what it says.
// Unsupported: the sandbox's guest cannot do it. The errors of sandpit.Processes.Start.
func ShowFiles(ctx context.Context, g sandpit.Processes, dir string, port int) error {
	ctx, cancel := context.WithTimeout(ctx, siteLimit)
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
	listens := &word{want: fileserver.Ready + "\n", said: done}
	words := NewWindow(siteWords)
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
		return nil // it listens
	default:
		return err
	}
}

// word is a writer that waits for something to be said first. It is for one goroutine.
type word struct {
	want string
	said func()
	got  bytes.Buffer
}

// Write implements io.Writer.
func (w *word) Write(b []byte) (int, error) {
	if w.got.Len() < len(w.want) {
		w.got.Write(b[:min(len(b), len(w.want)-w.got.Len())])
		if w.got.String() == w.want {
			w.said()
		}
	}
	return len(b), nil
}
