package client

import (
	"context"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// SessionOptions configure a terminal session. The zero value of a field means its default.
type SessionOptions struct {
	// Name is the ID of the session: up to 64 letters, digits, _ . and -. Default: the server
	// chooses one.
	Name string
	// Dir is the working directory of the shell; it is created if missing. Default: the sandbox's.
	Dir string
	// Env is added to the environment of the sandbox.
	Env map[string]string
	// User runs the processes. Default: the sandbox's.
	User string
	// Timeout bounds commands that have none. Default: 60 s.
	Timeout time.Duration
	// MaxOutput is how many bytes are kept of each output. Default: 1 MiB.
	MaxOutput int64
	// RefuseBusy refuses a command while another one runs. Default: the command waits.
	RefuseBusy bool
}

// Session is a terminal session of a sandbox: a shell that keeps its directory, variables and
// functions between commands. All methods may be called concurrently.
type Session struct {
	// Session is the state of the session when it was opened or listed.
	api.Session

	sandbox *Sandbox
}

// OpenSession opens a terminal session. The caller should close it.
//
// Invalid: the options. AlreadyExists: the name is taken. Exhausted: the sandbox has too many
// sessions. Unsupported: it has no shell.
func (s *Sandbox) OpenSession(ctx context.Context, o SessionOptions) (*Session, error) {
	session := &Session{sandbox: s}
	err := s.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes", string(s.ID), "sessions"), out: &session.Session,
		in: wire.NewSession{
			Name: o.Name, Dir: o.Dir, Env: o.Env, User: o.User, Timeout: o.Timeout.Seconds(), MaxOutput: o.MaxOutput, RefuseBusy: o.RefuseBusy,
		},
	})
	if err != nil {
		return nil, err
	}
	return session, nil
}

// ListSessions returns the open terminal sessions of the sandbox.
func (s *Sandbox) ListSessions(ctx context.Context) ([]*Session, error) {
	list, err := getItems[api.Session](ctx, s.client, apiPath("sandboxes", string(s.ID), "sessions"))
	sessions := make([]*Session, len(list))
	for i, state := range list {
		sessions[i] = &Session{Session: state, sandbox: s}
	}
	return sessions, err
}

// SessionRunOptions say how a command runs in a terminal session. The zero value of a field
// means its default.
type SessionRunOptions struct {
	// Timeout is the time after which the command is stopped. Default: the session's.
	Timeout time.Duration
	// Stdin is the whole input. Default: empty.
	Stdin string
	// SeparateStderr returns stderr separately. Default: stdout has all output in order.
	SeparateStderr bool
	// MaxOutput bounds the returned bytes of each output. Default: the session's.
	MaxOutput int64
}

// Run runs a piece of a shell script in the session and returns when it has ended. A command
// that fails or times out is no error: see the result.
//
// NotFound, Gone: the session has ended. Conflict: another command runs, and the session refuses
// to wait.
func (s *Session) Run(ctx context.Context, command string) (api.SessionResult, error) {
	return s.RunWith(ctx, SessionRunOptions{}, command)
}

// RunWith is Run with options.
func (s *Session) RunWith(ctx context.Context, o SessionRunOptions, command string) (api.SessionResult, error) {
	var result api.SessionResult
	err := s.sandbox.client.doCall(ctx, call{
		method: http.MethodPost, path: s.path("run"), out: &result, untimed: true,
		in: wire.SessionRun{
			Command: command, Timeout: o.Timeout.Seconds(), Stdin: o.Stdin, SeparateStderr: o.SeparateStderr, MaxOutput: o.MaxOutput,
		},
	})
	return result, err
}

// Close ends the session with everything that runs in it. It is idempotent.
func (s *Session) Close(ctx context.Context) error {
	err := s.sandbox.client.doCall(ctx, call{method: http.MethodDelete, path: s.path(), idempotent: true})
	if isRemoved(err) {
		return nil
	}
	return err
}

// path returns the path of the session or of a part of it.
func (s *Session) path(parts ...string) string {
	return apiPath(append([]string{"sandboxes", string(s.sandbox.ID), "sessions", s.ID}, parts...)...)
}
