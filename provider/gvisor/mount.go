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
// belong to the machine's users belong to the users of the same number in the user
// namespace, which outside are nobody.
//
// Only root needs and can do this. For anybody else the engine is the same user
// and goes by the path.
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

// newUserNamespace makes a user namespace that maps users and groups alike. No process is
// in it when it returns.
func newUserNamespace(mapping []syscall.SysProcIDMap) (*os.File, error) {
	// The child stops when it has been mapped and would begin to run this program, and the
	// thread that it stops for must not end.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	child, err := os.StartProcess(selfExe, []string{"sandpit-users"}, &os.ProcAttr{Sys: &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, UidMappings: mapping, GidMappings: mapping,
		Ptrace: true, Pdeathsig: unix.SIGKILL,
	}})
	if err != nil {
		return nil, fmt.Errorf("create a user namespace: %w", err)
	}
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", child.Pid)) // which stays the child's until it is waited for
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
	showsOwners bool // by users of the machine, whom the sandbox sees
	result      *mountSource
}

// openSources opens what mounts show, and says where it is. The files are those that the
// engine needs besides.
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

// openMountSource returns nil if the engine goes by the path.
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

// mountUsers are the user namespaces that mounts of one sandbox are mapped by.
type mountUsers struct {
	engine string // its directory
	ids    *sandboxIDs

	engines *os.File
	server  *os.File
}

// namespaceFor returns the namespace for a source: what the machine's users own is for the file
// server, and what only the engine opens for the engine.
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
