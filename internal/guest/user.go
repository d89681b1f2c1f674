package guest

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// user is somebody who may own processes and files inside.
type user struct {
	name     string
	uid, gid int
	groups   []int // besides gid
	home     string
}

const (
	passwdFile = "/etc/passwd"
	groupFile  = "/etc/group"
	// maxAccounts bounds what is read of these files.
	maxAccounts = 4 << 20
)

// errUser is the protocol's message for a user nobody knows.
type errUser string

func (e errUser) Error() string { return fmt.Sprintf("invalid username: '%s'", string(e)) }

// lookupUser finds a user by name, uid, or uid:gid; "" is root. A number needs
// no entry in the list of users.
func lookupUser(spec string) (user, error) {
	if spec == "" {
		spec = "root"
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	u, known := findUser(name)
	if uid, err := parseID(name); !known && err == nil {
		u, known = user{name: name, uid: uid, gid: uid, home: "/"}, true
	}
	if !known && name == "root" { // a root file system without a list of users
		u, known = user{name: "root", home: "/"}, true
	}
	if !known {
		return user{}, errUser(spec)
	}
	if hasGroup {
		gid, err := findGroup(group)
		if err != nil {
			return user{}, errUser(spec)
		}
		u.gid, u.groups = gid, nil
	}
	return u, nil
}

func parseID(s string) (int, error) {
	id, err := strconv.ParseUint(s, 10, 31)
	return int(id), err
}

// findUser looks for a name or uid in the list of users.
func findUser(name string) (found user, ok bool) {
	eachLine(passwdFile, func(fields []string) bool {
		if len(fields) < 6 || fields[0] != name && fields[2] != name {
			return true
		}
		uid, err1 := parseID(fields[2])
		gid, err2 := parseID(fields[3])
		if err1 != nil || err2 != nil {
			return true
		}
		found, ok = user{name: fields[0], uid: uid, gid: gid, home: fields[5]}, true
		return false
	})
	if !ok {
		return user{}, false
	}
	if !path.IsAbs(found.home) {
		found.home = "/"
	}
	eachLine(groupFile, func(fields []string) bool {
		if len(fields) >= 4 && slices.Contains(strings.Split(fields[3], ","), found.name) {
			if gid, err := parseID(fields[2]); err == nil && gid != found.gid {
				found.groups = append(found.groups, gid)
			}
		}
		return true
	})
	return found, true
}

func findGroup(name string) (gid int, err error) {
	gid, err = parseID(name)
	eachLine(groupFile, func(fields []string) bool {
		if len(fields) < 3 || fields[0] != name {
			return true
		}
		gid, err = parseID(fields[2])
		return false
	})
	return gid, err
}

// nameOf returns the name of a uid or gid in one of the lists, or the number.
func nameOf(file string, id uint32) string {
	name := strconv.FormatUint(uint64(id), 10)
	number := name
	eachLine(file, func(fields []string) bool {
		if len(fields) >= 3 && fields[2] == number {
			name = fields[0]
			return false
		}
		return true
	})
	return name
}

// eachLine calls f with the fields of each line until it returns false. A file
// that cannot be read has no lines.
func eachLine(file string, f func(fields []string) bool) {
	r, err := os.Open(file)
	if err != nil {
		return
	}
	defer r.Close()
	scanner := bufio.NewScanner(io.LimitReader(r, maxAccounts))
	for scanner.Scan() {
		line := scanner.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		if !f(strings.Split(line, ":")) {
			return
		}
	}
}

// resolve returns the absolute form of a path as the user means it.
func (u user) resolve(p string) string {
	switch {
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(u.home, p[1:])
	case path.IsAbs(p):
		return path.Clean(p)
	}
	return path.Join(u.home, p)
}
