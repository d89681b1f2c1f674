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
	// Dir and User as in SessionOptions, for a session that has the sandbox alone.
	Dir, User string
	// Close gives the sandbox back. It is called once.
	Close func(ctx context.Context) error
}

// SessionsOptions are what Sessions are like.
type SessionsOptions struct {
	// Open makes or finds a sandbox: the one that sessions share by a name, or for "" a new
	// one for a session alone.
	Open func(ctx context.Context, shared string) (Box, error)
	// Most is how many sessions there may be at a time, with those whose files are kept.
	// Default: 100.
	Most int
	// Idle is how long a session may be without a call before it is cleaned up; its files
	// are kept. Default: for ever.
	Idle time.Duration
	// Servers as in SessionOptions.
	Servers mcpclient.Config
	// Expired is told of what went wrong when an idle session was cleaned up. Default:
	// nobody.
	Expired func(id string, err error)
}

const (
	defaultSessions = 100
	// endTimeout bounds the end of a session that nobody waits for.
	endTimeout = time.Minute
)

// Sessions are sessions by ID, each in a sandbox of its own or in one that several share.
// Those that share one have a user and a directory each, and are kept apart by what that
// gives: see docs/mcp.md for what stays common. All methods may be called concurrently.
type Sessions struct {
	o     SessionsOptions
	claim string // what tells its sessions in a sandbox from those of other processes
	stop  chan struct{}
	wg    sync.WaitGroup
	// creating are calls of Create that have begun.
	creating sync.WaitGroup

	mu     sync.Mutex
	byID   map[string]*sessionEntry
	shared map[string]*sandboxUse
	empty  []*sandboxUse // to be given back
	closed bool
}

// sessionEntry is a session and where it is.
type sessionEntry struct {
	id      string
	sandbox *sandboxUse
	session *Session // nil while it is made, while it ends, and when only its files are kept
	busy    bool     // it is being made or ended
	calls   int
	used    time.Time
	renewed atomic.Int64 // when its claim was renewed, in nanoseconds since 1970
}

// sandboxUse is a sandbox and how many tenancies are in it.
type sandboxUse struct {
	name    string // "" for one of one session
	opening sync.Mutex
	sandbox *Box // nil until it is open; guarded by opening
	tenants int  // guarded by Sessions.mu
}

// SessionRequest says what session is wanted.
type SessionRequest struct {
	// ID names it: letters, digits, and inside also - _ and dots, at most 64. Default: a
	// new one.
	ID string
	// Shared names the sandbox that it shares with others who name it. Default: it has one
	// of its own.
	Shared string
}

// SessionInfo describes a session.
type SessionInfo struct {
	ID        string    `json:"session_id"`
	Dir       string    `json:"workspace_path,omitempty"`
	Shared    string    `json:"shared,omitempty"`
	CreatedAt time.Time `json:"created_at,omitzero"`
	// Active is false for one that was cleaned up and whose files are kept.
	Active bool `json:"active"`
}

// NewSessions returns none yet. The caller must Close it.
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

// Create makes a session, or takes up one again whose files were kept.
//
// Invalid: the ID. AlreadyExists: there is one. Conflict: the files of that ID are in
// another sandbox. Exhausted: there are too many. The errors of opening a sandbox.
func (s *Sessions) Create(ctx context.Context, r SessionRequest) (SessionInfo, error) {
	if r.ID == "" {
		r.ID = newSessionID()
	}
	if !sessionPattern.MatchString(r.ID) || r.Shared != "" && !sessionPattern.MatchString(r.Shared) {
		return SessionInfo{}, sandpit.Errorf(sandpit.Invalid, "session %.100q in %.100q: want letters, digits, and inside also - _ and dots, at most 64", r.ID, r.Shared)
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

// reserveID takes an ID, and a place in a sandbox that need not be open.
//
// If it succeeds, creating is to be told when the session is made or not. Fresh is false
// for a session whose files were kept.
func (s *Sessions) reserveID(r SessionRequest) (t *sessionEntry, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, sandpit.Errorf(sandpit.Gone, "the sessions have ended")
	}
	if t, there := s.byID[r.ID]; there {
		if t.busy || t.session != nil {
			return nil, false, sandpit.Errorf(sandpit.AlreadyExists, "there is a session %s already", r.ID)
		}
		if t.sandbox.name != r.Shared {
			return nil, false, sandpit.Errorf(sandpit.Conflict, "the files of session %s are in another sandbox", r.ID)
		}
		t.busy = true
		s.creating.Add(1)
		return t, false, nil
	}
	if len(s.byID) >= s.o.Most {
		return nil, false, sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "there are %d sessions, which is all there may be", s.o.Most), "clean up one with its files")
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

// openSession opens the sandbox, if nobody has, and begins the session in it.
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

// dropEntry forgets a session, and its sandbox if nobody else is in it. The caller holds the
// lock, which is not held while the sandbox is given back.
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

// closeEmpty gives back sandboxes in which nobody is any more.
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

// Use calls f with a session, which stays while f runs. NotFound. Gone: it was cleaned up.
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
	// claimLease is how long the session of a connection that was killed stays its own.
	claimLease = 2 * time.Minute
	// claimRenewal is how often a session that is used renews its claim.
	claimRenewal = claimLease / 4
)

// newRequest asks for something about a session in a shared sandbox, as this process.
func (s *Sessions) newRequest(action applet.SessionsAction, id string) applet.SessionsRequest {
	return applet.SessionsRequest{Action: action, ID: id, Most: s.o.Most, Claim: s.claim, Lease: claimLease.Seconds()}
}

// Hold keeps a session for a call, so that no other process takes it over: a session in a
// shared sandbox has a claim there that ends unless it is renewed. The caller calls release
// once.
//
// NotFound. Gone: it was cleaned up. Conflict: another process has taken it over meanwhile.
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
			_ = s.renewClaim(ctx, t) // the next call reports what is wrong
		}
	})
	return func() {
		cancel()
		renewing.Wait()
		leave()
	}, nil
}

// renewClaim renews the claim of a session, unless that was done a short while ago.
func (s *Sessions) renewClaim(ctx context.Context, t *sessionEntry) error {
	if time.Since(time.Unix(0, t.renewed.Load())) < claimRenewal/2 {
		return nil
	}
	_, err := manageSession(ctx, t.sandbox.sandbox.Guest, s.newRequest(applet.SessionRenew, t.id))
	if sandpit.CodeOf(err) == sandpit.Conflict {
		return sandpit.WithHint(err, "this connection made no call for too long; choose another name for one of the two")
	}
	if err != nil && sandpit.CodeOf(err) != sandpit.Invalid { // which a guest of an earlier version says, that knows no claims
		return err
	}
	t.renewed.Store(time.Now().UnixNano())
	return nil
}

// errNoSession is why a session cannot be used.
func errNoSession(id string, there bool) error {
	if there {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Gone, "session %.100s has ended", id), "create it again to have its files")
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "session %.100q is not initialized", id), "create it first")
}

// List returns all sessions in the order of their IDs, those with it whose files are kept.
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

// Cleanup ends a session: its shells and programs, and what else its user runs. Calls that
// go on fail. With files they are removed too, else they are kept for who creates the
// session again; a sandbox goes when nobody's files are in it. NotFound.
func (s *Sessions) Cleanup(ctx context.Context, id string, files bool) error {
	s.mu.Lock()
	t, there := s.byID[id]
	if !there || t.busy {
		s.mu.Unlock()
		return sandpit.Errorf(sandpit.NotFound, "there is no session %.100q", id)
	}
	session := t.session
	t.session, t.busy = nil, true
	s.mu.Unlock()

	err := s.endSession(ctx, t, session, files)
	gone := sandpit.CodeOf(err) == sandpit.Gone && hasEnded(ctx, t.sandbox.sandbox.Guest)
	s.mu.Lock()
	t.busy = false
	if gone { // the sandbox, and so all of it
		files, err = true, nil
	}
	if files && err == nil {
		s.dropEntry(t)
	}
	s.mu.Unlock()
	return errors.Join(err, s.closeEmpty(ctx))
}

// endSession ends what a session runs. One that has its sandbox alone takes it along with its
// files.
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
		return err // another connection has taken the session over, and its programs with it
	}
	if manageErr != nil {
		return fmt.Errorf("end session %s: %w", t.id, errors.Join(manageErr, err))
	}
	return err
}

// runExpiry cleans up what nobody uses.
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

// Close ends all sessions and gives their sandboxes back. It is idempotent.
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
