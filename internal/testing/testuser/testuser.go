// Package testuser runs fuzz targets without the rights of root, which runs the nightly tests: a target
// that searches for ways out of a directory may find one.
package testuser

import (
	"flag"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// ID is that of the user and group of a worker that root started. They own no files.
const ID = 65534

// Drop permanently changes a worker of go test -fuzz that root started to the user ID. A target that
// uses paths from its input calls it first; files that it creates afterwards belong to that user. Reviewed
// seeds run as the user of the tests.
func Drop(f *testing.F) {
	f.Helper()
	worker := flag.Lookup("test.fuzzworker")
	if os.Geteuid() != 0 || worker == nil || worker.Value.String() != "true" {
		return
	}
	for _, step := range []func() error{
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(ID) },
		func() error { return syscall.Setuid(ID) },
		// Otherwise its own entry in /proc would belong to root.
		func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	} {
		if err := step(); err != nil {
			f.Fatalf("change to the user %d: %v", ID, err)
		}
	}
	if os.Geteuid() != ID || os.Getuid() != ID || os.Getegid() != ID {
		f.Fatal("root's rights are still here")
	}
}
