package attacks_test

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func fileAttacks() []attack {
	return []attack{
		{name: "machine-files", as: anybody, in: everybox, proves: "Files and directories of the machine that were not shown are not there."},
		{name: "parents", as: anybody, in: everybox, proves: "`..` from a mount, in any spelling, ends at the sandbox's own root."},
		{
			name: "symlinks", as: anybody, in: hostBox, leaves: true, judge: judgeLinks,
			proves: "A link that is made in a writable mount and leads to a path of the machine is followed inside, for reading and for writing.",
		},
		{
			name: "planted-symlinks", as: anybody, in: hostBox, judge: refused(),
			proves: "Links that lie in a mount already and lead out of it lead nowhere.",
		},
		{name: "hard-links", as: anybody, in: hostBox, judge: refused(), proves: "No file from elsewhere is linked or moved into a writable mount."},
		{name: "magic-links", as: anybody, in: everybox, proves: "Roots, working directories and descriptors of processes lead to nothing of the machine."},
		{name: "file-handles", as: anybody, in: everybox, judge: refused(), proves: "No file can be opened by a made-up handle instead of a name."},
		{
			name: "exchange-race", as: anybody, in: hostBox, leaves: true, count: 700, long: 20000,
			proves: "Exchanging a directory of a mount for a link, while it is used, leads no access out of the mount.",
		},
		{name: "moved-directory", as: anybody, in: hostBox, leaves: true, proves: "A directory that was moved while open does not lead out of its mount."},
		{
			name: "write-read-only", as: anybody, in: hostBox, judge: judgeReadOnly,
			proves: "A read-only mount cannot be changed in any way, nor by a mapping or by a descriptor opened for reading.",
		},
		{name: "write-usr", as: anybody, in: hostBox, judge: judgeReadOnly, proves: "The machine's programs cannot be changed."},
		{
			name: "write-image", as: anybody, in: everybox, mortal: true,
			proves: "Programs of a shared image, and the guest, stay what they are for every other sandbox.",
		},
		{
			name: "set-user-id", as: anybody, in: hostBox, leaves: true, judge: judgeSetUserID,
			proves: "The mode and capabilities of programs in a writable mount give no user outside the rights of root.",
		},
		{name: "devices-in-mount", as: anybody, in: hostBox, judge: judgeDevices, proves: "No device comes to be on the machine through a writable mount."},
		{
			name: "attributes-in-mount", as: anybody, in: hostBox, leaves: true, judge: judgeAttributes,
			proves: "No attributes that the machine's kernel trusts are set through a writable mount.",
		},
		{name: "file-flags", as: anybody, in: hostBox, leaves: true, judge: judgeFlags, proves: "Files made in a writable mount can be removed outside."},
		{name: "locks", as: anybody, in: hostBox, play: playLocks, proves: "Locks taken inside on shared files do not prevent programs outside from locking them."},
		{name: "host-sockets", as: anybody, in: hostBox, judge: refused(), proves: "A socket of the machine that lies in a mount cannot be connected to."},
		{name: "host-fifo", as: anybody, in: hostBox, judge: refused(), proves: "A named pipe of the machine that lies in a mount can be neither read nor written."},
		{name: "engine-files", as: anybody, in: everybox, judge: refused(), proves: "The socket by which the engine takes orders is out of reach."},
		{name: "sparse", as: anybody, in: everybox, judge: judgeSparse, proves: "A file that claims to be huge takes no room on the machine."},
	}
}

// judgeLinks looks whether something was made or read where the links lead to.
// What is written through them is written inside, or nowhere.
func judgeLinks(t *testing.T, s scene) {
	t.Helper()
	for _, name := range []string{"written-through-link", "below-link"} {
		if _, err := os.Lstat(filepath.Join(s.lab.dir, "secret", name)); err == nil {
			t.Errorf("%s was made outside", name)
		}
	}
	if target, err := os.Readlink(filepath.Join(s.lab.dir, "rw", "links", "absolute")); err != nil || target != s.lab.canaryPath() {
		t.Errorf("the link proves nothing: %q, %v", target, err)
	}
	_ = os.RemoveAll(filepath.Join(s.lab.dir, "rw", "links")) // the next one is another user
}

// judgeReadOnly allows what changes the sandbox's own view only; the machine's
// files are looked at anyway.
func judgeReadOnly(t *testing.T, s scene) {
	t.Helper()
	refused("map shared and write")(t, s)
}

// left lists what the attempt left in the writable mount.
func (s scene) left(t *testing.T, mark string) map[string]unix.Stat_t {
	t.Helper()
	found := make(map[string]unix.Stat_t)
	err := filepath.WalkDir(filepath.Join(s.lab.dir, "rw"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.Contains(path, mark) {
			return err
		}
		var st unix.Stat_t
		err = unix.Lstat(path, &st)
		found[path] = st
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return found
}

func judgeSetUserID(t *testing.T, s scene) {
	t.Helper()
	files := s.left(t, s.mark)
	if len(files) == 0 {
		t.Error("the attempt left no files")
	}
	for path, st := range files {
		special := st.Mode & (unix.S_ISUID | unix.S_ISGID)
		if st.Mode&unix.S_IFMT == unix.S_IFREG && special != 0 {
			s.lab.weak = append(s.lab.weak, fmt.Sprintf("%s has mode %o and belongs to %d:%d outside", filepath.Base(path), st.Mode, st.Uid, st.Gid))
		}
		if _, err := unix.Lgetxattr(path, "security.capability", make([]byte, 100)); err == nil {
			t.Errorf("%s has capabilities outside", path)
		}
	}
}

func judgeDevices(t *testing.T, s scene) {
	t.Helper()
	for path, st := range s.left(t, s.mark) {
		// The device 0:0 does not exist: overlay file systems mark removed files with it.
		if kind := st.Mode & unix.S_IFMT; (kind == unix.S_IFCHR || kind == unix.S_IFBLK) && st.Rdev != 0 {
			t.Errorf("%s is a device (mode %o, %#x) outside", path, st.Mode, st.Rdev)
		}
	}
}

func judgeAttributes(t *testing.T, s scene) {
	t.Helper()
	for path := range s.left(t, s.mark) {
		names := make([]byte, 4096)
		n, err := unix.Llistxattr(path, names)
		if err != nil {
			continue // a file system without
		}
		for name := range strings.SplitSeq(strings.TrimRight(string(names[:n]), "\x00"), "\x00") {
			if name != "" && !strings.HasPrefix(name, "user.") {
				t.Errorf("%s has the attribute %s outside", path, name)
			}
		}
	}
}

func judgeFlags(t *testing.T, s scene) {
	t.Helper()
	for path := range s.left(t, s.mark) {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// playLocks has the attacker hold locks while it takes them itself.
func playLocks(t *testing.T, s scene) {
	t.Helper()
	s.whileHeld(t, "locks", func(context.Context) {
		for _, path := range []string{"ro/open.txt", "rw/open.txt"} {
			f, err := os.OpenFile(filepath.Join(s.lab.dir, path), os.O_RDWR, 0)
			if err != nil {
				t.Error(err)
				continue
			}
			fd := int(f.Fd())
			if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
				t.Errorf("flock of %s: %v", path, err)
			}
			if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
				t.Errorf("lock of %s: %v", path, err)
			}
			_ = f.Close()
		}
	})
}

func judgeSparse(t *testing.T, s scene) {
	t.Helper()
	var used int64
	err := filepath.WalkDir(filepath.Join(s.lab.dir, "scratch"), func(path string, _ fs.DirEntry, err error) error {
		var st unix.Stat_t
		if err == nil && unix.Lstat(path, &st) == nil {
			used += st.Blocks * 512
		}
		return err
	})
	if err != nil || used > 1<<30 {
		t.Errorf("%d bytes are used, %v", used, err)
	}
}
