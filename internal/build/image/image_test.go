package image

import (
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// entry is one file, as far as an image keeps it.
type entry struct {
	Mode     fs.FileMode
	UID, GID uint32
	Size     int64
	Mtime    int64 // nanoseconds
	Links    int
	Target   string
	Sum      string
	File     string // the first name of the same file
}

func newStore(tb testing.TB) *Store {
	tb.Helper()
	s, err := Open(filepath.Join(tb.TempDir(), "images"), Options{})
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// readImage lists an image with a reader that is not ours.
func readImage(tb testing.TB, path string) map[string]entry {
	tb.Helper()
	f, err := os.Open(path)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	got, err := listImage(f)
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

func listImage(f *os.File) (map[string]entry, error) {
	img, err := erofs.Open(f)
	if err != nil {
		return nil, err
	}
	first := map[int64]string{}
	got := map[string]entry{}
	err = fs.WalkDir(img, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*erofs.Stat)
		if len(st.Xattrs) > 0 {
			return fmt.Errorf("%s has extended attributes, which the sandbox's kernel refuses", name)
		}
		if st.Ino == 0 {
			return fmt.Errorf("%s has inode number 0", name)
		}
		if info.Mode().IsRegular() && st.InodeLayout != layoutPlain {
			return fmt.Errorf("%s cannot be mapped by the sandbox's kernel", name)
		}
		if _, ok := first[st.Ino]; !ok {
			first[st.Ino] = name
		}
		e := entry{
			Mode: modeOf(info), UID: st.UID, GID: st.GID, Links: st.Nlink,
			Mtime: int64(st.Mtime)*1e9 + int64(st.MtimeNs), File: first[st.Ino],
		}
		switch {
		case info.Mode().IsRegular():
			e.Size = info.Size()
			e.Sum, err = sumFile(img.Open(name))
		case info.Mode()&fs.ModeSymlink != 0:
			e.Target, err = fs.ReadLink(img, name)
		}
		got[name] = e
		return err
	})
	return got, err
}

// modeOf puts the bits beside the permissions where Go has them; the reader
// leaves them where the format has them.
func modeOf(info fs.FileInfo) fs.FileMode {
	mode := info.Mode() & (fs.ModeType | fs.ModePerm)
	for raw, bit := range map[fs.FileMode]fs.FileMode{
		unix.S_ISUID: fs.ModeSetuid, unix.S_ISGID: fs.ModeSetgid, unix.S_ISVTX: fs.ModeSticky,
	} {
		if info.Mode()&(raw|bit) != 0 {
			mode |= bit
		}
	}
	return mode
}

// readTree lists a directory of the machine in the same way.
func readTree(tb testing.TB, dir string) map[string]entry {
	tb.Helper()
	first := map[uint64]string{}
	got := map[string]entry{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		var st unix.Stat_t
		if err = unix.Lstat(path, &st); err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if _, ok := first[st.Ino]; !ok {
			first[st.Ino] = name
		}
		e := entry{
			Mode: info.Mode(), UID: st.Uid, GID: st.Gid, Mtime: st.Mtim.Nano(), File: first[st.Ino],
		}
		switch {
		case info.Mode().IsRegular():
			e.Size, e.Links = st.Size, int(st.Nlink)
			e.Sum, err = sumFile(os.Open(path))
		case info.Mode()&fs.ModeSymlink != 0:
			e.Links = int(st.Nlink)
			e.Target, err = os.Readlink(path)
		case info.IsDir():
			e.Links = 2
			children, _ := os.ReadDir(path)
			for _, c := range children {
				if c.IsDir() {
					e.Links++
				}
			}
		default:
			e.Links = int(st.Nlink)
		}
		got[name] = e
		return err
	})
	if err != nil {
		tb.Fatal(err)
	}
	return got
}

func sumFile(f fs.File, err error) (string, error) {
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	n, err := io.Copy(h, f)
	return fmt.Sprintf("%d:%x", n, h.Sum(nil)[:8]), err
}

// write makes a file with the given contents and the directories above.
func write(tb testing.TB, path, text string) {
	tb.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		tb.Fatal(err)
	}
}

func must(tb testing.TB, errs ...error) {
	tb.Helper()
	for _, err := range errs {
		if err != nil {
			tb.Fatal(err)
		}
	}
}

// awkward fills a directory with whatever a root file system may hold.
func awkward(tb testing.TB, dir string) {
	tb.Helper()
	in := func(name string) string { return filepath.Join(dir, name) }
	write(tb, in("empty"), "")
	write(tb, in("one"), "x")
	for _, size := range []int{31, 32, 4031, 4032, 4033, 4095, 4096, 4097, 8192} {
		write(tb, in(fmt.Sprintf("sized/%d", size)), strings.Repeat("ab\x00c", size)[:size])
	}
	write(tb, in("big"), strings.Repeat("0123456789abcdef", 5<<16)+"end")
	write(tb, in("zeros"), strings.Repeat("\x00", 300<<10))
	holes, err := os.Create(in("holes"))
	must(tb, err)
	for _, at := range []int64{0, 4096*3 + 5, 1<<20 - 3, 3 << 20} {
		_, err := holes.WriteAt([]byte("data"), at)
		must(tb, err)
	}
	must(tb, holes.Truncate(7<<20+11), holes.Close())
	must(tb, os.Mkdir(in("empty dir"), 0o700))
	write(tb, in("sp ace/ü/日本語/🎉 file"), "unicode")
	write(tb, in("bytes/\xff\xfe"), "no text")
	write(tb, in("before/!dot"), "sorts before the dot")
	write(tb, in("before/-"), "so does this")
	write(tb, in(strings.Repeat("n", maxName)), "long name")
	write(tb, in("long/"+strings.Repeat("d", maxName)+"/"+strings.Repeat("f", maxName)), "both long")
	for i := range 5000 {
		write(tb, in(fmt.Sprintf("many/entry with number %d", i)), strconv.Itoa(i))
	}
	for i := range 40 { // sizes of directories around those of a block
		for j := range i * 4 {
			must(tb, os.MkdirAll(in(fmt.Sprintf("dirs/%d/%s%d", i, strings.Repeat("x", i), j)), 0o755))
		}
	}
	deep := dir
	for range 100 {
		deep = filepath.Join(deep, "deeper")
	}
	write(tb, filepath.Join(deep, "down"), "here")
	must(tb,
		os.Symlink("one", in("link")), os.Symlink("/", in("root link")), os.Symlink("../../../..", in("up")),
		os.Symlink(strings.Repeat("t", 4031), in("link 4031")), os.Symlink(strings.Repeat("t", 4032), in("link 4032")),
		os.Symlink(strings.Repeat("/t", 2016)+"/", in("link 4033")),
		os.Symlink(strings.Repeat("t", maxPath), in("link long")),
		os.Link(in("big"), in("big again")), os.Link(in("big"), in("many/big")),
		os.Link(in("empty"), in("empty again")), os.Link(in("link"), in("link again")),
		unix.Mkfifo(in("fifo"), 0o640),
		os.Chmod(in("one"), 0o755|fs.ModeSetuid), os.Chmod(in("sized"), 0o2775|fs.ModeSetgid),
		os.Chmod(in("empty dir"), 0o777|fs.ModeSticky), os.Chmod(in("sized/32"), 0),
		os.Chtimes(in("sized/31"), unixTime(0), unixTime(1)), os.Chtimes(in("sized/4096"), unixTime(0), unixTime(-12345)),
		os.Chtimes(in("sized/4097"), unixTime(0), unixTime(1<<33)),
	)
	if os.Geteuid() == 0 {
		must(tb, os.Lchown(in("sized/4031"), 1000, 1001), os.Lchown(in("long"), 70000, 4000000000), os.Lchown(in("up"), 5, 6))
	} else {
		must(tb, os.Chmod(in("sized/32"), 0o400))
	}
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	awkward(t, dir)
	s := newStore(t)
	f, err := s.openDir(t.Context(), dir, nil)
	must(t, err)
	want := readTree(t, dir)
	if len(want) < 5000 {
		t.Fatalf("the tree has %d files", len(want))
	}
	if diff := cmp.Diff(want, readImage(t, f.Name())); diff != "" {
		t.Errorf("the image differs (-tree +image):\n%.4000s", diff)
	}
	var st unix.Stat_t
	must(t, unix.Stat(f.Name(), &st))
	if st.Mode&0o777 != 0o444 {
		t.Errorf("mode %o, want 444", st.Mode&0o777)
	}
	if st.Size%blockSize != 0 {
		t.Errorf("%d bytes are no whole blocks", st.Size)
	}
	if used := st.Blocks * 512; used > st.Size-6<<20 {
		t.Errorf("%d of %d bytes are on the disk; the holes should not be", used, st.Size)
	}
	checkWithTools(t, f.Name())
}

// checkWithTools asks the programs of the format's authors.
func checkWithTools(t *testing.T, path string) {
	t.Helper()
	fsck, err := exec.LookPath("fsck.erofs")
	if err != nil {
		t.Log("no fsck.erofs on this machine")
		return
	}
	if out, err := exec.CommandContext(t.Context(), fsck, path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%.2000s", err, out)
	}
}

// TestKernelReadsImage compares with what Linux sees in the image.
func TestKernelReadsImage(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount")
	}
	if known, _ := os.ReadFile("/proc/filesystems"); !strings.Contains(string(known), "erofs") {
		t.Skip("this kernel does not know EROFS")
	}
	dir := t.TempDir()
	awkward(t, dir)
	f, err := newStore(t).openDir(t.Context(), dir, nil)
	must(t, err)
	at := filepath.Join(t.TempDir(), "at")
	must(t, os.Mkdir(at, 0o755))
	out, err := exec.CommandContext(t.Context(), "mount", "-t", "erofs", "-o", "ro,loop", f.Name(), at).CombinedOutput()
	if err != nil {
		t.Skipf("mount: %v: %s", err, out)
	}
	t.Cleanup(func() { must(t, unix.Unmount(at, unix.MNT_DETACH)) })
	if diff := cmp.Diff(readTree(t, dir), readTree(t, at)); diff != "" {
		t.Errorf("the mounted image differs (-tree +image):\n%.4000s", diff)
	}
	// What comes behind the end of a file is zeros for a program that maps it.
	f, err = os.Open(filepath.Join(at, "sized/4031"))
	must(t, err)
	defer f.Close()
	page, err := unix.Mmap(int(f.Fd()), 0, blockSize, unix.PROT_READ, unix.MAP_SHARED)
	must(t, err)
	defer unix.Munmap(page)
	if page[4031] != 0 || page[0] != 'a' {
		t.Errorf("mapped: first byte %q, byte behind the end %q", page[0], page[4031])
	}
}

func unixTime(sec int64) time.Time { return time.Unix(sec, 0) }
