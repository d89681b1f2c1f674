package image

import (
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// workNice is the nice value of the threads that unpack images of a server's owners.
const workNice = 10

// unpackWith runs work that takes a processor for as long as its input lasts. In a shared
// cache the server's other threads come first: an owner chooses the input.
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
		// A thread cannot take its priority back. It is never unlocked, and ends with the
		// goroutine.
		runtime.LockOSThread()
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, workNice) // without it the work is done as well
		err = work()
	}()
	return <-done
}
