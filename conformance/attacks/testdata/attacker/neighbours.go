package main

import (
	"fmt"
	"net"
	"os"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func neighbourAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"serve":            serve,
		"abstract-sockets": abstractSockets,
		"system-v":         systemV,
		"message-queues":   messageQueues,
		"shared-memory":    sharedMemory,
		"keyrings":         keyrings,
	}
}

// serve is not an attempt: it is the neighbour, which has all that others look for and
// reports each visitor. Count is the port.
func serve(a *attempt) {
	report := func(what string) { fmt.Println(what) }
	for _, address := range []string{"0.0.0.0", "[::]"} {
		ln, err := net.Listen("tcp", fmt.Sprintf("%s:%d", address, a.Count))
		if err != nil {
			continue // one of them serves for both
		}
		go accept(ln, a.Name, report)
	}
	udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", a.Count))
	if err != nil {
		fail(err)
	}
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := udp.ReadFrom(b)
			if err != nil {
				return
			}
			report(fmt.Sprintf("udp from %v: %.40q", from, b[:n]))
		}
	}()
	ln, err := net.Listen("unix", "@"+a.Abstract[0])
	if err != nil {
		fail(err)
	}
	go accept(ln, a.Name, report)
	for _, path := range []string{"/tmp/neighbour", "/dev/shm/neighbour"} {
		_ = os.MkdirAll("/dev/shm", 0o777)
		if err := os.WriteFile(path, []byte(a.Name), 0o666); err != nil {
			fail(err)
		}
	}
	id, err := unix.SysvShmGet(a.Key, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		fail(err)
	}
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		fail(err)
	}
	copy(memory, a.Name)
	if _, _, errno := unix.Syscall(unix.SYS_SEMGET, uintptr(a.Key), 1, unix.IPC_CREAT|0o666); errno != 0 {
		fail(errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_MSGGET, uintptr(a.Key), unix.IPC_CREAT|0o666, 0); errno != 0 {
		fail(errno)
	}
	report("ready")
	for { // until the sandbox ends
		time.Sleep(time.Second)
		if string(memory[:len(a.Name)]) != a.Name {
			report("another sandbox wrote to the shared memory")
			copy(memory, a.Name)
		}
	}
}

func accept(ln net.Listener, name string, report func(string)) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 40)
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		n, _ := conn.Read(b)
		if string(b[:n]) != "control" {
			report(fmt.Sprintf("connection to %v: %q", ln.Addr(), b[:n]))
		}
		_, _ = conn.Write([]byte(name))
		_ = conn.Close()
	}
}

func abstractSockets(a *attempt) {
	for _, name := range a.Abstract {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
			a.do(fmt.Sprintf("connect (%d) to @%s", kind, name), func() error { return connectUnix("@"+name, kind) })
		}
		a.control("take the name", func() (string, error) { return "", bindUnix("@" + name + "-mine") })
	}
	a.try("list", func() (string, error) { return read("/proc/net/unix") })
	a.do("descriptors in a loop", func() error { // a socket that is sent over itself
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		for range 100 {
			if err := unix.Sendmsg(fds[0], []byte("x"), unix.UnixRights(fds[0], fds[1]), nil, unix.MSG_DONTWAIT); err != nil {
				return err
			}
		}
		return nil
	})
}

// systemV looks for objects by their key and by trying all numbers.
func systemV(a *attempt) {
	a.try("shared memory by key", func() (string, error) {
		id, err := unix.SysvShmGet(a.Key, 0, 0)
		if err != nil {
			return "", err
		}
		return attachShared(id)
	})
	for id := range 64 {
		if got, err := attachShared(id); err == nil {
			a.try(fmt.Sprintf("shared memory %d", id), func() (string, error) { return got, nil })
		}
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		_, _, _ = unix.Syscall6(unix.SYS_SEMCTL, uintptr(id), 0, unix.IPC_RMID, 0, 0, 0)
		_, _, _ = unix.Syscall(unix.SYS_MSGCTL, uintptr(id), unix.IPC_RMID, 0)
	}
	a.call("semaphores by key", unix.SYS_SEMGET, uintptr(a.Key), 1, 0)
	a.call("messages by key", unix.SYS_MSGGET, uintptr(a.Key), 0, 0)
	a.control("a segment of our own", func() (string, error) {
		id, err := unix.SysvShmGet(a.Key, 8192, unix.IPC_CREAT|0o666)
		if err != nil {
			return "", err
		}
		got, err := attachShared(id)
		_, _ = unix.SysvShmCtl(id, unix.IPC_RMID, nil)
		return got, err
	})
}

func attachShared(id int) (string, error) {
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		return "", err
	}
	got := strings.TrimRight(string(memory[:100]), "\x00")
	copy(memory, "written by the attacker")
	return got, unix.SysvShmDetach(memory)
}

func messageQueues(a *attempt) {
	for _, name := range []string{a.Name, "attack"} {
		p, err := unix.BytePtrFromString(name)
		if err != nil {
			fail(err)
		}
		a.call("open "+name, unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_RDWR|unix.O_NONBLOCK, 0, 0)
		a.call("make "+name, unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(p)), unix.O_RDWR|unix.O_CREAT|unix.O_NONBLOCK, 0o666, 0)
		a.call("remove "+name, unix.SYS_MQ_UNLINK, uintptr(unsafe.Pointer(p)))
	}
}

// sharedMemory looks where files of others would be, were they shared.
func sharedMemory(a *attempt) {
	for _, dir := range []string{"/dev/shm", "/tmp", "/dev/mqueue", "/run", "/var/tmp", "/run/lock", "/dev/hugepages", "/workspace"} {
		a.try("list "+dir, func() (string, error) { return list(dir) })
		a.try("read "+dir+"/neighbour", func() (string, error) { return read(dir + "/neighbour") })
	}
	a.do("leave something", func() error { return os.WriteFile("/dev/shm/left-"+a.Name, []byte("x"), 0o666) })
}

func keyrings(a *attempt) {
	for _, ring := range []int{unix.KEY_SPEC_SESSION_KEYRING, unix.KEY_SPEC_USER_KEYRING, unix.KEY_SPEC_USER_SESSION_KEYRING, unix.KEY_SPEC_PROCESS_KEYRING} {
		a.try(fmt.Sprintf("add to %d", ring), func() (string, error) {
			id, err := unix.AddKey("user", "attack-"+a.Name, []byte("payload"), ring)
			return fmt.Sprint(id), err
		})
		a.try(fmt.Sprintf("search %d", ring), func() (string, error) {
			id, err := unix.KeyctlSearch(ring, "user", a.Name, 0)
			return fmt.Sprint(id), err
		})
		a.try(fmt.Sprintf("describe %d", ring), func() (string, error) { return unix.KeyctlString(unix.KEYCTL_DESCRIBE, ring) })
	}
	a.do("request", func() error {
		_, err := unix.RequestKey("user", a.Name, "callout", unix.KEY_SPEC_SESSION_KEYRING)
		return err
	})
	a.do("join a session", func() error {
		_, err := unix.KeyctlJoinSessionKeyring(a.Name)
		return err
	})
	b := make([]byte, 100)
	for id := range 2000 { // every small number, and what it holds
		if n, err := unix.KeyctlBuffer(unix.KEYCTL_READ, id+1, b, 0); err == nil {
			a.try(fmt.Sprintf("key %d", id+1), func() (string, error) { return string(b[:min(n, len(b))]), nil })
		}
	}
}
