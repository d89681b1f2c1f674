package guest

import (
	"bufio"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
)

// accounts are the users and groups of the sandbox.
type accounts struct {
	passwd, group accountList
}

func newAccounts() *accounts {
	return &accounts{passwd: accountList{file: "/etc/passwd"}, group: accountList{file: "/etc/group"}}
}

// maxAccounts bounds what is read of a list, in bytes.
const maxAccounts = 4 << 20

// accountList is a list of users or groups. It reads the file again only when the file has changed: every command
// looks up its user, and system calls are slow in a sandbox. Its methods may be called concurrently.
type accountList struct {
	file string

	mu    sync.Mutex
	state syscall.Stat_t
	lines [][]string
}

// eachLine calls f with the fields of each line until it returns false. A file
// that cannot be read has no lines.
func (l *accountList) eachLine(f func(fields []string) bool) {
	for _, fields := range l.readLines() {
		if !f(fields) {
			return
		}
	}
}

func (l *accountList) readLines() [][]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var now syscall.Stat_t
	if err := syscall.Stat(l.file, &now); err != nil {
		return nil
	}
	if now.Ino == l.state.Ino && now.Dev == l.state.Dev && now.Size == l.state.Size && now.Mtim == l.state.Mtim && now.Ctim == l.state.Ctim {
		return l.lines
	}
	l.state, l.lines = now, nil
	r, err := os.Open(l.file)
	if err != nil {
		return nil
	}
	defer r.Close()
	scanner := bufio.NewScanner(io.LimitReader(r, maxAccounts))
	for scanner.Scan() {
		if line := scanner.Text(); line != "" && line[0] != '#' {
			l.lines = append(l.lines, strings.Split(line, ":"))
		}
	}
	return l.lines
}
