package gvisor

import (
	"os"
	"path/filepath"
)

// The names with which this binary starts itself. A process finds its role in its argv[0].
const (
	reaperRole = "sandpit-reaper"
	engineRole = "sandpit-engine"

	gatewayRole = "sandpit-gateway"
	dialerRole  = "sandpit-dialer"

	kernelRole = "runsc-sandbox" // gVisor's names
	goferRole  = "runsc-gofer"
)

// Role returns the main function of a process with one of sandpit's internal roles. ok is false
// for a program that a user started. main must call it first.
func Role(args []string) (run func() int, ok bool) {
	switch filepath.Base(args[0]) {
	case reaperRole:
		return func() int { return reaperMain(args[1:]) }, true
	case engineRole:
		return func() int { return engineMain(args[1:]) }, true
	case dialerRole:
		return dialerMain, true
	}
	if filepath.Base(args[0]) == gatewayRole {
		return func() int { return gatewayMain(args[1:]) }, true
	}
	if isKernelChild(args) {
		return kernelChildMain, true
	}
	return nil, false
}

// NeedsMainThread reports whether main must stay on the process's first thread. The reaper starts
// a child that is killed with the thread that started it; gVisor uses the namespaces of the first
// thread as those of the process.
func NeedsMainThread(args []string) bool {
	base := filepath.Base(args[0])
	return base == reaperRole || base == engineRole
}

// isKernelChild recognizes the three forms in which gVisor starts this binary again. Only the
// umount helper has no name of its own.
func isKernelChild(args []string) bool {
	switch filepath.Base(args[0]) {
	case kernelRole, goferRole:
		return true
	}
	return args[0] == selfExe && len(args) > 1 && args[1] == "umount"
}

// openNull opens the null device for reading and writing.
func openNull() (*os.File, error) { return os.OpenFile(os.DevNull, os.O_RDWR, 0) }
