package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// setUserID leaves programs in the writable mount that would give a user that runs
// them outside the rights of their owner.
func setUserID(a *attempt) {
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		fail(err)
	}
	path := writableMount + "/set-user-id-" + a.Name
	a.control("write a program", func() (string, error) { return "", os.WriteFile(path, self[:4096], 0o755) })
	a.do("give it to root", func() error { return unix.Chown(path, 0, 0) })
	a.do("set the bits", func() error { return unix.Chmod(path, 0o6755) })
	a.do("create with the bits", func() error {
		fd, err := unix.Open(path+"-created", unix.O_WRONLY|unix.O_CREAT, 0o6755)
		if err != nil {
			return err
		}
		return unix.Close(fd)
	})
	a.do("directory with the bits", func() error {
		return errors.Join(unix.Mkdir(path+"-dir", 0o2777), unix.Chmod(path+"-dir", 0o2777))
	})
	a.do("capabilities", func() error {
		return unix.Setxattr(path, "security.capability", []byte("\x01\x00\x00\x02\xff\xff\xff\xff\x00\x00\x00\x00\xff\xff\xff\xff\x00\x00\x00\x00"), 0)
	})
	a.do("bits once more", func() error { return unix.Chmod(path, 0o6755) })
}

func devicesInMount(a *attempt) {
	dir := writableMount
	for name, dev := range map[string]struct {
		kind         uint32
		major, minor uint32
	}{
		"mem": {unix.S_IFCHR, 1, 1}, "null": {unix.S_IFCHR, 1, 3}, "kmsg": {unix.S_IFCHR, 1, 11}, "sda": {unix.S_IFBLK, 8, 0},
		"vda": {unix.S_IFBLK, 254, 0}, "loop0": {unix.S_IFBLK, 7, 0}, "kvm": {unix.S_IFCHR, 10, 232}, "whiteout": {unix.S_IFCHR, 0, 0},
	} {
		path := filepath.Join(dir, "device-"+a.Name+"-"+name)
		a.do("make "+name, func() error { return unix.Mknod(path, dev.kind|0o666, int(unix.Mkdev(dev.major, dev.minor))) })
		a.try("read "+name, func() (string, error) { return read(path) })
	}
}

func attributesInMount(a *attempt) {
	path := writableMount + "/attributes-" + a.Name
	a.control("make a file", func() (string, error) { return "", os.WriteFile(path, nil, 0o666) })
	for _, name := range []string{
		"security.capability", "security.selinux", "security.ima", "security.evm", "trusted.overlay.opaque",
		"system.posix_acl_access", "trusted.attack",
	} {
		a.do("set "+name, func() error { return unix.Setxattr(path, name, []byte("0sAQAAAgAAAAA="), 0) })
	}
}

// fileFlags makes files that not even their owner can remove.
func fileFlags(a *attempt) {
	path := writableMount + "/flags-" + a.Name
	a.control("make a file", func() (string, error) { return "", os.WriteFile(path, nil, 0o666) })
	for _, flag := range []int{unix.STATX_ATTR_IMMUTABLE, unix.STATX_ATTR_APPEND} {
		a.do(fmt.Sprintf("set flag %#x", flag), func() error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			const setFlags = 0x40086602
			return unix.IoctlSetPointerInt(int(f.Fd()), setFlags, flag)
		})
	}
}

// locks locks files that others use too, and holds on to them.
func locks(a *attempt) {
	for _, path := range []string{readOnlyMount + "/open.txt", writableMount + "/open.txt", "/usr/bin/env"} {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			continue
		}
		a.do("flock "+path, func() error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
		a.do("lock "+path, func() error {
			return unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_RDLCK})
		})
		a.do("lease "+path, func() error {
			_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
			return err
		})
	}
	fmt.Println("locked")
	_, _ = os.Stdin.Read(make([]byte, 1)) // until the test has looked
}

func hostSockets(a *attempt) {
	for _, dir := range []string{readOnlyMount, writableMount} {
		for _, kind := range []int{unix.SOCK_STREAM, unix.SOCK_DGRAM, unix.SOCK_SEQPACKET} {
			a.do(fmt.Sprintf("connect (%d) to a socket in %s", kind, dir), func() error {
				return connectUnix(dir+"/canary.sock", kind)
			})
		}
	}
}

func hostFIFO(a *attempt) {
	for _, dir := range []string{readOnlyMount, writableMount} {
		a.do("write to a pipe in "+dir, func() error { return write(dir+"/fifo", "from inside") })
		a.try("read a pipe in "+dir, func() (string, error) { return read(dir + "/fifo") })
	}
}

// engineFiles goes for the socket by which the engine takes orders.
func engineFiles(a *attempt) {
	for _, path := range []string{a.Control, "/proc/1/root" + a.Control, "control", writableMount + "/../run/" + filepath.Base(a.Control)} {
		a.do("connect to "+path, func() error { return connectUnix(path, unix.SOCK_SEQPACKET) })
		a.do("connect by stream to "+path, func() error { return connectUnix(path, unix.SOCK_STREAM) })
	}
	a.try("list its directory", func() (string, error) { return list(filepath.Dir(a.Control)) })
	a.try("list the sandboxes", func() (string, error) { return list("/boxes") })
}

// sparse makes files that say they are larger than the machine.
func sparse(a *attempt) {
	path := scratch() + "/sparse"
	a.do("1 TiB", func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Truncate(1 << 40); err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("end"), 1<<40-3)
		return err
	})
	a.do("8 EiB", func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return f.Truncate(1<<63 - 1)
	})
	a.do("reserve 1 TiB", func() error {
		f, err := os.Create(path)
		if err != nil {
			return err
		}
		defer f.Close()
		return unix.Fallocate(int(f.Fd()), 0, 0, 1<<40)
	})
	_ = os.Remove(path)
}

func connectUnix(path string, kind int) error {
	fd, err := unix.Socket(unix.AF_UNIX, kind, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return err
	}
	_, err = unix.Write(fd, []byte("from inside"))
	return err
}

func bindUnix(path string) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrUnix{Name: path})
}
