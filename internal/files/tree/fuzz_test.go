package tree_test

import (
	"archive/tar"
	"bytes"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/tree"
	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

func newReader(data []byte) io.Reader { return bytes.NewReader(data) }

// mend corrects the checksums of what could be headers, so that changed bytes
// get beyond the tar reader.
func mend(data []byte) []byte {
	data = bytes.Clone(data)
	for at := 0; at+512 <= len(data); at += 512 {
		block := data[at : at+512]
		if string(block[257:262]) != "ustar" {
			continue
		}
		copy(block[148:156], "        ")
		sum := 0
		for _, b := range block {
			sum += int(b)
		}
		for i := 153; i >= 148; i-- {
			block[i] = byte('0' + sum&7)
			sum >>= 3
		}
		block[154] = 0
	}
	return data
}

func FuzzUnpack(f *testing.F) {
	testuser.Drop(f)
	f.Add(stream(f, dir("./", 0o755), dir("d", 0), file("d/f", "x"), symlink("l", "../../outside"), file("l/x", "y")), uint8(3))
	f.Add(stream(f, symlink("l", "d/f"), hardLink("h", "l"), file("h", "z"), symlink("d", "."), file("d/d/d/x", "y")), uint8(1))
	f.Add(stream(f, file("a/b/c", "x"), file("a", "x"), dir("a/b", 0o1777), hardLink("a/b/h", "a/b/c")), uint8(7))
	f.Add(stream(f, device(tar.TypeFifo, "p"), file("../x", "y")), uint8(0))
	f.Add([]byte("no tar"), uint8(0))
	f.Add(make([]byte, 1024), uint8(0))
	f.Fuzz(func(t *testing.T, data []byte, flags uint8) {
		c := newCage(t)
		must(t, os.Symlink("../../outside/dir", filepath.Join(c.target, "d")))
		o := tree.Options{
			OutsideLinks: flags&1 != 0, SpecialBits: flags&2 != 0, KeepTop: flags&4 != 0, MaxBytes: 1 << 20, MaxEntries: 64,
		}
		if flags&8 == 0 {
			data = mend(data)
		}
		report, err := unpack(t, c.target, data, o)
		if report.Bytes > o.MaxBytes || report.Files+report.Dirs+report.Links > o.MaxEntries {
			t.Errorf("beyond the bounds: %+v, %v", report, err)
		}
		if err != nil && sandpit.CodeOf(err) == sandpit.Internal {
			t.Errorf("an error without a code: %v", err)
		}
		c.check(t)
		if !o.OutsideLinks {
			checkLinks(t, c)
		}
	})
}

// checkLinks checks that no link of the target leads outside, but the one that
// was there.
func checkLinks(t *testing.T, c *cage) {
	t.Helper()
	must(t, filepath.WalkDir(c.target, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Type()&fs.ModeSymlink == 0 {
			return err
		}
		rel, err := filepath.Rel(c.target, path)
		if err != nil || rel == "d" {
			return err
		}
		to, err := filepath.EvalSymlinks(path)
		if err == nil && !below(c.target, to) && !below(filepath.Join(c.outside, "dir"), to) {
			t.Errorf("%s leads to %s", rel, to)
		}
		return nil
	}))
}

func below(dir, path string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

// FuzzMembers makes streams of a small language, in which links, directories and
// files often meet under the same names.
func FuzzMembers(f *testing.F) {
	testuser.Drop(f)
	f.Add([]byte{2, 0, 3, 0, 4, 1, 1, 2, 0}, uint8(0))
	f.Add([]byte("the quick brown fox jumps over the lazy dog"), uint8(1))
	f.Add([]byte("\x02\x05\x09\x02\x31\x02\x00\x40\x00\x04\x20\x05\x01\x99\x00"), uint8(2))
	parts := []string{"", "a", "b", "d", "."}
	targets := []string{"a", "b/a", "..", "../a", "../../outside", "a/..", ".", "../../..", "d/f", "/", "d", "a/b/d", "../d/../b", "./..//b"}
	f.Fuzz(func(t *testing.T, program []byte, flags uint8) {
		c := newCage(t)
		must(t, os.Symlink("../../outside/dir", filepath.Join(c.target, "d")))
		var members []member
		for ; len(program) >= 3 && len(members) < 64; program = program[3:] {
			n := int(program[1])
			name := "./" + parts[n%5] + "/" + parts[n/5%5] + "/" + parts[n/25%5]
			target := targets[int(program[2])%len(targets)]
			switch program[0] % 5 {
			case 0:
				members = append(members, file(strings.TrimRight(name, "/")+"/f", "x"))
			case 1:
				members = append(members, dir(name, int64(program[2])<<4))
			case 2:
				members = append(members, symlink(strings.TrimRight(name, "/")+"/b", target))
			case 3:
				members = append(members, hardLink(strings.TrimRight(name, "/")+"/h", target))
			case 4:
				members = append(members, file(strings.TrimRight(name, "./")+"a", "y"))
			}
		}
		o := tree.Options{OutsideLinks: flags&1 != 0, SpecialBits: flags&2 != 0}
		// Each on its own as well: else the first bad one is the end.
		for _, m := range members {
			must(t, os.Chmod(c.target, 0o755))
			if _, err := unpack(t, c.target, stream(t, m), o); sandpit.CodeOf(err) == sandpit.Internal {
				t.Errorf("an error without a code: %v", err)
			}
		}
		_, _ = unpack(t, c.target, stream(t, members...), o)
		c.check(t)
		if !o.OutsideLinks {
			checkLinks(t, c)
		}
	})
}
