package guest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

// fence makes a directory "in" with links that lead out of it in several ways,
// and beside it "out" with a file.
func fence(f *testing.F) (in, out string) {
	f.Helper()
	dir, err := filepath.EvalSymlinks(f.TempDir())
	if err != nil {
		f.Fatal(err)
	}
	in, out = filepath.Join(dir, "in"), filepath.Join(dir, "out")
	for _, d := range []string{filepath.Join(in, "dir", "sub"), out} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			f.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"in/abs": out, "in/rel": "../out", "in/file": "../out/secret", "in/up": "..", "in/dir/up": "../..", "in/self": "self",
		"in/root": "/", "in/inner": "dir/sub", "in/dir/loop": "../dir", "in/gone": "nothing/there",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			f.Fatal(err)
		}
	}
	for _, name := range []string{filepath.Join(out, "secret"), filepath.Join(in, "dir", "open")} {
		if err := os.WriteFile(name, []byte(filepath.Base(name)), 0o600); err != nil {
			f.Fatal(err)
		}
	}
	return in, out
}

// FuzzWithin tries to reach a file outside of where a call may go.
func FuzzWithin(f *testing.F) {
	testuser.Drop(f)
	in, out := fence(f)
	for _, p := range []string{
		"", "dir/open", "abs/secret", "rel/secret", "file", "up/out/secret", "dir/up/out/secret", "../out/secret", "dir/loop/loop/open",
		"self", "root/etc/passwd", "inner/../open", "gone/../../../out/secret", "dir/sub/../../up/in/dir/open", "./dir//open",
	} {
		f.Add(p, true)
		f.Add(p, false)
	}
	header := http.Header{WithinHeader: {in}}
	f.Fuzz(func(t *testing.T, p string, follow bool) {
		pl, err := resolveTarget(header, user{home: in}, in+"/"+p, follow)
		if err != nil {
			return
		}
		defer pl.closeRoot()
		if !isWithin(in, pl.real) || filepath.Clean(pl.real) != pl.real || filepath.Join(in, pl.rel) != pl.real {
			t.Errorf("%q is at %q, from the root %q", p, pl.real, pl.rel)
		}
		file, err := pl.root.OpenFile(pl.rel, os.O_RDONLY|unix.O_NONBLOCK, 0)
		if err != nil {
			return
		}
		defer file.Close()
		at, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(int(file.Fd())))
		if err != nil || !isWithin(in, at) || isWithin(out, at) {
			t.Errorf("%q opened %q, %v", p, at, err)
		}
	})
}

// FuzzUpload sends uploads that may only write into one directory, of any form.
func FuzzUpload(f *testing.F) {
	testuser.Drop(f)
	in, out := fence(f)
	g := New()
	f.Cleanup(g.Close)
	h := g.Handler()
	part := func(name, content string) string {
		return "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name + "\"\r\n\r\n" + content + "\r\n"
	}
	const form = "multipart/form-data; boundary=b"
	f.Add("", form, part("dir/new", "x")+part("dir/sub/new", "y")+"--b--\r\n")
	f.Add("", form, part("dir/new", "x")+part("dir/../dir/new", "y")+"--b--\r\n")
	f.Add("", form, part("../out/secret", "x")+"--b--\r\n")
	f.Add("", form, part("abs/new", "x")+part(out+"/secret", "x")+"--b--\r\n")
	f.Add("up/out/secret", form, part("x", "x")+"--b--\r\n")
	f.Add("dir/new", "application/octet-stream", "content")
	f.Add("rel/new", "text/plain", "content")
	f.Add("file", "multipart/form-data", "--b")
	f.Add("a/b/c/d", form, part("", ""))
	f.Fuzz(func(t *testing.T, name, kind, body string) {
		if strings.Contains(name+body, ".sandpit-") {
			return // it looks like what is left of a file
		}
		query := url.Values{"username": {strconv.Itoa(os.Getuid()) + ":" + strconv.Itoa(os.Getgid())}}
		if name != "" {
			query.Set("path", in+"/"+name)
		}
		// Names in the parts begin in "in" as well.
		body = strings.ReplaceAll(body, `filename="`, `filename="`+in+"/")
		req := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/files?"+query.Encode(), strings.NewReader(body))
		req.Header.Set("Content-Type", kind)
		req.Header.Set(WithinHeader, in)
		req.Header.Set(TokenHeader, g.currentSettings().token)
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, req)

		if text, err := os.ReadFile(filepath.Join(out, "secret")); err != nil || string(text) != "secret" {
			t.Fatalf("the file outside: %q, %v", text, err)
		}
		for _, dir := range []string{out, filepath.Dir(out)} {
			entries, err := os.ReadDir(dir)
			if want := map[string]int{out: 1, filepath.Dir(out): 2}[dir]; err != nil || len(entries) != want {
				t.Fatalf("%s has %v, %v", dir, entries, err)
			}
		}
		tidy(t, in)
	})
}

// tidy takes new files and directories away, and complains of half a file.
func tidy(t *testing.T, in string) {
	t.Helper()
	keep := []string{"", "abs", "rel", "file", "up", "self", "root", "inner", "gone", "dir", "dir/up", "dir/loop", "dir/sub", "dir/open"}
	err := filepath.WalkDir(in, func(p string, e os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(strings.TrimPrefix(p, in), "/")
		if strings.HasPrefix(e.Name(), ".sandpit-") {
			t.Errorf("%s is left", rel)
		}
		if slices.Contains(keep, rel) {
			return nil
		}
		if err := os.RemoveAll(p); err != nil {
			return err
		}
		if e.IsDir() {
			return filepath.SkipDir
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// FuzzAccounts reads lists of users and groups that a program inside may write.
func FuzzAccounts(f *testing.F) {
	const passwd, group = "root:x:0:0:root:/root:/bin/sh\napp:x:1000:1000::/home/app:\n", "root:x:0:\napp:x:1000:\nwheel:x:10:app,other\n"
	for _, spec := range []string{"", "root", "app", "app:wheel", "1000", "4242:17", "app:99999999999", "-1", ":", "other", "app:root:x"} {
		f.Add(passwd, group, spec)
		f.Add("", "", spec)
	}
	f.Add("a:x:-1:0::/:\na:x:4294967295:4294967295::/:", "b:x:99999999999:a", "a")
	f.Add("a:x:1:1::relative/home:\n\n:::::\n#a:x:0:0::/:\n", ":\n", "a")
	f.Fuzz(func(t *testing.T, passwd, group, spec string) {
		dir := t.TempDir()
		a := &accounts{passwd: accountList{file: dir + "/passwd"}, group: accountList{file: dir + "/group"}}
		for name, text := range map[string]string{"passwd": passwd, "group": group} {
			if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		u, err := a.lookupUser(spec)
		if err != nil {
			return
		}
		if u.uid < 0 || u.gid < 0 || u.uid > 1<<31-1 || u.gid > 1<<31-1 || !filepath.IsAbs(u.home) {
			t.Errorf("%q is %+v", spec, u)
		}
		for _, g := range u.groups {
			if g < 0 || g > 1<<31-1 {
				t.Errorf("%q is in group %d", spec, g)
			}
		}
		name, _, _ := strings.Cut(spec, ":")
		id, notNumber := parseID(name)
		if passwd == "" && u.uid == 0 && name != "" && name != "root" && (notNumber != nil || id != 0) {
			t.Errorf("%q is root", spec)
		}
		// A list is read once; what it says does not change by that.
		if again, err := a.lookupUser(spec); err != nil || fmt.Sprint(again) != fmt.Sprint(u) {
			t.Errorf("%q is %+v, then %+v, %v", spec, u, again, err)
		}
	})
}

// FuzzConduit sends messages with any number of descriptors. None is kept that is
// not used.
func FuzzConduit(f *testing.F) {
	f.Add([]byte{0, 80}, 1)
	f.Add([]byte{0}, 1)
	f.Add([]byte{0, 80, 0}, 2)
	f.Add([]byte{255, 255}, 0)
	f.Add([]byte{0, 1}, 5)
	f.Fuzz(func(t *testing.T, message []byte, n int) {
		if len(message) == 0 || string(message) == "\x00\x00" || len(message) > 1<<10 {
			return // the end, and the order to kill, which stands for itself
		}
		before := openFiles(t)
		theirs, ours := pair(t)
		c, err := openConduit(ours, new(Guest))
		if err != nil {
			t.Fatal(err)
		}
		near, far := pair(t)
		fds := make([]int, min(max(n, 0), 8))
		for i := range fds {
			fds[i] = int(far.Fd())
		}
		err = syscall.Sendmsg(int(theirs.Fd()), message, syscall.UnixRights(fds...), nil, 0)
		_ = theirs.Close() // which ends the conduit, behind the message
		_ = far.Close()
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				conn, err := c.Accept()
				if err != nil {
					return
				}
				_ = conn.Close()
			}
		}()
		<-c.closed
		c.waitForRelays()
		_ = near.Close()
		if after := openFiles(t); after > before {
			t.Errorf("%d descriptors more", after-before)
		}
	})
}

func pair(t *testing.T) (a, b *os.File) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "a"), os.NewFile(uintptr(fds[1]), "b")
}

func openFiles(t *testing.T) int {
	t.Helper()
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(names)
}
