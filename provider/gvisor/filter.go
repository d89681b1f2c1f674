package gvisor

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denial is a system call that fails with an error when some bits of one of its
// arguments are as stated.
type denial struct {
	call        uintptr
	argument    int
	mask, value uint32
	errno       unix.Errno
}

// deny has the machine's kernel refuse these calls to this process for as long
// as it lives, and to all that it starts.
func deny(list []denial) error {
	program, err := compile(list)
	if err != nil {
		return err
	}
	runtime.LockOSThread() // both calls are about a thread; the second passes both on to all others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // compile bounds it
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog))) //nolint:gosec // that is how this call takes it
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	return nil
}

// compile writes the filter program.
func compile(list []denial) ([]unix.SockFilter, error) {
	const architecture, number, firstArgument = 4, 0, 16 // in the kernel's struct seccomp_data
	const perDenial = 6
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok || len(list) > 40 {
		return nil, fmt.Errorf("filter system calls: not on %s, or too many", runtime.GOARCH)
	}
	load := func(offset uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
	}
	skipUnless := func(value uint32, instructions uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: instructions}
	}
	answer := func(action uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
	}
	program := []unix.SockFilter{load(architecture), skipUnless(arch, uint8(perDenial*len(list)))} //nolint:gosec // bounded above
	for _, d := range list {
		program = append(program,
			load(number), skipUnless(uint32(d.call), perDenial-2), //nolint:gosec // numbers of calls are small
			load(firstArgument+8*uint32(d.argument)), //nolint:gosec // 0 to 5; the low half comes first
			unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: d.mask},
			skipUnless(d.value, 1),
			answer(unix.SECCOMP_RET_ERRNO|uint32(d.errno))) //nolint:gosec // so are those of errors
	}
	return append(program, answer(unix.SECCOMP_RET_ALLOW)), nil
}

// harmlessFiles keeps the file server, whose calls programs inside decide about,
// from making files in directories of the machine that give somebody outside
// another one's rights: set-user-ID and set-group-ID programs. Devices it could
// only make without rights, but 0:0 means something to overlay file systems.
func harmlessFiles() error {
	var list []denial
	for call, mode := range map[uintptr]int{
		unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2,
		unix.SYS_OPENAT: 3, unix.SYS_MKDIRAT: 2, unix.SYS_MKNODAT: 2,
	} {
		for _, bit := range []uint32{unix.S_ISUID, unix.S_ISGID} {
			list = append(list, denial{call, mode, bit, bit, unix.EPERM})
		}
	}
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		list = append(list, denial{unix.SYS_MKNODAT, 2, unix.S_IFMT, kind, unix.EPERM})
	}
	return deny(list)
}
