package guest

import (
	"runtime"
	"sync"
)

// ownThreads is how many threads the guest makes at its start where it shares
// its limit of processes with the programs inside: the Go runtime ends a program
// that cannot have one more thread, and with the first process ends the sandbox.
// It is below what the limit leaves for the guest.
const ownThreads = 24

// keepThreads makes n threads at once, which then stay with the Go runtime: it
// uses idle ones before it makes another.
func keepThreads(n int) {
	var all sync.WaitGroup
	all.Add(n)
	for range n {
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			all.Done()
			all.Wait() // each holds its thread until there are n of them
		}()
	}
	all.Wait()
}
