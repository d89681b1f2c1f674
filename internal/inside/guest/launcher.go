package guest

import (
	"errors"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// maskedArg is what the guest's own program is started with to be another program that
// makes files for its user alone: its path and its arguments follow.
const maskedArg = "masked"

// sessionMask is the file mode mask of what sessions start.
const sessionMask = 0o077

// launchers start the programs of sessions that share the sandbox, those of each user
// from a thread of its own, from which they inherit three things: set-ID programs give
// them no rights, what they make is for their user alone, and they have System V's and
// POSIX's message queues, semaphores and shared memory to themselves, where the kernel is
// gVisor's, which lets everybody remove those of others. A thread lasts as long as
// anything that it has started. Their user must keep calls apart.
type launchers map[int]*launcher // by uid

// launcher is a thread on which nothing else runs.
type launcher struct {
	calls chan func()
	ended chan struct{}
	// uses are how many processes it has started that run.
	uses int
	// setsOwnMask is true if the thread cannot have a mask of its own, so that programs set it
	// themselves.
	setsOwnMask bool
}

// startProcess has fork, which starts a program with arguments, called on the thread of the
// plan's user. Each start that succeeds is followed by a release.
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

// releaseProcess tells that a process of a user has ended.
func (ls launchers) releaseProcess(uid int) {
	l := ls[uid]
	if l == nil {
		return // not a session's
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

// restrictThread reports in wrap whether the thread could not be parted from the others: a
// container may not be allowed to. Its kernel is Linux then, and guards what is shared.
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

// runMasked becomes another program.
func runMasked(args []string) error {
	if len(args) < 2 {
		return errors.New("masked: want a program and its name")
	}
	syscall.Umask(sessionMask)
	return os.NewSyscallError("exec "+args[0], syscall.Exec(args[0], args[1:], os.Environ())) //nolint:gosec // that is what it is for
}
