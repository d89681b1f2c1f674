// Package testuser keeps what a fuzz target makes up from the rights of root, who runs the
// nightly tests: a target that looks for ways out of a directory may find one.
package testuser

import (
	"flag"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// Nobody is the user and group that a worker of root goes on as. They own nothing.
const Nobody = 65534

// Drop has a worker of go test -fuzz that root has started go on as nobody, for ever. It is
// the first thing that a target does which writes, opens or asks for what its input names:
// what it makes after that is nobody's, too. The seeds, which people have looked at, are
// run by whoever runs the tests.
func Drop(f *testing.F) {
	f.Helper()
	worker := flag.Lookup("test.fuzzworker")
	if os.Geteuid() != 0 || worker == nil || worker.Value.String() != "true" {
		return
	}
	for _, step := range []func() error{
		func() error { return syscall.Setgroups(nil) },
		func() error { return syscall.Setgid(Nobody) },
		func() error { return syscall.Setuid(Nobody) },
		// Else its own entry in /proc would be root's.
		func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	} {
		if err := step(); err != nil {
			f.Fatalf("go on as nobody: %v", err)
		}
	}
	if os.Geteuid() != Nobody || os.Getuid() != Nobody || os.Getegid() != Nobody {
		f.Fatal("root's rights are still here")
	}
}
