// Command attacker makes one attempt, named by its first argument, and writes
// what came of each step to standard output as JSON. It must run in a sandbox
// and refuses to run elsewhere: what it tries would harm a machine.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// params are what the test tells the attacker about its aims.
type params struct {
	Canary    string   `json:"canary"`    // a file of the machine that is not shown inside
	SecretDir string   `json:"secretDir"` // the directory it is in
	Control   string   `json:"control"`   // the engine's socket
	Abstract  []string `json:"abstract"`  // abstract sockets of others
	TCP       []string `json:"tcp"`       // addresses where others listen
	UDP       []string `json:"udp"`
	PIDs      []int    `json:"pids"`  // processes of the machine
	Key       int      `json:"key"`   // of System V objects of others
	Name      string   `json:"name"`  // of what others have, or may notice
	Count     int      `json:"count"` // how much
	Seed      uint64   `json:"seed"`
}

// step is one thing that was tried.
type step struct {
	Try string `json:"try"`
	Err string `json:"err,omitempty"`
	Got string `json:"got,omitempty"`
}

// attempt collects steps.
type attempt struct {
	params

	args  []string
	fds   []int // open at the start
	steps []step
	last  func() // what is done after the report, since nothing can be said any more
}

const (
	patience = 3 * time.Second
	maxGot   = 32 << 10
)

// try makes one step. One that hangs is left behind.
func (a *attempt) try(what string, f func() (string, error)) bool {
	type outcome struct {
		got string
		err error
	}
	done := make(chan outcome, 1)
	go func() {
		got, err := f()
		done <- outcome{got, err}
	}()
	s := step{Try: what}
	select {
	case o := <-done:
		if o.err != nil {
			s.Err = describe(o.err)
		}
		s.Got = o.got[:min(len(o.got), maxGot)]
	case <-time.After(patience):
		s.Err = "HANGS"
	}
	a.steps = append(a.steps, s)
	return s.Err == ""
}

// do is try for a step that gives nothing.
func (a *attempt) do(what string, f func() error) bool {
	return a.try(what, func() (string, error) { return "", f() })
}

// control makes a step that must succeed, or else the attempt proves nothing.
func (a *attempt) control(what string, f func() (string, error)) bool {
	return a.try("control: "+what, f)
}

// call makes a system call.
func (a *attempt) call(what string, nr uintptr, args ...uintptr) bool {
	var six [6]uintptr
	copy(six[:], args)
	return a.try(what, func() (string, error) {
		r, _, errno := unix.Syscall6(nr, six[0], six[1], six[2], six[3], six[4], six[5])
		if errno != 0 {
			return "", errno
		}
		return fmt.Sprintf("returned %d", r), nil
	})
}

// describe names an error shortly.
func describe(err error) string {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		if name := unix.ErrnoName(errno); name != "" {
			return name
		}
	}
	return err.Error()
}

// read reads the beginning of a file.
func read(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	return readFD(fd)
}

func readFD(fd int) (string, error) {
	b := make([]byte, maxGot)
	n, err := unix.Read(fd, b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

// list names what is in a directory.
func list(path string) (string, error) {
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return strings.Join(names, "\n"), nil
}

// write writes to a file that exists.
func write(path, content string) error {
	fd, err := unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	_, err = unix.Write(fd, []byte(content))
	return err
}

// open returns whether a file can be opened.
func open(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// openFDs lists the descriptors that are open.
func openFDs() (fds []int) {
	for fd := range 1024 {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
			fds = append(fds, fd)
		}
	}
	return fds
}

// scratch makes a directory of the attacker's own.
func scratch() string {
	dir, err := os.MkdirTemp("/tmp", "attack-")
	if err != nil {
		fail(err)
	}
	return dir
}

// all lists the attempts by name.
func all() map[string]func(*attempt) {
	every := make(map[string]func(*attempt))
	for _, group := range []map[string]func(*attempt){
		fileAttempts(), mountAttempts(), machineAttempts(), kernelAttempts(), processAttempts(),
		neighbourAttempts(), networkAttempts(), callAttempts(), floodAttempts(), instructionAttempts(),
	} {
		for name, f := range group {
			every[name] = f
		}
	}
	return every
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "attacker:", err)
	os.Exit(3)
}

// sandboxed reports whether this is a sandbox, by two marks that no machine has.
func sandboxed() bool {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return false
	}
	guests, _ := filepath.Glob("/.sandpit/*")
	return strings.Contains(unix.ByteSliceToString(u.Release[:]), "gvisor") && len(guests) > 0
}

func main() {
	fds := openFDs() // before anything opens more
	if !sandboxed() {
		fail(errors.New("this is no sandbox; what follows would harm the machine"))
	}
	if len(os.Args) < 3 {
		fail(errors.New("want the name of an attempt and its parameters"))
	}
	a := &attempt{fds: fds, args: os.Args[3:]}
	if err := json.Unmarshal([]byte(os.Args[2]), &a.params); err != nil {
		fail(err)
	}
	f := all()[os.Args[1]]
	if f == nil {
		fail(fmt.Errorf("no attempt is called %q", os.Args[1]))
	}
	f(a)
	if err := json.NewEncoder(os.Stdout).Encode(a.steps); err != nil {
		fail(err)
	}
	if a.last != nil {
		a.last()
	}
}
