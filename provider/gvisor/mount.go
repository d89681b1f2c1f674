package gvisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// openExact opens what is at path below the directory dir, only to be mounted. It fails if a part
// of the path is a symbolic link: the caller has checked that there was none.
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

// openSource opens what a mount shows. Only the provider's own paths may have symbolic links in
// them.
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

// bindExact mounts what is at path on the machine at target. No part of path may be a symbolic
// link.
func bindExact(path, target string) error {
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
	return unix.Mount(descriptorPath(source, ""), target, "", unix.MS_BIND|unix.MS_REC, "")
}

// openMount returns a copy of the tree at an opened path, which the engine can attach without
// access to the directories above. Files in it that belong to users of the machine belong to the
// users with the same numbers in the user namespace, which have no rights outside.
//
// Only root needs and can do this. For other users the engine is the same user and uses the path.
func openMount(source *os.File, readOnly bool, users *os.File) (*os.File, error) {
	path := source.Name()
	fd, err := unix.OpenTree(int(source.Fd()), "", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("copy the mount of %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	attr := unix.MountAttr{
		Attr_set:  unix.MOUNT_ATTR_IDMAP,
		Userns_fd: uint64(users.Fd()),
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
	defer conn.Close() // while it is open, the process ID is not reused
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

// newUserNamespace creates a user namespace that maps users and groups alike. It has no process
// when this returns.
func newUserNamespace(mapping []syscall.SysProcIDMap) (*os.File, error) {
	// The child stops when it is mapped and would start this program. The thread that traces it
	// must not end before.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess(selfExe, []string{"sandpit-users"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping,
		Ptrace: true, Pdeathsig: unix.SIGKILL,
	}})
	if err != nil {
		return nil, fmt.Errorf("create a user namespace: %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid)) // valid until the child is waited for
	_ = child.Kill()                                              // fails only if it has ended
	_, waitErr := child.Wait()
	if err = errors.Join(err, waitErr); err != nil {
		if f != nil {
			_ = f.Close()
		}
		return nil, fmt.Errorf("create a user namespace: %w", err)
	}
	return f, nil
}

// mountedSource is something of the machine that a sandbox or its kernel uses.
type mountedSource struct {
	path        string
	readOnly    bool
	exact       bool
	showsOwners bool // the sandbox sees the owners of the files
	result      *mountSource
}

// openSources opens what mounts show, and sets where it is. It returns the files that the engine
// needs as well.
func (p *Provider) openSources(ctx context.Context, engine string, ids *sandboxIDs, sources []mountedSource) ([]*os.File, error) {
	users := mountUsers{engine: engine, ids: ids}
	defer users.close()
	var files []*os.File
	for _, s := range sources {
		f, err := openMountSource(ctx, s, &users)
		if err != nil {
			return files, fmt.Errorf("mount: %w", err)
		}
		if f != nil {
			files = append(files, f)
		}
	}
	return files, nil
}

// openMountSource returns nil if the engine uses the path.
func openMountSource(ctx context.Context, s mountedSource, users *mountUsers) (*os.File, error) {
	opened, err := openSource(s.path, s.exact)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	info, err := opened.Stat()
	if err != nil {
		return nil, err
	}
	*s.result = mountSource{Path: s.path, Detached: users.ids != nil, Exact: s.exact, IsDir: info.IsDir()}
	if users.ids == nil {
		return nil, nil //nolint:nilnil // the path is enough
	}
	namespace, err := users.namespaceFor(ctx, s)
	if err != nil {
		return nil, err
	}
	return openMount(opened, s.readOnly, namespace)
}

// mountUsers are the user namespaces that map the owners in mounts of one sandbox.
type mountUsers struct {
	engine string // its directory
	ids    *sandboxIDs

	engines *os.File
	server  *os.File
}

// namespaceFor returns the namespace for a source: that of the file server if the sandbox sees the
// owners, otherwise that of the engine.
func (u *mountUsers) namespaceFor(ctx context.Context, s mountedSource) (*os.File, error) {
	var err error
	if !s.showsOwners {
		if u.engines == nil {
			u.engines, err = engineUsers(ctx, u.engine)
		}
		return u.engines, err
	}
	if u.server == nil {
		u.server, err = newUserNamespace(u.ids.toMapping())
	}
	return u.server, err
}

func (u *mountUsers) close() {
	for _, f := range []*os.File{u.engines, u.server} {
		if f != nil {
			_ = f.Close()
		}
	}
}
