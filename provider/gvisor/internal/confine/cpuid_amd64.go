package confine

import "golang.org/x/sys/unix"

// setCPUID is ARCH_SET_CPUID of arch_prctl(2).
const setCPUID = 0x1012

// AllowCPUID prevents gVisor in this process from trapping the CPUID instruction. gVisor does
// without it, as on processors that cannot trap it.
//
// A program with the C library executes CPUID 50 times at its start, and each trap passes
// through the kernel process. The machine's kernel also switches the trap at each change of
// threads, which is slow in a virtual machine.
func AllowCPUID() error {
	const all = ^uint32(0)
	return denyCalls([]denial{{call: unix.SYS_ARCH_PRCTL, mask: all, value: setCPUID, errno: unix.ENODEV}}) // as if the processor could not
}
