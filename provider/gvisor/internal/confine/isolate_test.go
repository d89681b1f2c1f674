package confine

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// isolatedVariable has TestIsolated be a process in the place of the named one.
const isolatedVariable = "SANDPIT_TEST_ISOLATED"

// The processes that it can be.
const (
	gatewayName = "gateway"
	dialerName  = "dialer"
)

// The descriptors of such a process: connections to servers of the test.
const (
	isolatedStreamFD = 3
	isolatedPacketFD = 4
)

// attempt is one thing that a process tries that was taken over.
type attempt struct {
	name string
	do   func() error
}

// call6 returns a function that makes one system call.
func call6(number uintptr, arguments ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], arguments)
		if _, _, errno := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
}

// attempts are what neither a gateway nor a dialer may do.
func attempts() []attempt {
	list := []attempt{
		{"a raw socket", call6(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)},
		{"a raw socket of TCP", call6(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)},
		{"MPTCP", call6(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_MPTCP)},
		{"SCTP", call6(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_SCTP)},
		{"socketpair", call6(unix.SYS_SOCKETPAIR, unix.AF_UNIX, unix.SOCK_STREAM, 0, uintptr(unsafe.Pointer(new([2]int32))))},
		{"bind", call6(unix.SYS_BIND, isolatedStreamFD, 0, 0)},
		{"listen", call6(unix.SYS_LISTEN, isolatedStreamFD, 1)},
		{"sendmmsg", call6(unix.SYS_SENDMMSG, isolatedPacketFD, 0, 0, 0)},
		{"options of IP", call6(unix.SYS_SETSOCKOPT, isolatedStreamFD, unix.IPPROTO_IP, unix.IP_OPTIONS, 0, 0)},
		{"another device", call6(unix.SYS_SETSOCKOPT, isolatedStreamFD, unix.SOL_SOCKET, unix.SO_BINDTODEVICE, uintptr(unsafe.Pointer(&[]byte("lo\x00")[0])), 3)},
		{"open", func() error { return errOf(os.Open("/")) }},
		{"make a file", func() error { return errOf(os.Create("/x")) }},
		{"execve", call6(unix.SYS_EXECVE, 0, 0, 0)},
		{"execveat", call6(unix.SYS_EXECVEAT, 0, 0, 0, 0, 0)},
		{"fork", call6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0)},
		{"clone3", call6(unix.SYS_CLONE3, 0, 0)},
		{"unshare", call6(unix.SYS_UNSHARE, unix.CLONE_NEWNET)},
		{"setns", call6(unix.SYS_SETNS, 0, 0)},
		{"ptrace", call6(unix.SYS_PTRACE, unix.PTRACE_TRACEME, 0, 0, 0)},
		{"pidfd_open", call6(unix.SYS_PIDFD_OPEN, 1, 0)},
		{"process_vm_readv", call6(unix.SYS_PROCESS_VM_READV, 1, 0, 0, 0, 0, 0)},
		{"kill", call6(unix.SYS_KILL, 1, 0)},
		{"mount", call6(unix.SYS_MOUNT, 0, 0, 0, 0, 0)},
		{"io_uring", call6(unix.SYS_IO_URING_SETUP, 1, 0)},
		{"bpf", call6(unix.SYS_BPF, 0, 0, 0)},
		{"keyctl", call6(unix.SYS_KEYCTL, 0, 0, 0, 0, 0)},
		{"userfaultfd", call6(unix.SYS_USERFAULTFD, 0)},
		{"perf", call6(unix.SYS_PERF_EVENT_OPEN, 0, 0, 0, 0, 0)},
		{"memory with instructions", func() error {
			return errOf(unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_ANON|unix.MAP_PRIVATE))
		}},
		{"be dumpable", func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) }},
		{"more descriptors", func() error { return unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20}) }},
	}
	for _, family := range []uintptr{
		unix.AF_UNIX, unix.AF_NETLINK, unix.AF_PACKET, unix.AF_VSOCK, unix.AF_ALG, unix.AF_BLUETOOTH, unix.AF_CAN, unix.AF_TIPC, unix.AF_XDP, unix.AF_KEY, unix.AF_RDS, unix.AF_SMC,
	} {
		list = append(list, attempt{
			"family " + string(rune('0'+family/10)) + string(rune('0'+family%10)),
			call6(unix.SYS_SOCKET, family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0),
		})
	}
	if runtime.GOARCH == "amd64" { // the same call by the numbers of another architecture
		list = append(list, attempt{"socket of x32", call6(unix.SYS_SOCKET|0x40000000, unix.AF_UNIX, unix.SOCK_STREAM, 0)})
	}
	return list
}

// gatewayAttempts are what a dialer may do and a gateway may not: to have what it was given
// lead elsewhere.
func gatewayAttempts() []attempt {
	elsewhere := &unix.SockaddrInet4{Port: 22, Addr: [4]byte{127, 0, 0, 1}}
	nobody := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	dissolve := func(fd uintptr) func() error {
		return call6(unix.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&nobody)), unsafe.Sizeof(nobody))
	}
	return []attempt{
		{"TCP", call6(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)},
		{"UDP of IPv6", call6(unix.SYS_SOCKET, unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_UDP)},
		{"ping", call6(unix.SYS_SOCKET, unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_ICMP)},
		{"dissolve a stream", dissolve(isolatedStreamFD)},
		{"dissolve datagrams", dissolve(isolatedPacketFD)},
		{"connect a stream again", func() error { return unix.Connect(isolatedStreamFD, elsewhere) }},
		{"connect datagrams again", func() error { return unix.Connect(isolatedPacketFD, elsewhere) }},
		{"send a datagram elsewhere", func() error { return unix.Sendto(isolatedPacketFD, []byte("x"), 0, elsewhere) }},
		{"send a message elsewhere", func() error { return unix.Sendmsg(isolatedPacketFD, []byte("x"), nil, elsewhere, 0) }},
		{"pass a descriptor on", func() error { return unix.Sendmsg(isolatedStreamFD, []byte("x"), unix.UnixRights(0), nil, 0) }},
	}
}

func errOf[T any](_ T, err error) error { return err }

// TestIsolated does, in the place of a gateway and of a dialer, what neither may.
func TestIsolated(t *testing.T) {
	if as := os.Getenv(isolatedVariable); as != "" {
		os.Exit(beIsolated(as))
	}
	t.Parallel()
	for as, list := range map[string][]attempt{gatewayName: append(attempts(), gatewayAttempts()...), dialerName: attempts()} {
		t.Run(as, func(t *testing.T) {
			t.Parallel()
			succeeded, works := isolated(t, as)
			for _, name := range succeeded {
				t.Errorf("%s: it may", name)
			}
			for what, problem := range works {
				t.Errorf("%s, which it needs: %s", what, problem)
			}
			t.Logf("%d attempts", len(list))
		})
	}
}

// outcome is what an isolated process says.
type outcome struct {
	Succeeded []string
	Broken    map[string]string
}

// isolated runs this program in the place of another one.
func isolated(t *testing.T, as string) (succeeded []string, broken map[string]string) {
	t.Helper()
	stream, packets := connectedPair(t)
	defer stream.Close()
	defer packets.Close()
	flags := uintptr(unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS)
	if as == gatewayName {
		flags |= unix.CLONE_NEWNET
	}
	cmd := &exec.Cmd{Path: "/proc/self/exe", ExtraFiles: []*os.File{stream, packets}, SysProcAttr: &syscall.SysProcAttr{
		Cloneflags:  flags,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}}
	var out, errs bytes.Buffer
	cmd.Args, cmd.Env = []string{os.Args[0], "-test.run=^TestIsolated$"}, []string{isolatedVariable + "=" + as}
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); errors.Is(err, unix.EPERM) {
		t.Skip(err)
	} else if err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	var o outcome
	if err := json.Unmarshal(out.Bytes(), &o); err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &errs)
	}
	return o.Succeeded, o.Broken
}

// connectedPair returns a stream and a socket of datagrams that are connected to servers of
// the test, which send back what comes first.
func connectedPair(t *testing.T) (stream, packets *os.File) {
	t.Helper()
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	server, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	tcp, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := (&net.Dialer{}).DialContext(t.Context(), "udp", server.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	//nolint:forcetypeassert // they are
	for f, file := range map[**os.File]func() (*os.File, error){&stream: tcp.(*net.TCPConn).File, &packets: udp.(*net.UDPConn).File} {
		if *f, err = file(); err != nil {
			t.Fatal(err)
		}
	}
	return stream, packets
}

// beIsolated filters the calls of one thread of this process and says what it still can.
// The whole of it could not do without the others: the race detector makes them, too.
func beIsolated(as string) int {
	filter, list := gatewayCalls(), append(attempts(), gatewayAttempts()...)
	if as == dialerName {
		filter, list = dialerCalls(), attempts()
	}
	program, err := filter.compile()
	if err != nil {
		return 1
	}
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 1
	}
	prog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if _, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog))); errno != 0 {
		return 1
	}
	o := outcome{Broken: map[string]string{}}
	for _, a := range list {
		if err := a.do(); !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOSYS) {
			o.Succeeded = append(o.Succeeded, a.name+": "+errText(err))
		}
	}
	needed := []attempt{
		{"write to a stream", func() error { return errOf(unix.Write(isolatedStreamFD, []byte("x"))) }},
		{"send a datagram", func() error { return errOf(unix.Write(isolatedPacketFD, []byte("x"))) }},
		{"shut down", func() error { return unix.Shutdown(isolatedStreamFD, unix.SHUT_WR) }},
	}
	if as == gatewayName {
		needed = append(needed, attempt{"linger", func() error {
			return unix.SetsockoptLinger(isolatedStreamFD, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{})
		}})
	}
	for _, a := range needed {
		if err := a.do(); err != nil {
			o.Broken[a.name] = err.Error()
		}
	}
	data, err := json.Marshal(o)
	if err != nil {
		return 1
	}
	_, _ = os.Stdout.Write(data)
	return 0
}

func errText(err error) string {
	if err == nil {
		return "done"
	}
	return err.Error()
}
