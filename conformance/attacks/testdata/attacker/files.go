package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Where a sandbox that is shown the machine's files has them.
const (
	readOnlyMount = "/ro"
	writableMount = "/rw"
)

func fileAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"machine-files":       machineFiles,
		"parents":             parents,
		"symlinks":            symlinks,
		"planted-symlinks":    plantedSymlinks,
		"hard-links":          hardLinks,
		"magic-links":         magicLinks,
		"file-handles":        fileHandles,
		"exchange-race":       exchangeRace,
		"moved-directory":     movedDirectory,
		"write-read-only":     func(a *attempt) { spoil(a, readOnlyMount, "open.txt") },
		"write-usr":           func(a *attempt) { spoil(a, "/usr/bin", "env") },
		"write-image":         writeImage,
		"set-user-id":         setUserID,
		"devices-in-mount":    devicesInMount,
		"attributes-in-mount": attributesInMount,
		"file-flags":          fileFlags,
		"locks":               locks,
		"host-sockets":        hostSockets,
		"host-fifo":           hostFIFO,
		"engine-files":        engineFiles,
		"sparse":              sparse,
	}
}

// machineFiles reads what the machine has and the sandbox has not.
func machineFiles(a *attempt) {
	for _, path := range []string{
		a.Canary, "/proc/self/root" + a.Canary, "/host" + a.Canary, "/etc/shadow", "/etc/gshadow", "/etc/sudoers",
		"/root/.ssh/id_rsa", "/root/.bash_history", "/var/run/docker.sock", "/boot/grub/grub.cfg",
	} {
		a.try("read "+path, func() (string, error) { return read(path) })
	}
	for _, path := range []string{a.SecretDir, "/home", "/root", "/var", "/opt", "/host", "/boxes", "/gvisor", "/run"} {
		a.try("list "+path, func() (string, error) { return list(path) })
	}
}

func parents(a *attempt) {
	up := strings.Repeat("../", 40)
	for _, from := range []string{writableMount, readOnlyMount, "/usr/bin"} {
		a.try("read "+from+"/"+up+a.Canary, func() (string, error) { return read(from + "/" + up + a.Canary) })
		a.try("open .. one by one from "+from, func() (string, error) {
			fd, err := unix.Open(from, unix.O_RDONLY|unix.O_DIRECTORY, 0)
			for range 40 {
				if err != nil {
					return "", err
				}
				fd, err = unix.Openat(fd, "..", unix.O_RDONLY|unix.O_DIRECTORY, 0)
			}
			if err != nil {
				return "", err
			}
			if fd, err = unix.Openat(fd, strings.TrimPrefix(a.Canary, "/"), unix.O_RDONLY, 0); err != nil {
				return "", err
			}
			return readFD(fd)
		})
		a.try("chdir up from "+from, func() (string, error) {
			if err := unix.Chdir(from); err != nil {
				return "", err
			}
			if err := unix.Chdir(up); err != nil {
				return "", err
			}
			return read(strings.TrimPrefix(a.Canary, "/"))
		})
		a.try("openat2 from "+from, func() (string, error) {
			dir, err := unix.Open(from, unix.O_PATH|unix.O_DIRECTORY, 0)
			if err != nil {
				return "", err
			}
			fd, err := unix.Openat2(dir, up+a.Canary, &unix.OpenHow{Flags: unix.O_RDONLY})
			if err != nil {
				return "", err
			}
			return readFD(fd)
		})
	}
}

// symlinks makes links in the writable mount that lead to where the machine
// has its files.
func symlinks(a *attempt) {
	dir := writableMount + "/links"
	_ = os.RemoveAll(dir)
	a.control("make a directory", func() (string, error) { return "", os.Mkdir(dir, 0o777) })
	victim := a.SecretDir + "/written-through-link"
	for name, target := range map[string]string{
		"absolute": a.Canary, "relative": "../../../../../../../../../.." + a.Canary, "up": "../../secret/canary.txt",
		"self": "/proc/self/root" + a.Canary, "one": "/proc/1/root" + a.Canary, "cwd": "/proc/self/cwd/../.." + a.Canary,
	} {
		link := filepath.Join(dir, name)
		a.control("link to "+target, func() (string, error) { return "", os.Symlink(target, link) })
		a.try("read through "+name, func() (string, error) { return read(link) })
		a.try("path, then descriptor, through "+name, func() (string, error) {
			fd, err := unix.Open(link, unix.O_PATH, 0)
			if err != nil {
				return "", err
			}
			return read(fmt.Sprintf("/proc/self/fd/%d", fd))
		})
	}
	a.control("link to a victim", func() (string, error) { return "", os.Symlink(victim, dir+"/victim") })
	a.do("write through a link", func() error { return open(dir+"/victim", unix.O_WRONLY|unix.O_CREAT) })
	a.control("link to a directory", func() (string, error) { return "", os.Symlink(a.SecretDir, dir+"/secret") })
	a.do("make a file below a link", func() error { return open(dir+"/secret/below-link", unix.O_WRONLY|unix.O_CREAT) })
	a.do("remove below a link", func() error { return unix.Unlink(dir + "/secret/canary.txt") })
	a.do("change the mode through a link", func() error { return unix.Chmod(dir+"/absolute", 0o777) })
	a.do("cut through a link", func() error { return unix.Truncate(dir+"/absolute", 0) })
}

// plantedSymlinks follows links that lie in the mounts already.
func plantedSymlinks(a *attempt) {
	for _, dir := range []string{readOnlyMount, writableMount} {
		a.control("read a file in "+dir, func() (string, error) { return read(dir + "/open.txt") })
		for _, name := range []string{"planted-absolute", "planted-relative", "planted-dir/canary.txt"} {
			path := dir + "/" + name
			a.try("read "+path, func() (string, error) { return read(path) })
			a.do("write "+path, func() error { return write(path, "spoiled") })
			a.do("cut "+path, func() error { return unix.Truncate(path, 0) })
		}
	}
}

func hardLinks(a *attempt) {
	for name, from := range map[string]string{
		"ro": readOnlyMount + "/open.txt", "usr": "/usr/bin/env", "canary": a.Canary, "shadow": "/etc/shadow", "guest": "/proc/1/exe",
	} {
		to := writableMount + "/hard-" + name
		a.do("link "+from, func() error { return unix.Link(from, to) })
		a.do("link the descriptor of "+from, func() error {
			fd, err := unix.Open(from, unix.O_PATH, 0)
			if err != nil {
				return err
			}
			return unix.Linkat(fd, "", unix.AT_FDCWD, to, unix.AT_EMPTY_PATH)
		})
		a.do("rename "+from, func() error { return unix.Rename(from, to) })
	}
}

// magicLinks goes by way of other processes' roots, directories and files.
func magicLinks(a *attempt) {
	pids, _ := filepath.Glob("/proc/[0-9]*")
	pids = append(pids, "/proc/self", "/proc/thread-self")
	for _, pid := range a.PIDs {
		pids = append(pids, fmt.Sprintf("/proc/%d", pid))
	}
	for _, pid := range pids {
		for _, link := range []string{"root", "cwd", "cwd/../../../../.."} {
			path := pid + "/" + link + a.Canary
			a.try("read "+path, func() (string, error) { return read(path) })
		}
		fds, _ := filepath.Glob(pid + "/fd/*")
		for _, fd := range fds {
			if pid == "/proc/self" || pid == "/proc/thread-self" {
				continue // our own
			}
			a.try("go up from "+fd, func() (string, error) { return read(fd + "/../../../../.." + a.Canary) })
		}
	}
}

// fileHandles makes up handles of files that no name leads to.
func fileHandles(a *attempt) {
	for _, dir := range []string{writableMount, readOnlyMount, "/usr", "/"} {
		a.do("handle of "+dir, func() error {
			_, _, err := unix.NameToHandleAt(unix.AT_FDCWD, dir, 0)
			return err
		})
		mount, err := unix.Open(dir, unix.O_RDONLY, 0)
		if err != nil {
			continue
		}
		for inode := range uint32(32) {
			for _, kind := range []int32{1, 2, 0x81} {
				a.try(fmt.Sprintf("open inode %d of %s", inode, dir), func() (string, error) {
					handle := binary.LittleEndian.AppendUint32(nil, inode)
					handle = binary.LittleEndian.AppendUint32(handle, 0)
					fd, err := unix.OpenByHandleAt(mount, unix.NewFileHandle(kind, handle), unix.O_RDONLY)
					if err != nil {
						return "", err
					}
					return fmt.Sprintf("descriptor %d", fd), nil
				})
			}
		}
	}
}

// exchangeRace exchanges a directory for a link to the secret one while files
// in it are opened and made.
func exchangeRace(a *attempt) {
	base := writableMount + "/race"
	_ = os.RemoveAll(base)
	a.control("prepare", func() (string, error) {
		return "", errors.Join(os.MkdirAll(base+"/dir", 0o777), os.Symlink(a.SecretDir, base+"/link"),
			os.WriteFile(base+"/dir/canary.txt", []byte("bait"), 0o666))
	})
	deadline := time.Now().Add(time.Duration(a.Count) * time.Millisecond)
	var wg sync.WaitGroup
	wg.Go(func() {
		for time.Now().Before(deadline) {
			if unix.Renameat2(unix.AT_FDCWD, base+"/dir", unix.AT_FDCWD, base+"/link", unix.RENAME_EXCHANGE) == nil {
				continue
			}
			_ = os.Rename(base+"/dir", base+"/away")
			_ = os.Rename(base+"/link", base+"/dir")
			_ = os.Rename(base+"/dir", base+"/link")
			_ = os.Rename(base+"/away", base+"/dir")
		}
	})
	seen := make(map[string]bool)
	reads := 0
	wg.Go(func() {
		for time.Now().Before(deadline) {
			if got, err := read(base + "/dir/canary.txt"); err == nil {
				seen[got] = true
				reads++
			}
			_ = open(base+"/dir/planted", unix.O_WRONLY|unix.O_CREAT)
			_ = unix.Rename(base+"/dir/planted", base+"/dir/renamed")
			_ = unix.Unlink(base + "/dir/renamed")
		}
	})
	wg.Wait()
	a.try("what was read", func() (string, error) {
		var all []string
		for got := range seen {
			all = append(all, got)
		}
		return strings.Join(all, "|"), nil
	})
	a.control("some reads worked", func() (string, error) {
		if reads == 0 {
			return "", errors.New("none")
		}
		return "", nil
	})
	_ = os.RemoveAll(base)
}

// movedDirectory keeps a directory open while it is moved up, and continues upwards
// from there.
func movedDirectory(a *attempt) {
	base := writableMount + "/moved"
	_ = os.RemoveAll(base)
	a.control("prepare", func() (string, error) { return "", os.MkdirAll(base+"/a/b/c/d", 0o777) })
	fd, err := unix.Open(base+"/a/b/c/d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		fail(err)
	}
	a.control("move", func() (string, error) { return "", os.Rename(base+"/a/b/c/d", writableMount+"/moved-away") })
	up := strings.Repeat("../", 12)
	for n := 3; n <= len(up); n += 3 {
		a.try("read "+up[:n], func() (string, error) {
			file, err := unix.Openat(fd, up[:n]+strings.TrimPrefix(a.Canary, "/"), unix.O_RDONLY, 0)
			if err != nil {
				return "", err
			}
			return readFD(file)
		})
		a.try("read secret/ "+up[:n], func() (string, error) {
			file, err := unix.Openat(fd, up[:n]+"secret/canary.txt", unix.O_RDONLY, 0)
			if err != nil {
				return "", err
			}
			return readFD(file)
		})
	}
	_ = os.RemoveAll(base)
	_ = os.RemoveAll(writableMount + "/moved-away")
}

// spoil changes a file and its directory in every way there is.
func spoil(a *attempt, dir, name string) {
	path := dir + "/" + name
	a.control("read "+path, func() (string, error) { return "", open(path, unix.O_RDONLY) })
	for what, flags := range map[string]int{
		"write": unix.O_WRONLY, "read and write": unix.O_RDWR, "cut": unix.O_WRONLY | unix.O_TRUNC, "append": unix.O_WRONLY | unix.O_APPEND,
	} {
		a.do(what, func() error { return open(path, flags) })
	}
	a.do("create", func() error { return open(dir+"/created", unix.O_WRONLY|unix.O_CREAT) })
	a.do("create without a name", func() error { return open(dir, unix.O_WRONLY|unix.O_TMPFILE) })
	a.do("truncate", func() error { return unix.Truncate(path, 1) })
	a.do("unlink", func() error { return unix.Unlink(path) })
	a.do("mkdir", func() error { return unix.Mkdir(dir+"/made", 0o755) })
	a.do("rename", func() error { return unix.Rename(path, path+"-renamed") })
	a.do("replace", func() error { return unix.Rename("/tmp", path) })
	a.do("chmod", func() error { return unix.Chmod(path, 0o4777) })
	a.do("chown", func() error { return unix.Chown(path, 1000, 1000) })
	a.do("utimes", func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, path, make([]unix.Timespec, 2), 0) })
	a.do("xattr", func() error { return unix.Setxattr(path, "user.attack", []byte("x"), 0) })
	a.do("link", func() error { return unix.Link(path, dir+"/linked") })
	a.do("symlink", func() error { return unix.Symlink("/", dir+"/symlinked") })
	a.do("fifo", func() error { return unix.Mkfifo(dir+"/fifo", 0o666) })
	a.do("socket", func() error { return bindUnix(dir + "/bound") })
	a.do("write by the descriptor of a reader", func() error {
		fd, err := unix.Open(path, unix.O_RDONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR), unix.Ftruncate(fd, 1), unix.Fallocate(fd, 0, 0, 1<<20))
	})
	a.do("map shared and write", func() error { return writeShared(path) })
}

// writeShared writes to a shared mapping of a file opened for reading.
func writeShared(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY, 0)
	if err != nil {
		return err
	}
	b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	if err := unix.Mprotect(b, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		b[0]++
		return unix.Msync(b, unix.MS_SYNC)
	}
	// A debugger's way of writing breaks the page off, or must.
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = mem.WriteAt([]byte{b[0] + 1}, int64(uintptr(unsafe.Pointer(&b[0]))))
	return err
}

// writeImage changes programs of the image; its own view may change, no other.
func writeImage(a *attempt) {
	for _, path := range []string{"/bin/busybox", "/.sandpit/sandpit-guest"} {
		if open(path, unix.O_RDONLY) != nil {
			continue
		}
		a.do("map shared and write "+path, func() error { return writeShared(path) })
		a.do("map privately and write "+path, func() error {
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			if err != nil {
				return err
			}
			b, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
			if err != nil {
				return err
			}
			copy(b, "spoiled")
			return nil
		})
		a.do("own text of "+path, func() error {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = f.WriteAt([]byte("spoiled"), 4096)
			return err
		})
		a.do("extend "+path, func() error { return unix.Truncate(path, 100<<20) })
		a.do("remove "+path, func() error { return os.Remove(path) })
	}
	a.do("write to the guest through its process", func() error { return write("/proc/1/exe", "spoiled") })
	a.do("write to the guest's memory", func() error {
		mem, err := os.OpenFile("/proc/1/mem", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return mem.Close()
	})
}
