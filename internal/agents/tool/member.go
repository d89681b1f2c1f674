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

// sessionGuest is the guest of a sandbox as one of several sessions has it: whatever is started
// or done with files is its own user's doing, and finds that user's directories in its
// environment.
type sessionGuest struct {
	sandpit.Guest

	user applet.SessionUser
}

// sessionVariable is environment that says which session has started a program. The guest
// remembers what each was started with.
const sessionVariable = "SANDPIT_SESSION"

// userName is the user's, as the guest understands it: there is no list with it.
func (m sessionGuest) userName() string { return fmt.Sprintf("%d:%d", m.user.UID, m.user.UID) }

// Start starts a command as the session's user, whoever it names.
func (m sessionGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	temp := applet.SessionTemp(m.user.Dir)
	env := map[string]string{
		"HOME": m.user.Dir, "USER": m.user.ID, "LOGNAME": m.user.ID,
		"TMPDIR": temp, "TMP": temp, "TEMP": temp, "XDG_RUNTIME_DIR": temp,
	}
	maps.Copy(env, cmd.Env)
	env[sessionVariable] = m.userName() // last: nobody can have started what another has
	cmd.Env, cmd.User = env, m.userName()
	if cmd.Dir == "" {
		cmd.Dir = m.user.Dir
	}
	return m.Guest.Start(ctx, cmd)
}

// Observer implements sandpit.CallObserver.
func (m sessionGuest) Observer() sandpit.GuestObserver { return sandpit.ObserverOf(m.Guest) }

// ListProcesses returns those that the session has started.
func (m sessionGuest) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	all, err := m.Guest.ListProcesses(ctx)
	return slices.DeleteFunc(all, func(p sandpit.ProcessInfo) bool { return p.Env[sessionVariable] != m.userName() }), err
}

// Connect follows a process that the session has started. One of others is NotFound.
func (m sessionGuest) Connect(ctx context.Context, pid int, s sandpit.Streams) (sandpit.Process, error) {
	own, err := m.ListProcesses(ctx)
	if err != nil {
		return nil, err
	}
	if !slices.ContainsFunc(own, func(p sandpit.ProcessInfo) bool { return p.PID == pid }) {
		return nil, sandpit.Errorf(sandpit.NotFound, "this session has no process %d", pid)
	}
	return m.Guest.Connect(ctx, pid, s) // numbers are given again only after all others were
}

// Within makes a member a sandpit.Confiner.
func (m sessionGuest) Within(dirs ...string) (sandpit.Files, error) {
	confiner, ok := m.Guest.(sandpit.Confiner)
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "this sandbox cannot confine files to directories")
	}
	return confiner.Within(dirs...)
}

// openShared returns the session of an ID in a sandbox that others share, made if it was not
// there before.
func openShared(ctx context.Context, g sandpit.Guest, o SessionOptions, r applet.SessionsRequest) (*Session, error) {
	r.Action = applet.SessionMake
	user, err := manageSession(ctx, g, r)
	if sandpit.CodeOf(err) == sandpit.AlreadyExists {
		r.Action = applet.SessionFind
		user, err = manageSession(ctx, g, r)
	}
	if sandpit.CodeOf(err) == sandpit.Conflict {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.AlreadyExists, "%w", err),
			fmt.Sprintf("choose another name, or end that connection; if it was killed, the name is free %.0f s after its last call", claimLease.Seconds()))
	}
	if err != nil {
		return nil, fmt.Errorf("session %s: %w", o.ID, err)
	}
	m := sessionGuest{g, user}
	o.Dir, o.User, o.Confine, o.CreatedAt = user.Dir, m.userName(), true, user.CreatedAt
	return NewSession(ctx, m, o)
}

// manageSession has root of a sandbox do something about the users of sessions.
func manageSession(ctx context.Context, g sandpit.Guest, r applet.SessionsRequest) (applet.SessionUser, error) {
	root, err := workspace.New(g, workspace.Options{User: "root", Dir: "/", MaxOutput: maxAnswer})
	if err != nil {
		return applet.SessionUser{}, err
	}
	answer, err := callAppletIn[applet.SessionsAnswer](ctx, root, applet.Sessions, r, nil)
	if err != nil {
		return applet.SessionUser{}, err
	}
	if len(answer.Sessions) != 1 {
		return applet.SessionUser{}, sandpit.Errorf(sandpit.Internal, "the sandbox names %d users for session %s", len(answer.Sessions), r.ID)
	}
	user := answer.Sessions[0]
	if user.UID < sandpit.FirstSessionUID || user.UID > sandpit.LastSessionUID {
		return applet.SessionUser{}, sandpit.Errorf(sandpit.Internal, "the sandbox gives session %s the user %d", r.ID, user.UID)
	}
	return user, nil
}
