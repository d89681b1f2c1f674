package attacks_test

import (
	"context"
	"errors"
	randv2 "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// plantFiles makes the directories that are shown inside and the one that is not.
// All users may read all of it: only the sandbox protects it.
func (l *lab) plantFiles(t *testing.T) {
	t.Helper()
	for _, sub := range []string{"secret", "ro", "rw"} {
		dir := filepath.Join(l.dir, sub)
		if err := errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(l.canaryPath(), []byte(l.canary), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"ro", "rw"} {
		dir := filepath.Join(l.dir, sub)
		err := errors.Join(
			os.WriteFile(filepath.Join(dir, "open.txt"), []byte("open to all"), 0o666),
			os.Chmod(filepath.Join(dir, "open.txt"), 0o666),
			os.Symlink(l.canaryPath(), filepath.Join(dir, "planted-absolute")),
			os.Symlink("../secret/canary.txt", filepath.Join(dir, "planted-relative")),
			os.Symlink("../secret", filepath.Join(dir, "planted-dir")),
			unix.Mkfifo(filepath.Join(dir, "fifo"), 0o666),
			os.Chmod(filepath.Join(dir, "fifo"), 0o666),
		)
		if err != nil {
			t.Fatal(err)
		}
		for _, link := range []string{"planted-absolute", "planted-relative", "planted-dir/canary.txt"} {
			if got, err := os.ReadFile(filepath.Join(dir, link)); err != nil || string(got) != l.canary {
				t.Fatalf("%s proves nothing: %q, %v", link, got, err)
			}
		}
		pipe, err := os.OpenFile(filepath.Join(dir, "fifo"), os.O_RDWR|unix.O_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			got := make([]byte, 1000)
			n, err := pipe.Read(got)
			if err != nil || string(got[:n]) != l.canary {
				t.Errorf("the pipe of %s was used: %q, %v", sub, got[:n], err)
			}
			_ = pipe.Close()
		})
		if _, err := pipe.WriteString(l.canary); err != nil {
			t.Fatal(err)
		}
	}
}

func (l *lab) canaryPath() string { return filepath.Join(l.dir, "secret", "canary.txt") }

// plantProcess starts a process of the machine that has the secret in its
// arguments.
func (l *lab) plantProcess(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), "sh", "-c", "sleep 3600 & wait", l.canary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	l.canaryProcess = cmd
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
	})
}

// plantSockets listens on the machine in every way. What is heard is written
// down, unless it says that it is the control.
func (l *lab) plantSockets(t *testing.T) {
	t.Helper()
	listen := func(network, address string) net.Listener {
		ln, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { l.accept(ln) })
		t.Cleanup(func() {
			_ = ln.Close()
			wg.Wait()
		})
		return ln
	}
	for _, sub := range []string{"ro", "rw"} {
		path := filepath.Join(l.dir, sub, "canary.sock")
		listen("unix", path)
		if err := os.Chmod(path, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	listen("unix", "@machine-"+l.handle)
	var (
		port    string
		packets net.PacketConn
		err     error
	)
	for range 10 { // another program may have that port of UDP
		if _, port, err = net.SplitHostPort(listen("tcp", ":0").Addr().String()); err != nil {
			t.Fatal(err)
		}
		if packets, err = (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", ":"+port); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { l.receive(packets) })
	t.Cleanup(func() {
		_ = packets.Close()
		wg.Wait()
	})
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range append(addresses, &net.IPNet{IP: net.IPv4(127, 0, 0, 2)}) {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
			l.tcp = append(l.tcp, net.JoinHostPort(ip.IP.String(), port))
		}
	}
	l.udp = append(l.udp, l.tcp...)
	for _, ip := range []string{"127.0.0.1", "::1", "127.0.0.2", "0.0.0.0"} {
		address := net.JoinHostPort(ip, strconv.Itoa(neighbourPort))
		l.tcp, l.udp = append(l.tcp, address), append(l.udp, address)
	}
}

func (l *lab) accept(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if err != nil {
			return
		}
		b := make([]byte, 40)
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		n, _ := conn.Read(b)
		l.heard.add("%v: %q", ln.Addr(), b[:n])
		_, _ = conn.Write([]byte(l.canary))
		_ = conn.Close()
	}
}

func (l *lab) receive(packets net.PacketConn) {
	b := make([]byte, 1500)
	for {
		n, from, err := packets.ReadFrom(b)
		if err != nil {
			return
		}
		l.heard.add("packet from %v: %q", from, b[:min(n, 40)])
	}
}

// plantMemory makes a System V segment on the machine, which others find by its
// key.
func (l *lab) plantMemory(t *testing.T) {
	t.Helper()
	l.key = 1 + randv2.IntN(1<<30)
	id, err := unix.SysvShmGet(l.key, 4096, unix.IPC_CREAT|unix.IPC_EXCL|0o666)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := unix.SysvShmCtl(id, unix.IPC_RMID, nil); err != nil {
			t.Errorf("remove the shared memory: %v", err)
		}
	})
	memory, err := unix.SysvShmAttach(id, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	copy(memory, l.canary)
	if err := unix.SysvShmDetach(memory); err != nil {
		t.Fatal(err)
	}
	l.segment = id
}
