package gvisor

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setCPUID is ARCH_SET_CPUID of arch_prctl(2).
const setCPUID = 0x1012

// allowCPUID keeps gVisor, in this process, from having the CPUID instruction
// caught. It says itself that it goes on without: that is how it is on every
// processor that cannot do that.
//
// A program that uses the C library asks 50 times at its start, each of which
// then passes through the kernel process. And the machine's kernel has to switch
// the catching at each change of threads, which leaves a virtual machine.
func allowCPUID() error {
	const architecture, number, firstArgument = 4, 0, 16 // in the kernel's struct seccomp_data
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	skipUnless := func(value uint32, instructions uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: instructions}
	}
	answer := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	filter := [...]unix.SockFilter{
		load(architecture), skipUnless(unix.AUDIT_ARCH_X86_64, 5),
		load(number), skipUnless(unix.SYS_ARCH_PRCTL, 3),
		load(firstArgument), skipUnless(setCPUID, 1),
		answer(unix.SECCOMP_RET_ERRNO | uint32(unix.ENODEV)), // as if the processor could not
		answer(unix.SECCOMP_RET_ALLOW),
	}
	runtime.LockOSThread() // both calls are about a thread; the second passes both on to all others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&program))) //nolint:gosec // that is how this call takes it
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}
