package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// floodAttempts use up what there is, each up to Count, so that a machine
// without limits survives them.
func floodAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"descriptor-flood": descriptorFlood,
		"thread-flood":     threadFlood,
		"zombie-flood":     zombieFlood,
		"signal-flood":     signalFlood,
		"event-flood":      eventFlood,
		"pipe-flood":       pipeFlood,
		"socket-flood":     socketFlood,
		"file-flood":       fileFlood,
		"deep-directories": deepDirectories,
		"mapping-flood":    mappingFlood,
		"terminal-flood":   terminalFlood,
		"binary-flood":     binaryFlood,
		"long-line":        longLine,
		"watch-flood":      watchFlood,
		"sleep":            func(*attempt) { time.Sleep(time.Hour) },
		"fork-bomb":        forkBomb,
		"memory-hog":       memoryHog,
		"fill-tmp":         func(a *attempt) { fill(a, "/tmp/fill") },
		"fill-shm":         func(a *attempt) { _ = os.MkdirAll("/dev/shm", 0o777); fill(a, "/dev/shm/fill") },
		"fill-root":        func(a *attempt) { fill(a, "/workspace/fill") },
		"busy":             busy,
	}
}

// repeat calls f up to Count times, until it fails.
func (a *attempt) repeat(what string, f func(i int) error) int {
	done, end := 0, time.Now().Add(4*time.Second)
	var err error
	for done < a.Count && err == nil && time.Now().Before(end) {
		if err = f(done); err == nil {
			done++
		}
	}
	a.control(what, func() (string, error) { return fmt.Sprintf("%d, %v", done, err), nil })
	return done
}

func descriptorFlood(a *attempt) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	a.repeat("open", func(int) error {
		_, err := unix.Open("/", unix.O_RDONLY, 0)
		return err
	})
	a.repeat("open /usr", func(int) error {
		_, err := unix.Open("/usr", unix.O_RDONLY, 0)
		return err
	})
	a.repeat("open a file of the machine", func(int) error {
		_, err := unix.Open(writableMount+"/open.txt", unix.O_RDWR, 0)
		return err
	})
}

func threadFlood(a *attempt) {
	started := make(chan struct{})
	a.repeat("threads", func(int) error {
		go func() {
			started <- struct{}{}
			_ = unix.Nanosleep(&unix.Timespec{Sec: 5}, nil) // keeps its thread
		}()
		<-started
		return nil
	})
}

func zombieFlood(a *attempt) {
	a.repeat("children that no process waits for", func(int) error {
		cmd := exec.Command("/proc/self/exe") // ends at once, for lack of arguments
		return cmd.Start()
	})
}

func signalFlood(a *attempt) {
	child := exec.Command("/proc/self/exe", "sleep", "{}")
	a.control("start", func() (string, error) { return "", child.Start() })
	a.repeat("signals", func(i int) error { return unix.Kill(child.Process.Pid, unix.Signal(34+i%30)) })
	a.repeat("signals to the first process", func(i int) error {
		err := unix.Kill(1, unix.Signal(34+i%30))
		if errors.Is(err, unix.EPERM) {
			return nil
		}
		return err
	})
	a.repeat("hang-ups to the first process", func(int) error {
		err := unix.Kill(1, unix.SIGHUP)
		if errors.Is(err, unix.EPERM) {
			return nil
		}
		return err
	})
	_ = child.Process.Kill()
}

func eventFlood(a *attempt) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	epoll, err := unix.EpollCreate1(0)
	if err != nil {
		fail(err)
	}
	last := epoll
	a.repeat("epolls in epolls", func(int) error {
		next, err := unix.EpollCreate1(0)
		if err != nil {
			return err
		}
		err = unix.EpollCtl(next, unix.EPOLL_CTL_ADD, last, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(last)})
		last = next
		return err
	})
	a.repeat("timers", func(int) error {
		fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, 0)
		if err != nil {
			return err
		}
		spec := unix.ItimerSpec{Interval: unix.Timespec{Nsec: 1e6}, Value: unix.Timespec{Nsec: 1}}
		return errors.Join(unix.TimerfdSettime(fd, 0, &spec, nil),
			unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)}))
	})
	a.repeat("events", func(int) error {
		_, err := unix.Eventfd(1<<31-1, 0)
		return err
	})
}

func pipeFlood(a *attempt) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	b := make([]byte, 64<<10)
	a.repeat("full pipes", func(int) error {
		p := make([]int, 2)
		if err := unix.Pipe2(p, unix.O_NONBLOCK); err != nil {
			return err
		}
		_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, 1<<20)
		_, err := unix.Write(p[1], b)
		return err
	})
}

func socketFlood(a *attempt) {
	_ = unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 1 << 20, Max: 1 << 20})
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		fail(err)
	}
	a.repeat("connections", func(int) error {
		_, err := net.DialTimeout("tcp", ln.Addr().String(), 100*time.Millisecond)
		return err
	})
	a.repeat("ports", func(int) error {
		_, err := net.ListenPacket("udp", "127.0.0.1:0")
		return err
	})
	a.repeat("descriptors on their way", func(i int) error {
		p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			return err
		}
		err = unix.Sendmsg(p[0], []byte("x"), unix.UnixRights(p[0], p[1]), nil, unix.MSG_DONTWAIT)
		return errors.Join(err, unix.Close(p[0]), unix.Close(p[1]))
	})
}

func fileFlood(a *attempt) {
	dir := scratch()
	a.repeat("empty files", func(i int) error {
		fd, err := unix.Open(fmt.Sprintf("%s/%d", dir, i), unix.O_CREAT|unix.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
	_ = os.RemoveAll(dir)
}

func deepDirectories(a *attempt) {
	dir := scratch()
	if err := os.Chdir(dir); err != nil {
		fail(err)
	}
	name := strings.Repeat("d", 200)
	a.repeat("directories in directories", func(int) error { return errors.Join(unix.Mkdir(name, 0o755), unix.Chdir(name)) })
	a.repeat("links to links", func(i int) error { return os.Symlink(fmt.Sprintf("link%d", i+1), fmt.Sprintf("%s/link%d", dir, i)) })
	a.try("follow them", func() (string, error) { return read(dir + "/link0") })
}

func mappingFlood(a *attempt) {
	a.repeat("small mappings", func(i int) error {
		protection := unix.PROT_READ
		if i%2 == 0 {
			protection |= unix.PROT_WRITE // neighbours of two kinds do not become one
		}
		_, err := unix.Mmap(-1, 0, 4096, protection, unix.MAP_PRIVATE|unix.MAP_ANON)
		return err
	})
	a.do("1 TiB of address space", func() error {
		_, err := unix.Mmap(-1, 0, 1<<40, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
		return err
	})
}

func terminalFlood(a *attempt) {
	for range a.Count {
		fmt.Print("\x1b[2J\x1b[6n\x1b]0;owned\x07\x1bP+q544e\x1b\\\x1b[?1049h\x1b[20t\x9b6n\x05\x1bZ\x1b[c\r\n")
	}
	os.Exit(0) // what it said is the result
}

func binaryFlood(a *attempt) {
	b := make([]byte, 1<<16)
	for i := range b {
		b[i] = byte(i * 7)
	}
	for range a.Count {
		if _, err := os.Stdout.Write(b); err != nil {
			break
		}
	}
	os.Exit(0)
}

func longLine(a *attempt) {
	b := []byte(strings.Repeat("x", 1<<20))
	for range a.Count {
		if _, err := os.Stdout.Write(b); err != nil {
			break
		}
	}
	os.Exit(0)
}

func watchFlood(a *attempt) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK)
	if err != nil {
		fail(err)
	}
	dir := scratch()
	a.repeat("watches", func(i int) error {
		sub := fmt.Sprintf("%s/%d", dir, i)
		if err := os.Mkdir(sub, 0o755); err != nil {
			return err
		}
		_, err := unix.InotifyAddWatch(fd, sub, unix.IN_ALL_EVENTS)
		return err
	})
	a.repeat("events that no program reads", func(i int) error { return os.WriteFile(fmt.Sprintf("%s/0/%d", dir, i), nil, 0o600) })
	a.do("watch the machine's files", func() error {
		_, err := unix.InotifyAddWatch(fd, "/usr/bin", unix.IN_ALL_EVENTS)
		return err
	})
}

// forkBomb starts processes that stay, up to Count.
func forkBomb(a *attempt) {
	a.repeat("processes", func(int) error { return exec.Command("/proc/self/exe", "sleep", "{}").Start() })
	fmt.Println("started")
	time.Sleep(time.Second)
	_ = unix.Kill(-1, unix.SIGKILL) // as the user, only the user's
}

// memoryHog touches Count MiB of memory.
func memoryHog(a *attempt) {
	const size = 1 << 20
	a.repeat("MiB", func(int) error {
		b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return err
		}
		for i := 0; i < size; i += 4096 {
			b[i] = 1
		}
		return nil
	})
}

// fill writes Count MiB to a file.
func fill(a *attempt, path string) {
	f, err := os.Create(path)
	if err != nil {
		a.do("create", func() error { return err })
		return
	}
	b := []byte(strings.Repeat("x", 1<<20))
	a.repeat("MiB", func(int) error {
		_, err := f.Write(b)
		return err
	})
	_ = os.Remove(path)
}

// busy keeps every processor busy for a while.
func busy(a *attempt) {
	for range 8 {
		go func() {
			for { //nolint:revive // nothing is what it is to do
			}
		}()
	}
	time.Sleep(time.Duration(a.Count) * time.Millisecond)
	a.control("done", func() (string, error) { return "", nil })
}
