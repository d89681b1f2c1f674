package image

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// etcSources are patterns of files in the machine's /etc that programs need. Only
// world-readable files are copied.
var etcSources = []string{
	// Libraries.
	"ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld-musl-*.path", "alternatives",
	// Certificate authorities. Never ssl/private.
	"ssl/certs", "ssl/cert.pem", "ssl/ca-bundle.pem", "ssl/openssl.cnf", "ca-certificates.conf", "crypto-policies",
	"pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf", "pki/ca-trust/extracted",
	// Names and time zones.
	"localtime", "timezone", "mime.types", "protocols", "services", "magic",
	"os-release", "lsb-release", "debian_version", "alpine-release", "redhat-release",
	// Languages and fonts.
	"python3*", "java-*", "perl", "fonts", "matplotlibrc",
	// Programs of Debian that do not start without them.
	"maven/m2.conf", "maven/logging",
}

// linksOnly is a directory from which only symbolic links are copied.
const linksOnly = "/etc/alternatives"

// Bounds for copied files. Files beyond a bound are left out.
const (
	maxEtcFile    = 8 << 20
	maxEtcBytes   = 64 << 20
	maxEtcEntries = 20_000
	maxEtcDepth   = 8
)

// collector copies parts of a machine's /etc into a tree.
type collector struct {
	machine machine
	layout  hostFiles
	root    *node
	entries int
	bytes   int64
}

func (c *collector) collectAll() error {
	for _, pattern := range etcSources {
		dir := path.Join("/etc", path.Dir(pattern))
		real, st, err := c.machine.resolvePath(dir)
		if err != nil || !isPublic(st.Mode) {
			continue // not on this machine
		}
		names := []string{path.Base(pattern)}
		if strings.Contains(names[0], "*") {
			if names, err = c.matchNames(real, names[0]); err != nil {
				return err
			}
		}
		for _, name := range names {
			p := path.Join(dir, name)
			n, err := c.copyEntry(p, path.Join(real, name), 0)
			if err != nil {
				return err
			}
			if n != nil {
				c.root.addAt(p, n)
			}
		}
	}
	return nil
}

func (c *collector) matchNames(dir, pattern string) ([]string, error) {
	names, err := c.machine.listDir(dir)
	return slices.DeleteFunc(names, func(name string) bool {
		ok, _ := path.Match(pattern, name) // the patterns are well-formed
		return !ok
	}), err
}

// copyEntry returns a node for the path p with a copy of the machine's file at the path real,
// whose directory is public and not a link, or nil to leave it out.
func (c *collector) copyEntry(p, real string, depth int) (*node, error) {
	st, err := c.machine.statLink(real)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // left out
	}
	if err != nil {
		return nil, err
	}
	if c.entries--; c.entries < 0 || depth > maxEtcDepth {
		return nil, nil // left out
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		return c.copyLink(p, real, depth)
	case unix.S_IFREG:
		return c.copyFile(p, real, &st), nil
	case unix.S_IFDIR:
		return c.copyDir(p, real, &st, depth)
	}
	return nil, nil // left out
}

// copyLink copies a link if its target exists in the image, and else the target.
func (c *collector) copyLink(p, real string, depth int) (*node, error) {
	target, ok := c.machine.readLink(real)
	if !ok {
		return nil, errChanged(c.machine.hostPath(real))
	}
	// A sibling in a copied directory is copied too.
	if depth > 0 && !strings.Contains(target, "/") || c.canKeepLink(p, real, target) {
		n := newLink(target)
		n.mtime = c.layout.mtime
		return n, nil
	}
	if isWithin(p, linksOnly) {
		return nil, nil // left out
	}
	final, st, err := c.machine.resolvePath(real)
	if err != nil || !isPublic(st.Mode) {
		return nil, nil //nolint:nilerr // the target is missing or not public
	}
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFREG:
		return c.copyFile(p, final, &st), nil
	case st.Mode&unix.S_IFMT == unix.S_IFDIR && depth == 0:
		return c.copyDir(p, final, &st, depth)
	}
	return nil, nil // left out
}

// canKeepLink reports whether the target of a link exists in the image.
func (c *collector) canKeepLink(p, real, target string) bool {
	to := linkTarget(p, target)
	if p != real && linkTarget(real, target) != to && strings.Contains(target, "/") {
		return false // relative to p the target is another file
	}
	if c.layout.isShown(to) {
		return true
	}
	name, ok := strings.CutPrefix(to, "/etc/")
	for ok && name != "." {
		for _, pattern := range etcSources {
			if match, _ := path.Match(pattern, name); match { // the patterns are well-formed
				return true
			}
		}
		name = path.Dir(name)
	}
	return false
}

func (c *collector) copyFile(p, real string, st *unix.Stat_t) *node {
	if !isPublic(st.Mode) || st.Size > maxEtcFile || st.Size > c.bytes || isWithin(p, linksOnly) {
		return nil
	}
	c.bytes -= st.Size
	n := newNode(st)
	n.mode = unix.S_IFREG | st.Mode&0o777
	n.uid, n.gid = 0, 0
	n.size = st.Size
	n.from.path = c.machine.hostPath(real)
	return n
}

func (c *collector) copyDir(p, real string, st *unix.Stat_t, depth int) (*node, error) {
	if !isPublic(st.Mode) {
		return nil, nil // left out
	}
	names, err := c.machine.listDir(real)
	if err != nil {
		return nil, err
	}
	n := newDir(st.Mode & 0o777)
	n.mtime = stampOf(st.Mtim)
	for _, name := range names {
		child, err := c.copyEntry(p+"/"+name, real+"/"+name, depth+1)
		if err != nil {
			return nil, err
		}
		if child != nil {
			n.children[name] = child
		}
	}
	return n, nil
}

// isPublic reports whether a file is world-readable, or a directory world-readable and
// world-executable.
func isPublic(mode uint32) bool {
	if mode&unix.S_IFMT == unix.S_IFDIR {
		return mode&0o005 == 0o005
	}
	return mode&0o004 != 0
}

// machine is the root directory of a machine. Paths are absolute within it.
type machine string

func (m machine) hostPath(p string) string {
	if m == "/" {
		return p
	}
	return string(m) + p
}

// listDir returns the sorted names in a directory.
func (m machine) listDir(dir string) ([]string, error) {
	f, err := os.Open(m.hostPath(dir))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

func (m machine) statLink(p string) (unix.Stat_t, error) {
	var st unix.Stat_t
	if err := unix.Lstat(m.hostPath(p), &st); err != nil {
		return st, &fs.PathError{Op: "stat", Path: m.hostPath(p), Err: err}
	}
	return st, nil
}

// readLink returns the target of a symbolic link. ok is false if p is not a link.
func (m machine) readLink(p string) (target string, ok bool) {
	var buf [maxPath]byte
	n, err := unix.Readlink(m.hostPath(p), buf[:])
	return string(buf[:max(n, 0)]), err == nil
}

// linksInto reports whether p is a link whose target is in dir.
func (m machine) linksInto(p, dir string) bool {
	target, ok := m.readLink(p)
	return ok && isWithin(linkTarget(p, target), dir)
}

// resolvePath returns the path of p without symbolic links, and its metadata.
//
// PermissionDenied: a directory on the way is not public.
func (m machine) resolvePath(p string) (string, unix.Stat_t, error) {
	at, links := "/", 0
	st, err := m.statLink(at)
	for parts := strings.Split(p, "/"); len(parts) > 0 && err == nil; {
		name := parts[0]
		parts = parts[1:]
		if name == "" {
			continue
		}
		if st.Mode&0o001 == 0 {
			return "", st, sandpit.Errorf(sandpit.PermissionDenied, "%s is not public", at)
		}
		next := path.Join(at, name)
		if st, err = m.statLink(next); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
			at = next
			continue
		}
		if links++; links > maxLinks {
			return "", st, unix.ELOOP
		}
		target, ok := m.readLink(next)
		if !ok {
			return "", st, errChanged(m.hostPath(next))
		}
		if path.IsAbs(target) {
			at = "/"
		}
		parts = append(strings.Split(target, "/"), parts...)
		st, err = m.statLink(at)
	}
	return at, st, err
}
