package shell

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// SetOptions has the bounds for the sessions of a sandbox. The zero value of a field means
// the default stated with it.
type SetOptions struct {
	// Max is how many sessions may be open at a time. Default: 16.
	Max int `json:"max,omitempty"`
	// IdleTimeout closes a session in which no command and no job has run for this
	// long. Default: 30 minutes. Below zero: never.
	IdleTimeout time.Duration `json:"idle_timeout,omitempty"`
	// Memory opens the memory account of a session. Default: no limit.
	Memory func() *memory.Account `json:"-"`
}

// maxClosed bounds the closed sessions whose reasons are kept.
const maxClosed = 64

// Sessions has the sessions of one sandbox. All methods may be called concurrently.
type Sessions struct {
	guest sandpit.Guest
	o     SetOptions
	stop  chan struct{} // closed with the set
	wg    sync.WaitGroup

	mu       sync.Mutex
	open     map[string]*Session // nil while it is being opened
	closed   []closedSession     // oldest first
	reason   error               // why the set is closed
	stopOnce sync.Once
}

// closedSession is the record of a closed session.
type closedSession struct {
	id     string
	reason error
}

// The defaults of SetOptions.
const (
	defaultSessions = 16
	defaultIdle     = 30 * time.Minute
)

// NewSessions returns an empty set of sessions for the sandbox of a guest. The caller must
// Close it.
func NewSessions(g sandpit.Guest, o SetOptions) *Sessions {
	if o.Max < 1 {
		o.Max = defaultSessions
	}
	if o.IdleTimeout == 0 {
		o.IdleTimeout = defaultIdle
	}
	set := &Sessions{guest: g, o: o, stop: make(chan struct{}), open: make(map[string]*Session)}
	if o.IdleTimeout > 0 {
		set.wg.Go(set.closeIdle)
	}
	return set
}

var namePattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// Create opens a session with a name of up to 64 letters, digits, "_", "." and "-". An empty
// name is replaced by a generated one.
//
// Invalid: the name is invalid. AlreadyExists: the name is in use. Exhausted: too many
// sessions are open. Gone: the set is closed, or the sandbox has ended. Also the errors of
// Open.
func (set *Sessions) Create(ctx context.Context, name string, o Options) (*Session, error) {
	if name == "" {
		name = newID()
	}
	if !namePattern().MatchString(name) {
		return nil, sandpit.Errorf(sandpit.Invalid, "session %q: want a name of up to 64 letters, digits, _ . and -", name)
	}
	if err := set.reserveName(name); err != nil {
		return nil, err
	}
	var account *memory.Account
	if set.o.Memory != nil {
		account = set.o.Memory()
	}
	s, err := openSession(ctx, set.guest, name, o, sessionHooks{onGone: set.Ended, memory: account})
	set.mu.Lock()
	if err == nil && set.reason == nil {
		set.open[name] = s
		set.mu.Unlock()
		return s, nil
	}
	delete(set.open, name)
	reason := set.reason
	set.mu.Unlock()
	if err == nil { // the set was closed during the start
		err = errors.Join(reason, s.closeSession(reason))
	}
	return nil, err
}

// reserveName reserves a name and a place for a session.
func (set *Sessions) reserveName(name string) error {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.reason != nil {
		return set.reason
	}
	if _, taken := set.open[name]; taken {
		return sandpit.Errorf(sandpit.AlreadyExists, "a session %q is open already", name)
	}
	if len(set.open) >= set.o.Max {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%d sessions are open, the limit is %d", len(set.open), set.o.Max), "close one first")
	}
	set.open[name] = nil
	return nil
}

// Get returns an open session. NotFound: no such session. Gone: it was closed recently; the
// error has the reason.
func (set *Sessions) Get(name string) (*Session, error) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if s := set.open[name]; s != nil {
		return s, nil
	}
	for _, t := range slices.Backward(set.closed) {
		if t.id == name {
			return nil, t.reason
		}
	}
	if set.reason != nil {
		return nil, set.reason
	}
	return nil, sandpit.Errorf(sandpit.NotFound, "no session %q", name)
}

// List describes the open sessions, oldest first.
func (set *Sessions) List() []Info {
	var list []Info
	for _, s := range set.allSessions() {
		list = append(list, s.Info())
	}
	slices.SortFunc(list, func(a, b Info) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID))
	})
	return list
}

func (set *Sessions) allSessions() []*Session {
	set.mu.Lock()
	defer set.mu.Unlock()
	list := make([]*Session, 0, len(set.open))
	for _, s := range set.open {
		if s != nil {
			list = append(list, s)
		}
	}
	return list
}

// CloseSession closes a session and waits for its end. The errors are those of Get and
// Session.Close.
func (set *Sessions) CloseSession(name string) error {
	s, err := set.Get(name)
	if err != nil {
		return err
	}
	return set.closeAndRemember(s, errClosed())
}

// closeAndRemember closes a session and keeps the reason.
func (set *Sessions) closeAndRemember(s *Session, reason error) error {
	set.mu.Lock()
	if set.open[s.id] == s {
		delete(set.open, s.id)
		set.closed = append(set.closed, closedSession{s.id, reason})
		set.closed = set.closed[max(0, len(set.closed)-maxClosed):]
	}
	set.mu.Unlock()
	return s.closeSession(reason)
}

// Close closes all sessions and waits for their end. It is idempotent.
func (set *Sessions) Close() error {
	return set.closeAll(sandpit.Errorf(sandpit.Gone, "the sessions of the sandbox are closed"), true)
}

// Reason returns why the set is closed or closing, or nil if it is open.
func (set *Sessions) Reason() error {
	set.mu.Lock()
	defer set.mu.Unlock()
	return set.reason
}

// closeAll closes the set, and waits for its goroutines if wait is set. One of these
// goroutines calls it without wait when the sandbox ends.
func (set *Sessions) closeAll(reason error, wait bool) error {
	set.mu.Lock()
	if set.reason == nil {
		set.reason = reason
	}
	reason = set.reason
	set.mu.Unlock()
	set.stopOnce.Do(func() { close(set.stop) })
	var wg sync.WaitGroup
	list := set.allSessions()
	errs := make([]error, len(list))
	for i, s := range list {
		wg.Go(func() { errs[i] = set.closeAndRemember(s, reason) })
	}
	wg.Wait()
	if wait {
		set.wg.Wait()
	}
	return errors.Join(errs...)
}

// Ended closes the set because the sandbox has ended. Callers get the reason, which should be
// Gone, from then on. It returns at once; Close waits for the end of the sessions. After the
// first call it does nothing.
func (set *Sessions) Ended(reason error) {
	set.mu.Lock()
	defer set.mu.Unlock()
	if set.reason != nil {
		return
	}
	set.reason = reason
	set.wg.Go(func() {
		_ = set.closeAll(reason, false) // the processes in the sandbox have ended already
	})
}

// closeIdle closes idle sessions.
func (set *Sessions) closeIdle() {
	ticker := time.NewTicker(min(max(set.o.IdleTimeout/4, 10*time.Millisecond), 30*time.Second))
	defer ticker.Stop()
	for {
		select {
		case <-set.stop:
			return
		case <-ticker.C:
		}
		for _, s := range set.allSessions() {
			if s.idleFor() >= set.o.IdleTimeout {
				_ = set.closeAndRemember(s, sandpit.Errorf(sandpit.Gone, "the session was closed after %s without a command", set.o.IdleTimeout))
			}
		}
	}
}
