package main

import (
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	sysKexecFileLoad = unix.SYS_KEXEC_FILE_LOAD
	sysUselib        = unix.SYS_USELIB
	sysSysctl        = unix.SYS__SYSCTL
)

var (
	oldCallsThatWait = []uintptr{unix.SYS_PAUSE, unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_SELECT, unix.SYS_POLL, unix.SYS_EPOLL_WAIT}
	forgottenCalls   = map[string]uintptr{
		"create_module": unix.SYS_CREATE_MODULE, "get_kernel_syms": unix.SYS_GET_KERNEL_SYMS, "query_module": unix.SYS_QUERY_MODULE,
		"ustat": unix.SYS_USTAT, "sysfs": unix.SYS_SYSFS,
	}
)

// hardware asks for the rights to talk to devices directly.
func hardware(a *attempt) {
	a.call("iopl", unix.SYS_IOPL, 3)
	a.call("ioperm", unix.SYS_IOPERM, 0x60, 5, 1)
	descriptor := [4]uint32{0, 0, 0xfffff, 0x77}
	a.call("modify_ldt", unix.SYS_MODIFY_LDT, 1, uintptr(unsafe.Pointer(&descriptor)), 16)
	a.call("set_thread_area", unix.SYS_SET_THREAD_AREA, uintptr(unsafe.Pointer(&descriptor)))
	for _, code := range []uintptr{0x1001, 0x1002} { // GS and FS, to the kernel's half of the memory
		a.call(fmt.Sprintf("arch_prctl %#x", code), unix.SYS_ARCH_PRCTL, code, 0xffffffff81000000)
	}
	runtime.KeepAlive(descriptor)
}

// instructions are what only a kernel may do, or what reaches one by another
// door than system calls do.
func instructions() map[string][]byte {
	return map[string][]byte{
		"int 0x80 getpid":    {0xb8, 0x14, 0, 0, 0, 0xcd, 0x80},
		"int 0x80 reboot":    {0xb8, 0x58, 0, 0, 0, 0xcd, 0x80},
		"sysenter":           {0xb8, 0x14, 0, 0, 0, 0x0f, 0x34},
		"int3":               {0xcc},
		"int 0x2e":           {0xcd, 0x2e},
		"hlt":                {0xf4},
		"cli":                {0xfa},
		"in":                 {0xe4, 0x60},
		"out":                {0xe6, 0x64},
		"rdmsr":              {0x0f, 0x32},
		"wrmsr":              {0x0f, 0x30},
		"rdpmc":              {0x0f, 0x33},
		"mov cr0":            {0x0f, 0x20, 0xc0},
		"mov cr3":            {0x0f, 0x22, 0xd8},
		"mov dr7":            {0x0f, 0x23, 0xf8},
		"lidt":               {0x0f, 0x01, 0x1c, 0x24},
		"sgdt":               {0x0f, 0x01, 0x44, 0x24, 0xe0},
		"ltr":                {0x0f, 0x00, 0xd8},
		"invlpg":             {0x0f, 0x01, 0x3c, 0x24},
		"wbinvd":             {0x0f, 0x09},
		"vmcall":             {0x0f, 0x01, 0xc1},
		"vmmcall":            {0x0f, 0x01, 0xd9},
		"vmxon":              {0xf3, 0x0f, 0xc7, 0x34, 0x24},
		"swapgs":             {0x0f, 0x01, 0xf8},
		"sysret":             {0x48, 0x0f, 0x07},
		"iret":               {0x48, 0xcf},
		"monitor":            {0x0f, 0x01, 0xc8},
		"xsetbv":             {0x0f, 0x01, 0xd1},
		"wrfsbase":           {0xf3, 0x48, 0x0f, 0xae, 0xd4},
		"wrgsbase":           {0xf3, 0x48, 0x0f, 0xae, 0xdc},
		"ud2":                {0x0f, 0x0b},
		"mov ss":             {0x31, 0xc0, 0x8e, 0xd0},
		"jump to the kernel": {0x48, 0xc7, 0xc0, 0, 0, 0, 0x81, 0xff, 0xe0},
		"jump to vsyscall":   {0x48, 0xc7, 0xc0, 0, 0, 0x60, 0xff, 0xff, 0xd0},
		"direction flag":     {0xfd, 0xb8, 0x27, 0, 0, 0, 0x0f, 0x05, 0xfc},
		"alignment flag":     {0x9c, 0x48, 0x81, 0x0c, 0x24, 0, 0, 0x04, 0, 0x9d, 0x8b, 0x44, 0x24, 0x01},
		"trap flag":          {0x9c, 0x48, 0x81, 0x0c, 0x24, 0, 1, 0, 0, 0x9d, 0x90, 0x90},
		"no stack":           {0x31, 0xe4, 0xb8, 0x27, 0, 0, 0, 0x0f, 0x05},
		"kernel's stack":     {0x48, 0xc7, 0xc4, 0, 0, 0, 0x81, 0xb8, 0x27, 0, 0, 0, 0x0f, 0x05},
		"far jump to 32 bit": {0x6a, 0x23, 0x48, 0x8d, 0x05, 0x03, 0, 0, 0, 0x50, 0x48, 0xcb, 0xb8, 0x14, 0, 0, 0, 0xcd, 0x80},
	}
}

func instructionAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){"instructions": runInstructions}
}

// runInstructions has a child run each of the instructions.
func runInstructions(a *attempt) {
	all := instructions()
	if len(a.args) == 0 {
		for name := range all {
			a.try(name, func() (string, error) { return again(a, "instructions", name) })
		}
		return
	}
	runtime.LockOSThread()
	code, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		fail(err)
	}
	copy(code, append(all[a.args[0]], 0xc3)) // ret
	entry := &code[0]
	function := &entry // a function value is a pointer to a pointer to code
	(*(*func())(unsafe.Pointer(&function)))()
}

// hostileRegisters has a debugger give its child registers that no process can
// have.
func hostileRegisters(a *attempt) {
	const kernel, odd = 0xffffffff81000000, 0x8000000000000000
	for name, change := range map[string]func(*unix.PtraceRegs){
		"rip":        func(r *unix.PtraceRegs) { r.Rip = odd },
		"rip kernel": func(r *unix.PtraceRegs) { r.Rip = kernel },
		"rsp":        func(r *unix.PtraceRegs) { r.Rsp = odd },
		"cs":         func(r *unix.PtraceRegs) { r.Cs = 0x10 },
		"ss":         func(r *unix.PtraceRegs) { r.Ss = 0x18 },
		"cs of 32":   func(r *unix.PtraceRegs) { r.Cs = 0x23 },
		"ds":         func(r *unix.PtraceRegs) { r.Ds, r.Es, r.Fs, r.Gs = 0xffff, 0xffff, 0xffff, 0xffff },
		"fs base":    func(r *unix.PtraceRegs) { r.Fs_base = kernel },
		"gs base":    func(r *unix.PtraceRegs) { r.Gs_base = odd },
		"eflags":     func(r *unix.PtraceRegs) { r.Eflags = ^uint64(0) },
		"orig rax":   func(r *unix.PtraceRegs) { r.Orig_rax, r.Rax = ^uint64(0), ^uint64(515) }, // restart
		"ones":       func(r *unix.PtraceRegs) { fillRegisters(r, ^uint64(0)) },
		"zeroes":     func(r *unix.PtraceRegs) { fillRegisters(r, 0) },
	} {
		a.do(name, func() error { return traceChild(change) })
	}
}

func fillRegisters(r *unix.PtraceRegs, value uint64) {
	words := (*[unsafe.Sizeof(*r) / 8]uint64)(unsafe.Pointer(r))
	for i := range words {
		words[i] = value
	}
}

// traceChild changes a child's registers and lets it go on for a moment.
func traceChild(change func(*unix.PtraceRegs)) (result error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	pid := cmd.Process.Pid
	defer func() {
		_ = unix.Kill(pid, unix.SIGKILL)
		result = errors.Join(result, await(pid))
	}()
	if err := await(pid); err != nil {
		return err
	}
	var regs unix.PtraceRegs
	if err := unix.PtraceGetRegs(pid, &regs); err != nil {
		return err
	}
	change(&regs)
	err := unix.PtraceSetRegs(pid, &regs)
	err = errors.Join(err, unix.PtraceCont(pid, 0))
	time.Sleep(20 * time.Millisecond)
	return err
}

// await waits for a child to stop or to end, but not for ever.
func await(pid int) error {
	for range 100 {
		got, err := unix.Wait4(pid, nil, unix.WALL|unix.WNOHANG, nil)
		if got != 0 || err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return errors.New("neither stops nor ends")
}

// injectFirst has the first process, by its debugger, shut its conduit down.
func injectFirst(a *attempt) {
	runtime.LockOSThread()
	err := shutDownConduit()
	a.do("shut the conduit down from within the guest", func() error { return err })
}

func shutDownConduit() error {
	if err := unix.PtraceAttach(1); err != nil {
		return err
	}
	defer func() { _ = unix.PtraceDetach(1) }()
	if _, err := unix.Wait4(1, nil, unix.WALL, nil); err != nil {
		return err
	}
	var saved unix.PtraceRegs
	if err := unix.PtraceGetRegs(1, &saved); err != nil {
		return err
	}
	old := make([]byte, 8)
	if _, err := unix.PtracePeekData(1, uintptr(saved.Rip), old); err != nil {
		return err
	}
	if _, err := unix.PtracePokeData(1, uintptr(saved.Rip), []byte{0x0f, 0x05, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc}); err != nil {
		return err
	}
	for fd := uint64(3); fd < 6; fd++ { // it is one of the first
		regs := saved
		regs.Rax, regs.Orig_rax, regs.Rdi, regs.Rsi = unix.SYS_SHUTDOWN, ^uint64(0), fd, unix.SHUT_RDWR
		err := errors.Join(unix.PtraceSetRegs(1, &regs), unix.PtraceCont(1, 0))
		if err != nil {
			return err
		}
		if _, err := unix.Wait4(1, nil, unix.WALL, nil); err != nil {
			return err
		}
	}
	_, err := unix.PtracePokeData(1, uintptr(saved.Rip), old)
	return errors.Join(err, unix.PtraceSetRegs(1, &saved))
}
