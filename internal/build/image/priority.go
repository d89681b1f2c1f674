package image

import (
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// workNice is the nice value of the threads that unpack images of a server's owners.
const workNice = 10

// unpackWith runs work that uses a processor for as long as its input lasts. In a shared
// cache it runs with a lower priority than the server's other threads, because an owner
// chooses the input.
func (b *builder) unpackWith(work func() error) error {
	if b.sharing == nil {
		return work()
	}
	done := make(chan error, 1)
	go func() {
		err := sandpit.Errorf(sandpit.Internal, "unpack the image: the program panicked")
		defer func() {
			if p := recover(); p != nil {
				err = sandpit.Errorf(sandpit.Internal, "unpack the image: panic: %v\n%s", p, debug.Stack())
			}
			done <- err
		}()
		// A thread cannot raise its priority again, so it is never unlocked and ends with the
		// goroutine.
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, workNice) // on failure the work runs with normal priority
		err = work()
	}()
	return <-done
}
