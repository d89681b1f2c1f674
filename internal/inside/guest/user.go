package guest

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
)

// user is an account that can own processes and files in the sandbox.
type user struct {
	name     string
	uid, gid int
	groups   []int // besides gid
	home     string
	shell    string // "" if unknown
}

// isSession reports whether the user belongs to a session that shares the sandbox with others.
func (u user) isSession() bool {
	return u.uid >= sandpit.FirstSessionUID && u.uid <= sandpit.LastSessionUID
}

// errUser is the protocol's message for an unknown user.
type errUser string

func (e errUser) Error() string { return fmt.Sprintf("invalid username: '%s'", string(e)) }

// causeHeader distinguishes errors with the same status: the protocol uses one status for an unknown user and a wrong
// key.
const (
	causeHeader = "Sandpit-Cause"
	causeUser   = "user"
)

// userError is the error of a call in the name of an unknown user.
func userError(err error) *connect.Error {
	ce := connect.NewError(connect.CodeUnauthenticated, err)
	setCauseHeader(ce.Meta(), err)
	return ce
}

func setCauseHeader(h http.Header, err error) {
	if _, isUser := errors.AsType[errUser](err); isUser {
		h.Set(causeHeader, causeUser)
	}
}

// lookupUser finds a user by name, uid, or uid:gid; "" is root. A number needs no entry in the list of users.
func (a *accounts) lookupUser(spec string) (user, error) {
	if spec == "" {
		spec = "root"
	}
	name, group, hasGroup := strings.Cut(spec, ":")
	u, known := a.findUser(name)
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
		gid, err := a.findGroup(group)
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

// findUser finds a name or uid in the list of users.
func (a *accounts) findUser(name string) (found user, ok bool) {
	a.passwd.eachLine(func(fields []string) bool {
		if len(fields) < 6 || fields[0] != name && fields[2] != name {
			return true
		}
		uid, err1 := parseID(fields[2])
		gid, err2 := parseID(fields[3])
		if err1 != nil || err2 != nil {
			return true
		}
		found, ok = user{name: fields[0], uid: uid, gid: gid, home: fields[5]}, true
		if len(fields) > 6 {
			found.shell = fields[6]
		}
		return false
	})
	if !ok {
		return user{}, false
	}
	if !path.IsAbs(found.home) {
		found.home = "/"
	}
	a.group.eachLine(func(fields []string) bool {
		if len(fields) >= 4 && slices.Contains(strings.Split(fields[3], ","), found.name) {
			if gid, err := parseID(fields[2]); err == nil && gid != found.gid {
				found.groups = append(found.groups, gid)
			}
		}
		return true
	})
	return found, true
}

func (a *accounts) findGroup(name string) (gid int, err error) {
	gid, err = parseID(name)
	a.group.eachLine(func(fields []string) bool {
		if len(fields) < 3 || fields[0] != name {
			return true
		}
		gid, err = parseID(fields[2])
		return false
	})
	return gid, err
}

// names finds the names of uids and gids for one call. It is not safe for concurrent use.
type names struct {
	accounts      *accounts
	users, groups map[uint32]string
}

func (n *names) userName(uid uint32) string  { return nameIn(&n.users, &n.accounts.passwd, uid) }
func (n *names) groupName(gid uint32) string { return nameIn(&n.groups, &n.accounts.group, gid) }

// nameIn returns the name of an id in a list, or the number.
func nameIn(known *map[uint32]string, list *accountList, id uint32) string {
	if *known == nil {
		*known = make(map[uint32]string)
		list.eachLine(func(fields []string) bool {
			if len(fields) < 3 {
				return true
			}
			number, err := parseID(fields[2])
			if _, taken := (*known)[uint32(number)]; err == nil && !taken {
				(*known)[uint32(number)] = fields[0]
			}
			return true
		})
	}
	if name, ok := (*known)[id]; ok {
		return name
	}
	return strconv.FormatUint(uint64(id), 10)
}

// resolvePath returns the absolute form of a path, relative to the user's home.
func (u user) resolvePath(p string) string {
	switch {
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(u.home, p[1:])
	case path.IsAbs(p):
		return path.Clean(p)
	}
	return path.Join(u.home, p)
}
