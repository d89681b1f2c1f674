package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

func mountAttempts() map[string]func(*attempt) {
	return map[string]func(*attempt){
		"kernel-file-systems": kernelFileSystems,
		"block-mounts":        blockMounts,
		"mount-over":          mountOver,
		"remount":             remount,
		"bind":                bindMounts,
		"pivot-root":          pivotRoot,
		"chroot-dance":        chrootDance,
		"new-mount-calls":     newMountCalls,
		"release-agent":       releaseAgent,
		"user-namespaces":     userNamespaces,
		"join-namespaces":     joinNamespaces,
	}
}

// look tells what a mounted file system shows of others.
func look(a *attempt, dir string) (string, error) {
	names, err := list(dir)
	if err != nil {
		return "", err
	}
	for _, pid := range a.PIDs {
		for _, file := range []string{"cmdline", "environ", "root" + a.Canary} {
			if got, err := read(fmt.Sprintf("%s/%d/%s", dir, pid, file)); err == nil {
				names += "\n" + got
			}
		}
	}
	if got, err := read(dir + a.Canary); err == nil {
		names += "\n" + got
	}
	return names, nil
}

func kernelFileSystems(a *attempt) {
	for _, kind := range []string{
		"debugfs", "tracefs", "bpf", "securityfs", "configfs", "binfmt_misc", "pstore", "efivarfs", "fusectl", "selinuxfs", "nfsd", "rpc_pipefs",
		"resctrl", "functionfs", "gadgetfs", "hugetlbfs", "mqueue", "devtmpfs", "proc", "sysfs", "devpts", "tmpfs", "cgroup", "cgroup2", "ramfs",
		"autofs", "binder", "overlay", "aufs", "erofs", "9p", "virtiofs", "vboxsf",
	} {
		dir := scratch()
		if a.do("mount "+kind, func() error { return unix.Mount(kind, dir, kind, 0, "") }) {
			a.try("look at "+kind, func() (string, error) { return look(a, dir) })
		}
	}
	dir := scratch()
	for _, upper := range []string{writableMount, dir} {
		_ = os.Mkdir(dir+"/work", 0o755)
		options := "lowerdir=/,upperdir=" + upper + ",workdir=" + dir + "/work"
		a.do("overlay with upper "+upper, func() error { return unix.Mount("overlay", dir, "overlay", 0, options) })
	}
}

func blockMounts(a *attempt) {
	dir := scratch()
	for _, device := range []struct {
		name         string
		major, minor uint32
	}{{"sda", 8, 0}, {"sda1", 8, 1}, {"vda", 254, 0}, {"vda", 253, 0}, {"vda", 252, 0}, {"nvme0n1", 259, 0}, {"loop0", 7, 0}, {"dm-0", 253, 1}} {
		node := dir + "/" + device.name
		_ = unix.Mknod(node, unix.S_IFBLK|0o666, int(unix.Mkdev(device.major, device.minor)))
		for _, source := range []string{node, "/dev/" + device.name} {
			a.try("read "+source, func() (string, error) { return read(source) })
			for _, kind := range []string{"ext4", "xfs", "btrfs", "vfat", "iso9660", "squashfs", "erofs"} {
				a.do("mount "+source+" as "+kind, func() error { return unix.Mount(source, dir, kind, 0, "") })
			}
		}
	}
	a.do("mount by nfs", func() error { return unix.Mount("127.0.0.1:/", dir, "nfs", 0, "addr=127.0.0.1") })
	a.do("mount by cifs", func() error { return unix.Mount("//127.0.0.1/c", dir, "cifs", 0, "") })
	for _, file := range []string{"/proc/1/exe", "/bin/busybox", readOnlyMount + "/open.txt", a.Canary} {
		a.do("mount the file "+file+" as erofs", func() error { return unix.Mount(file, dir, "erofs", 0, "") })
	}
	// The kernel inside takes descriptors of its own process for these.
	for fd := range 12 {
		for _, source := range []string{fmt.Sprintf("/proc/self/fd/%d", fd), fmt.Sprint(fd)} {
			a.do("mount "+source+" as erofs", func() error { return unix.Mount(source, dir, "erofs", 0, fmt.Sprintf("ifd=%d", fd)) })
		}
		for _, kind := range []string{"9p", "lisafs", "gofer"} {
			options := fmt.Sprintf("trans=fd,rfdno=%d,wfdno=%d,cache=remote_revalidating", fd, fd)
			if a.do(fmt.Sprintf("mount %s of descriptor %d", kind, fd), func() error { return unix.Mount("none", dir, kind, 0, options) }) {
				a.try("look", func() (string, error) { return look(a, dir) })
			}
		}
	}
}

// mountOver hides what the guest works with; that is the sandbox's own affair.
func mountOver(a *attempt) {
	for _, dir := range []string{"/proc", "/dev", "/sys", "/.sandpit", "/workspace"} {
		a.do("tmpfs over "+dir, func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") })
	}
	a.do("a lie for the guest", func() error {
		return errors.Join(os.MkdirAll("/proc/self", 0o755), os.WriteFile("/proc/self/mountinfo", []byte("lies"), 0o600),
			os.MkdirAll("/proc/1/fd", 0o755), os.Symlink(a.Canary, "/proc/1/fd/3"))
	})
}

func remount(a *attempt) {
	for _, dir := range []string{readOnlyMount, "/usr", "/.sandpit", "/"} {
		a.do("remount "+dir, func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "rw") })
		a.do("remount the bind "+dir, func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, "rw") })
		a.do("set attributes of "+dir, func() error {
			return unix.MountSetattr(unix.AT_FDCWD, dir, 0, &unix.MountAttr{Attr_clr: unix.MOUNT_ATTR_RDONLY})
		})
		a.do("unmount "+dir, func() error { return unix.Unmount(dir, 0) })
	}
	a.do("write after all that", func() error { return write(readOnlyMount+"/open.txt", "spoiled") })
	a.do("create after all that", func() error { return open(readOnlyMount+"/created", unix.O_WRONLY|unix.O_CREAT) })
	a.do("create in /usr after all that", func() error { return open("/usr/bin/created", unix.O_WRONLY|unix.O_CREAT) })
	a.do("write to /usr after all that", func() error { return open("/usr/bin/env", unix.O_WRONLY) })
}

func bindMounts(a *attempt) {
	for _, from := range []string{readOnlyMount, "/usr/bin", "/proc/1/root", "/proc/1/cwd", writableMount + "/..", "/proc/self/fd/0"} {
		dir := scratch()
		if !a.do("bind "+from, func() error { return unix.Mount(from, dir, "", unix.MS_BIND|unix.MS_REC, "") }) {
			continue
		}
		a.try("look below "+from, func() (string, error) { return look(a, dir) })
		a.do("remount it", func() error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_BIND, "rw") })
		a.do("write to it", func() error { return write(dir+"/open.txt", "spoiled") })
		if from != "/proc/1/root" && from != writableMount+"/.." && from != "/proc/1/cwd" { // these are the sandbox's own
			a.do("create in it", func() error { return open(dir+"/created", unix.O_WRONLY|unix.O_CREAT) })
		}
	}
}

func pivotRoot(a *attempt) {
	runtime.LockOSThread()
	dir := scratch()
	a.do("unshare", func() error { return unix.Unshare(unix.CLONE_NEWNS) })
	a.do("mount", func() error { return unix.Mount("tmpfs", dir, "tmpfs", 0, "") })
	a.do("prepare", func() error { return os.Mkdir(dir+"/old", 0o755) })
	if err := unix.PivotRoot(dir, dir+"/old"); err != nil {
		a.do("pivot", func() error { return err })
		return
	}
	up := strings.Repeat("../", 20)
	for _, path := range []string{"/old", "/old/..", "/" + up, "/old/" + up, "/proc/1/root", "/old/proc/1/root"} {
		a.try("look at "+path, func() (string, error) { return look(a, path) })
	}
	a.do("unmount the old", func() error { return unix.Unmount("/old", unix.MNT_DETACH) })
	a.try("look once more", func() (string, error) { return look(a, "/"+up) })
}

func chrootDance(a *attempt) {
	runtime.LockOSThread()
	dir := scratch()
	for round := range 3 {
		inner := fmt.Sprintf("%s/%d", dir, round)
		_ = os.Mkdir(inner, 0o755)
		fd, err := unix.Open("/", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			fail(err)
		}
		if err := unix.Chroot(inner); err != nil {
			a.do("chroot", func() error { return err })
			return
		}
		a.do("go back by the descriptor", func() error { return unix.Fchdir(fd) })
		for range 40 {
			_ = unix.Chdir("..")
		}
		a.try("look", func() (string, error) { return look(a, ".") })
		a.do("chroot to the top", func() error { return unix.Chroot(".") })
		a.try("look from the top", func() (string, error) { return look(a, "/") })
	}
}

func newMountCalls(a *attempt) {
	dir := scratch()
	for _, from := range []string{"/", readOnlyMount, "/proc/1/root"} {
		moved := a.do("open_tree "+from, func() error {
			fd, err := unix.OpenTree(unix.AT_FDCWD, from, unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE)
			if err != nil {
				return err
			}
			return unix.MoveMount(fd, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH)
		})
		if moved {
			a.try("look at the tree of "+from, func() (string, error) { return look(a, dir) })
			a.do("write to the tree of "+from, func() error { return write(dir+"/open.txt", "spoiled") })
		}
	}
	for _, kind := range []string{"ext4", "nfs", "debugfs", "bpf", "9p"} {
		a.do("fsopen and mount "+kind, func() error {
			fd, err := unix.Fsopen(kind, 0)
			if err != nil {
				return err
			}
			const create = 6
			if _, _, errno := unix.Syscall6(unix.SYS_FSCONFIG, uintptr(fd), create, 0, 0, 0, 0); errno != 0 {
				return errno
			}
			_, err = unix.Fsmount(fd, 0, 0)
			return err
		})
	}
	a.do("fspick", func() error {
		_, err := unix.Fspick(unix.AT_FDCWD, "/", 0)
		return err
	})
	const statmount, listmount = 457, 458
	a.call("statmount", statmount, 0, 0, 0, 0)
	a.call("listmount", listmount, 0, 0, 0, 0)
}

// releaseAgent is the oldest way out of a container: the machine's kernel runs a
// program when a cgroup is empty.
func releaseAgent(a *attempt) {
	for _, controller := range []string{"rdma", "memory", "pids", "cpu", "devices", "none,name=attack"} {
		dir := scratch()
		if !a.do("mount "+controller, func() error { return unix.Mount("cgroup", dir, "cgroup", 0, controller) }) {
			continue
		}
		program := dir + "/agent"
		for _, agent := range []string{program, "/usr/bin/touch", a.SecretDir + "/agent"} {
			a.do("agent "+agent, func() error { return os.WriteFile(dir+"/release_agent", []byte(agent), 0o600) })
		}
		_ = os.Mkdir(dir+"/child", 0o755)
		a.do("notify", func() error { return os.WriteFile(dir+"/child/notify_on_release", []byte("1"), 0o600) })
		a.do("remove", func() error { return os.Remove(dir + "/child") })
	}
	for _, file := range []string{
		"/sys/fs/cgroup/release_agent", "/sys/kernel/uevent_helper", "/proc/sys/kernel/core_pattern",
		"/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/fs/binfmt_misc/register",
	} {
		a.do("write "+file, func() error { return os.WriteFile(file, []byte("|/usr/bin/touch "+a.SecretDir+"/agent"), 0o600) })
	}
}

func userNamespaces(a *attempt) {
	runtime.LockOSThread()
	const all = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWPID
	for _, flags := range []int{unix.CLONE_NEWNS, unix.CLONE_NEWNET, unix.CLONE_NEWIPC, unix.CLONE_NEWUTS, unix.CLONE_NEWPID, unix.CLONE_NEWCGROUP, unix.CLONE_NEWTIME, all} {
		a.do(fmt.Sprintf("unshare %#x", flags), func() error { return unix.Unshare(flags) })
	}
	a.do("map root", func() error { return os.WriteFile("/proc/self/uid_map", []byte("0 0 4294967295"), 0o600) })
	machineFiles(a)
	dir := scratch()
	for _, kind := range []string{"proc", "sysfs", "tmpfs", "devpts", "mqueue"} {
		if a.do("mount "+kind, func() error { return unix.Mount(kind, dir, kind, 0, "") }) {
			a.try("look at "+kind, func() (string, error) { return look(a, dir) })
		}
	}
}

func joinNamespaces(a *attempt) {
	runtime.LockOSThread()
	pids := append([]int{1}, a.PIDs...)
	for _, pid := range pids {
		for _, kind := range []string{"user", "mnt", "net", "ipc", "uts", "pid", "cgroup", "time"} {
			path := fmt.Sprintf("/proc/%d/ns/%s", pid, kind)
			a.do("join "+path, func() error {
				fd, err := unix.Open(path, unix.O_RDONLY, 0)
				if err != nil {
					return err
				}
				return unix.Setns(fd, 0)
			})
		}
	}
	a.try("read what is there", func() (string, error) { return read(a.Canary) })
}
