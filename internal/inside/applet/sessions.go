package applet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// Sessions is the applet that makes and ends the users of sessions that share a sandbox.
// Root must run it. A user is a number and a directory that is theirs alone: the image
// needs no list of users, and none is changed. A number is never given twice, so that
// nobody inherits what another has left behind.
const Sessions = "sessions"

// SessionsDir is where the directories of sessions are.
const SessionsDir = "/sessions"

// SessionsRequest says what to do.
type SessionsRequest struct {
	Action SessionsAction `json:"action"`
	// ID names the session, but for a list.
	ID string `json:"id,omitempty"`
	// Most is how many sessions there may be, for one that is made. Default: 1000.
	Most int `json:"most,omitempty"`
	// Claim is a secret of the connection that uses the session, and Lease how many seconds
	// no other may from now on. Default: nothing is claimed.
	Claim string  `json:"claim,omitempty"`
	Lease float64 `json:"lease,omitempty"`
}

// SessionsAction is what is done with sessions.
type SessionsAction string

// The actions.
const (
	// SessionMake makes a session's user. AlreadyExists; Exhausted: there are too many.
	SessionMake SessionsAction = "make"
	// SessionFind finds one that was made before. NotFound. Conflict: another connection
	// uses it.
	SessionFind SessionsAction = "find"
	// SessionRenew extends a claim. NotFound. Conflict: another connection has it now.
	SessionRenew SessionsAction = "renew"
	// SessionList lists them all.
	SessionList SessionsAction = "list"
	// SessionEnd kills all processes of a session's user and gives up the claim. NotFound.
	// Conflict: another connection uses it.
	SessionEnd SessionsAction = "end"
	// SessionRemove does so, and removes the directory and what the user has left in
	// those that are everybody's. Errors as with SessionEnd.
	SessionRemove SessionsAction = "remove"
)

// SessionsAnswer is the answer: one session, but for a list.
type SessionsAnswer struct {
	Sessions []SessionUser `json:"sessions"`
}

// SessionUser is who a session is inside.
type SessionUser struct {
	ID string `json:"id"`
	// UID is the user's number and the group's.
	UID int `json:"uid"`
	// Dir is the directory.
	Dir       string    `json:"dir"`
	CreatedAt time.Time `json:"created_at"`
}

const (
	// sessionState is where root keeps what it knows of sessions. No ID begins with a dot.
	sessionState    = ".state"
	sessionNext     = "next"
	sessionLock     = "lock"
	sessionSuffix   = ".json"
	defaultSessions = 1000
	// sessionTemp is where a session's temporary files are, in its directory.
	sessionTemp = ".tmp"
	// killRounds bounds a race against processes that start others.
	killRounds = 50
	killWait   = 20 * time.Millisecond
)

// SessionTemp is where the temporary files of a session with this directory are.
func SessionTemp(dir string) string { return filepath.Join(dir, sessionTemp) }

var sessionID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func manageSessions(ctx context.Context, r SessionsRequest) (SessionsAnswer, error) {
	if os.Getuid() != 0 {
		return SessionsAnswer{}, sandpit.Errorf(sandpit.Unsupported, "only root of the sandbox makes users for sessions")
	}
	if r.Action != SessionList && !sessionID.MatchString(r.ID) {
		return SessionsAnswer{}, sandpit.Errorf(sandpit.Invalid, "session %.100q: not a name", r.ID)
	}
	store, err := openSessions(SessionsDir)
	if err != nil {
		return SessionsAnswer{}, err
	}
	defer store.unlock()
	if r.Action == SessionList {
		list, err := store.listSessions()
		return SessionsAnswer{list}, err
	}
	if r.Action != SessionList {
		if err := store.claimSession(r); err != nil {
			return SessionsAnswer{}, err
		}
	}
	var user SessionUser
	switch r.Action {
	case SessionMake:
		user, err = store.createSession(r)
	case SessionFind, SessionRenew:
		user, err = store.findSession(r.ID)
	case SessionEnd:
		user, err = store.endSession(ctx, r.ID)
	case SessionRemove:
		user, err = store.removeSession(ctx, r.ID)
	case SessionList: // above
	default:
		err = sandpit.Errorf(sandpit.Invalid, "sessions: there is no action %.100q", string(r.Action))
	}
	return SessionsAnswer{[]SessionUser{user}}, err
}

// sessionStore is what there is of sessions, locked against others who manage them.
type sessionStore struct {
	dir  *beneath.Root
	name string
	lock *os.File
}

// openSessions makes what is missing. Nobody but root can change the directory, so
// nobody can have one of it be another's.
func openSessions(name string) (*sessionStore, error) {
	if err := os.Mkdir(name, 0o711); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // each session goes through it to its own
		return nil, err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || st.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return nil, sandpit.Errorf(sandpit.Conflict, "%s is not a directory of root's alone, as that of sessions has to be", name)
	}
	dir, err := beneath.Open(name)
	if err != nil {
		return nil, err
	}
	b := &sessionStore{dir: dir, name: name}
	if err := dir.Mkdir(sessionState, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, errors.Join(err, dir.Close())
	}
	b.lock, err = dir.OpenFile(filepath.Join(sessionState, sessionLock), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err == nil {
		err = syscall.Flock(int(b.lock.Fd()), syscall.LOCK_EX)
	}
	if err != nil {
		return nil, errors.Join(err, dir.Close())
	}
	return b, nil
}

// unlock lets go of the lock, which has nothing written to it.
func (b *sessionStore) unlock() {
	_ = b.lock.Close()
	_ = b.dir.Close()
}

func recordName(id string) string { return filepath.Join(sessionState, id+sessionSuffix) }

func (b *sessionStore) readFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(b.name, name)) // root's directories all the way
}

func (b *sessionStore) writeFile(name string, data []byte) error {
	return os.WriteFile(filepath.Join(b.name, name), data, 0o600)
}

// sessionClaim says which connection uses a session, and until when no other may.
type sessionClaim struct {
	Claim string    `json:"claim"`
	Until time.Time `json:"until"`
}

func claimName(id string) string { return filepath.Join(sessionState, id+".claim") }

// claimSession checks that no other connection uses a session, and takes it for this one. The claim
// of a connection that was killed ends by itself.
func (b *sessionStore) claimSession(r SessionsRequest) error {
	if r.Claim == "" {
		return nil
	}
	var held sessionClaim
	data, err := b.readFile(claimName(r.ID))
	if err == nil {
		err = json.Unmarshal(data, &held)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	other := held.Claim != "" && held.Claim != r.Claim
	if other && (r.Action != SessionFind && r.Action != SessionMake || time.Now().Before(held.Until)) {
		return sandpit.Errorf(sandpit.Conflict, "another connection uses session %s", r.ID)
	}
	switch r.Action {
	case SessionEnd, SessionRemove:
		if err := os.Remove(filepath.Join(b.name, claimName(r.ID))); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	case SessionMake:
		if _, err := b.findSession(r.ID); err == nil {
			return nil // it is there already, which create reports
		}
	case SessionFind, SessionRenew, SessionList:
	}
	data, err = json.Marshal(sessionClaim{r.Claim, time.Now().Add(time.Duration(r.Lease * float64(time.Second)))})
	if err != nil {
		return err
	}
	return b.writeFile(claimName(r.ID), data)
}

func (b *sessionStore) findSession(id string) (SessionUser, error) {
	data, err := b.readFile(recordName(id))
	if errors.Is(err, fs.ErrNotExist) {
		return SessionUser{}, sandpit.Errorf(sandpit.NotFound, "there is no session %s in this sandbox", id)
	}
	var user SessionUser
	if err == nil {
		err = json.Unmarshal(data, &user)
	}
	if err == nil && (user.UID < sandpit.FirstSessionUID || user.UID > sandpit.LastSessionUID) {
		err = sandpit.Errorf(sandpit.Internal, "session %s: its record has the user %d", id, user.UID)
	}
	return user, err
}

func (b *sessionStore) listSessions() ([]SessionUser, error) {
	entries, err := os.ReadDir(filepath.Join(b.name, sessionState))
	if err != nil {
		return nil, err
	}
	users := []SessionUser{}
	for _, e := range entries {
		id, isRecord := strings.CutSuffix(e.Name(), sessionSuffix)
		if !isRecord {
			continue
		}
		user, err := b.findSession(id)
		if err != nil {
			return nil, err
		}
		users = append(users, user)
	}
	slices.SortFunc(users, func(a, b SessionUser) int { return a.UID - b.UID })
	return users, nil
}

// createSession takes a number before anything else, so that one that breaks off has wasted it
// at most.
func (b *sessionStore) createSession(r SessionsRequest) (SessionUser, error) {
	if _, err := b.findSession(r.ID); sandpit.CodeOf(err) != sandpit.NotFound {
		if err == nil {
			err = sandpit.Errorf(sandpit.AlreadyExists, "there is a session %s in this sandbox already", r.ID)
		}
		return SessionUser{}, err
	}
	there, err := b.listSessions()
	if err != nil {
		return SessionUser{}, err
	}
	most := r.Most
	if most <= 0 {
		most = defaultSessions
	}
	if len(there) >= most {
		return SessionUser{}, sandpit.Errorf(sandpit.Exhausted, "this sandbox has %d sessions, which is all there may be", most)
	}
	uid, err := b.nextUID()
	if err != nil {
		return SessionUser{}, err
	}
	user := SessionUser{ID: r.ID, UID: uid, Dir: filepath.Join(b.name, r.ID), CreatedAt: time.Now().UTC()}
	for _, dir := range []string{r.ID, filepath.Join(r.ID, sessionTemp)} {
		if err := b.makeOwn(dir, uid); err != nil {
			return SessionUser{}, err
		}
	}
	data, err := json.Marshal(user)
	if err != nil {
		return SessionUser{}, err
	}
	return user, b.writeFile(recordName(r.ID), data)
}

// makeOwn makes a directory of a user's own. One that is there is left of a creation that
// broke off, and has nothing in it that somebody could use.
func (b *sessionStore) makeOwn(dir string, uid int) error {
	if err := b.dir.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return b.dir.Lchown(dir, uid, uid)
}

func (b *sessionStore) nextUID() (int, error) {
	next := sandpit.FirstSessionUID
	name := filepath.Join(sessionState, sessionNext)
	data, err := b.readFile(name)
	if err == nil {
		next, err = strconv.Atoi(string(bytes.TrimSpace(data)))
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	if next < sandpit.FirstSessionUID || next > sandpit.LastSessionUID {
		return 0, sandpit.Errorf(sandpit.Exhausted, "this sandbox has had %d sessions, which is all there can be", sandpit.LastSessionUID-sandpit.FirstSessionUID+1)
	}
	return next, b.writeFile(name, []byte(strconv.Itoa(next+1)))
}

// endSession kills what the user runs.
func (b *sessionStore) endSession(ctx context.Context, id string) (SessionUser, error) {
	user, err := b.findSession(id)
	if err != nil {
		return user, err
	}
	for range killRounds {
		// As the user, all at once: who is killed one by one can start others meanwhile.
		err := asUser(user.UID, func() error {
			if err := syscall.Kill(-1, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return os.NewSyscallError("kill", err)
			}
			return nil
		})
		if err != nil {
			return user, err
		}
		left, err := runningAs(user.UID)
		if err != nil || len(left) == 0 {
			return user, err
		}
		select {
		case <-ctx.Done():
			return user, ctx.Err()
		case <-time.After(killWait):
		}
	}
	return user, sandpit.Errorf(sandpit.Conflict, "session %s: its processes start others faster than they are killed", id)
}

// publicDirs are where every user can leave something.
func publicDirs() []string { return []string{"/tmp", "/var/tmp", "/dev/shm"} }

func (b *sessionStore) removeSession(ctx context.Context, id string) (SessionUser, error) {
	user, err := b.endSession(ctx, id)
	if err != nil {
		return user, err
	}
	// Others can change these meanwhile, so it is done with no other rights than the user's.
	err = asUser(user.UID, func() error { return removeOwn(user.UID) })
	if err != nil {
		return user, err
	}
	if err := b.dir.RemoveTree(ctx, id); err != nil {
		return user, err
	}
	return user, os.Remove(filepath.Join(b.name, recordName(id)))
}

// removeOwn removes what a user has left in the directories that are everybody's.
func removeOwn(uid int) error {
	for _, dir := range publicDirs() {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
			continue
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			info, err := e.Info()
			if err != nil {
				continue // taken away meanwhile
			}
			if st, ok := info.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != uid {
				continue
			}
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// asUser calls f with a user's rights: on a thread that has them for good, and so ends
// with it.
func asUser(uid int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		// By themselves, these calls are for one thread.
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_SETRESGID, uintptr(uid), uintptr(uid), uintptr(uid))
		}
		if errno == 0 {
			_, _, errno = syscall.RawSyscall(syscall.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid))
		}
		if errno != 0 {
			done <- os.NewSyscallError("become a user", errno)
			return
		}
		done <- f()
	}()
	return <-done
}

// runningAs returns the processes of a user. Who owns a process's directory does not tell
// whose it is: a process can have it be root's.
func runningAs(uid int) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		status, err := os.ReadFile(filepath.Join("/proc", e.Name(), "status"))
		if err == nil && isRunningAs(string(status), uid) { // else it has ended
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isRunningAs reads /proc/PID/status. The name, which a program chooses, comes first and
// cannot hold a line of its own.
func isRunningAs(status string, uid int) bool {
	state, ids := "", ""
	for line := range strings.Lines(status) {
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "State":
			state = strings.TrimSpace(value)
		case "Uid":
			ids = value
		}
	}
	return !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X") && slices.Contains(strings.Fields(ids), strconv.Itoa(uid))
}
