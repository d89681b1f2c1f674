package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func kernelAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"bpf":           bpf,
		"perf":          perf,
		"io-uring":      ioUring,
		"userfaultfd":   userfault,
		"fanotify":      fanotify,
		"seccomp":       seccomp,
		"personality":   personality,
		"host-ioctls":   hostIoctls,
		"hostile-files": hostileFiles,
	}
}

func callAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"unknown-calls": unknownCalls,
		"random-calls":  randomCalls,
		"bad-pointers":  badPointers,
	}
}

func bpf(a *attempt) {
	attr := make([]uint64, 16)
	for command := range uintptr(40) {
		a.call(fmt.Sprintf("bpf %d", command), unix.SYS_BPF, command, uintptr(unsafe.Pointer(&attr[0])), 128)
	}
	runtime.KeepAlive(attr)
}

func perf(a *attempt) {
	for kind := range uint32(6) {
		for _, pid := range []int{0, -1, 1} {
			a.do(fmt.Sprintf("event %d of %d", kind, pid), func() error {
				_, err := unix.PerfEventOpen(&unix.PerfEventAttr{Type: kind, Size: 120}, pid, 0, -1, 0)
				return err
			})
		}
	}
}

func ioUring(a *attempt) {
	p := make([]byte, 120)
	a.call("io_uring_setup", unix.SYS_IO_URING_SETUP, 8, uintptr(unsafe.Pointer(&p[0])))
	a.call("io_uring_enter", unix.SYS_IO_URING_ENTER, 0, 1, 1, 0)
	a.call("io_uring_register", unix.SYS_IO_URING_REGISTER, 0, 0, 0, 0)
	runtime.KeepAlive(p)
}

func userfault(a *attempt) {
	for _, flags := range []uintptr{0, 1, unix.O_NONBLOCK} {
		a.call(fmt.Sprintf("userfaultfd %d", flags), unix.SYS_USERFAULTFD, flags)
	}
	a.do("by its device", func() error { return open("/dev/userfaultfd", unix.O_RDWR) })
}

func fanotify(a *attempt) {
	for _, class := range []uint{0, unix.FAN_CLASS_CONTENT, unix.FAN_CLASS_PRE_CONTENT} {
		a.do(fmt.Sprintf("class %d", class), func() error {
			fd, err := unix.FanotifyInit(class, 0)
			if err != nil {
				return err
			}
			return unix.FanotifyMark(fd, unix.FAN_MARK_ADD|unix.FAN_MARK_FILESYSTEM, unix.FAN_OPEN, unix.AT_FDCWD, "/usr")
		})
	}
}

// seccomp asks to be told of the system calls of others.
func seccomp(a *attempt) {
	filter := []unix.SockFilter{{Code: 6, K: 0x7fc00000}} // notify the listener
	prog := unix.SockFprog{Len: 1, Filter: &filter[0]}
	_ = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	const newListener = 8
	a.call("listener", unix.SYS_SECCOMP, 1, newListener, uintptr(unsafe.Pointer(&prog)))
	a.call("trace others", unix.SYS_SECCOMP, 3, 0, 0)
	bad := []unix.SockFilter{{Code: 0xffff, K: 0xffffffff}}
	badProg := unix.SockFprog{Len: 0xffff, Filter: &bad[0]}
	a.call("a filter of rubbish", unix.SYS_SECCOMP, 1, 0, uintptr(unsafe.Pointer(&badProg)))
	runtime.KeepAlive(prog)
	runtime.KeepAlive(badProg)
}

func personality(a *attempt) {
	for _, p := range []uintptr{0x0008, 0x0400000, 0x4000000, 0xffffffff, 0x0007} {
		a.call(fmt.Sprintf("personality %#x", p), unix.SYS_PERSONALITY, p)
	}
	for option := 1; option < 80; option++ {
		if option == unix.PR_SET_PDEATHSIG || option == unix.PR_SET_SECCOMP || option == unix.PR_SET_TIMING {
			continue
		}
		_, _, _ = unix.RawSyscall6(unix.SYS_PRCTL, uintptr(option), 1, 0, 0, 0, 0)
	}
	a.control("still here", func() (string, error) { return "", nil })
}

// hostIoctls sends every kind of request to every kind of file.
func hostIoctls(a *attempt) {
	for _, path := range []string{"/", "/dev/null", "/dev/ptmx", "/dev/net/tun", "/dev/fuse", writableMount + "/open.txt", readOnlyMount + "/open.txt", "/usr/bin/env", "/proc/self/ns/net"} {
		fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		buf := make([]byte, 4096)
		passed := ""
		for group := range uintptr(256) {
			for nr := uintptr(0); nr < 256; nr += 41 {
				request := group<<8 | nr
				if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(&buf[0]))); errno == 0 {
					passed += fmt.Sprintf("%#x ", request)
				}
			}
		}
		a.try(path, func() (string, error) { return passed, nil })
		_ = unix.Close(fd)
	}
}

// hostileFiles makes names, links and directories that trip a program that walks them.
func hostileFiles(a *attempt) {
	dir := "/tmp/hostile-names"
	_ = os.RemoveAll(dir)
	a.control("prepare", func() (string, error) { return "", os.Mkdir(dir, 0o755) })
	for _, name := range []string{
		"plain", "\x1b[2J\x1b]0;owned\x07", "new\nline", "carriage\rreturn", "-rf", " ", "\\", "'\"`$(reboot)", "\u202egpj.exe",
		"..hidden", "...", "\x7f", "a\tb", "%s%n", "null\u2400", "bad-\xff\xfe", "\xc0\xaf",
	} {
		a.control(fmt.Sprintf("make %q", name), func() (string, error) { return "", os.WriteFile(dir+"/"+name, nil, 0o644) })
	}
	long := make([]byte, 255)
	for i := range long {
		long[i] = 'x'
	}
	a.control("a long name", func() (string, error) { return "", os.WriteFile(dir+"/"+string(long), nil, 0o644) })
	a.do("link to itself", func() error { return os.Symlink("itself", dir+"/itself") })
	a.do("link to escapes", func() error { return os.Symlink("\x1b[2J\n\xff", dir+"/link") })
	a.do("link to the machine", func() error { return os.Symlink(a.Canary, dir+"/canary") })
	a.do("endless link", func() error { return os.Symlink(".", dir+"/endless") })
	a.do("pipe", func() error { return unix.Mkfifo(dir+"/pipe", 0o666) })
	a.do("socket", func() error { return bindUnix(dir + "/socket") })
}

func unknownCalls(a *attempt) {
	numbers := []uintptr{^uintptr(0), 1 << 31, 1<<31 - 1, 0x40000000, 0x40000014, 1 << 32, 1<<63 | 39, 1000, 4095, 65536}
	for nr := uintptr(335); nr < 424; nr++ {
		numbers = append(numbers, nr)
	}
	for nr := uintptr(448); nr < 600; nr++ {
		numbers = append(numbers, nr)
	}
	for _, nr := range numbers {
		_, _, errno := unix.RawSyscall6(nr, 0, 0, 0, 0, 0, 0)
		if errno == 0 {
			a.try(fmt.Sprintf("call %d", nr), func() (string, error) { return "", nil })
		}
	}
	a.control("asked", func() (string, error) { return fmt.Sprint(len(numbers)), nil })
}

// randomCalls makes system calls without sense, in children that may die of them.
func randomCalls(a *attempt) {
	if len(a.args) > 0 {
		randomChild(a)
		return
	}
	const each = 125
	for i := 0; i < a.Count; i += each {
		seed := a.Seed + uint64(i)
		child := *a
		child.Seed, child.Count = seed, each
		a.try(fmt.Sprintf("seed %d", seed), func() (string, error) { return again(&child, "random-calls", "child") })
	}
}

func randomChild(a *attempt) {
	runtime.LockOSThread()
	debug.SetGCPercent(-1)
	random := rand.New(rand.NewPCG(a.Seed, 1))
	skip := callsThatWait()
	page := make([]byte, 1<<16)
	end := time.Now().Add(time.Second)
	for done := 0; done < a.Count && time.Now().Before(end); {
		nr := uintptr(random.IntN(460))
		if skip[nr] {
			continue
		}
		var args [6]uintptr
		for i := range args {
			args[i] = randomArgument(random, page)
		}
		_, _, _ = unix.Syscall6(nr, args[0], args[1], args[2], args[3], args[4], args[5])
		done++
	}
}

// callsThatWait are those that wait or end, and those by which children would
// multiply.
func callsThatWait() map[uintptr]bool {
	all := map[uintptr]bool{
		unix.SYS_EXIT: true, unix.SYS_EXIT_GROUP: true, unix.SYS_CLONE: true, unix.SYS_CLONE3: true, unix.SYS_RT_SIGSUSPEND: true,
		unix.SYS_PSELECT6: true, unix.SYS_PPOLL: true, unix.SYS_NANOSLEEP: true, unix.SYS_CLOCK_NANOSLEEP: true, unix.SYS_RT_SIGTIMEDWAIT: true,
		unix.SYS_FUTEX: true, unix.SYS_EPOLL_PWAIT: true, unix.SYS_KILL: true, unix.SYS_TGKILL: true, unix.SYS_TKILL: true,
		unix.SYS_WAIT4: true, unix.SYS_WAITID: true, unix.SYS_RT_SIGRETURN: true, unix.SYS_REBOOT: true, unix.SYS_MUNMAP: true,
	}
	for _, nr := range oldCallsThatWait {
		all[nr] = true
	}
	return all
}

func randomArgument(random *rand.Rand, page []byte) uintptr {
	switch random.IntN(8) {
	case 0:
		return 0
	case 1:
		return uintptr(random.IntN(16))
	case 2:
		return ^uintptr(0)
	case 3:
		return uintptr(random.Uint64())
	case 4:
		return uintptr(1) << random.IntN(64)
	case 5:
		return uintptr(random.IntN(1 << 16))
	}
	for i := range 64 {
		page[i] = byte(random.IntN(256))
	}
	return uintptr(unsafe.Pointer(&page[random.IntN(64)&^7]))
}

// badPointers gives every call addresses that are not the process's own.
func badPointers(a *attempt) {
	if len(a.args) == 0 {
		for _, address := range []string{"kernel", "top", "odd", "hole"} {
			a.try(address, func() (string, error) { return again(a, "bad-pointers", address) })
		}
		return
	}
	runtime.LockOSThread()
	address := map[string]uintptr{"kernel": 0xffffffff81000000, "top": 0x7ffffffff000 - 8, "odd": 1 << 47, "hole": 0x1000}[a.args[0]]
	skip := callsThatWait()
	end := time.Now().Add(600 * time.Millisecond)
	for nr := range uintptr(450) {
		if skip[nr] {
			continue
		}
		if time.Now().After(end) {
			break
		}
		_, _, _ = unix.Syscall6(nr, 1, address, address, address, address, address)
	}
}
