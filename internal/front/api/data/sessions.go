package data

import (
	"cmp"
	"context"
	"errors"
	"math"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// sessionSets are the terminal sessions of all sandboxes.
type sessionSets struct {
	manager *manager.Manager
	memory  *memory.Budget

	closing sync.WaitGroup // of sets that are being closed

	mu     sync.Mutex
	closed bool
	sets   map[sandpit.ID]*sessionSet
}

// sessionSet is the terminal sessions of one sandbox, as long as its guest is the same.
type sessionSet struct {
	*shell.Sessions
	guest sandpit.Guest
}

// findSessions returns the sessions of a sandbox. If no usable ones exist, it
// creates a set if wanted; otherwise it returns those that have ended, which report the
// reason, or nil.
func (all *sessionSets) findSessions(c *call, wanted bool) (*shell.Sessions, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return nil, sandpit.Errorf(sandpit.Unavailable, "the server is shutting down")
	}
	set := all.sets[c.id]
	if set != nil && set.guest != c.guest {
		set.Ended(sandpit.Errorf(sandpit.Gone, "sandbox %s was restarted", c.id))
	}
	switch {
	case set == nil && !wanted:
		return nil, nil
	case set != nil && (!wanted || set.Reason() == nil):
		return set.Sessions, nil
	}
	for id, other := range all.sets {
		if id == c.id || !all.isUsable(id) {
			delete(all.sets, id)
			all.closing.Go(func() {
				_ = other.Close() // its programs have ended with the sandbox or its previous guest
			})
		}
	}
	owner := ""
	if s, err := all.manager.Get(c.id); err == nil {
		owner = s.Lease.Owner
	}
	set = &sessionSet{shell.NewSessions(c.guest, shell.SetOptions{
		Memory: func() *memory.Account { return all.memory.OpenSession(owner) },
	}), c.guest}
	all.sets[c.id] = set
	return set.Sessions, nil
}

// endSessions ends the sessions of a sandbox whose programs have ended.
func (all *sessionSets) endSessions(id sandpit.ID, why error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if set := all.sets[id]; set != nil {
		set.Ended(sandpit.Errorf(sandpit.Gone, "%w", why))
	}
}

// isUsable reports whether a sandbox still exists.
func (all *sessionSets) isUsable(id sandpit.ID) bool {
	s, err := all.manager.Get(id)
	return err == nil && s.State != sandpit.StateDeleted && s.State != sandpit.StateDeleting
}

// closeAll ends all sessions. It is idempotent.
func (all *sessionSets) closeAll() error {
	all.mu.Lock()
	all.closed = true
	sets := all.sets
	all.sets = nil
	all.mu.Unlock()
	var errs []error
	for _, set := range sets {
		errs = append(errs, set.Close())
	}
	all.closing.Wait()
	return errors.Join(errs...)
}

// findSession returns the session in the path.
func (s *Server) findSession(c *call) (*shell.Session, error) {
	set, err := s.sessions.findSessions(c, false)
	if err != nil {
		return nil, err
	}
	if set == nil {
		return nil, sandpit.Errorf(sandpit.NotFound, "no session %.80q", c.r.PathValue("sid"))
	}
	return set.Get(c.r.PathValue("sid"))
}

func (s *Server) openSession(ctx context.Context, c *call) error {
	var req wire.NewSession
	if err := c.readBody(&req); err != nil {
		return err
	}
	timeout, err := parseTimeout(req.Timeout)
	if err != nil {
		return err
	}
	most, err := parseMaxOutput(req.MaxOutput)
	if err != nil {
		return err
	}
	set, err := s.sessions.findSessions(c, true)
	if err != nil {
		return err
	}
	session, err := set.Create(ctx, req.Name, shell.Options{
		Dir: req.Dir, Env: req.Env, User: req.User, Timeout: cmp.Or(timeout, s.o.SessionTimeout), MaxOutput: most, RefuseBusy: req.RefuseBusy,
	})
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusCreated, toSession(session.Info()))
}

// parseTimeout converts a number of seconds; 0 is the default.
func parseTimeout(seconds float64) (time.Duration, error) {
	if seconds < 0 {
		return 0, sandpit.Errorf(sandpit.Invalid, "timeout_seconds %v: want more than 0", seconds)
	}
	return parseTimeoutOr(seconds, 0)
}

// parseMaxOutput converts a number of bytes.
func parseMaxOutput(n int64) (int, error) {
	if n < 0 || n > math.MaxInt32 {
		return 0, sandpit.Errorf(sandpit.Invalid, "max_output %d: out of bounds", n)
	}
	return int(n), nil
}

func toSession(i shell.Info) wire.Session {
	return wire.Session{
		ID: i.ID, Shell: i.Shell, Cwd: i.Cwd, CreatedAt: i.CreatedAt, LastUsed: i.LastUsed, Runs: i.Runs, Waiting: i.Waiting, Jobs: i.Jobs,
	}
}

func (s *Server) listSessions(_ context.Context, c *call) error {
	page := wire.Page[wire.Session]{Items: []wire.Session{}}
	set, err := s.sessions.findSessions(c, false)
	if err != nil {
		return err
	}
	if set != nil {
		for _, info := range set.List() {
			page.Items = append(page.Items, toSession(info))
		}
	}
	return c.writeJSON(http.StatusOK, page)
}

func (s *Server) getSession(_ context.Context, c *call) error {
	session, err := s.findSession(c)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, toSession(session.Info()))
}

func (s *Server) closeSession(_ context.Context, c *call) error {
	set, err := s.sessions.findSessions(c, false)
	if err != nil {
		return err
	}
	if set == nil {
		return sandpit.Errorf(sandpit.NotFound, "no session %.80q", c.r.PathValue("sid"))
	}
	if err := set.CloseSession(c.r.PathValue("sid")); err != nil {
		return err
	}
	return c.writeNoContent()
}

// runInSession runs a command in the shell of a session. The command is interrupted when the
// client disconnects.
func (s *Server) runInSession(ctx context.Context, c *call) error {
	var req wire.SessionRun
	if err := c.readBody(&req); err != nil {
		return err
	}
	session, err := s.findSession(c)
	if err != nil {
		return err
	}
	timeout, err := parseTimeout(req.Timeout)
	if err != nil {
		return err
	}
	if req.MaxOutput > s.o.MaxOutput {
		return sandpit.Errorf(sandpit.Invalid, "max_output %d: want at most %d", req.MaxOutput, s.o.MaxOutput)
	}
	most, err := parseMaxOutput(req.MaxOutput)
	if err != nil {
		return err
	}
	r, err := session.Run(ctx, shell.RunRequest{
		Command: req.Command, Timeout: timeout, Stdin: []byte(req.Stdin), SeparateStderr: req.SeparateStderr, MaxOutput: most,
	})
	if err != nil && !r.TimedOut {
		return err
	}
	setSafeHeaders(c.w.Header())
	return api.WriteJSONTexts(c.w, http.StatusOK, wire.SessionResult{
		StdoutSize: r.StdoutSize, StderrSize: r.StderrSize,
		Truncated: r.Truncated, Late: strings.ToValidUTF8(string(r.Late), "\uFFFD"), ExitCode: r.ExitCode, Duration: r.Duration.Seconds(), TimedOut: r.TimedOut,
		Outcome: string(r.Outcome), StateLost: r.StateLost, Fresh: r.Fresh, Cwd: strings.ToValidUTF8(r.Cwd, "\uFFFD"),
	}, map[string]api.Text{"stdout": textBytes(r.Stdout), "stderr": textBytes(r.Stderr)})
}

// textBytes is an api.Text in one part.
type textBytes []byte

// Each implements api.Text.
func (t textBytes) Each(f func([]byte) error) error { return f(t) }
