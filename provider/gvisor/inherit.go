package gvisor

import (
	_ "unsafe" // for go:linkname

	"golang.org/x/sys/unix"
	_ "gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer" // opens the pipe
)

// gVisor's gofer package opens this pipe in every program that it is linked into, as soon
// as the program starts, and leaves it open to whatever the program starts. It exports
// neither the descriptors nor a way to close them.
//
//go:linkname goferPipeRead gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer.tempPipeReadFD
//go:linkname goferPipeWrite gvisor.dev/gvisor/pkg/sentry/fsimpl/gofer.tempPipeWriteFD
var goferPipeRead, goferPipeWrite int

// init keeps gVisor's pipe to the process that opened it. This program is the first
// process of a sandbox too, unless a smaller guest is built in: without this, every
// command of the sandbox would share a pipe with it. The engine's processes would have
// the pipes of all their parents, and closeInherited would take a kernel's own pipe, which
// gVisor uses, for one of them.
func init() { //nolint:gochecknoinits // every program with the kernel linked in has the pipe, also tests
	for _, fd := range []int{goferPipeRead, goferPipeWrite} {
		if fd > unix.Stderr { // 0 if gVisor does not open the pipe any more
			unix.CloseOnExec(fd)
		}
	}
}
