package agent

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// Sandbox is a sandbox that an agent works in, of any provider.
type Sandbox struct {
	// ID is the sandbox's ID. Default: it has none.
	ID sandpit.ID
	// Guest reaches into the sandbox. Required, unless Wake is set.
	Guest sandpit.Guest
	// Wake makes sure that the sandbox runs, before each call of a tool, and returns its guest,
	// which changes when the sandbox is started again. Default: it always runs.
	Wake func(ctx context.Context) (sandpit.Guest, error)
	// User runs the commands. Default: the sandbox's user.
	User string
	// Dir is the absolute path of the working directory, created if missing. Default: the image's,
	// else /workspace.
	Dir string
	// Preview returns a link to a port. Default: there are no links.
	Preview func(ctx context.Context, port int) (Link, error)
	// Renew keeps the sandbox although no tool uses it, while the model thinks and a person answers or has
	// not given the next task. It is called every five minutes until 25 hours after the last call of a tool,
	// from a goroutine of its own; not after Close. Default: the sandbox needs no renewal.
	Renew func(ctx context.Context) error
	// Close deletes the sandbox, or gives it back. It is called once. Default: nothing is done.
	Close func(ctx context.Context) error
}

// closeTimeout bounds releasing a sandbox.
const closeTimeout = 30 * time.Second

// workplace is the sandbox of an agent, with a session of tools. It is created when it is needed.
type workplace struct {
	open func(ctx context.Context) (Sandbox, error)
	// prepare is called for each new session.
	prepare func(s *tool.Session)
	// link reports a link and returns the URL for the model.
	link func(Link) string
	// opened records a sandbox.
	opened func(sandpit.ID) error
	// notify reports something to a person.
	notify func(string)
	// earlier is the sandbox of a transcript that is resumed.
	earlier sandpit.ID

	mu      sync.Mutex // held while a sandbox is created; other calls wait for it
	sandbox *Sandbox
	keeper  *keeper       // of the sandbox; nil: it needs no renewal
	guest   sandpit.Guest // of the session
	session *tool.Session
	closed  bool
	note    string // for the next result
}

// noteNew is what the model learns when a resumed task gets another sandbox.
const noteNew = "(The task was interrupted and its sandbox has ended. This is a new sandbox, without the files and programs of the earlier one.)\n"

// noteLost is what the model learns when the sandbox ended between two calls.
const noteLost = "(The sandbox has ended. This is a new one, without the files and programs of the earlier one.)\n"

// errOpen is an error of Options.Open, which ends the task.
type errOpen struct{ error }

func (e errOpen) Unwrap() error { return e.error }

// enter returns the session, and creates the sandbox and the session if necessary.
func (w *workplace) enter(ctx context.Context) (*tool.Session, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, sandpit.Errorf(sandpit.Gone, "the agent was closed")
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if w.sandbox == nil {
		s, err := w.open(ctx)
		if err != nil {
			return nil, errOpen{err}
		}
		w.sandbox = &s
		if s.Renew != nil {
			w.keeper = newKeeper(s.Renew, w.notify)
		}
		if err := w.opened(s.ID); err != nil {
			return nil, errOpen{err}
		}
		if w.earlier != "" && w.earlier != s.ID {
			w.note = noteNew
		}
		w.earlier = ""
	}
	if w.keeper != nil {
		w.keeper.noteUse()
	}
	guest := w.sandbox.Guest
	if w.sandbox.Wake != nil {
		var err error
		guest, err = w.sandbox.Wake(ctx)
		if code := sandpit.CodeOf(err); code == sandpit.Gone || code == sandpit.NotFound {
			return nil, w.releaseLost(ctx, err)
		}
		if err != nil {
			return nil, err
		}
	}
	if w.session != nil && w.guest == guest {
		return w.session, nil
	}
	if w.session != nil {
		_ = w.session.Close() // its programs have ended with the previous guest
		w.session = nil
	}
	session, err := tool.NewSession(ctx, guest, tool.SessionOptions{User: w.sandbox.User, Dir: w.sandbox.Dir, Preview: w.preview(*w.sandbox)})
	if sandpit.CodeOf(err) == sandpit.Gone {
		return nil, w.releaseLost(ctx, err)
	}
	if err != nil {
		return nil, err
	}
	w.prepare(session)
	w.session, w.guest = session, guest
	return session, nil
}

// errLost marks the error after the sandbox has ended.
var errLost = errors.New("the sandbox has ended")

// lostError is what the model learns after the sandbox has ended.
func lostError(err error) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "%w: %w", errLost, err), "the next call gets a new sandbox, without the files")
}

// noteLost has the model learn from the next result that the sandbox is a new one.
func (w *workplace) noteLost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note = noteLost
}

// releaseLost releases a sandbox that has ended, and returns what the model learns. The caller holds mu.
func (w *workplace) releaseLost(ctx context.Context, why error) error {
	err := w.release(ctx)
	if code := sandpit.CodeOf(err); code == sandpit.Gone || code == sandpit.NotFound {
		err = nil // it has ended
	}
	return errors.Join(lostError(why), err)
}

// preview returns the function for links that sessions use.
func (w *workplace) preview(s Sandbox) func(context.Context, int) (tool.Page, error) {
	if s.Preview == nil {
		return nil
	}
	return func(ctx context.Context, port int) (tool.Page, error) {
		l, err := s.Preview(ctx, port)
		if err != nil {
			return tool.Page{}, err
		}
		return tool.NewPage(port, w.link(l), l.ExpiresAt)
	}
}

// takeNote returns what the model must learn about the sandbox, once.
func (w *workplace) takeNote() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	note := w.note
	w.note = ""
	return note
}

// current returns the session if there is one.
func (w *workplace) current() *tool.Session {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session
}

// drop releases a sandbox that has ended, so that the next call gets a new one.
func (w *workplace) drop(ctx context.Context, s *tool.Session) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.session != s {
		return nil
	}
	return w.release(ctx)
}

func (w *workplace) sandboxID() (sandpit.ID, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sandbox == nil {
		return "", false
	}
	return w.sandbox.ID, true
}

func (w *workplace) isClosed() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.closed
}

// close releases the sandbox for good. It is idempotent.
func (w *workplace) close(ctx context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	return w.release(ctx)
}

// release closes the session and the sandbox, even if ctx has ended. The caller holds mu.
func (w *workplace) release(ctx context.Context) error {
	sandbox, session, keeper := w.sandbox, w.session, w.keeper
	w.sandbox, w.session, w.guest, w.keeper = nil, nil, nil, nil
	if sandbox == nil {
		return nil
	}
	if keeper != nil {
		keeper.stop()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	var err error
	if sandbox.Close != nil {
		err = sandbox.Close(ctx) // first, so that closing the session need not wait for its programs
	}
	if session == nil {
		return err
	}
	if closeErr := session.Close(); sandpit.CodeOf(closeErr) != sandpit.Gone { // it ended with the sandbox
		err = errors.Join(err, closeErr)
	}
	return err
}
