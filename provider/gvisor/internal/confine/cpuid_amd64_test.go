package confine

import (
	"errors"
	"flag"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAllowCPUID filters a process of its own: there is no way back.
func TestAllowCPUID(t *testing.T) {
	t.Parallel()
	const child = "filtered"
	if flag.Arg(0) != child {
		out, err := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAllowCPUID$", "-test.v", child).CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	const on, getCPUID = 1, 0x1011
	if err := archPrctl(setCPUID, on); err != nil {
		t.Skip("this processor cannot catch CPUID: ", err)
	}
	if err := AllowCPUID(); err != nil {
		t.Fatal(err)
	}
	for range 4 { // threads that were there before and new ones
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			done <- archPrctl(setCPUID, on)
		}()
		if err := <-done; !errors.Is(err, unix.ENODEV) {
			t.Errorf("to catch CPUID: %v", err)
		}
	}
	if err := archPrctl(getCPUID, 0); err != nil {
		t.Errorf("another call: %v", err)
	}
}

func archPrctl(operation, argument uintptr) error {
	if _, _, errno := unix.Syscall(unix.SYS_ARCH_PRCTL, operation, argument, 0); errno != 0 {
		return errno
	}
	return nil
}
