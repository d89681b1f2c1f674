package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// newHost returns execution without isolation. As root it uses the same files as the others, in a
// directory that becomes the root directory of each program. Other users use the machine's own
// programs, and the report says so.
func newHost(ctx context.Context, dir, root string) (contestant, string, error) {
	if os.Geteuid() == 0 {
		if err := unpackRoot(ctx, dir, root); err == nil {
			return hostIn(dir), "the same files, by chroot", nil
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "tmp"), 0o700); err != nil {
		return contestant{}, "", err
	}
	return hostIn(""), "the machine's own programs", nil
}

func unpackRoot(ctx context.Context, dir, root string) error {
	if err := os.MkdirAll(filepath.Join(dir, "dev"), 0o755); err != nil { //nolint:gosec // a root directory
		return err
	}
	if err := run(exec.CommandContext(ctx, "tar", "-C", dir, "--exclude=./dev/*", "-xf", root)); err != nil {
		return err
	}
	for name, device := range map[string]int{"null": 1<<8 | 3, "zero": 1<<8 | 5} {
		path := filepath.Join(dir, "dev", name)
		if err := unix.Mknod(path, unix.S_IFCHR|0o666, device); err != nil {
			return fmt.Errorf("make %s: %w", path, err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0) // refused where devices are not allowed
		if err != nil {
			return err
		}
		_ = f.Close() // nothing was written
	}
	for _, sub := range []string{"tmp", "workspace"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil { //nolint:gosec // as in the others
			return err
		}
	}
	return nil
}

func hostIn(root string) contestant {
	b := hostBox{root}
	return contestant{
		name:  byHost,
		start: func(context.Context) (box, error) { return b, nil },
		life: func(ctx context.Context) (life, error) {
			return lifeOf(b.command(ctx, "echo", word))
		},
	}
}

// hostBox is a root directory; an empty one is the machine's own.
type hostBox struct{ root string }

func (b hostBox) command(ctx context.Context, args ...string) *exec.Cmd {
	if b.root == "" {
		return exec.CommandContext(ctx, args[0], args[1:]...)
	}
	path := args[0]
	if !filepath.IsAbs(path) {
		path = b.lookup(path)
	}
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	cmd.Env = []string{"PATH=" + boxPath, "HOME=/root", "LANG=C.UTF-8"}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: b.root}
	return cmd
}

// lookup finds a program in the root directory, because exec would search the machine's.
func (b hostBox) lookup(name string) string {
	for _, dir := range filepath.SplitList(boxPath) {
		if _, err := os.Lstat(filepath.Join(b.root, dir, name)); err == nil {
			return filepath.Join(dir, name)
		}
	}
	return "/" + name
}

// boxPath is the search path inside.
const boxPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

func (b hostBox) Run(ctx context.Context, args ...string) error { return run(b.command(ctx, args...)) }

func (b hostBox) CopyIn(ctx context.Context, source, target string) error {
	return copyHost(ctx, source, filepath.Join(b.root, target))
}

func (b hostBox) CopyOut(ctx context.Context, source, target string) error {
	return copyHost(ctx, filepath.Join(b.root, source), target)
}

func (b hostBox) Destroy(context.Context) error { return nil }

// copyHost copies a file with cp, and a directory with tar through a pipe, which is the minimum for
// crossing a boundary.
func copyHost(ctx context.Context, source, target string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return run(exec.CommandContext(ctx, "cp", source, target))
	}
	if err := os.MkdirAll(target, 0o755); err != nil { //nolint:gosec // as in the others
		return err
	}
	pack := exec.CommandContext(ctx, "tar", "-C", source, "-c", ".")
	unpack := exec.CommandContext(ctx, "tar", "-C", target, "-x")
	if unpack.Stdin, err = pack.StdoutPipe(); err != nil {
		return err
	}
	if err := pack.Start(); err != nil {
		return err
	}
	return errors.Join(run(unpack), pack.Wait())
}
