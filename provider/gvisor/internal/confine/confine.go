// Package confine takes from sandpit's own processes what they do not need: capabilities,
// system calls, files and memory. A process that an attacker has taken over is left with what
// remains. What a process starts inherits its restrictions.
package confine

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Engine confines an engine when it is ready, before it knows of any sandbox, and so the
// kernels and file servers that it starts, which confine themselves further. givesIDs means
// that these get IDs of their own.
func Engine(givesIDs bool) error {
	if err := dropCapabilities(engineCapabilities(givesIDs)...); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return callFilter{denied: engineDenials(), newest: newestCall}.install()
}

// engineCapabilities returns what an engine uses in its own user namespace: mounts, other
// processes' namespaces and IDs, and the files that it creates for them. Where file servers are
// in the same namespace, they can only have capabilities that the engine has, and mapping its
// root needs another one.
func engineCapabilities(givesIDs bool) []uint {
	needed := []uint{
		unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE,
	}
	if givesIDs {
		return needed
	}
	return append(needed, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_FSETID, unix.CAP_SETPCAP, unix.CAP_SETFCAP)
}

// newestCall is the number of rseq_slice_yield, of Linux 7.0.
const newestCall = unix.SYS_RSEQ_SLICE_YIELD

// engineDenials returns the calls that neither engines nor kernels nor file servers make, and
// that an attacker would look for. It does not include the new calls for mounts that the engine
// attaches files with, nor those that trace processes: kernels run the programs inside with
// them.
func engineDenials() []denial {
	list := denyAll(
		// The machine itself.
		unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
		unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_QUOTACTL_FD,
		unix.SYS_SYSLOG, unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_CLOCK_ADJTIME, unix.SYS_ADJTIMEX,
		unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_VHANGUP, unix.SYS_LOOKUP_DCOOKIE, unix.SYS_NFSSERVCTL,
		// Programs in the machine's kernel, and access to it or to other processes.
		unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV,
		unix.SYS_PROCESS_MADVISE, unix.SYS_PROCESS_MRELEASE, unix.SYS_USERFAULTFD,
		// Calls with a history of bypassed checks.
		unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
		unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
		unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT, unix.SYS_FANOTIFY_MARK,
		unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK,
		unix.SYS_OPEN_TREE, unix.SYS_OPEN_TREE_ATTR, unix.SYS_MOUNT_SETATTR, unix.SYS_STATMOUNT, unix.SYS_LISTMOUNT, unix.SYS_LISTNS,
		// Placement of memory on nodes, and hidden memory.
		unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY, unix.SYS_GET_MEMPOLICY, unix.SYS_SET_MEMPOLICY_HOME_NODE,
		unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_MEMFD_SECRET, unix.SYS_REMAP_FILE_PAGES, unix.SYS_VMSPLICE,
		// Objects that processes share by names or numbers.
		unix.SYS_MSGGET, unix.SYS_MSGSND, unix.SYS_MSGRCV, unix.SYS_MSGCTL, unix.SYS_SEMGET, unix.SYS_SEMOP, unix.SYS_SEMTIMEDOP, unix.SYS_SEMCTL,
		unix.SYS_SHMGET, unix.SYS_SHMAT, unix.SYS_SHMDT, unix.SYS_SHMCTL, unix.SYS_MQ_OPEN, unix.SYS_MQ_UNLINK,
		// Security modules and the personality of a process.
		unix.SYS_LSM_GET_SELF_ATTR, unix.SYS_LSM_SET_SELF_ATTR, unix.SYS_LSM_LIST_MODULES, unix.SYS_PERSONALITY,
	)
	list = append(list, denyAll(oldCalls()...)...)
	return append(list,
		// Connections within the machine, and the list of interfaces, which gVisor reads.
		denial{call: unix.SYS_SOCKET, mask: ^uint32(0), except: []uint32{unix.AF_UNIX, unix.AF_NETLINK}, errno: unix.EPERM},
		denial{call: unix.SYS_SOCKETPAIR, mask: ^uint32(0), except: []uint32{unix.AF_UNIX}, errno: unix.EPERM},
		denial{call: unix.SYS_IOCTL, argument: 1, mask: ^uint32(0), value: unix.TIOCSTI, errno: unix.EPERM},
	)
}

// Reaper confines a reaper after it has started its engine, and so the gateways and dialers
// that it starts later, which confine themselves further.
func Reaper() error {
	if err := dropCapabilities(reaperCapabilities()...); err != nil {
		return fmt.Errorf("give up capabilities: %w", err)
	}
	return callFilter{
		allowed: reaperCalls(),
		denied: []denial{{
			call: unix.SYS_SOCKET, mask: ^uint32(0), errno: unix.EPERM,
			except: []uint32{unix.AF_UNIX, unix.AF_NETLINK, unix.AF_INET, unix.AF_INET6},
		}},
	}.install()
}

// reaperCapabilities returns what root's reaper needs to start gateways in namespaces of their
// own, to end them and the engine, and to remove their files. Other users' reapers have none of
// them.
func reaperCapabilities() []uint {
	return []uint{
		unix.CAP_SYS_ADMIN, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_SETFCAP, unix.CAP_KILL, unix.CAP_DAC_OVERRIDE,
	}
}

// reaperCalls returns all calls that a reaper makes, or a gateway until it has confined itself:
// those of the Go runtime, and those for files, processes, namespaces and connections. Other
// calls fail as if the machine's kernel did not have them.
func reaperCalls() []uintptr {
	calls := []uintptr{
		// The runtime: threads, memory, time and signals.
		unix.SYS_FUTEX, unix.SYS_CLONE, unix.SYS_CLONE3, unix.SYS_EXIT, unix.SYS_EXIT_GROUP, unix.SYS_GETTID, unix.SYS_GETPID, unix.SYS_GETPPID,
		unix.SYS_TGKILL, unix.SYS_SCHED_YIELD, unix.SYS_SCHED_GETAFFINITY, unix.SYS_GETCPU, unix.SYS_MEMBARRIER, unix.SYS_RSEQ,
		unix.SYS_SET_ROBUST_LIST, unix.SYS_SET_TID_ADDRESS, unix.SYS_BRK, unix.SYS_MMAP, unix.SYS_MUNMAP, unix.SYS_MPROTECT, unix.SYS_MADVISE,
		unix.SYS_MINCORE, unix.SYS_MREMAP, unix.SYS_MLOCK, unix.SYS_MUNLOCK,
		unix.SYS_NANOSLEEP, unix.SYS_CLOCK_NANOSLEEP, unix.SYS_CLOCK_GETTIME, unix.SYS_CLOCK_GETRES, unix.SYS_GETTIMEOFDAY,
		unix.SYS_TIMER_CREATE, unix.SYS_TIMER_SETTIME, unix.SYS_TIMER_DELETE, unix.SYS_SETITIMER,
		unix.SYS_RT_SIGACTION, unix.SYS_RT_SIGPROCMASK, unix.SYS_RT_SIGRETURN, unix.SYS_SIGALTSTACK, unix.SYS_RESTART_SYSCALL,
		unix.SYS_EPOLL_CREATE1, unix.SYS_EPOLL_CTL, unix.SYS_EPOLL_PWAIT, unix.SYS_EPOLL_PWAIT2, unix.SYS_EVENTFD2, unix.SYS_PPOLL, unix.SYS_PSELECT6,
		unix.SYS_GETRANDOM, unix.SYS_PRCTL, unix.SYS_SECCOMP, unix.SYS_CAPGET, unix.SYS_CAPSET, unix.SYS_PRLIMIT64, unix.SYS_UNAME, unix.SYS_SYSINFO,
		// Files.
		unix.SYS_READ, unix.SYS_WRITE, unix.SYS_READV, unix.SYS_WRITEV, unix.SYS_PREAD64, unix.SYS_PWRITE64, unix.SYS_LSEEK, unix.SYS_CLOSE,
		unix.SYS_CLOSE_RANGE, unix.SYS_OPENAT, unix.SYS_OPENAT2, unix.SYS_FSTAT, unix.SYS_STATX, unix.SYS_FSTATFS, unix.SYS_STATFS, unix.SYS_FCNTL, unix.SYS_FLOCK,
		unix.SYS_DUP, unix.SYS_DUP3, unix.SYS_PIPE2, unix.SYS_IOCTL, unix.SYS_GETDENTS64, unix.SYS_READLINKAT, unix.SYS_UNLINKAT, unix.SYS_MKDIRAT,
		unix.SYS_RENAMEAT, unix.SYS_RENAMEAT2, unix.SYS_FACCESSAT, unix.SYS_FACCESSAT2, unix.SYS_FCHMOD, unix.SYS_FCHMODAT, unix.SYS_FCHOWNAT,
		unix.SYS_FTRUNCATE, unix.SYS_FALLOCATE, unix.SYS_UTIMENSAT, unix.SYS_MEMFD_CREATE, unix.SYS_CHDIR, unix.SYS_FCHDIR, unix.SYS_GETCWD, unix.SYS_UMASK,
		unix.SYS_COPY_FILE_RANGE, unix.SYS_SENDFILE, unix.SYS_SPLICE,
		// Processes and their namespaces.
		unix.SYS_EXECVE, unix.SYS_WAIT4, unix.SYS_WAITID, unix.SYS_KILL, unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_SEND_SIGNAL, unix.SYS_SETSID, unix.SYS_SETPGID,
		unix.SYS_GETUID, unix.SYS_GETEUID, unix.SYS_GETGID, unix.SYS_GETEGID, unix.SYS_GETGROUPS, unix.SYS_SETUID, unix.SYS_SETGID, unix.SYS_SETGROUPS,
		unix.SYS_SETRESUID, unix.SYS_SETRESGID, unix.SYS_UNSHARE, unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_SETHOSTNAME,
		// Connections.
		unix.SYS_SOCKET, unix.SYS_SOCKETPAIR, unix.SYS_BIND, unix.SYS_LISTEN, unix.SYS_ACCEPT4, unix.SYS_CONNECT, unix.SYS_SHUTDOWN,
		unix.SYS_SENDTO, unix.SYS_RECVFROM, unix.SYS_SENDMSG, unix.SYS_RECVMSG, unix.SYS_SENDMMSG, unix.SYS_RECVMMSG,
		unix.SYS_SETSOCKOPT, unix.SYS_GETSOCKOPT, unix.SYS_GETSOCKNAME, unix.SYS_GETPEERNAME,
	}
	return append(calls, architectureCalls()...)
}

func denyAll(calls ...uintptr) []denial {
	list := make([]denial, len(calls))
	for i, call := range calls {
		list[i] = denial{call: call, errno: unix.EPERM}
	}
	return list
}

// HasCapabilities reports whether this process has all of the capabilities.
func HasCapabilities(wanted ...uint) bool {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return false // a process that may not ask has none
	}
	return !slices.ContainsFunc(wanted, func(c uint) bool { return data[c/32].Effective&(1<<(c%32)) == 0 })
}

// dropCapabilities takes all capabilities but the kept ones from every thread of this process.
// As it may gain no privileges, no program restores them, whatever the bounding set has.
func dropCapabilities(kept ...uint) error {
	_, _, errno := syscall.AllThreadsSyscall6(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	var mask [2]uint32
	for _, c := range kept {
		mask[c/32] |= 1 << (c % 32)
	}
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return err
	}
	for i := range data {
		data[i].Permitted &= mask[i]
		data[i].Effective &= mask[i]
		data[i].Inheritable = 0 // and with it the ambient ones
	}
	_, _, errno = syscall.AllThreadsSyscall(unix.SYS_CAPSET,
		uintptr(unsafe.Pointer(&hdr)), uintptr(unsafe.Pointer(&data[0])), 0) //nolint:gosec // that is how this call takes them
	if errno != 0 {
		return errno
	}
	return nil
}
