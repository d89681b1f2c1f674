package tool

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

// Box is a sandbox for sessions.
type Box struct {
	Guest sandpit.Guest
	// Dir and User as in SessionOptions, for a session that does not share the sandbox.
	Dir, User string
	// Close releases the sandbox. It is called once.
	Close func(ctx context.Context) error
}

// SessionsOptions configure Sessions.
type SessionsOptions struct {
	// Open creates or finds a sandbox: the shared sandbox of a name, or a new one for "".
	Open func(ctx context.Context, shared string) (Box, error)
	// Most limits the sessions, including ended ones whose files are kept. Default: 100.
	Most int
	// Idle is the time without a call after which a session is cleaned up; its files are kept.
	// Default: never.
	Idle time.Duration
	// Servers as in SessionOptions.
	Servers mcpclient.Config
	// Expired, if set, is called when the cleanup of an idle session has failed.
	Expired func(id string, err error)
}

const (
	defaultSessions = 100
	// endTimeout bounds ending a session in the background.
	endTimeout = time.Minute
)

// Sessions are sessions by ID, each in its own sandbox or in a shared one. Sessions in a shared
// sandbox have separate users and directories, which isolate them: see docs/mcp.md for what
// they have in common. All methods may be called concurrently.
type Sessions struct {
	o     SessionsOptions
	claim string // identifies the sessions of this process in a shared sandbox
	stop  chan struct{}
	wg    sync.WaitGroup
	// creating counts running calls of Create.
	creating sync.WaitGroup

	mu     sync.Mutex
	byID   map[string]*sessionEntry
	shared map[string]*sandboxUse
	empty  []*sandboxUse // to be closed
	closed bool
}

// sessionEntry is a session and its sandbox.
type sessionEntry struct {
	id      string
	sandbox *sandboxUse
	session *Session // nil while it is created or ended, and when only its files are kept
	busy    bool     // it is being created or ended
	calls   int
	used    time.Time
	renewed atomic.Int64 // last renewal of its claim, in Unix nanoseconds
}

// sandboxUse is a sandbox and the number of its sessions.
type sandboxUse struct {
	name    string // "" if it is not shared
	opening sync.Mutex
	sandbox *Box // nil until it is open; guarded by opening
	tenants int  // guarded by Sessions.mu
}

// SessionRequest selects the session to create.
type SessionRequest struct {
	// ID is 1 to 64 letters and digits, and - _ . except at the beginning. Default: a new ID.
	ID string
	// Shared is the name of a shared sandbox. Default: the session has its own sandbox.
	Shared string
}

// SessionInfo describes a session.
type SessionInfo struct {
	ID        string    `json:"session_id"`
	Dir       string    `json:"workspace_path,omitempty"`
	Shared    string    `json:"shared,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	// Active is false for a session that was cleaned up and whose files are kept.
	Active bool `json:"active"`
}

// NewSessions returns an empty set of sessions. The caller must Close it.
func NewSessions(o SessionsOptions) *Sessions {
	if o.Most <= 0 {
		o.Most = defaultSessions
	}
	s := &Sessions{o: o, claim: rand.Text(), stop: make(chan struct{}), byID: map[string]*sessionEntry{}, shared: map[string]*sandboxUse{}}
	if o.Idle > 0 {
		s.wg.Go(s.runExpiry)
	}
	return s
}

// Create creates a session, or restarts one whose files were kept.
//
// Invalid: the ID. AlreadyExists: the session exists. Conflict: the files of that ID are in
// another sandbox. Exhausted: too many sessions. Otherwise errors of opening a sandbox.
func (s *Sessions) Create(ctx context.Context, r SessionRequest) (SessionInfo, error) {
	if r.ID == "" {
		r.ID = newSessionID()
	}
	if !sessionPattern().MatchString(r.ID) || r.Shared != "" && !sessionPattern().MatchString(r.Shared) {
		return SessionInfo{}, sandpit.Errorf(sandpit.Invalid, "invalid session %.100q in %.100q: want 1 to 64 letters and digits, and - _ . except at the beginning", r.ID, r.Shared)
	}
	t, fresh, err := s.reserveID(r)
	if err != nil {
		return SessionInfo{}, err
	}
	defer s.creating.Done()
	session, err := s.openSession(ctx, t)
	s.mu.Lock()
	t.busy, t.session, t.used = false, session, time.Now()
	info := t.toInfo()
	if err != nil && fresh {
		s.dropEntry(t)
	}
	s.mu.Unlock()
	if err != nil {
		return SessionInfo{}, errors.Join(err, s.closeEmpty(ctx))
	}
	return info, nil
}

// reserveID reserves an ID, and a place in a sandbox that need not be open.
//
// If it succeeds, the caller calls s.creating.Done after the creation. Fresh is false for a
// session whose files were kept.
func (s *Sessions) reserveID(r SessionRequest) (t *sessionEntry, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, sandpit.Errorf(sandpit.Gone, "the sessions have ended")
	}
	if t, there := s.byID[r.ID]; there {
		if t.busy || t.session != nil {
			return nil, false, sandpit.Errorf(sandpit.AlreadyExists, "session %s exists already", r.ID)
		}
		if t.sandbox.name != r.Shared {
			return nil, false, sandpit.Errorf(sandpit.Conflict, "the files of session %s are in another sandbox", r.ID)
		}
		t.busy = true
		s.creating.Add(1)
		return t, false, nil
	}
	if len(s.byID) >= s.o.Most {
		return nil, false, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: %d sessions, the maximum", s.o.Most), "clean up a session with its files")
	}
	box := s.shared[r.Shared]
	if r.Shared == "" || box == nil {
		box = &sandboxUse{name: r.Shared}
	}
	if r.Shared != "" {
		s.shared[r.Shared] = box
	}
	box.tenants++
	t = &sessionEntry{id: r.ID, sandbox: box, busy: true}
	s.byID[r.ID] = t
	s.creating.Add(1)
	return t, true, nil
}

// openSession opens the sandbox if it is not open, and starts the session in it.
func (s *Sessions) openSession(ctx context.Context, t *sessionEntry) (*Session, error) {
	b := t.sandbox
	b.opening.Lock()
	defer b.opening.Unlock()
	if b.sandbox == nil {
		box, err := s.o.Open(ctx, b.name)
		if err != nil {
			return nil, err
		}
		b.sandbox = &box
	}
	o := SessionOptions{ID: t.id, Dir: b.sandbox.Dir, User: b.sandbox.User, Servers: s.o.Servers}
	if b.name == "" {
		return NewSession(ctx, b.sandbox.Guest, o)
	}
	session, err := openShared(ctx, b.sandbox.Guest, o, s.newRequest("", t.id))
	if err == nil {
		t.renewed.Store(time.Now().UnixNano())
	}
	return session, err
}

// dropEntry removes a session, and marks its sandbox for closeEmpty if it has no other sessions. The
// caller holds mu.
func (s *Sessions) dropEntry(t *sessionEntry) {
	delete(s.byID, t.id)
	t.sandbox.tenants--
	if t.sandbox.tenants > 0 {
		return
	}
	if t.sandbox.name != "" {
		delete(s.shared, t.sandbox.name)
	}
	s.empty = append(s.empty, t.sandbox)
}

// closeEmpty closes sandboxes without sessions.
func (s *Sessions) closeEmpty(ctx context.Context) error {
	s.mu.Lock()
	empty := s.empty
	s.empty = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	var errs []error
	for _, b := range empty {
		b.opening.Lock()
		if b.sandbox != nil {
			errs = append(errs, b.sandbox.Close(ctx))
		}
		b.opening.Unlock()
	}
	return errors.Join(errs...)
}

// Use calls f with a session and keeps it active while f runs.
//
// NotFound: no such session. Gone: it was cleaned up.
func (s *Sessions) Use(id string, f func(*Session) error) error {
	s.mu.Lock()
	t, there := s.byID[id]
	if !there || t.session == nil || t.busy {
		s.mu.Unlock()
		return errNoSession(id, there)
	}
	t.calls++
	session := t.session
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.calls--
		t.used = time.Now()
	}()
	return f(session)
}

const (
	// claimLease is how long the claim on a session lasts after its connection was killed.
	claimLease = 2 * time.Minute
	// claimRenewal is the interval at which a session in use renews its claim.
	claimRenewal = claimLease / 4
)

// newRequest returns a request about a session in a shared sandbox, with this process's claim.
func (s *Sessions) newRequest(action applet.SessionsAction, id string) applet.SessionsRequest {
	return applet.SessionsRequest{Action: action, ID: id, Most: s.o.Most, Claim: s.claim, Lease: claimLease.Seconds()}
}

// Hold keeps a session active during a call and renews its claim in a shared sandbox, so that no
// other process takes it over. The caller calls release once.
//
// NotFound: no such session. Gone: it was cleaned up. Conflict: another process has taken it over.
func (s *Sessions) Hold(ctx context.Context, id string) (release func(), err error) {
	s.mu.Lock()
	t, there := s.byID[id]
	if !there || t.session == nil || t.busy {
		s.mu.Unlock()
		return nil, errNoSession(id, there)
	}
	t.calls++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.calls--
		t.used = time.Now()
	}
	if t.sandbox.name == "" {
		return leave, nil
	}
	if err := s.renewClaim(ctx, t); err != nil {
		leave()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var renewing sync.WaitGroup
	renewing.Go(func() {
		ticker := time.NewTicker(claimRenewal)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			_ = s.renewClaim(ctx, t) // the next call reports the error
		}
	})
	return func() {
		cancel()
		renewing.Wait()
		leave()
	}, nil
}

// renewClaim renews the claim of a session, unless it was renewed recently.
func (s *Sessions) renewClaim(ctx context.Context, t *sessionEntry) error {
	if time.Since(time.Unix(0, t.renewed.Load())) < claimRenewal/2 {
		return nil
	}
	_, err := manageSession(ctx, t.sandbox.sandbox.Guest, s.newRequest(applet.SessionRenew, t.id))
	if sandpit.CodeOf(err) == sandpit.Conflict {
		return sandpit.WithHint(err, "this connection was idle for too long; choose another name for one of the two")
	}
	if err != nil && sandpit.CodeOf(err) != sandpit.Invalid { // guests of earlier versions, which do not support claims, return Invalid
		return err
	}
	t.renewed.Store(time.Now().UnixNano())
	return nil
}

// errNoSession returns the error for a session that cannot be used.
func errNoSession(id string, there bool) error {
	if there {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "session %.100s has ended", id), "create it again to access its files")
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "session %.100q is not initialized", id), "create it first")
}

// List returns all sessions by ID, including those of which only files are kept.
func (s *Sessions) List() []SessionInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []SessionInfo{}
	for _, t := range s.byID {
		list = append(list, t.toInfo())
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return strings.Compare(a.ID, b.ID) })
	return list
}

func (t *sessionEntry) toInfo() SessionInfo {
	info := SessionInfo{ID: t.id, Shared: t.sandbox.name}
	if t.session != nil {
		info.Active, info.Dir, info.CreatedAt = true, t.session.Dir(), t.session.o.CreatedAt
	}
	return info
}

// Cleanup ends a session: its shells and all processes of its user. Running calls fail. If files is
// true it removes the files too; otherwise they are kept until the session is created again. A
// sandbox is closed when it has no files of sessions.
//
// NotFound: no such session.
func (s *Sessions) Cleanup(ctx context.Context, id string, files bool) error {
	s.mu.Lock()
	t, there := s.byID[id]
	if !there || t.busy {
		s.mu.Unlock()
		return sandpit.Errorf(sandpit.NotFound, "session %.100q not found", id)
	}
	session := t.session
	t.session, t.busy = nil, true
	s.mu.Unlock()

	err := s.endSession(ctx, t, session, files)
	gone := sandpit.CodeOf(err) == sandpit.Gone && hasEnded(ctx, t.sandbox.sandbox.Guest)
	s.mu.Lock()
	t.busy = false
	if gone { // the sandbox has ended, with the files
		files, err = true, nil
	}
	if files && err == nil {
		s.dropEntry(t)
	}
	s.mu.Unlock()
	return errors.Join(err, s.closeEmpty(ctx))
}

// endSession ends the processes of a session. The files of a session with its own sandbox are removed
// with the sandbox.
func (s *Sessions) endSession(ctx context.Context, t *sessionEntry, session *Session, files bool) error {
	var err error
	if session != nil {
		err = session.Close()
	}
	if t.sandbox.name == "" {
		return err
	}
	action := applet.SessionEnd
	if files {
		action = applet.SessionRemove
	}
	_, manageErr := manageSession(ctx, t.sandbox.sandbox.Guest, s.newRequest(action, t.id))
	if sandpit.CodeOf(manageErr) == sandpit.Conflict && !files {
		return err // another connection has taken over the session and its programs
	}
	if manageErr != nil {
		return fmt.Errorf("end session %s: %w", t.id, errors.Join(manageErr, err))
	}
	return err
}

// runExpiry cleans up idle sessions until stop is closed.
func (s *Sessions) runExpiry() {
	ticker := time.NewTicker(max(s.o.Idle/4, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		for _, id := range s.idleIDs() {
			ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
			if err := s.Cleanup(ctx, id, false); err != nil && s.o.Expired != nil {
				s.o.Expired(id, err)
			}
			cancel()
		}
	}
}

func (s *Sessions) idleIDs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ids []string
	for id, t := range s.byID {
		if t.session != nil && !t.busy && t.calls == 0 && time.Since(t.used) >= s.o.Idle {
			ids = append(ids, id)
		}
	}
	return ids
}

// Close ends all sessions and closes their sandboxes. It is idempotent.
func (s *Sessions) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	close(s.stop)
	s.wg.Wait()
	s.creating.Wait()
	var errs []error
	for _, info := range s.List() {
		errs = append(errs, s.Cleanup(ctx, info.ID, false))
	}
	s.mu.Lock()
	for _, t := range s.byID {
		s.dropEntry(t)
	}
	s.mu.Unlock()
	return errors.Join(append(errs, s.closeEmpty(ctx))...)
}
