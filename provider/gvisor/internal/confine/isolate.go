package confine

import (
	"fmt"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// mountPoint is where the empty root directory is mounted. It exists on every machine.
const mountPoint = "/tmp"

// Bounds are the resources that an isolated process may use.
type Bounds struct {
	Memory     uint64 // bytes
	MemoryGoal uint64 // bytes above which the process collects garbage more often
	Files      uint64 // open descriptors
}

// Gateway isolates a gateway, whose network namespace is empty, before its first packet. It
// loses the machine's files, all capabilities and most system calls. It keeps its descriptors
// and can receive others, but can neither create a socket, nor connect one to another peer, nor
// pass one on.
func Gateway(b Bounds) error { return isolate(b, gatewayCalls()) }

// Dialer isolates a dialer like a gateway, except that it can create the kinds of sockets that
// gateways get.
func Dialer(b Bounds) error { return isolate(b, dialerCalls()) }

// isolate leaves this process an empty, closed root directory and the system calls of the
// filter.
func isolate(b Bounds, calls callFilter) error {
	debug.SetMemoryLimit(int64(b.MemoryGoal)) //nolint:gosec // far below
	limit := func(resource int, value uint64) func() error {
		return func() error { return lowerLimit(resource, value) }
	}
	steps := []struct {
		what string
		do   func() error
	}{
		{"detach from the machine's mounts", func() error {
			return unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, "")
		}},
		{"mount an empty root directory", func() error {
			return unix.Mount("sandpit", mountPoint, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RDONLY, "mode=0,size=4k")
		}},
		{"enter the root directory", func() error { return unix.Chdir(mountPoint) }},
		{"change the root directory", func() error { return unix.PivotRoot(".", ".") }},
		{"unmount the machine's files", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
		{"enter the root directory", func() error { return unix.Chdir("/") }},
		{"limit the memory", limit(unix.RLIMIT_DATA, b.Memory)},
		{"limit the descriptors", limit(unix.RLIMIT_NOFILE, b.Files)},
		{"forbid core dumps", limit(unix.RLIMIT_CORE, 0)},
		{"give up capabilities", func() error { return dropCapabilities() }},
		{"forbid other processes to trace this one", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) }},
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
func lowerLimit(resource int, value uint64) error {
	var old unix.Rlimit
	if err := unix.Getrlimit(resource, &old); err != nil {
		return err
	}
	value = min(value, old.Max)
	return unix.Setrlimit(resource, &unix.Rlimit{Cur: value, Max: value})
}

// runtimeCalls returns the calls of a Go program that only uses its open descriptors.
func runtimeCalls() []uintptr {
	return []uintptr{
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_LSEEK,
		unix.SYS_CLOSE, unix.SYS_FSTAT, unix.SYS_FCNTL, unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EVENTFD2,
		unix.SYS_FUTEX, unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_GETTIMEOFDAY, unix.SYS_GETRANDOM,
		unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETPID, unix.SYS_GETTID, unix.SYS_TGKILL, unix.SYS_RESTART_SYSCALL,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK,
		unix.SYS_MUNMAP, unix.SYS_MADVISE, unix.SYS_MINCORE, unix.SYS_BRK, unix.SYS_EXIT, unix.SYS_EXIT_GROUP,
		// With open sockets.
		unix.SYS_RECVMSG, unix.SYS_RECVFROM, unix.SYS_SHUTDOWN, unix.SYS_GETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	}
}

// runtimeDenials returns the forms of calls that a Go program does not need: processes, and
// executable memory.
func runtimeDenials() []denial {
	const all = ^uint32(0)
	return []denial{
		{call: unix.SYS_CLONE, mask: unix.CLONE_THREAD, except: []uint32{unix.CLONE_THREAD}, errno: unix.EPERM},
		{call: unix.SYS_MMAP, argument: 2, mask: unix.PROT_EXEC, value: unix.PROT_EXEC, errno: unix.EPERM},
		{call: unix.SYS_MPROTECT, argument: 2, mask: unix.PROT_EXEC, value: unix.PROT_EXEC, errno: unix.EPERM},
		{call: unix.SYS_PRCTL, mask: all, except: []uint32{unix.PR_SET_VMA}, errno: unix.EPERM},
	}
}

// gatewayCalls leaves a gateway no call that sends bytes to a peer that the dialer has not
// chosen: connect, sendto and sendmsg name a peer, bind and listen accept one.
func gatewayCalls() callFilter {
	const all = ^uint32(0)
	return callFilter{
		allowed: append(runtimeCalls(), unix.SYS_ACCEPT4), // on its control socket
		denied: append(runtimeDenials(),
			denial{call: unix.SYS_SETSOCKOPT, argument: 1, mask: all, except: []uint32{unix.SOL_SOCKET, unix.IPPROTO_TCP}, errno: unix.EPERM},
			denial{call: unix.SYS_SETSOCKOPT, argument: 2, mask: all, errno: unix.EPERM, except: []uint32{
				unix.SO_KEEPALIVE, unix.SO_LINGER, unix.TCP_NODELAY, unix.TCP_KEEPIDLE, unix.TCP_KEEPINTVL, unix.TCP_KEEPCNT,
			}},
		),
	}
}

// dialerCalls leaves a dialer sockets that connect, and its open netlink socket.
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
