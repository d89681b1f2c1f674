package toolbox

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// locations has what is known about the directories of running sandboxes. All methods may be
// called concurrently.
type locations struct {
	mu  sync.Mutex
	all map[sandpit.ID]location
}

// location has the directories and the best shell in a sandbox, as long as its guest is the same.
// "" is not known.
type location struct {
	guest                sandpit.Guest
	workDir, home, shell string
}

// find returns what is known about a sandbox.
func (l *locations) find(id sandpit.ID, guest sandpit.Guest) location {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.all[id]; known.guest == guest {
		return known
	}
	return location{guest: guest}
}

// set records what is known about a sandbox.
func (l *locations) set(id sandpit.ID, known location) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = make(map[sandpit.ID]location)
	}
	l.all[id] = known
}

// forget removes a sandbox whose processes have ended.
func (l *locations) forget(id sandpit.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.all, id)
}

// workDir returns the directory where commands start and relative paths begin.
func (c *call) workDir(ctx context.Context) (string, error) {
	known := c.server.locations.find(c.id, c.guest)
	if known.workDir != "" {
		return known.workDir, nil
	}
	place, err := workspace.Locate(ctx, c.guest, "", "")
	if err != nil {
		return "", err
	}
	known.workDir = place.Dir
	c.server.locations.set(c.id, known)
	return place.Dir, nil
}

// homeDir returns the home directory of the sandbox's user.
func (c *call) homeDir(ctx context.Context) (string, error) {
	known := c.server.locations.find(c.id, c.guest)
	if known.home != "" {
		return known.home, nil
	}
	info, err := callApplet[applet.IdentityInfo](ctx, c, applet.Identity, struct{}{})
	if err != nil {
		return "", err
	}
	if !strings.HasPrefix(info.Home, "/") || len(info.Home) > maxPath || strings.ContainsRune(info.Home, 0) {
		return "", sandpit.Errorf(sandpit.Internal, "the sandbox reports the home directory %.100q", info.Home)
	}
	known.home = info.Home
	c.server.locations.set(c.id, known)
	return info.Home, nil
}

// startDir returns the directory in which a program of a client starts. That of a request may be
// relative to the working directory. "" stays "", which means the working directory.
func (c *call) startDir(ctx context.Context, dir string) (string, error) {
	if dir == "" {
		return "", nil
	}
	return c.filePath(ctx, "cwd", dir)
}

// shownDir is startDir for programs that clients list with their directory: it names the working
// directory, unless the sandbox has no program that finds it.
func (c *call) shownDir(ctx context.Context, dir string) (string, error) {
	if dir != "" {
		return c.startDir(ctx, dir)
	}
	dir, err := c.workDir(ctx)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return "", nil
	}
	return dir, err
}

// plainShell is the shell that every image with a shell has.
const plainShell = "/bin/sh"

// shellProgram returns the shell for commands: bash if the sandbox has it, as clients expect, and
// otherwise sh.
func (c *call) shellProgram(ctx context.Context) (string, error) {
	known := c.server.locations.find(c.id, c.guest)
	if known.shell != "" {
		return known.shell, nil
	}
	for _, shell := range []string{"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"} {
		_, err := c.guest.Stat(ctx, "", shell)
		switch sandpit.CodeOf(err) {
		case sandpit.NotFound, sandpit.PermissionDenied:
			continue
		default:
		}
		if err != nil {
			return "", err
		}
		known.shell = shell
		c.server.locations.set(c.id, known)
		return shell, nil
	}
	return plainShell, nil // not recorded, because bash may be installed later
}

const (
	// programTimeout bounds a program that a call runs, except git's.
	programTimeout = time.Minute
	// maxProgramOutput bounds the output of such a program, in bytes.
	maxProgramOutput = 16 << 20
)

// newWorkspace returns a workspace for programs. Their paths are absolute.
func (c *call) newWorkspace(timeout time.Duration) (*workspace.Workspace, error) {
	return workspace.New(c.guest, workspace.Options{Dir: "/", Timeout: timeout, MaxOutput: maxProgramOutput})
}

// runProgram runs a program and waits for its end.
func (c *call) runProgram(ctx context.Context, cmd sandpit.Command) (workspace.Result, error) {
	w, err := c.newWorkspace(programTimeout)
	if err != nil {
		return workspace.Result{}, err
	}
	return w.Run(ctx, cmd)
}

// callApplet runs an applet of the guest program.
func callApplet[Answer any](ctx context.Context, c *call, name string, request any) (answer Answer, err error) {
	w, err := c.newWorkspace(programTimeout)
	if err != nil {
		return answer, err
	}
	return workspace.CallApplet[Answer](ctx, w, name, request, nil)
}
