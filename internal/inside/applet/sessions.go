package applet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// Sessions is the applet that creates and removes the users of sessions that share a sandbox. Root must run it. A
// user is a number and a directory of its own: the image needs no list of users, and none is changed. A number is
// never reused, so a user cannot inherit files that another has left.
const Sessions = "sessions"

// SessionsDir contains the directories of sessions.
const SessionsDir = "/sessions"

// SessionsRequest says what to do.
type SessionsRequest struct {
	Action SessionsAction `json:"action"`
	// ID names the session. It is not used for a list.
	ID string `json:"id,omitempty"`
	// Most is how many sessions may exist when one is created. Default: 1000.
	Most int `json:"most,omitempty"`
	// Claim is a secret of the connection that uses the session, and Lease how many seconds no other connection may
	// use it. Default: nothing is claimed.
	Claim string  `json:"claim,omitempty"`
	Lease float64 `json:"lease,omitempty"`
}

// SessionsAction is an action on sessions.
type SessionsAction string

// The actions.
const (
	// SessionMake creates a session's user. AlreadyExists; Exhausted: there are too many.
	SessionMake SessionsAction = "make"
	// SessionFind returns an existing session. NotFound. Conflict: another connection uses it.
	SessionFind SessionsAction = "find"
	// SessionRenew extends a claim. NotFound. Conflict: another connection has claimed it.
	SessionRenew SessionsAction = "renew"
	// SessionList returns all sessions.
	SessionList SessionsAction = "list"
	// SessionEnd kills all processes of a session's user and ends the claim. NotFound. Conflict: another connection
	// uses it.
	SessionEnd SessionsAction = "end"
	// SessionRemove does the same, and removes the session's directory and the files that the user has left in public
	// directories. Errors as with SessionEnd.
	SessionRemove SessionsAction = "remove"
)

// SessionsAnswer is the answer of Sessions: one session, or all for a list.
type SessionsAnswer struct {
	Sessions []SessionUser `json:"sessions"`
}

// SessionUser is the user of a session in the sandbox.
type SessionUser struct {
	ID string `json:"id"`
	// UID is the number of the user and of its group.
	UID int `json:"uid"`
	// Dir is the user's directory.
	Dir       string    `json:"dir"`
	CreatedAt time.Time `json:"created_at"`
}

const (
	// sessionState is the directory with the records of sessions, accessible to root only. No ID begins with a dot.
	sessionState    = ".state"
	sessionNext     = "next"
	sessionLock     = "lock"
	sessionSuffix   = ".json"
	defaultSessions = 1000
	// sessionTemp is the directory for temporary files in a session's directory.
	sessionTemp = ".tmp"
	// killRounds bounds a race against processes that start others.
	killRounds = 50
	killWait   = 20 * time.Millisecond
)

// SessionTemp returns the directory for temporary files of a session with this directory.
func SessionTemp(dir string) string { return filepath.Join(dir, sessionTemp) }

var sessionID = pattern.New(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

func manageSessions(ctx context.Context, r SessionsRequest) (SessionsAnswer, error) {
	if os.Getuid() != 0 {
		return SessionsAnswer{}, sandpit.Errorf(sandpit.Unsupported, "users for sessions can be created only by root of the sandbox")
	}
	if r.Action != SessionList && !sessionID().MatchString(r.ID) {
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
		err = sandpit.Errorf(sandpit.Invalid, "sessions: unknown action %.100q", string(r.Action))
	}
	return SessionsAnswer{[]SessionUser{user}}, err
}

// sessionStore holds the records of sessions. It is locked against other processes.
type sessionStore struct {
	dir  *beneath.Root
	name string
	lock *os.File
}

// openSessions opens and locks the store; it creates missing directories. Only root can change the directory, so no
// user can replace a session's directory by another's.
func openSessions(name string) (*sessionStore, error) {
	if err := os.Mkdir(name, 0o711); err != nil && !errors.Is(err, fs.ErrExist) { //nolint:gosec // users must reach their own directories
		return nil, err
	}
	info, err := os.Lstat(name)
	if err != nil {
		return nil, err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || st.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return nil, sandpit.Errorf(sandpit.Conflict, "%s must be a directory that only root can change", name)
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

// unlock releases the lock.
func (b *sessionStore) unlock() {
	_ = b.lock.Close()
	_ = b.dir.Close()
}

func recordName(id string) string { return filepath.Join(sessionState, id+sessionSuffix) }

func (b *sessionStore) readFile(name string) ([]byte, error) {
	return os.ReadFile(filepath.Join(b.name, name)) // only root can change the directories above it
}

func (b *sessionStore) writeFile(name string, data []byte) error {
	return os.WriteFile(filepath.Join(b.name, name), data, 0o600)
}

// sessionClaim says which connection uses a session, and until when no other may use it.
type sessionClaim struct {
	Claim string    `json:"claim"`
	Until time.Time `json:"until"`
}

func claimName(id string) string { return filepath.Join(sessionState, id+".claim") }

// claimSession checks that no other connection uses a session, and claims it for this one. The claim of a connection
// that was killed expires.
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
			return nil // it exists, which createSession reports
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
		return SessionUser{}, sandpit.Errorf(sandpit.NotFound, "session %s does not exist in this sandbox", id)
	}
	var user SessionUser
	if err == nil {
		err = json.Unmarshal(data, &user)
	}
	if err == nil && (user.UID < sandpit.FirstSessionUID || user.UID > sandpit.LastSessionUID) {
		err = sandpit.Errorf(sandpit.Internal, "session %s: invalid user %d in its record", id, user.UID)
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

// createSession creates a session's user and directories. It reserves the number first, so a creation that is
// interrupted wastes at most one number.
func (b *sessionStore) createSession(r SessionsRequest) (SessionUser, error) {
	if _, err := b.findSession(r.ID); sandpit.CodeOf(err) != sandpit.NotFound {
		if err == nil {
			err = sandpit.Errorf(sandpit.AlreadyExists, "session %s already exists in this sandbox", r.ID)
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
		return SessionUser{}, sandpit.Errorf(sandpit.Exhausted, "this sandbox has %d sessions, which is the limit", most)
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

// makeOwn creates a directory for a user. An existing one is left from an interrupted creation and is empty.
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
		return 0, sandpit.Errorf(sandpit.Exhausted, "this sandbox has had %d sessions, which is the limit", sandpit.LastSessionUID-sandpit.FirstSessionUID+1)
	}
	return next, b.writeFile(name, []byte(strconv.Itoa(next+1)))
}

// endSession kills all processes of a session's user.
func (b *sessionStore) endSession(ctx context.Context, id string) (SessionUser, error) {
	user, err := b.findSession(id)
	if err != nil {
		return user, err
	}
	for range killRounds {
		// As the user, with one call for all: processes killed one by one could start others meanwhile.
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

// publicDirs returns the directories in which every user can leave files.
func publicDirs() []string { return []string{"/tmp", "/var/tmp", "/dev/shm"} }

func (b *sessionStore) removeSession(ctx context.Context, id string) (SessionUser, error) {
	user, err := b.endSession(ctx, id)
	if err != nil {
		return user, err
	}
	// Other users can change these directories meanwhile, so this runs with only the user's rights.
	err = asUser(user.UID, func() error { return removeOwn(user.UID) })
	if err != nil {
		return user, err
	}
	if err := b.dir.RemoveTree(ctx, id); err != nil {
		return user, err
	}
	return user, os.Remove(filepath.Join(b.name, recordName(id)))
}

// removeOwn removes the files that a user has left in public directories.
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
				continue // removed meanwhile
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

// asUser calls f with a user's rights, on a thread that keeps them and ends afterwards.
func asUser(uid int, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		// Raw system calls change only the current thread.
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

// runningAs returns the processes of a user. The owner of a process's directory in /proc does not identify the user:
// a process can make root the owner.
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
		if err == nil && isRunningAs(string(status), uid) { // otherwise it has ended
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// isRunningAs parses /proc/PID/status. The name, which a program chooses, comes first and cannot contain a newline.
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
