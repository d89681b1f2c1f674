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
	// cleanupTime bounds the end of a session that nobody waits for.
	cleanupTime = time.Minute
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
	byID   map[string]*tenancy
	shared map[string]*boxUse
	empty  []*boxUse // to be given back
	closed bool
}

// tenancy is a session and where it is.
type tenancy struct {
	id      string
	box     *boxUse
	session *Session // nil while it is made, while it ends, and when only its files are kept
	busy    bool     // it is being made or ended
	calls   int
	used    time.Time
	renewed atomic.Int64 // when its claim was renewed, in nanoseconds since 1970
}

// boxUse is a sandbox and how many tenancies are in it.
type boxUse struct {
	name    string // "" for one of one session
	opening sync.Mutex
	box     *Box // nil until it is open; guarded by opening
	count   int  // guarded by Sessions.mu
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
	s := &Sessions{o: o, claim: rand.Text(), stop: make(chan struct{}), byID: map[string]*tenancy{}, shared: map[string]*boxUse{}}
	if o.Idle > 0 {
		s.wg.Go(s.expire)
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
	t, fresh, err := s.reserve(r)
	if err != nil {
		return SessionInfo{}, err
	}
	defer s.creating.Done()
	session, err := s.enter(ctx, t)
	s.mu.Lock()
	t.busy, t.session, t.used = false, session, time.Now()
	info := t.info()
	if err != nil && fresh {
		s.drop(t)
	}
	s.mu.Unlock()
	if err != nil {
		return SessionInfo{}, errors.Join(err, s.giveBack(ctx))
	}
	return info, nil
}

// reserve takes an ID, and a place in a sandbox that need not be open.
//
// If it succeeds, creating is to be told when the session is made or not. Fresh is false
// for a session whose files were kept.
func (s *Sessions) reserve(r SessionRequest) (t *tenancy, fresh bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, false, sandpit.Errorf(sandpit.Gone, "the sessions have ended")
	}
	if t, there := s.byID[r.ID]; there {
		if t.busy || t.session != nil {
			return nil, false, sandpit.Errorf(sandpit.AlreadyExists, "there is a session %s already", r.ID)
		}
		if t.box.name != r.Shared {
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
		box = &boxUse{name: r.Shared}
	}
	if r.Shared != "" {
		s.shared[r.Shared] = box
	}
	box.count++
	t = &tenancy{id: r.ID, box: box, busy: true}
	s.byID[r.ID] = t
	s.creating.Add(1)
	return t, true, nil
}

// enter opens the sandbox, if nobody has, and begins the session in it.
func (s *Sessions) enter(ctx context.Context, t *tenancy) (*Session, error) {
	b := t.box
	b.opening.Lock()
	defer b.opening.Unlock()
	if b.box == nil {
		box, err := s.o.Open(ctx, b.name)
		if err != nil {
			return nil, err
		}
		b.box = &box
	}
	o := SessionOptions{ID: t.id, Dir: b.box.Dir, User: b.box.User, Servers: s.o.Servers}
	if b.name == "" {
		return NewSession(ctx, b.box.Guest, o)
	}
	session, err := join(ctx, b.box.Guest, o, s.request("", t.id))
	if err == nil {
		t.renewed.Store(time.Now().UnixNano())
	}
	return session, err
}

// drop forgets a session, and its sandbox if nobody else is in it. The caller holds the
// lock, which is not held while the sandbox is given back.
func (s *Sessions) drop(t *tenancy) {
	delete(s.byID, t.id)
	t.box.count--
	if t.box.count > 0 {
		return
	}
	if t.box.name != "" {
		delete(s.shared, t.box.name)
	}
	s.empty = append(s.empty, t.box)
}

// giveBack gives back sandboxes in which nobody is any more.
func (s *Sessions) giveBack(ctx context.Context) error {
	s.mu.Lock()
	empty := s.empty
	s.empty = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
	defer cancel()
	var errs []error
	for _, b := range empty {
		b.opening.Lock()
		if b.box != nil {
			errs = append(errs, b.box.Close(ctx))
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
		return missingSession(id, there)
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

// request asks for something about a session in a shared sandbox, as this process.
func (s *Sessions) request(action applet.SessionsAction, id string) applet.SessionsRequest {
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
		return nil, missingSession(id, there)
	}
	t.calls++
	s.mu.Unlock()
	leave := func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		t.calls--
		t.used = time.Now()
	}
	if t.box.name == "" {
		return leave, nil
	}
	if err := s.renew(ctx, t); err != nil {
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
			_ = s.renew(ctx, t) // the next call reports what is wrong
		}
	})
	return func() {
		cancel()
		renewing.Wait()
		leave()
	}, nil
}

// renew renews the claim of a session, unless that was done a short while ago.
func (s *Sessions) renew(ctx context.Context, t *tenancy) error {
	if time.Since(time.Unix(0, t.renewed.Load())) < claimRenewal/2 {
		return nil
	}
	_, err := manage(ctx, t.box.box.Guest, s.request(applet.SessionRenew, t.id))
	if sandpit.CodeOf(err) == sandpit.Conflict {
		return sandpit.WithHint(err, "this connection made no call for too long; choose another name for one of the two")
	}
	if err != nil && sandpit.CodeOf(err) != sandpit.Invalid { // which a guest of an earlier version says, that knows no claims
		return err
	}
	t.renewed.Store(time.Now().UnixNano())
	return nil
}

// missingSession is why a session cannot be used.
func missingSession(id string, there bool) error {
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
		list = append(list, t.info())
	}
	slices.SortFunc(list, func(a, b SessionInfo) int { return strings.Compare(a.ID, b.ID) })
	return list
}

func (t *tenancy) info() SessionInfo {
	info := SessionInfo{ID: t.id, Shared: t.box.name}
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

	err := s.end(ctx, t, session, files)
	gone := sandpit.CodeOf(err) == sandpit.Gone && ended(ctx, t.box.box.Guest)
	s.mu.Lock()
	t.busy = false
	if gone { // the sandbox, and so all of it
		files, err = true, nil
	}
	if files && err == nil {
		s.drop(t)
	}
	s.mu.Unlock()
	return errors.Join(err, s.giveBack(ctx))
}

// end ends what a session runs. One that has its sandbox alone takes it along with its
// files.
func (s *Sessions) end(ctx context.Context, t *tenancy, session *Session, files bool) error {
	var err error
	if session != nil {
		err = session.Close()
	}
	if t.box.name == "" {
		return err
	}
	action := applet.SessionEnd
	if files {
		action = applet.SessionRemove
	}
	_, manageErr := manage(ctx, t.box.box.Guest, s.request(action, t.id))
	if sandpit.CodeOf(manageErr) == sandpit.Conflict && !files {
		return err // another connection has taken the session over, and its programs with it
	}
	if manageErr != nil {
		return fmt.Errorf("end session %s: %w", t.id, errors.Join(manageErr, err))
	}
	return err
}

// expire cleans up what nobody uses.
func (s *Sessions) expire() {
	ticker := time.NewTicker(max(s.o.Idle/4, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-ticker.C:
		}
		for _, id := range s.idle() {
			ctx, cancel := context.WithTimeout(context.Background(), cleanupTime)
			if err := s.Cleanup(ctx, id, false); err != nil && s.o.Expired != nil {
				s.o.Expired(id, err)
			}
			cancel()
		}
	}
}

func (s *Sessions) idle() []string {
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
		s.drop(t)
	}
	s.mu.Unlock()
	return errors.Join(append(errs, s.giveBack(ctx))...)
}
