package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func processAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"see-processes":      seeProcesses,
		"signal-others":      signalOthers,
		"kill-everything":    killEverything,
		"kill-first":         func(a *attempt) { a.do("kill", func() error { return unix.Kill(1, unix.SIGKILL) }) },
		"freeze-first":       func(a *attempt) { a.do("stop", func() error { return unix.Kill(1, unix.SIGSTOP) }) },
		"trace-first":        traceFirst,
		"first-memory":       firstMemory,
		"first-descriptors":  firstDescriptors,
		"conduit-thief":      conduitThief,
		"inject-first":       injectFirst,
		"hostile-registers":  hostileRegisters,
		"unmap-everything":   unmapEverything,
		"hostile-signal":     hostileSignal,
		"anonymous-programs": anonymousPrograms,
	}
}

// again runs the attacker once more, as a child.
func again(a *attempt, name string, args ...string) (string, error) {
	data, err := json.Marshal(a.params)
	if err != nil {
		return "", err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{name, string(data)}, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		return "", err
	}
	end := time.AfterFunc(patience-500*time.Millisecond, func() { _ = cmd.Process.Kill() })
	defer end.Stop()
	err = cmd.Wait()
	text := out.String()
	return fmt.Sprintf("%v\n%.400s", cmd.ProcessState, text), err
}

func seeProcesses(a *attempt) {
	a.control("list", func() (string, error) { return list("/proc") })
	for _, pid := range a.PIDs {
		for _, file := range []string{"cmdline", "environ", "stat", "maps", "status"} {
			path := fmt.Sprintf("/proc/%d/%s", pid, file)
			a.try("read "+path, func() (string, error) { return read(path) })
		}
	}
	paths, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range paths {
		a.try("read "+path, func() (string, error) { return read(path) })
	}
}

// signalOthers sends signals to processes outside this sandbox.
func signalOthers(a *attempt) {
	for _, pid := range a.PIDs {
		for _, sig := range []unix.Signal{0, unix.SIGTERM, unix.SIGKILL, unix.SIGSTOP} {
			a.do(fmt.Sprintf("signal %d to %d", sig, pid), func() error { return unix.Kill(pid, sig) })
			a.do(fmt.Sprintf("signal %d to group %d", sig, pid), func() error { return unix.Kill(-pid, sig) })
			a.do(fmt.Sprintf("signal %d to thread %d", sig, pid), func() error { return unix.Tgkill(pid, pid, sig) })
		}
		a.do(fmt.Sprintf("open %d", pid), func() error {
			_, err := unix.PidfdOpen(pid, 0)
			return err
		})
		a.do(fmt.Sprintf("priority of %d", pid), func() error { return unix.Setpriority(unix.PRIO_PROCESS, pid, 19) })
		a.do(fmt.Sprintf("limits of %d", pid), func() error {
			return unix.Prlimit(pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1, Max: 1}, nil)
		})
		a.do(fmt.Sprintf("trace %d", pid), func() error { return unix.PtraceAttach(pid) })
		a.do(fmt.Sprintf("processor of %d", pid), func() error { return unix.SchedSetaffinity(pid, &unix.CPUSet{1}) })
		a.try(fmt.Sprintf("memory of %d", pid), func() (string, error) { return readMemory(pid, 0x400000) })
	}
	// Every number a machine may use, but for the first process and this one's
	// relatives.
	hit := 0
	for pid := 2; pid < a.Count; pid++ {
		if pid != os.Getppid() && unix.Kill(pid, 0) == nil && !isThread(pid) && unix.Kill(pid, unix.SIGKILL) == nil {
			hit++
		}
	}
	a.control("spray", func() (string, error) { return fmt.Sprintf("%d hit", hit), nil })
}

// isThread reports whether a number is that of a thread of this process or of
// the first.
func isThread(id int) bool {
	for _, process := range []string{"self", "1"} {
		if _, err := os.Stat(fmt.Sprintf("/proc/%s/task/%d", process, id)); err == nil {
			return true
		}
	}
	return false
}

func killEverything(a *attempt) {
	signal.Ignore(unix.SIGTERM, unix.SIGHUP)
	for _, sig := range []unix.Signal{unix.SIGHUP, unix.SIGTERM, unix.SIGKILL} {
		a.do(fmt.Sprintf("signal %d to everything", sig), func() error { return unix.Kill(-1, sig) })
	}
}

// traceFirst becomes the debugger of the first process.
func traceFirst(a *attempt) {
	runtime.LockOSThread()
	attached := unix.PtraceAttach(1)
	a.do("attach", func() error { return attached })
	if attached == nil {
		var status unix.WaitStatus
		for range 100 {
			pid, err := unix.Wait4(1, &status, unix.WALL|unix.WNOHANG, nil)
			if pid == 1 || err != nil {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		word := make([]byte, 8)
		_, err := unix.PtracePeekData(1, 0x400000, word)
		a.do("peek", func() error { return err })
		err = unix.PtraceDetach(1)
		a.do("detach", func() error { return err })
	}
	const seize = 0x4206
	_, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, seize, 1, 0, 0, 0, 0)
	a.do("seize", func() error {
		if errno != 0 {
			return errno
		}
		return nil
	})
	if errno == 0 {
		_ = unix.PtraceDetach(1)
	}
}

func readMemory(pid int, address uintptr) (string, error) {
	b := make([]byte, 64)
	n, err := unix.ProcessVMReadv(pid, []unix.Iovec{{Base: &b[0], Len: 64}}, []unix.RemoteIovec{{Base: address, Len: 64}}, 0)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%q", b[:n]), nil
}

// firstMemory reads and writes the guest's memory. Where an ordinary user can do
// it the user has what root has.
func firstMemory(a *attempt) {
	a.try("process_vm_readv", func() (string, error) { return readMemory(1, 0x400000) })
	a.do("process_vm_writev", func() error {
		b := []byte{0}
		_, err := unix.ProcessVMWritev(1, []unix.Iovec{{Base: &b[0], Len: 1}}, []unix.RemoteIovec{{Base: 0x400000, Len: 1}}, 0)
		return err
	})
	for _, file := range []string{"mem", "maps", "environ", "auxv", "syscall", "stack", "pagemap", "fd", "root", "cwd", "exe"} {
		a.do("open "+file, func() error { return open("/proc/1/"+file, unix.O_RDONLY) })
	}
	a.do("kcmp", func() error {
		_, _, errno := unix.Syscall6(unix.SYS_KCMP, 1, uintptr(os.Getpid()), 0, 3, 3, 0)
		if errno != 0 {
			return errno
		}
		return nil
	})
}

// firstDescriptors tries to take the guest's descriptors, the conduit among
// them.
func firstDescriptors(a *attempt) {
	pidfd, err := unix.PidfdOpen(1, 0)
	a.do("pidfd_open", func() error { return err })
	for fd := range 12 {
		a.do(fmt.Sprintf("pidfd_getfd %d", fd), func() error {
			_, err := unix.PidfdGetfd(pidfd, fd, 0)
			return err
		})
		path := fmt.Sprintf("/proc/1/fd/%d", fd)
		target, _ := os.Readlink(path)
		if !strings.HasPrefix(target, "socket:") {
			continue
		}
		a.do("open "+path, func() error { return open(path, unix.O_RDWR) })
		a.do("connect to "+path, func() error { return connectUnix(path, unix.SOCK_SEQPACKET) })
		a.do("bind over "+path, func() error { return bindUnix(path) })
		a.do("link "+path, func() error {
			return unix.Linkat(unix.AT_FDCWD, path, unix.AT_FDCWD, "/tmp/conduit", unix.AT_SYMLINK_FOLLOW)
		})
		a.do("mount over "+path, func() error { return unix.Mount("/dev/null", path, "", unix.MS_BIND, "") })
	}
	a.do("remove the guest's directory", func() error { return os.RemoveAll("/.sandpit") })
}

// anonymousPrograms runs programs that no path leads to.
func anonymousPrograms(a *attempt) {
	a.do("memfd", func() error {
		fd, err := unix.MemfdCreate(a.Name, 0)
		if err != nil {
			return err
		}
		if _, err := unix.Write(fd, []byte("#!/bin/sh\nexit 0\n")); err != nil {
			return err
		}
		if err := os.Chmod(fmt.Sprintf("/proc/self/fd/%d", fd), 0o4755); err != nil {
			return err
		}
		return exec.Command(fmt.Sprintf("/proc/self/fd/%d", fd)).Run()
	})
	a.do("memfd_secret", func() error {
		_, err := unix.MemfdSecret(0)
		return err
	})
	a.do("a program that interprets itself", func() error {
		path := scratch() + "/loop"
		if err := os.WriteFile(path, []byte("#!"+path+"\n"), 0o755); err != nil {
			return err
		}
		return exec.Command(path).Run()
	})
	a.do("a program that is cut off", func() error {
		self, err := os.ReadFile("/proc/self/exe")
		if err != nil {
			return err
		}
		var errs []error
		for _, n := range []int{4, 52, 64, 100, 4096, 100000} {
			path := fmt.Sprintf("%s/cut-%d", scratch(), n)
			errs = append(errs, os.WriteFile(path, self[:n], 0o755))
			_ = exec.Command(path).Run()
		}
		// Headers full of ones: sizes and addresses that no loader should believe.
		path := scratch() + "/ones"
		copied := bytes.Clone(self[:4096])
		for i := 64; i < 64+56*8; i++ {
			copied[i] = 0xff
		}
		errs = append(errs, os.WriteFile(path, copied, 0o755))
		_ = exec.Command(path).Run()
		return errors.Join(errs...)
	})
	a.do("very many arguments", func() error {
		cmd := exec.Command("/proc/self/exe")
		cmd.Args = make([]string, 200_000)
		for i := range cmd.Args {
			cmd.Args[i] = "argument"
		}
		return cmd.Run()
	})
	a.do("a very long environment", func() error {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{"X=" + strings.Repeat("x", 64<<20)}
		return cmd.Run()
	})
}

// hostileSignal returns from signals that never came, with frames of rubbish.
func hostileSignal(a *attempt) {
	if len(a.args) == 0 {
		for _, kind := range []string{"zero", "ones", "random"} {
			a.try(kind, func() (string, error) { return again(a, "hostile-signal", kind) })
		}
		return
	}
	// The frame lies on an alternate stack of rubbish: the call takes whatever
	// the stack pointer shows.
	runtime.LockOSThread()
	fill := byte(0)
	switch a.args[0] {
	case "ones":
		fill = 0xff
	case "random":
		fill = byte(a.Seed) | 0x11
	}
	rubbish := make([]byte, 64<<10)
	for i := range rubbish {
		rubbish[i] = fill ^ byte(i*int(fill))
	}
	stack := struct {
		base  uintptr
		flags int32
		size  uintptr
	}{uintptr(unsafe.Pointer(&rubbish[0])), 0, uintptr(len(rubbish))}
	_, _, _ = unix.RawSyscall(unix.SYS_SIGALTSTACK, uintptr(unsafe.Pointer(&stack)), 0, 0)
	_, _, _ = unix.RawSyscall(unix.SYS_RT_SIGRETURN, uintptr(unsafe.Pointer(&rubbish[0])), 0, 0)
}

// unmapEverything takes the memory from under a process.
func unmapEverything(a *attempt) {
	if len(a.args) == 0 {
		for _, how := range []string{"unmap", "protect", "map-top", "map-low", "remap", "brk"} {
			a.try(how, func() (string, error) { return again(a, "unmap-everything", how) })
		}
		return
	}
	const top = 0x7ffffffff000
	switch a.args[0] {
	case "unmap":
		_, _, _ = unix.RawSyscall(unix.SYS_MUNMAP, 0, top, 0)
	case "protect":
		for address := uintptr(0); address < top; address += top >> 10 {
			_, _, _ = unix.RawSyscall(unix.SYS_MPROTECT, address&^4095, top>>10&^4095, unix.PROT_NONE)
		}
	case "map-top", "map-low":
		base := uintptr(0)
		if a.args[0] == "map-top" {
			base = top - 1<<38
		}
		for offset := uintptr(0); offset < 1<<38; offset += 1 << 30 {
			_, _, _ = unix.RawSyscall6(unix.SYS_MMAP, base+offset, 1<<30, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC,
				unix.MAP_FIXED|unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE, ^uintptr(0), 0)
		}
	case "remap":
		_, _, _ = unix.RawSyscall6(unix.SYS_MREMAP, 0x400000, 1<<20, 1<<46, unix.MREMAP_MAYMOVE, 0, 0)
	case "brk":
		_, _, _ = unix.RawSyscall(unix.SYS_BRK, top, 0, 0)
	}
}
