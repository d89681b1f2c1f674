package gvisor

import (
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
	_ "gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer" // opens the pipe
)

// gVisor's gofer package opens this pipe in every program that it is linked into, when the program
// starts, and lets child processes inherit it. It exports neither the descriptors nor a function
// that closes them.
//
//go:linkname goferPipeRead gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer.tempPipeReadFD
//go:linkname goferPipeWrite gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer.tempPipeWriteFD
var goferPipeRead, goferPipeWrite int

// init keeps gVisor's pipe in the process that opened it. This program is also the first process
// of a sandbox, unless a smaller guest is built in: without this, every command of the sandbox
// would share a pipe with it. The engine's processes would inherit the pipes of all their parents,
// and closeInherited would close a kernel's own pipe, which gVisor uses.
func init() { //nolint:gochecknoinits // every program with the kernel linked in has the pipe, also tests
	for _, fd := range []int{goferPipeRead, goferPipeWrite} {
		if fd > unix.Stderr { // 0 if gVisor no longer opens the pipe
			unix.CloseOnExec(fd)
		}
	}
}
