package gvisor

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// span is IDs that follow each other.
type span struct{ first, count int }

func (s span) overlaps(o span) bool { return s.first < o.first+o.count && o.first < s.first+s.count }

// TestIDsAreDisjoint compares the IDs of numbers at the edges of the blocks.
func TestIDsAreDisjoint(t *testing.T) {
	t.Parallel()
	gateway := span{rangeBase + rangeSize, 2} // and its dialer
	spans := []span{{rangeBase, rangeSize}, gateway}
	for _, number := range []int{0, 1, blockNumbers - 1, blockNumbers, blockNumbers + 1, rangeSize - 1} {
		ids := sandboxIDsOf(number)
		for _, s := range []span{{ids.Kernel, 1}, {ids.Files, ids.Count}} {
			if s.first < rangeBase || s.first+s.count > rangeBase+poolSize {
				t.Errorf("number %d: %v is outside of the pool", number, s)
			}
			for _, other := range spans {
				if s.overlaps(other) {
					t.Errorf("number %d: %v is also in %v", number, s, other)
				}
			}
			spans = append(spans, s)
		}
		if (ids.Count == rangeSize) != (number < blockNumbers) {
			t.Errorf("number %d has %d IDs", number, ids.Count)
		}
	}
	if end := rangeBase + poolSize; end > 1<<31-1 {
		t.Errorf("the pool ends at %d", end)
	}
}

// TestIDLocks has many take numbers at a time, as servers and engines with a
// description of the file each do.
func TestIDLocks(t *testing.T) {
	t.Parallel()
	locks := idLocks{filepath.Join(t.TempDir(), "ids")}
	const some = 200
	var mu sync.Mutex
	held := make(map[int]*os.File)
	var group sync.WaitGroup
	for range some {
		group.Go(func() {
			number, f, err := locks.lockNumber(10, some)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if held[number] != nil || number < 10 || number >= 10+some {
				t.Errorf("number %d", number)
			}
			held[number] = f
		})
	}
	group.Wait()
	_, _, err := locks.lockNumber(10, some)
	if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.HintOf(err) == "" {
		t.Errorf("one too many: %v", err)
	}
	// A duplicate, as the engine has one, keeps the lock.
	copied, err := duplicateFile(held[10])
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range held {
		_ = f.Close()
	}
	if _, _, err := locks.lockNumber(10, 1); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("a number whose lock has a second holder: %v", err)
	}
	_ = copied.Close()
	number, f, err := locks.lockNumber(10, 1)
	if err != nil || number != 10 {
		t.Fatalf("a free number: %d, %v", number, err)
	}
	_ = f.Close()
}

// TestIDLocksFollowNoLink: only root may write to the directory, but a link would
// have a server of root open any file.
func TestIDLocksFollowNoLink(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "ids")
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := (idLocks{path}).lockNumber(0, 1); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestContainsIDs(t *testing.T) {
	t.Parallel()
	for mapping, want := range map[string]bool{
		"         0          0 4294967295\n":                true, // the machine's
		"0 1000 1\n":                                        false,
		"0 1000 1\n1 100000 65536\n":                        false,
		"0 100000 65536\n1879048192 1879048192 268435456\n": true,
		"0 100000 65536\n1879048193 1879048193 268435456\n": false,
		"1879048192 5 268369919\n":                          false, // one too few
		"1879048192 5 268369920\n":                          true,
		"":                                                  false,
		"x y z\n0 0 -5\n1879048192\n99999999999999999999999 0 1\n": false,
	} {
		if got := containsIDs(strings.NewReader(mapping), rangeBase, poolSize); got != want {
			t.Errorf("%q: %v, want %v", mapping, got, want)
		}
	}
}

// TestCheckIDs has a process that is in the machine's user namespace, or this test's,
// take itself for a sandbox's.
func TestCheckIDs(t *testing.T) {
	t.Parallel()
	ids := sandboxIDsOf(1)
	for _, role := range []string{kernelRole, goferRole} {
		if err := ids.checkProcess(role); err == nil || !strings.Contains(err.Error(), "want") {
			t.Errorf("%s: %v", role, err)
		}
	}
	if err := (*sandboxIDs)(nil).checkProcess(kernelRole); err != nil {
		t.Errorf("a sandbox without IDs of its own: %v", err)
	}
}

// TestNewUserNamespace makes one and looks into it by a mount of a file, whose owner it
// changes.
func TestNewUserNamespace(t *testing.T) {
	t.Parallel()
	if !hasIDPool() {
		t.Skip("this user may not give away IDs")
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(filepath.Join(dir, "file"), 1000, 1001); err != nil {
		t.Fatal(err)
	}
	ids := sandboxIDsOf(7)
	users, err := newUserNamespace(ids.toMapping())
	if err != nil {
		t.Fatal(err)
	}
	defer users.Close()
	source, err := openSource(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close()
	mounted, err := openMount(source, false, users)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer mounted.Close()
	var st unix.Stat_t
	if err := unix.Fstatat(int(mounted.Fd()), "file", &st, 0); err != nil {
		t.Fatal(err)
	}
	if int(st.Uid) != ids.Files+1000 || int(st.Gid) != ids.Files+1001 {
		t.Errorf("the file belongs to %d:%d, want %d:%d", st.Uid, st.Gid, ids.Files+1000, ids.Files+1001)
	}
}
