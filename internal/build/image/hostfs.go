package image

import (
	"context"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// resolveHost returns a small root file system with read-only mounts of the machine's programs.
func (s *Store) resolveHost(ctx context.Context, p Progress) (Root, error) {
	l, err := newHostFiles(s.machine)
	if err != nil {
		return Root{}, err
	}
	tree, err := newSkeleton(machine(s.machine), l)
	if err != nil {
		return Root{}, err
	}
	f, err := s.builder.makeTree(ctx, tree, note{Kind: KindHost}, p)
	if err != nil {
		return Root{}, err
	}
	return Root{Path: f.Name(), File: f, Mounts: l.mounts, Config: Config{Env: l.env}}, nil
}

// hostFiles describes which directories of a machine a sandbox sees, and where.
type hostFiles struct {
	mounts []sandpit.Mount
	links  map[string]string // symbolic links, by path
	env    map[string]string
	shell  string
	mtime  stamp // of generated files
}

// programDirs are the directories of programs and libraries besides /usr: directories on
// some machines, links into /usr on others.
var programDirs = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

const (
	nixStore  = "/nix/store"
	nixSystem = "/run/current-system"
)

// newHostFiles inspects the machine whose root directory is root.
//
// Unsupported: it has no programs in any known directory.
func newHostFiles(root string) (hostFiles, error) {
	m := machine(root)
	l := hostFiles{links: map[string]string{}, shell: "/bin/sh"}
	dirs := append([]string{"/usr"}, programDirs...)
	// On NixOS /usr and /bin contain almost only links into the store.
	if m.linksInto("/bin/sh", nixStore) || m.linksInto("/usr/bin/env", nixStore) {
		dirs = append(dirs, nixStore)
		if target, ok := m.readLink(nixSystem); ok {
			l.links[nixSystem] = target
			l.env = map[string]string{"PATH": nixSystem + "/sw/bin:/usr/bin:/bin"}
		}
	}
	for _, dir := range dirs {
		if target, ok := m.readLink(dir); ok && dir != "/usr" {
			l.links[dir] = target
			continue
		}
		real, st, err := m.resolvePath(dir)
		if err != nil || st.Mode&unix.S_IFMT != unix.S_IFDIR {
			continue // not on this machine
		}
		l.mounts = append(l.mounts, sandpit.Mount{Source: m.hostPath(real), Target: dir, ReadOnly: true})
		if len(l.mounts) == 1 {
			l.mtime = stampOf(st.Mtim)
		}
	}
	if len(l.mounts) == 0 {
		return hostFiles{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "this machine has no directory of programs: neither %s nor %s",
				strings.Join(dirs, ", "), nixStore),
			"use a directory or a tar file with a root file system")
	}
	if _, _, err := m.resolvePath("/bin/bash"); err == nil {
		l.shell = "/bin/bash"
	}
	return l, nil
}

// isShown reports whether a sandbox sees the file at a path, without resolving links.
func (l hostFiles) isShown(p string) bool {
	if slices.ContainsFunc(l.mounts, func(m sandpit.Mount) bool { return isWithin(p, m.Target) }) {
		return true
	}
	for link := range l.links {
		if isWithin(p, link) {
			return true
		}
	}
	return false
}

// isWithin reports whether p is dir or below it.
func isWithin(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// ordinaryUser is the user inside besides root.
const ordinaryUser = 1000

// newSkeleton returns the root file system around the machine's programs.
func newSkeleton(m machine, l hostFiles) (*node, error) {
	root := newDir(0o755)
	root.mtime = l.mtime
	put := func(p string, n *node) {
		n.mtime = l.mtime
		root.addAt(p, n)
	}
	for _, dir := range []string{
		"/dev", "/etc", "/home", "/mnt", "/opt", "/proc", "/run", "/srv", "/sys", "/workspace",
		"/usr", "/var", "/var/cache", "/var/lib", "/var/log",
	} {
		put(dir, newDir(0o755))
	}
	put("/root", newDir(0o700))
	put("/tmp", newDir(0o777|unix.S_ISVTX))
	put("/var/tmp", newDir(0o777|unix.S_ISVTX))
	home := newDir(0o755)
	home.uid, home.gid = ordinaryUser, ordinaryUser
	put("/home/user", home)
	put("/var/run", newLink("/run"))
	for _, mount := range l.mounts {
		put(mount.Target, newDir(0o755))
	}
	for link, target := range l.links {
		put(link, newLink(target))
	}
	c := collector{machine: m, layout: l, root: root, entries: maxEtcEntries, bytes: maxEtcBytes}
	if err := c.collectAll(); err != nil {
		return nil, err
	}
	for name, text := range etcFiles(l) {
		n := &node{mode: unix.S_IFREG | 0o644, size: int64(len(text)), from: &source{text: text}}
		put("/etc/"+name, n)
	}
	put("/etc/mtab", newLink("../proc/self/mounts"))
	return root, nil
}

func newLink(target string) *node { return &node{mode: unix.S_IFLNK | 0o777, target: target} }

// etcFiles returns the generated files of /etc.
func etcFiles(l hostFiles) map[string]string {
	return map[string]string{
		"passwd": "root:x:0:0:root:/root:" + l.shell + "\n" +
			"user:x:1000:1000:user:/home/user:" + l.shell + "\n" +
			"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
		"group":         "root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n",
		"hosts":         "127.0.0.1\tlocalhost sandpit\n::1\tlocalhost ip6-localhost ip6-loopback\n",
		"hostname":      "sandpit\n",
		"resolv.conf":   "# No name server: this sandbox is offline unless a network was asked for.\n",
		"nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nprotocols: files\nservices: files\n",
		"profile": "# Read by login shells.\n" +
			"export PATH=\"${PATH:-/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin}\"\n" +
			"[ -n \"${PS1-}\" ] && PS1='\\u@\\h:\\w\\$ '\n" +
			":\n",
	}
}

// linkTarget returns the absolute path of a link's target.
func linkTarget(link, target string) string {
	if path.IsAbs(target) {
		return path.Clean(target)
	}
	return path.Join(path.Dir(link), target)
}
