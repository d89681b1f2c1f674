package confine

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denial is a system call that fails with an error when some bits of one of its
// arguments are as stated. Without a mask it always fails.
type denial struct {
	call        uintptr
	argument    int
	mask, value uint32
	errno       unix.Errno
	// except, if not nil, turns this around: the call fails unless the bits are one of
	// these values.
	except []uint32
}

// callFilter decides which system calls of a process, and of all that it starts, the
// machine's kernel refuses. Calls with numbers of another architecture are always refused.
//
// Refused calls return an error: killing the process would take precedence over the filters of
// gVisor, which handle the calls of programs inside.
type callFilter struct {
	denied []denial
	// newest is the highest known number of a call: later kernels may have others. 0: there is
	// no limit.
	newest uintptr
	// allowed, if not nil, are all calls that are not refused.
	allowed []uintptr
}

// denyCalls has the machine's kernel refuse calls of this process, until it ends, and of all
// that it starts.
func denyCalls(list []denial) error { return callFilter{denied: list}.install() }

// install applies the filter to all threads of this process.
func (f callFilter) install() error {
	program, err := f.compile()
	if err != nil {
		return err
	}
	runtime.LockOSThread() // both calls affect a thread; the second applies both to all others
	defer runtime.UnlockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]} //nolint:gosec // compile bounds it
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog))) //nolint:gosec // that is how this call takes it
	if errno != 0 {
		return fmt.Errorf("filter system calls: %w", errno)
	}
	if thread != 0 {
		return fmt.Errorf("filter system calls: thread %d has a filter of its own", thread)
	}
	return nil
}

// Offsets in the kernel's struct seccomp_data, and the first number of the calls of x32, the
// second architecture of AMD64 with pointers of 32 bits.
const (
	filterNumber        = 0
	filterArchitecture  = 4
	filterFirstArgument = 16
	otherABI            = 0x40000000
)

// compile returns the filter program. It finds the number of a call by bisection, because it
// runs for each call of programs in sandboxes.
func (f callFilter) compile() ([]unix.SockFilter, error) {
	arch, ok := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if !ok {
		return nil, fmt.Errorf("filter system calls: unsupported architecture %s", runtime.GOARCH)
	}
	rest := returnAction(unix.SECCOMP_RET_ALLOW)
	if f.allowed != nil {
		rest = returnErrno(unix.ENOSYS)
	}
	branches := f.branches()
	newest := uint32(otherABI) - 1
	if f.newest != 0 {
		newest = uint32(f.newest) //nolint:gosec // numbers of calls are small
	}
	program := []unix.SockFilter{
		loadWord(filterArchitecture),
		jumpIf(unix.BPF_JEQ, arch, 1, 0),
		returnErrno(unix.ENOSYS),
		loadWord(filterNumber),
		jumpIf(unix.BPF_JGT, newest, 0, 1), // includes the numbers of the other architecture
		returnErrno(unix.ENOSYS),
	}
	program = append(program, searchBranch(branches, rest)...)
	if len(program) > unix.BPF_MAXINSNS {
		return nil, fmt.Errorf("filter system calls: too many instructions: %d", len(program))
	}
	return program, nil
}

// branch is what a filter does with one call.
type branch struct {
	call    uint32
	program []unix.SockFilter // ends with a return
}

// branches returns the branches of all calls that need one, in the order of their numbers.
func (f callFilter) branches() []branch {
	list := make(map[uint32][]unix.SockFilter)
	for _, call := range f.allowed {
		list[uint32(call)] = nil //nolint:gosec // numbers of calls are small
	}
	for _, d := range f.denied {
		call := uint32(d.call) //nolint:gosec // numbers of calls are small
		list[call] = append(list[call], d.program()...)
	}
	branches := make([]branch, 0, len(list))
	for call, program := range list {
		branches = append(branches, branch{call, append(program, returnAction(unix.SECCOMP_RET_ALLOW))})
	}
	slices.SortFunc(branches, func(a, b branch) int { return cmp.Compare(a.call, b.call) })
	return branches
}

// program returns instructions that return if the call is denied, and otherwise continue after
// the last one.
func (d denial) program() []unix.SockFilter {
	if d.mask == 0 {
		return []unix.SockFilter{returnErrno(d.errno)}
	}
	program := []unix.SockFilter{
		loadWord(filterFirstArgument + 8*uint32(d.argument)), //nolint:gosec // 0 to 5; the low half comes first
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: d.mask},
	}
	if d.except == nil {
		return append(program, jumpIf(unix.BPF_JEQ, d.value, 0, 1), returnErrno(d.errno))
	}
	for i, value := range d.except {
		left := len(d.except) - i - 1
		program = append(program, jumpIf(unix.BPF_JEQ, value, uint8(left+1), 0)) //nolint:gosec // there are few
	}
	return append(program, returnErrno(d.errno))
}

// searchBranch returns instructions that jump to the branch of the loaded number, or end with rest.
func searchBranch(branches []branch, rest unix.SockFilter) []unix.SockFilter {
	if len(branches) == 0 {
		return []unix.SockFilter{rest}
	}
	if len(branches) == 1 {
		b := branches[0]
		return slices.Concat([]unix.SockFilter{jumpIf(unix.BPF_JEQ, b.call, 1, 0), rest}, b.program)
	}
	middle := len(branches) / 2
	below, above := searchBranch(branches[:middle], rest), searchBranch(branches[middle:], rest)
	at := branches[middle].call
	if len(below) <= math.MaxUint8 {
		return slices.Concat([]unix.SockFilter{jumpIf(unix.BPF_JGE, at, uint8(len(below)), 0)}, below, above) //nolint:gosec // compared above
	}
	far := unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(below))} //nolint:gosec // there are few
	return slices.Concat([]unix.SockFilter{jumpIf(unix.BPF_JGE, at, 0, 1), far}, below, above)
}

func loadWord(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// jumpIf compares with a value and skips a number of instructions.
func jumpIf(comparison uint16, value uint32, ifTrue, ifFalse uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_K | comparison, K: value, Jt: ifTrue, Jf: ifFalse}
}

func returnAction(action uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: action}
}

func returnErrno(errno unix.Errno) unix.SockFilter {
	return returnAction(unix.SECCOMP_RET_ERRNO | uint32(errno)) //nolint:gosec // numbers of errors are small
}

// FileServer confines a file server, whose calls programs inside cause. It cannot create files
// in directories of the machine that give a user another one's rights: set-user-ID and
// set-group-ID programs. It could only create devices without rights, but device 0:0 has a
// meaning for overlay file systems.
func FileServer() error {
	var list []denial
	for call, mode := range map[uintptr]int{
		unix.SYS_FCHMOD: 1, unix.SYS_FCHMODAT: 2, unix.SYS_FCHMODAT2: 2,
		unix.SYS_OPENAT: 3, unix.SYS_MKDIRAT: 2, unix.SYS_MKNODAT: 2,
	} {
		for _, bit := range []uint32{unix.S_ISUID, unix.S_ISGID} {
			list = append(list, denial{call: call, argument: mode, mask: bit, value: bit, errno: unix.EPERM})
		}
	}
	for _, kind := range []uint32{unix.S_IFCHR, unix.S_IFBLK} {
		list = append(list, denial{call: unix.SYS_MKNODAT, argument: 2, mask: unix.S_IFMT, value: kind, errno: unix.EPERM})
	}
	return denyCalls(list)
}
