package confine

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// run does what the machine's kernel does with a filter and a call. Instructions that
// compile does not write are invalid.
func run(t *testing.T, program []unix.SockFilter, arch uint32, call uintptr, arguments ...uint64) uint32 {
	t.Helper()
	data := map[uint32]uint32{filterNumber: uint32(call), filterArchitecture: arch}
	for i, a := range arguments {
		data[filterFirstArgument+8*uint32(i)] = uint32(a)
	}
	var a uint32
	for at := 0; at < len(program); at++ {
		in := program[at]
		holds := false
		switch in.Code {
		case unix.BPF_LD | unix.BPF_W | unix.BPF_ABS:
			a = data[in.K]
			continue
		case unix.BPF_ALU | unix.BPF_AND | unix.BPF_K:
			a &= in.K
			continue
		case unix.BPF_RET | unix.BPF_K:
			return in.K
		case unix.BPF_JMP | unix.BPF_JA:
			at += int(in.K)
			continue
		case unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K:
			holds = a == in.K
		case unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K:
			holds = a >= in.K
		case unix.BPF_JMP | unix.BPF_JGT | unix.BPF_K:
			holds = a > in.K
		default:
			t.Fatalf("instruction %d: code %#x", at, in.Code)
		}
		if holds {
			at += int(in.Jt)
		} else {
			at += int(in.Jf)
		}
	}
	t.Fatal("the program has no end")
	return 0
}

func ownArchitecture() uint32 {
	if runtime.GOARCH == "arm64" {
		return unix.AUDIT_ARCH_AARCH64
	}
	return unix.AUDIT_ARCH_X86_64
}

func refusal(errno unix.Errno) uint32 { return unix.SECCOMP_RET_ERRNO | uint32(errno) }

// TestCompileFilter compares each number of a call with what the filter says of it.
func TestCompileFilter(t *testing.T) {
	t.Parallel()
	for _, many := range []int{0, 1, 2, 3, 7, 64, 400} { // the last has jumps that are too far for one instruction
		var f callFilter
		denied := make(map[uintptr]bool)
		for i := range many {
			call := uintptr(i*i%1009 + i)
			if !denied[call] {
				denied[call] = true
				f.denied = append(f.denied, denial{call: call, errno: unix.EPERM})
			}
		}
		for _, newest := range []uintptr{0, 300} {
			f.newest = newest
			program, err := f.compile()
			if err != nil {
				t.Fatal(err)
			}
			for call := range uintptr(1500) {
				want := uint32(unix.SECCOMP_RET_ALLOW)
				if denied[call] {
					want = refusal(unix.EPERM)
				}
				if newest != 0 && call > newest {
					want = refusal(unix.ENOSYS)
				}
				if got := run(t, program, ownArchitecture(), call); got != want {
					t.Fatalf("%d denied, newest %d, call %d: %#x, want %#x", many, newest, call, got, want)
				}
			}
		}
	}
}

// TestFilterArguments has calls depend on arguments.
func TestFilterArguments(t *testing.T) {
	t.Parallel()
	f := callFilter{denied: []denial{
		{call: 5, argument: 1, mask: 0o4000, value: 0o4000, errno: unix.EPERM},
		{call: 5, argument: 1, mask: 0o2000, value: 0o2000, errno: unix.EACCES},
		{call: 6, mask: ^uint32(0), except: []uint32{1, 16}, errno: unix.EPERM},
		{call: 7, argument: 5, mask: ^uint32(0), except: []uint32{}, errno: unix.EPERM},
	}}
	program, err := f.compile()
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		call      uintptr
		arguments []uint64
		want      uint32
	}{
		{5, []uint64{0o4000, 0o755}, unix.SECCOMP_RET_ALLOW},
		{5, []uint64{0, 0o4755}, refusal(unix.EPERM)},
		{5, []uint64{0, 0o2755}, refusal(unix.EACCES)},
		{5, []uint64{0, 0o6755}, refusal(unix.EPERM)},
		{6, []uint64{1}, unix.SECCOMP_RET_ALLOW},
		{6, []uint64{1<<32 | 16}, unix.SECCOMP_RET_ALLOW}, // the kernel takes an int
		{6, []uint64{2}, refusal(unix.EPERM)},
		{6, []uint64{17}, refusal(unix.EPERM)},
		{7, []uint64{0, 0, 0, 0, 0, 1}, refusal(unix.EPERM)},
		{8, []uint64{0}, unix.SECCOMP_RET_ALLOW},
	} {
		if got := run(t, program, ownArchitecture(), tt.call, tt.arguments...); got != tt.want {
			t.Errorf("call %d with %v: %#x, want %#x", tt.call, tt.arguments, got, tt.want)
		}
	}
}

// TestFilterArchitectures calls by other numbers than this architecture's.
func TestFilterArchitectures(t *testing.T) {
	t.Parallel()
	for name, f := range map[string]callFilter{
		"denied":  {denied: []denial{{call: unix.SYS_MOUNT, errno: unix.EPERM}}},
		"allowed": {allowed: []uintptr{unix.SYS_READ}},
		"nothing": {},
	} {
		program, err := f.compile()
		if err != nil {
			t.Fatal(err)
		}
		for _, arch := range []uint32{unix.AUDIT_ARCH_I386, unix.AUDIT_ARCH_ARM, 0} {
			for call := range uintptr(500) {
				if got := run(t, program, arch, call); got != refusal(unix.ENOSYS) {
					t.Fatalf("%s: architecture %#x, call %d: %#x", name, arch, call, got)
				}
			}
		}
		for _, call := range []uintptr{otherABI, otherABI | unix.SYS_READ, otherABI | unix.SYS_MOUNT, 0xffffffff} {
			if got := run(t, program, ownArchitecture(), call); got != refusal(unix.ENOSYS) {
				t.Errorf("%s: call %#x: %#x", name, call, got)
			}
		}
	}
}

// TestFilterAllows has a filter that knows what is allowed.
func TestFilterAllows(t *testing.T) {
	t.Parallel()
	f := callFilter{allowed: []uintptr{3, 1, 200}, denied: []denial{{call: 200, mask: 1, value: 1, errno: unix.EPERM}}}
	program, err := f.compile()
	if err != nil {
		t.Fatal(err)
	}
	for call := range uintptr(600) {
		want := refusal(unix.ENOSYS)
		if slices.Contains(f.allowed, call) {
			want = unix.SECCOMP_RET_ALLOW
		}
		if got := run(t, program, ownArchitecture(), call, 0); got != want {
			t.Errorf("call %d: %#x, want %#x", call, got, want)
		}
	}
	if got := run(t, program, ownArchitecture(), 200, 1); got != refusal(unix.EPERM) {
		t.Errorf("%#x", got)
	}
}
