package guest

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// maskedArg is the argument with which the guest's executable sets a file mode mask and then executes another
// program: the program's path and its arguments follow.
const maskedArg = "masked"

// sessionMask is the file mode mask of the programs of sessions.
const sessionMask = 0o077

// launchers start the programs of sessions that share the sandbox, for each user from a thread of its own. From the
// thread the programs inherit three things: set-user-ID programs give them no rights, files that they create are
// accessible only to their user, and they have their own message queues, semaphores and shared memory of System V and
// POSIX, because gVisor's kernel lets every user remove those of others. A thread lasts as long as any process that
// it has started. Calls must not be concurrent.
type launchers map[int]*launcher // by uid

// launcher is a thread that runs nothing else.
type launcher struct {
	calls chan func()
	ended chan struct{}
	// uses counts its running processes.
	uses int
	// setsOwnMask is true if the thread cannot have a mask of its own; then programs set the mask themselves.
	setsOwnMask bool
}

// startProcess calls fork, which starts a program with arguments, on the thread of the plan's user. Each successful
// start must be followed by releaseProcess.
func (ls launchers) startProcess(p startPlan, fork func(program string, args []string) (int, error)) (pid int, err error) {
	l := ls[p.user.uid]
	if l == nil {
		if l, err = newLauncher(); err != nil {
			return 0, err
		}
		ls[p.user.uid] = l
	}
	program, args := p.program, p.args
	if l.setsOwnMask {
		program, args = sandpit.GuestProgram, append([]string{sandpit.GuestProgram, maskedArg, p.program}, p.args...)
	}
	l.uses++
	done := make(chan struct{})
	l.calls <- func() {
		defer close(done)
		pid, err = fork(program, args)
	}
	<-done
	if err != nil {
		ls.releaseProcess(p.user.uid)
	}
	return pid, err
}

// releaseProcess records that a process of a user has ended.
func (ls launchers) releaseProcess(uid int) {
	l := ls[uid]
	if l == nil {
		return // not a user of a session
	}
	if l.uses--; l.uses > 0 {
		return
	}
	delete(ls, uid)
	close(l.calls)
	<-l.ended
}

func newLauncher() (*launcher, error) {
	l := &launcher{calls: make(chan func()), ended: make(chan struct{})}
	ready := make(chan error)
	go func() {
		defer close(l.ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with this function
		var err error
		l.setsOwnMask, err = restrictThread()
		ready <- err
		for call := range l.calls {
			call()
		}
	}()
	if err := <-ready; err != nil {
		close(l.calls)
		<-l.ended
		return nil, err
	}
	return l, nil
}

// restrictThread separates the thread from the others. It returns wrap = true where a container is not allowed to do
// that; its kernel is Linux then, which protects the shared objects itself.
func restrictThread() (wrap bool, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return false, os.NewSyscallError("prctl", err)
	}
	err = syscall.Unshare(syscall.CLONE_FS | syscall.CLONE_NEWIPC)
	if errors.Is(err, syscall.EPERM) {
		return true, nil
	}
	if err != nil {
		return false, os.NewSyscallError("unshare", err)
	}
	syscall.Umask(sessionMask)
	return false, nil
}

// runMasked sets the file mode mask and executes another program.
func runMasked(args []string) error {
	if len(args) < 2 {
		return errors.New("masked: want a program and its name")
	}
	syscall.Umask(sessionMask)
	return os.NewSyscallError("exec "+args[0], syscall.Exec(args[0], args[1:], os.Environ())) //nolint:gosec // that is what it is for
}
