package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// openExact opens what is at path below the directory dir, for nothing but to be shown,
// and fails where a part of the path is a link: somebody looked at the path before and
// found none.
func openExact(dir int, path string) (*os.File, error) {
	fd, err := unix.Openat2(dir, path, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "a part of the path %s is a symbolic link, or became one meanwhile", path)
	}
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// openSource opens what a mount shows. Paths of our own may have links in them.
func openSource(path string, exact bool) (*os.File, error) {
	if exact {
		return openExact(unix.AT_FDCWD, path)
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "open %s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// bindExact shows at place what is at path on the machine, which no part of may be a
// link.
func bindExact(path, place string) error {
	host, err := unix.Open(hostRoot, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(host) }()
	source, err := openExact(host, cmp.Or(strings.TrimPrefix(path, "/"), "."))
	if err != nil {
		return err
	}
	defer source.Close()
	return unix.Mount(descriptorPath(source, ""), place, "", unix.MS_BIND|unix.MS_REC, "")
}

// openMount makes a copy of the tree at an opened path that the engine can attach
// wherever it likes, without access to the directories above. Files in it that
// belong to the machine's users belong to the sandbox's users of the same
// number, which outside are nobody: engineUsers is the engine's user namespace.
//
// Only root needs and can do this. For anybody else the engine is the same user
// and goes by the path.
func openMount(source *os.File, readOnly bool, engineUsers *os.File) (*os.File, error) {
	path := source.Name()
	fd, err := unix.OpenTree(int(source.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("copy the mount of %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(engineUsers.Fd()),
	}
	if readOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &attr)
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "the file system of %s, or one mounted in it, cannot be shown to another user: %w", path, err),
			"use a directory on ext4, xfs, btrfs or tmpfs with Linux 5.12 or newer, or run as an ordinary user")
	}
	return nil, fmt.Errorf("map the owners of %s: %w", path, err)
}

// engineUsers opens the user namespace of the engine in dir.
func engineUsers(ctx context.Context, dir string) (*os.File, error) {
	conn, err := dialControl(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer conn.Close() // as long as it is open the process cannot be another one
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var peer *unix.Ucred
	var peerErr error
	if err := raw.Control(func(fd uintptr) {
		peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	if peerErr != nil {
		return nil, fmt.Errorf("find the engine's process: %w", peerErr)
	}
	return os.Open(fmt.Sprintf("/proc/%d/ns/user", peer.Pid))
}
