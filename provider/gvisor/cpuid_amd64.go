package gvisor

import "golang.org/x/sys/unix"

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
	const everything = ^uint32(0)
	return deny([]denial{{call: unix.SYS_ARCH_PRCTL, mask: everything, value: setCPUID, errno: unix.ENODEV}}) // as if the processor could not
}
