package confine

import "golang.org/x/sys/unix"

// oldCalls returns obsolete calls that only this architecture has.
func oldCalls() []uintptr {
	return []uintptr{
		unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_USELIB, unix.SYS_USTAT, unix.SYS_SYSFS, unix.SYS__SYSCTL,
		unix.SYS_CREATE_MODULE, unix.SYS_GET_KERNEL_SYMS, unix.SYS_QUERY_MODULE, unix.SYS_EPOLL_CTL_OLD, unix.SYS_EPOLL_WAIT_OLD,
	}
}

// architectureCalls returns the calls of reaperCalls that only this architecture has.
func architectureCalls() []uintptr {
	return []uintptr{
		unix.SYS_ARCH_PRCTL, unix.SYS_NEWFSTATAT, unix.SYS_EPOLL_WAIT, unix.SYS_PIPE, unix.SYS_POLL, unix.SYS_SELECT, unix.SYS_GETRLIMIT, unix.SYS_SETRLIMIT,
		unix.SYS_OPEN, unix.SYS_STAT, unix.SYS_LSTAT, unix.SYS_ACCESS, unix.SYS_UNLINK, unix.SYS_RMDIR, unix.SYS_MKDIR, unix.SYS_READLINK, unix.SYS_TIME,
	}
}
