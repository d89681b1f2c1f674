package image

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// fake makes a machine from lines like these:
//
//	/bin -> usr/bin        a link
//	/usr/bin/env           a file that every user may read
//	/etc/ssl/private/ 700  a directory with a mode
//	/etc/shadow 600        a file with a mode
func fake(tb testing.TB, lines ...string) string {
	tb.Helper()
	root := filepath.Join(tb.TempDir(), "machine")
	must(tb, os.Mkdir(root, 0o755))
	for _, line := range lines {
		name, target, isLink := strings.Cut(line, " -> ")
		name, mode, hasMode := strings.Cut(name, " ")
		path := filepath.Join(root, name)
		must(tb, os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case isLink:
			must(tb, os.Symlink(target, path))
		case strings.HasSuffix(name, "/"):
			must(tb, os.MkdirAll(path, 0o755))
		default:
			write(tb, path, "contents of "+name)
		}
		if hasMode {
			var bits os.FileMode
			_, err := fmt.Sscanf(mode, "%o", &bits)
			must(tb, err, os.Chmod(path, bits))
		}
	}
	return root
}

var debian = []string{
	"/usr/bin/bash", "/usr/bin/env", "/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/share/zoneinfo/Europe/Berlin",
	"/usr/share/ca-certificates/mozilla/a.crt", "/usr/lib/os-release", "/usr/local/bin/",
	"/bin -> usr/bin", "/sbin -> usr/sbin", "/lib -> usr/lib", "/lib64 -> /usr/lib64",
	"/etc/passwd", "/etc/shadow 640", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf.d/a.conf",
	"/etc/localtime -> /usr/share/zoneinfo/Europe/Berlin", "/etc/os-release -> ../usr/lib/os-release",
	"/etc/ssl/certs/a.pem -> /usr/share/ca-certificates/mozilla/a.crt", "/etc/ssl/certs/0a1b.0 -> a.pem",
	"/etc/ssl/certs/bundle.crt", "/etc/ssl/openssl.cnf", "/etc/ssl/private/key.pem",
	"/etc/alternatives/awk -> /usr/bin/mawk", "/etc/python3.11/sitecustomize.py", "/etc/java-17-openjdk/security/java.security",
	"/etc/matplotlibrc", "/etc/maven/m2.conf", "/etc/maven/settings.xml",
	"/etc/gitconfig", "/etc/npmrc", "/etc/pip.conf", "/etc/services", "/etc/sudoers 440",
	"/home/me/.ssh/id_ed25519 600", "/root/ 700", "/opt/tool/bin/tool", "/var/lib/data",
}

func TestHostLayout(t *testing.T) {
	t.Parallel()
	store := nixStore + "/abc-system"
	for name, tc := range map[string]struct {
		lines  []string
		mounts []string // source at target, below the machine's root
		links  map[string]string
		shell  string
		path   string
	}{
		"merged": {
			debian,
			[]string{"/usr at /usr"},
			map[string]string{"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "/usr/lib64"},
			"/bin/bash", "",
		},
		"not merged": { // Alpine
			[]string{"/usr/bin/env", "/bin/busybox", "/bin/sh -> /bin/busybox", "/sbin/apk", "/lib/ld-musl-x86_64.so.1"},
			[]string{"/usr at /usr", "/bin at /bin", "/sbin at /sbin", "/lib at /lib"},
			map[string]string{},
			"/bin/sh", "",
		},
		"partly merged": {
			[]string{"/usr/bin/", "/bin/bash", "/lib -> usr/lib", "/lib32/x", "/libx32 -> usr/libx32", "/libfoo/x", "/lib64/ld.so"},
			[]string{"/usr at /usr", "/bin at /bin", "/lib32 at /lib32", "/lib64 at /lib64"},
			map[string]string{"/lib": "usr/lib", "/libx32": "usr/libx32"},
			"/bin/bash", "",
		},
		"usr elsewhere": {
			[]string{"/system/usr/bin/x", "/usr -> system/usr", "/bin -> usr/bin"},
			[]string{"/system/usr at /usr"},
			map[string]string{"/bin": "usr/bin"},
			"/bin/sh", "",
		},
		"nixos": {
			[]string{
				store + "/sw/bin/python3", nixStore + "/def-bash/bin/sh", nixStore + "/ghi-coreutils/bin/env",
				"/bin/sh -> " + nixStore + "/def-bash/bin/sh", "/usr/bin/env -> " + nixStore + "/ghi-coreutils/bin/env",
				"/run/current-system -> " + store, "/run/secrets/key",
			},
			[]string{"/usr at /usr", "/bin at /bin", "/nix/store at /nix/store"},
			map[string]string{nixSystem: store},
			"/bin/sh", "/run/current-system/sw/bin:/usr/bin:/bin",
		},
		"nix on another distribution": {
			append([]string{nixStore + "/abc/bin/x"}, debian...),
			[]string{"/usr at /usr"},
			map[string]string{"/bin": "usr/bin", "/sbin": "usr/sbin", "/lib": "usr/lib", "/lib64": "/usr/lib64"},
			"/bin/bash", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := fake(t, tc.lines...)
			l, err := newHostFiles(root)
			must(t, err)
			var mounts []string
			for _, m := range l.mounts {
				if !m.ReadOnly {
					t.Errorf("%s can be written", m.Target)
				}
				mounts = append(mounts, strings.TrimPrefix(m.Source, root)+" at "+m.Target)
			}
			if diff := cmp.Diff(tc.mounts, mounts); diff != "" {
				t.Errorf("mounts (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.links, l.links); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			if l.shell != tc.shell || l.env["PATH"] != tc.path {
				t.Errorf("shell %s, PATH %q", l.shell, l.env["PATH"])
			}
		})
	}
}

func TestHostWithoutPrograms(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.machine = fake(t, "/etc/passwd")
	if _, err := s.Resolve(t.Context(), "", nil); !errors.Is(err, sandpit.Unsupported) || sandpit.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
}

// host resolves the host image of a made-up machine.
func host(tb testing.TB, lines ...string) (Root, map[string]entry) {
	tb.Helper()
	s := newStore(tb)
	s.machine = fake(tb, lines...)
	root, err := s.Resolve(tb.Context(), sandpit.HostImage, nil)
	must(tb, err)
	return root, readImage(tb, root.Path)
}

func contents(tb testing.TB, image, name string) string {
	tb.Helper()
	f, err := os.Open(image)
	must(tb, err)
	defer f.Close()
	img, err := erofs.Open(f)
	must(tb, err)
	in, err := img.Open(name)
	must(tb, err)
	defer in.Close()
	data, err := io.ReadAll(in)
	must(tb, err)
	return string(data)
}

func TestHostImage(t *testing.T) {
	t.Parallel()
	root, got := host(t, debian...)
	for name, mode := range map[string]os.FileMode{
		"proc": 0o755, "sys": 0o755, "dev": 0o755, "run": 0o755, "usr": 0o755, "etc": 0o755, "workspace": 0o755,
		"mnt": 0o755, "srv": 0o755, "opt": 0o755, "var/log": 0o755, "var/cache": 0o755, "var/lib": 0o755,
		"root": 0o700, "home/user": 0o755, "tmp": 0o777 | os.ModeSticky, "var/tmp": 0o777 | os.ModeSticky,
	} {
		e, ok := got[name]
		if want := mode | os.ModeDir; !ok || e.Mode != want {
			t.Errorf("%s: %v, want %v", name, e.Mode, want)
		}
		if owner := map[bool]uint32{true: 1000}[name == "home/user"]; e.UID != owner || e.GID != owner {
			t.Errorf("%s belongs to %d:%d", name, e.UID, e.GID)
		}
	}
	for name, target := range map[string]string{
		"bin": "usr/bin", "lib64": "/usr/lib64", "etc/mtab": "../proc/self/mounts", "var/run": "/run",
		"etc/localtime": "/usr/share/zoneinfo/Europe/Berlin", "etc/os-release": "../usr/lib/os-release",
		"etc/ssl/certs/a.pem":  "/usr/share/ca-certificates/mozilla/a.crt",
		"etc/ssl/certs/0a1b.0": "a.pem", "etc/alternatives/awk": "/usr/bin/mawk",
	} {
		if got[name].Target != target {
			t.Errorf("%s -> %q, want %q", name, got[name].Target, target)
		}
	}
	for name, part := range map[string]string{
		"etc/passwd": "user:x:1000:1000:user:/home/user:/bin/bash\n", "etc/group": "root:x:0:\n",
		"etc/hosts": "127.0.0.1\tlocalhost sandpit\n", "etc/hostname": "sandpit\n", "etc/nsswitch.conf": "hosts: files dns\n",
		"etc/resolv.conf": "# ", "etc/profile": "PATH", "etc/ld.so.cache": "contents of /etc/ld.so.cache",
		"etc/ssl/certs/bundle.crt": "contents of", "etc/python3.11/sitecustomize.py": "contents of",
		"etc/java-17-openjdk/security/java.security": "contents of", "etc/ld.so.conf.d/a.conf": "contents of",
		"etc/matplotlibrc": "contents of", "etc/maven/m2.conf": "contents of",
	} {
		if text := contents(t, root.Path, name); !strings.Contains(text, part) {
			t.Errorf("%s holds %q, want %q in it", name, text, part)
		}
	}
	allowed := []string{
		"passwd", "group", "hosts", "hostname", "resolv.conf", "nsswitch.conf", "profile", "mtab", "ld.so.cache", "ld.so.conf.d",
		"localtime", "os-release", "ssl", "alternatives", "python3.11", "java-17-openjdk", "services", "matplotlibrc", "maven",
	}
	for name := range got {
		if rest, ok := strings.CutPrefix(name, "etc/"); ok {
			if first, _, _ := strings.Cut(rest, "/"); !slices.Contains(allowed, first) {
				t.Errorf("%s has no business in the image", name)
			}
		}
		for _, dir := range []string{"opt/", "root/", "home/me", "var/lib/", "usr/", "etc/ssl/private"} {
			if strings.HasPrefix(name, dir) {
				t.Errorf("%s has no business in the image", name)
			}
		}
	}
}

// TestHostSecrets plants secrets in every place that is looked at.
func TestHostSecrets(t *testing.T) {
	t.Parallel()
	root, got := host(t, append([]string{
		"/etc/ssl/certs/key.pem 600", "/etc/ssl/certs/group.pem 640",
		"/etc/ssl/certs/stolen -> /root/secret", "/root/secret 644", "/root/ 700",
		"/etc/ssl/certs/relative -> ../../../root/secret",
		"/etc/ssl/certs/shadow -> /etc/shadow",
		"/etc/ssl/certs/private -> ../private/key.pem", "/etc/ssl/private/key.pem 644", "/etc/ssl/private/ 710",
		"/etc/ssl/certs/twice -> /etc/ssl/certs/stolen2", "/etc/ssl/certs/stolen2 -> /root/secret",
		"/etc/ssl/certs/closed/ 750", "/etc/ssl/certs/loop -> loop", "/etc/ssl/certs/dir -> /root",
		"/etc/ssl/certs/proc -> /proc/self/environ", "/proc/self/environ 400",
		"/etc/ld.so.conf.d/secret.conf 600", "/etc/java-17-openjdk/jmxremote.password 600",
		"/etc/timezone -> /root/secret", "/etc/perl/ 700", "/etc/perl/Net/netrc 644",
		"/etc/alternatives/file", "/etc/alternatives/out -> /opt/tool/bin/tool",
		"/etc/magic -> /etc/closed/magic", "/etc/closed/magic", "/etc/closed/ 700",
		"/etc/pki/ca-trust/extracted/ca.key 400",
	}, debian...)...)
	raw, err := os.ReadFile(root.Path)
	must(t, err)
	for _, secret := range []string{
		"/root/secret", "/etc/shadow", "/etc/ssl/certs/key.pem", "/etc/ssl/certs/group.pem", "/etc/ssl/private/key.pem",
		"/proc/self/environ", "/etc/ld.so.conf.d/secret.conf", "/etc/java-17-openjdk/jmxremote.password", "/etc/perl/Net/netrc",
		"/etc/closed/magic", "/etc/maven/settings.xml", "/etc/gitconfig", "/etc/npmrc", "/etc/pip.conf", "/etc/sudoers", "/opt/tool/bin/tool",
		"/etc/pki/ca-trust/extracted/ca.key", "/home/me/.ssh/id_ed25519", "/etc/alternatives/file",
	} {
		if strings.Contains(string(raw), "contents of "+secret) {
			t.Errorf("%s is in the image", secret)
		}
	}
	for _, name := range []string{
		"etc/ssl/certs/stolen", "etc/ssl/certs/relative", "etc/ssl/certs/shadow", "etc/ssl/certs/private", "etc/ssl/certs/dir",
		"etc/timezone", "etc/perl", "etc/alternatives/out", "etc/alternatives/file", "etc/magic", "etc/ssl/certs/closed",
	} {
		if e, ok := got[name]; ok {
			t.Errorf("%s is in the image: %v", name, e)
		}
	}
	if _, ok := got["etc/ssl/certs/bundle.crt"]; !ok {
		t.Error("nothing was copied at all")
	}
}

// TestHostLinksElsewhere holds the ways distributions arrange their
// certificates.
func TestHostLinksElsewhere(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		lines []string
		path  string // in the image
		want  string // contents, or -> target
	}{
		"copied as a file": {
			[]string{"/etc/ca-certificates/extracted/x.pem", "/etc/ssl/certs/x.pem -> ../../ca-certificates/extracted/x.pem"},
			"etc/ssl/certs/x.pem", "contents of /etc/ca-certificates/extracted/x.pem",
		},
		"fedora": {
			[]string{
				"/etc/ssl/certs -> ../pki/tls/certs", "/etc/pki/ca-trust/extracted/pem/all.pem",
				"/etc/pki/tls/certs/all.pem -> /etc/pki/ca-trust/extracted/pem/all.pem",
			},
			"etc/ssl/certs", "-> ../pki/tls/certs",
		},
		"suse": {
			[]string{"/var/lib/ca-certificates/pem/x.pem", "/etc/ssl/certs -> /var/lib/ca-certificates/pem"},
			"etc/ssl/certs/x.pem", "contents of /var/lib/ca-certificates/pem/x.pem",
		},
		"relative link in a directory elsewhere": {
			[]string{
				"/var/lib/ca-certificates/pem/x.pem -> ../openssl/x.pem", "/var/lib/ca-certificates/openssl/x.pem",
				"/etc/ssl/openssl/x.pem 600", "/etc/ssl/certs -> /var/lib/ca-certificates/pem",
			},
			"etc/ssl/certs/x.pem", "contents of /var/lib/ca-certificates/openssl/x.pem",
		},
		"nixos": {
			[]string{
				nixStore + "/e/etc/ssl/certs/ca-bundle.crt -> " + nixStore + "/c/ca-bundle.crt", nixStore + "/c/ca-bundle.crt",
				"/etc/static -> " + nixStore + "/e/etc", "/etc/ssl -> /etc/static/ssl", "/bin/sh -> " + nixStore + "/b/sh",
			},
			"etc/ssl/certs/ca-bundle.crt", "-> " + nixStore + "/c/ca-bundle.crt",
		},
		"a file for localtime": {
			[]string{"/etc/localtime"}, "etc/localtime", "contents of /etc/localtime",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root, got := host(t, append([]string{"/usr/bin/x"}, tc.lines...)...)
			if target, ok := strings.CutPrefix(tc.want, "-> "); ok {
				if got[tc.path].Target != target {
					t.Errorf("%s -> %q, want %q", tc.path, got[tc.path].Target, target)
				}
				return
			}
			if text := contents(t, root.Path, tc.path); text != tc.want {
				t.Errorf("%s holds %q, want %q", tc.path, text, tc.want)
			}
		})
	}
}

func TestHostBounds(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.machine = fake(t, debian...)
	write(t, filepath.Join(s.machine, "etc/magic"), strings.Repeat("x", maxEtcFile+1))
	for i := range 12 {
		write(t, filepath.Join(s.machine, fmt.Sprintf("etc/perl/%d", i)), strings.Repeat("x", maxEtcFile))
	}
	write(t, filepath.Join(s.machine, "etc/fonts", strings.Repeat("d/", maxEtcDepth), "deep"), "x")
	root, err := s.Resolve(t.Context(), "host", nil)
	must(t, err)
	info, err := os.Stat(root.Path)
	must(t, err)
	if info.Size() > maxEtcBytes+1<<20 || info.Size() < maxEtcBytes/2 {
		t.Errorf("the image has %d bytes", info.Size())
	}
	got := readImage(t, root.Path)
	for _, name := range []string{"etc/magic", "etc/fonts/" + strings.Repeat("d/", maxEtcDepth) + "deep"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is in the image", name)
		}
	}
}

func TestHostOnce(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	s.machine = fake(t, debian...)
	resolve := func() (string, bool) {
		made := false
		root, err := s.Resolve(t.Context(), "", func(int64, int64) { made = true })
		must(t, err)
		return root.Path, made
	}
	first, made := resolve()
	if !made {
		t.Error("first: not made")
	}
	if again, remade := resolve(); remade || again != first {
		t.Error("unchanged, and made again")
	}
	write(t, filepath.Join(s.machine, "etc/ssl/certs/new.pem"), "new")
	second, made := resolve()
	if !made || second == first {
		t.Error("a new certificate was not seen")
	}
	must(t, os.Chmod(filepath.Join(s.machine, "etc/ssl/certs/new.pem"), 0o600))
	if third, _ := resolve(); third == second {
		t.Error("a certificate was closed, and is still shown")
	}
}

// TestThisMachine resolves the host image of the machine that runs the test.
func TestThisMachine(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	root, err := s.Resolve(t.Context(), "", nil)
	if errors.Is(err, sandpit.Unsupported) {
		t.Skip(err)
	}
	must(t, err)
	got := readImage(t, root.Path)
	checkWithTools(t, root.Path)
	for _, m := range root.Mounts {
		if real, err := filepath.EvalSymlinks(m.Source); err != nil || real != m.Source {
			t.Errorf("mount %s: %s, %v", m.Source, real, err)
		}
		if e := got[strings.TrimPrefix(m.Target, "/")]; !e.Mode.IsDir() {
			t.Errorf("%s has no place in the image", m.Target)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "etc/ssl/private") || name == "etc/shadow" {
			t.Errorf("%s is in the image", name)
		}
	}
}

func BenchmarkHost(b *testing.B) {
	s := newStore(b)
	if _, err := s.Resolve(b.Context(), "", nil); err != nil {
		b.Skip(err)
	}
	b.Run("warm", func(b *testing.B) {
		for b.Loop() {
			if _, err := s.Resolve(b.Context(), "", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("cold", func(b *testing.B) {
		for b.Loop() {
			if _, err := newStore(b).Resolve(b.Context(), "", nil); err != nil {
				b.Fatal(err)
			}
		}
	})
}
