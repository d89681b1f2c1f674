package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func machineAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"sysctl":         sysctl,
		"sysrq":          sysrq,
		"kernel-memory":  kernelMemory,
		"identity-leaks": identityLeaks,
		"device-nodes":   deviceNodes,
		"device-files":   deviceFiles,
		"sys-files":      sysFiles,
		"clock":          clocks,
		"host-name":      hostName,
		"power":          power,
		"modules":        modules,
		"hardware":       hardware,
		"kernel-log":     kernelLog,
		"old-calls":      oldCalls,
		"core-dump":      coreDump,
		"environment":    environment,
		"descriptors":    descriptors,
	}
}

// sysctl writes to every setting of the kernel that there is.
func sysctl(a *attempt) {
	var names []string
	_ = filepath.WalkDir("/proc/sys", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return nil
	})
	for _, name := range append(names, "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/panic", "/proc/sys/kernel/sysrq",
		"/proc/sys/kernel/modprobe", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory", "/proc/sys/vm/drop_caches",
		"/proc/sys/fs/file-max", "/proc/sys/kernel/pid_max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/kernel/hostname",
		"/proc/sys/fs/suid_dumpable", "/proc/sys/kernel/dmesg_restrict", "/proc/sys/kernel/unprivileged_bpf_disabled") {
		a.do("write "+name, func() error { return write(name, "1") })
	}
}

func sysrq(a *attempt) {
	for _, command := range []string{"h", "s", "e", "i", "u", "o", "b", "c"} {
		a.do(command, func() error { return write("/proc/sysrq-trigger", command) })
	}
}

func kernelMemory(a *attempt) {
	for _, path := range []string{
		"/proc/kcore", "/proc/kpagecount", "/proc/kpageflags", "/proc/kpagecgroup", "/proc/kallsyms", "/proc/kmsg", "/proc/vmcore",
		"/dev/mem", "/dev/kmem", "/dev/port", "/dev/kmsg", "/dev/cpu/0/msr", "/sys/kernel/btf/vmlinux", "/sys/kernel/notes", "/sys/firmware/acpi/tables/DSDT",
		"/proc/iomem", "/proc/ioports", "/proc/timer_list", "/proc/sched_debug", "/proc/slabinfo", "/proc/vmallocinfo", "/proc/keys", "/proc/config.gz",
	} {
		a.try("read "+path, func() (string, error) { return read(path) })
	}
}

// identityLeaks reads what would tell one machine from another.
func identityLeaks(a *attempt) {
	for _, pattern := range []string{
		"/proc/cmdline", "/proc/version", "/proc/modules", "/proc/sys/kernel/random/*", "/proc/mounts", "/proc/*/mountinfo", "/proc/*/mounts",
		"/proc/partitions", "/proc/diskstats", "/proc/swaps", "/proc/net/*", "/proc/bus/*/*", "/proc/*/cgroup", "/proc/*/cpuset",
		"/sys/class/dmi/id/*", "/sys/block/*", "/sys/class/net/*/address", "/etc/hostname", "/etc/machine-id", "/etc/passwd", "/etc/resolv.conf", "/etc/hosts",
		"/proc/*/maps", "/proc/sysvipc/*", "/proc/sys/kernel/*", "/proc/filesystems", "/proc/uptime", "/proc/loadavg", "/proc/stat",
	} {
		paths, _ := filepath.Glob(pattern)
		for _, path := range paths {
			a.try("read "+path, func() (string, error) { return read(path) })
		}
	}
	a.control("uname", func() (string, error) {
		var u unix.Utsname
		err := unix.Uname(&u)
		return fmt.Sprintf("%s %s %s", u.Nodename, u.Release, u.Version), err
	})
}

func deviceNodes(a *attempt) {
	for _, dir := range []string{scratch(), "/dev"} {
		for name, dev := range map[string]struct {
			kind         uint32
			major, minor uint32
		}{
			"mem": {unix.S_IFCHR, 1, 1}, "kmem": {unix.S_IFCHR, 1, 2}, "port": {unix.S_IFCHR, 1, 4}, "kmsg": {unix.S_IFCHR, 1, 11},
			"sda": {unix.S_IFBLK, 8, 0}, "vda": {unix.S_IFBLK, 254, 0}, "nvme": {unix.S_IFBLK, 259, 0}, "loop0": {unix.S_IFBLK, 7, 0},
			"kvm": {unix.S_IFCHR, 10, 232}, "loop-control": {unix.S_IFCHR, 10, 237}, "cuse": {unix.S_IFCHR, 10, 203}, "vsock": {unix.S_IFCHR, 10, 241},
			"vhost": {unix.S_IFCHR, 10, 238}, "userfaultfd": {unix.S_IFCHR, 10, 126}, "uinput": {unix.S_IFCHR, 10, 223}, "snapshot": {unix.S_IFCHR, 10, 231},
			"watchdog": {unix.S_IFCHR, 10, 130}, "tty0": {unix.S_IFCHR, 4, 0}, "ttyS0": {unix.S_IFCHR, 4, 64}, "console": {unix.S_IFCHR, 5, 1},
			"hwrng": {unix.S_IFCHR, 10, 183}, "rtc": {unix.S_IFCHR, 252, 0}, "msr": {unix.S_IFCHR, 202, 0}, "nvidia": {unix.S_IFCHR, 195, 255},
		} {
			path := filepath.Join(dir, "attack-"+name)
			_ = unix.Mknod(path, dev.kind|0o666, int(unix.Mkdev(dev.major, dev.minor)))
			a.do("open "+path, func() error { return open(path, unix.O_RDWR) })
			a.try("read "+path, func() (string, error) { return read(path) })
			_ = os.Remove(path)
		}
	}
}

// deviceFiles tells which devices there are.
func deviceFiles(a *attempt) {
	_ = filepath.WalkDir("/dev", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.HasPrefix(name, "/dev/pts/") || strings.HasPrefix(name, "/dev/fd/") || strings.HasPrefix(name, "/dev/shm/") {
			return nil
		}
		a.do(name, func() error { return open(name, unix.O_RDWR) })
		return nil
	})
}

func sysFiles(a *attempt) {
	_ = filepath.WalkDir("/sys", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && !strings.HasPrefix(name, "/sys/fs/cgroup/") {
			a.do("write "+name, func() error { return write(name, "1") })
		}
		return nil
	})
	for _, name := range []string{"/sys/power/state", "/sys/kernel/mm/ksm/run", "/sys/class/block", "/sys/fs/bpf/x", "/sys/module/kvm/parameters/nx_huge_pages"} {
		a.do("write "+name, func() error { return write(name, "1") })
	}
}

func clocks(a *attempt) {
	past := unix.Timespec{Sec: 86400}
	a.call("settimeofday", unix.SYS_SETTIMEOFDAY, uintptr(unsafe.Pointer(&unix.Timeval{Sec: 86400})), 0)
	for _, clock := range []int32{unix.CLOCK_REALTIME, unix.CLOCK_MONOTONIC, unix.CLOCK_BOOTTIME, unix.CLOCK_TAI} {
		a.call(fmt.Sprintf("clock_settime %d", clock), unix.SYS_CLOCK_SETTIME, uintptr(clock), uintptr(unsafe.Pointer(&past)))
	}
	a.do("adjtimex", func() error {
		_, err := unix.Adjtimex(&unix.Timex{Modes: unix.ADJ_OFFSET, Offset: 500000})
		return err
	})
	a.do("clock_adjtime", func() error {
		_, err := unix.ClockAdjtime(unix.CLOCK_REALTIME, &unix.Timex{Modes: unix.ADJ_SETOFFSET, Time: unix.Timeval{Sec: 3600}})
		return err
	})
	a.do("rtc", func() error { return open("/dev/rtc0", unix.O_RDWR) })
	runtime.KeepAlive(past)
}

func hostName(a *attempt) {
	a.do("sethostname", func() error { return unix.Sethostname([]byte("attacked")) })
	a.do("setdomainname", func() error { return unix.Setdomainname([]byte("attacked")) })
}

func power(a *attempt) {
	for name, command := range map[string]int{
		"cad off": unix.LINUX_REBOOT_CMD_CAD_OFF, "cad on": unix.LINUX_REBOOT_CMD_CAD_ON, "kexec": unix.LINUX_REBOOT_CMD_KEXEC,
		"suspend": unix.LINUX_REBOOT_CMD_SW_SUSPEND, "restart": unix.LINUX_REBOOT_CMD_RESTART, "halt": unix.LINUX_REBOOT_CMD_HALT,
		"off": unix.LINUX_REBOOT_CMD_POWER_OFF,
	} {
		a.do(name, func() error { return unix.Reboot(command) })
	}
	a.call("kexec_load", unix.SYS_KEXEC_LOAD, 0, 0, 0, 0)
	a.call("kexec_file_load", sysKexecFileLoad, 0, 0, 0, 0, 0)
}

func modules(a *attempt) {
	a.do("init_module", func() error { return unix.InitModule([]byte("\x7fELF"), "") })
	a.do("finit_module", func() error {
		fd, err := unix.Open("/proc/self/exe", unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		return unix.FinitModule(fd, "", 0)
	})
	a.do("delete_module", func() error { return unix.DeleteModule("loop", unix.O_NONBLOCK) })
}

func kernelLog(a *attempt) {
	buf := make([]byte, maxGot)
	for _, kind := range []int{unix.SYSLOG_ACTION_READ_ALL, unix.SYSLOG_ACTION_READ_CLEAR} {
		a.try(fmt.Sprintf("read %d", kind), func() (string, error) {
			n, err := unix.Klogctl(kind, buf)
			if err != nil {
				return "", err
			}
			return string(buf[:n]), nil
		})
	}
	for _, kind := range []int{unix.SYSLOG_ACTION_CLEAR, unix.SYSLOG_ACTION_CONSOLE_OFF} {
		a.do(fmt.Sprintf("change %d", kind), func() error {
			_, err := unix.Klogctl(kind, nil)
			return err
		})
	}
	a.do("write to it", func() error { return write("/dev/kmsg", "attack") })
}

func oldCalls(a *attempt) {
	path, err := unix.BytePtrFromString(scratch() + "/file")
	if err != nil {
		fail(err)
	}
	p := uintptr(unsafe.Pointer(path))
	a.call("acct", unix.SYS_ACCT, p)
	a.call("swapon", unix.SYS_SWAPON, p, 0)
	a.call("swapoff", unix.SYS_SWAPOFF, p)
	a.call("quotactl", unix.SYS_QUOTACTL, 0x80000700, p, 0, 0)
	a.call("nfsservctl", unix.SYS_NFSSERVCTL, 0, 0, 0)
	a.call("uselib", sysUselib, p)
	a.call("lookup_dcookie", unix.SYS_LOOKUP_DCOOKIE, 1, p, 100)
	a.call("_sysctl", sysSysctl, 0)
	for name, nr := range forgottenCalls {
		a.call(name, nr, p)
	}
	a.call("move_pages of the first process", unix.SYS_MOVE_PAGES, 1, 0, 0, 0, 0, 0)
	a.call("migrate_pages of the first process", unix.SYS_MIGRATE_PAGES, 1, 0, 0, 0)
	runtime.KeepAlive(path)
}

// coreDump dies in a way that makes the kernel write a core.
func coreDump(a *attempt) {
	if len(a.args) > 0 {
		_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
		_ = unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0)
		_ = unix.Kill(os.Getpid(), unix.SIGSEGV)
		_ = unix.Kill(os.Getpid(), unix.SIGABRT)
		time.Sleep(time.Second)
		return
	}
	for _, dir := range []string{scratch(), writableMount} {
		if os.Chdir(dir) != nil {
			continue
		}
		a.try("die in "+dir, func() (string, error) { return again(a, "core-dump", "child") })
		a.try("what is there", func() (string, error) { return list(dir) })
	}
}

// environment collects what processes were started with.
func environment(a *attempt) {
	a.control("own", func() (string, error) { return strings.Join(os.Environ(), "\n"), nil })
	for _, file := range []string{"environ", "cmdline", "comm", "auxv", "status"} {
		paths, _ := filepath.Glob("/proc/*/" + file)
		for _, path := range paths {
			a.try("read "+path, func() (string, error) { return read(path) })
		}
	}
}

// descriptors tells what a fresh command, and the first process, has open.
func descriptors(a *attempt) {
	for _, fd := range a.fds {
		a.try(fmt.Sprintf("own %d", fd), func() (string, error) { return os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)) })
	}
	links, _ := filepath.Glob("/proc/1/fd/*")
	for _, link := range links {
		a.try("first "+filepath.Base(link), func() (string, error) { return os.Readlink(link) })
		a.do("open first "+filepath.Base(link), func() error { return open(link, unix.O_RDWR) })
	}
	a.try("other processes", func() (string, error) {
		var all []string
		links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
		for _, link := range links {
			target, err := os.Readlink(link)
			if err == nil && strings.HasPrefix(target, "/") {
				all = append(all, target)
			}
		}
		if len(all) == 0 {
			return "", errors.New("none")
		}
		return strings.Join(all, "\n"), nil
	})
}
