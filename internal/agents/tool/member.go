package tool

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// sessionGuest is a sandbox's guest for one of several sessions. Commands and file operations run as
// the session's user, with that user's directories in the environment.
type sessionGuest struct {
	sandpit.Guest

	user applet.SessionUser
}

// sessionVariable is an environment variable that identifies the session of a program. The guest
// records the environment of each program.
const sessionVariable = "SANDPIT_SESSION"

// userName returns the user as UID:GID, because the image has no entry for it.
func (m sessionGuest) userName() string { return fmt.Sprintf("%d:%d", m.user.UID, m.user.UID) }

// Start starts a command as the session's user, regardless of its User.
func (m sessionGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	temp := applet.SessionTemp(m.user.Dir)
	env := map[string]string{
		"HOME": m.user.Dir, "USER": m.user.ID, "LOGNAME": m.user.ID,
		"TMPDIR": temp, "TMP": temp, "TEMP": temp, "XDG_RUNTIME_DIR": temp,
	}
	maps.Copy(env, cmd.Env)
	env[sessionVariable] = m.userName() // last, so that the command cannot override it
	cmd.Env, cmd.User = env, m.userName()
	if cmd.Dir == "" {
		cmd.Dir = m.user.Dir
	}
	return m.Guest.Start(ctx, cmd)
}

// Observer implements sandpit.CallObserver.
func (m sessionGuest) Observer() sandpit.GuestObserver { return sandpit.ObserverOf(m.Guest) }

// ListProcesses returns the processes that the session has started.
func (m sessionGuest) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	all, err := m.Guest.ListProcesses(ctx)
	return slices.DeleteFunc(all, func(p sandpit.ProcessInfo) bool { return p.Env[sessionVariable] != m.userName() }), err
}

// Connect connects to a process of the session. NotFound: no such process, or one of another session.
func (m sessionGuest) Connect(ctx context.Context, pid int, s sandpit.Streams) (sandpit.Process, error) {
	own, err := m.ListProcesses(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(own, func(p sandpit.ProcessInfo) bool { return p.PID == pid }) {
		return nil, sandpit.Errorf(sandpit.NotFound, "process %d not found in this session", pid)
	}
	return m.Guest.Connect(ctx, pid, s) // the kernel reuses a PID only after all others
}

// Within implements sandpit.Confiner.
func (m sessionGuest) Within(dirs ...string) (sandpit.Files, error) {
	confiner, ok := sandpit.As[sandpit.Confiner](m.Guest)
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "this sandbox cannot confine files to directories")
	}
	return confiner.Within(dirs...)
}

// openShared returns the session with an ID in a shared sandbox. It creates the session if it does
// not exist.
func openShared(ctx context.Context, g sandpit.Guest, o SessionOptions, r applet.SessionsRequest) (*Session, error) {
	r.Action = applet.SessionMake
	user, err := manageSession(ctx, g, r)
	if sandpit.CodeOf(err) == sandpit.AlreadyExists {
		r.Action = applet.SessionFind
		user, err = manageSession(ctx, g, r)
	}
	if sandpit.CodeOf(err) == sandpit.Conflict {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.AlreadyExists, "%w", err),
			fmt.Sprintf("choose another name, or end the other connection; if it was killed, the name becomes available %.0f s after its last call", claimLease.Seconds()))
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", o.ID, err)
	}
	m := sessionGuest{g, user}
	o.Dir, o.User, o.Confine, o.CreatedAt = user.Dir, m.userName(), true, user.CreatedAt
	return NewSession(ctx, m, o)
}

// manageSession runs a request about the users of sessions as root of a sandbox.
func manageSession(ctx context.Context, g sandpit.Guest, r applet.SessionsRequest) (applet.SessionUser, error) {
	root, err := workspace.New(g, workspace.Options{User: "root", Dir: "/", MaxOutput: maxAnswer})
	if err != nil {
		return applet.SessionUser{}, err
	}
	answer, err := workspace.CallApplet[applet.SessionsAnswer](ctx, root, applet.Sessions, r, nil)
	if err != nil {
		return applet.SessionUser{}, err
	}
	if len(answer.Sessions) != 1 {
		return applet.SessionUser{}, sandpit.Errorf(sandpit.Internal, "the sandbox returned %d users for session %s", len(answer.Sessions), r.ID)
	}
	user := answer.Sessions[0]
	if user.UID < sandpit.FirstSessionUID || user.UID > sandpit.LastSessionUID {
		return applet.SessionUser{}, sandpit.Errorf(sandpit.Internal, "session %s: the sandbox returned the invalid user %d", r.ID, user.UID)
	}
	return user, nil
}
