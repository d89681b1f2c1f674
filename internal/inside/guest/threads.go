package guest

import (
	"runtime"
	"sync"
)

// ownThreads is how many threads the guest creates at its start where it shares its limit of processes with programs:
// the Go runtime ends a process that cannot create another thread, and the end of the first process ends the sandbox.
// It is below the reserve for the guest.
const ownThreads = 24

// keepThreads creates n threads at once. The Go runtime keeps them and uses idle threads before it creates more.
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
