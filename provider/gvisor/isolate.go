package gvisor

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// What a gateway and a dialer give up before they serve anybody: the machine's files, all
// capabilities, and all system calls but those that they need. A process that was taken
// over has what is left.

// bounds are the most that such a process may use.
type bounds struct {
	memory, memoryGoal uint64 // bytes
	files              uint64
}

// confineGateway leaves a gateway the descriptors that it has and gets. Its network
// namespace is empty. It can neither make a socket, nor direct one that it has to another
// peer, nor pass one on.
func confineGateway() error {
	return isolate(bounds{gatewayMemory, gatewayMemoryGoal, gatewayMaxFiles}, gatewayCalls())
}

// confineDialer leaves a dialer sockets of the kinds that gateways get.
func confineDialer() error {
	return isolate(bounds{dialerMemory, dialerMemoryGoal, dialerFiles}, dialerCalls())
}

// isolate leaves this process an empty, closed root directory and the system calls of the
// filter.
func isolate(most bounds, calls callFilter) error {
	debug.SetMemoryLimit(int64(most.memoryGoal)) //nolint:gosec // far below
	limit := func(what int, most uint64) func() error {
		return func() error { return lowerLimit(what, most) }
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"detach from the machine's mounts", func() error {
			return unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
		}},
		{"mount an empty root directory", func() error {
			return unix.Mount("sandpit", engineRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=0,size=4k")
		}},
		{"enter the root directory", func() error { return unix.Chdir(engineRoot) }},
		{"change the root directory", func() error { return unix.PivotRoot(".", ".") }},
		{"let go of the machine's files", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
		{"enter the root directory", func() error { return unix.Chdir("/") }},
		{"limit the memory", limit(unix.RLIMIT_DATA, most.memory)},
		{"limit the descriptors", limit(unix.RLIMIT_NOFILE, most.files)},
		{"forbid core dumps", limit(unix.RLIMIT_CORE, 0)},
		{"give up capabilities", func() error { return keepCapabilities() }},
		{"be closed to others", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }},
		{"filter system calls", calls.install},
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.what, err)
		}
	}
	return nil
}

// lowerLimit sets a limit of this process, unless it is lower already.
func lowerLimit(what int, most uint64) error {
	var now unix.Rlimit
	if err := unix.Getrlimit(what, &now); err != nil {
		return err
	}
	most = min(most, now.Max)
	return unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most})
}

// runtimeCalls are those of a Go program that only reads and writes what it has open.
func runtimeCalls() []uintptr {
	return []uintptr{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_LSEEK,
		unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
		unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM,
		unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_TGKILL, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
		unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_BRK, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
		// By descriptors that are open already.
		unix.SYS_RECVMSG, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN, unix.SYS_GETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	}
}

// runtimeDenials bound calls that a Go program needs in some forms only: threads, and
// memory that no instructions are in.
func runtimeDenials() []denial {
	const all = ^uint32(0)
	return []denial{
		{call: unix.SYS_CLONE, mask: unix.CLONE_THREAD, except: []uint32{unix.CLONE_THREAD}, errno: unix.EPERM},
		{call: unix.SYS_MMAP, argument: 2, mask: unix.PROT_EXEC, value: unix.PROT_EXEC, errno: unix.EPERM},
		{call: unix.SYS_MPROTECT, argument: 2, mask: unix.PROT_EXEC, value: unix.PROT_EXEC, errno: unix.EPERM},
		{call: unix.SYS_PRCTL, mask: all, except: []uint32{unix.PR_SET_VMA}, errno: unix.EPERM},
	}
}

// gatewayCalls leave a gateway no call by which bytes go to a peer that the dialer has not
// chosen: connect, sendto and sendmsg name one, bind and listen let others come.
func gatewayCalls() callFilter {
	const all = ^uint32(0)
	return callFilter{
		allowed: append(runtimeCalls(), unix.SYS_ACCEPT4), // by its control socket
		denied: append(runtimeDenials(),
			denial{call: unix.SYS_SETSOCKOPT, argument: 1, mask: all, except: []uint32{unix.SOL_SOCKET, unix.IPPROTO_TCP}, errno: unix.EPERM},
			denial{call: unix.SYS_SETSOCKOPT, argument: 2, mask: all, errno: unix.EPERM, except: []uint32{
				unix.SO_KEEPALIVE, unix.SO_LINGER, unix.TCP_NODELAY, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT,
			}},
		),
	}
}

// dialerCalls leave a dialer sockets that connect, and netlink, which it has open.
func dialerCalls() callFilter {
	const all, flags = ^uint32(0), unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK
	return callFilter{
		allowed: append(runtimeCalls(), unix.SYS_CONNECT, unix.SYS_SENDMSG, unix.SYS_SENDTO),
		denied: append(runtimeDenials(),
			denial{call: unix.SYS_SOCKET, mask: all, except: []uint32{unix.AF_INET, unix.AF_INET6}, errno: unix.EPERM},
			denial{call: unix.SYS_SOCKET, argument: 1, mask: all, except: []uint32{unix.SOCK_STREAM | flags, unix.SOCK_DGRAM | flags}, errno: unix.EPERM},
			denial{call: unix.SYS_SOCKET, argument: 2, mask: all, errno: unix.EPERM, except: []uint32{
				unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6,
			}},
		),
	}
}
