package guest

import (
	"errors"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// reaper collects the exit statuses of processes. In the first process of a sandbox it also collects those of
// orphans, which become its children.
//
// Processes must be started with its lock held: otherwise it could collect an exit before the process is recorded.
type reaper struct {
	mu       sync.Mutex
	children map[int]func(syscall.WaitStatus) // by pid, called once

	signals chan os.Signal
	done    chan struct{}
}

func newReaper() *reaper {
	r := &reaper{
		children: make(map[int]func(syscall.WaitStatus)),
		signals:  make(chan os.Signal, 1), // a waiting signal stands for all later ones
		done:     make(chan struct{}),
	}
	signal.Notify(r.signals, syscall.SIGCHLD)
	go func() {
		defer close(r.done)
		for range r.signals {
			r.collectAll()
		}
	}()
	return r
}

// startChild runs f, which starts a process, and calls exited with the status of that process.
func (r *reaper) startChild(f func() (pid int, err error), exited func(syscall.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := f()
	if err == nil {
		r.children[pid] = exited
	}
	return pid, err
}

// signalChild sends a signal to a child that has not been collected, so its PID cannot belong to another process, and
// to everything in its session: its own process group, and those that a shell with job control or timeout(1) created.
func (r *reaper) signalChild(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] == nil {
		return os.ErrProcessDone
	}
	err := syscall.Kill(-pid, sig)
	// Processes may start others while they are killed.
	for range maxKillRounds {
		others := otherGroups(pid)
		for _, group := range others {
			_ = syscall.Kill(-group, sig) // it may just have ended
		}
		if len(others) == 0 || sig != syscall.SIGKILL {
			break
		}
	}
	return err
}

// maxKillRounds bounds a race against processes that start others.
const maxKillRounds = 20

// otherGroups returns the process groups of a session, except the leader's, that have a living member.
func otherGroups(session int) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var groups []int
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		group, of, alive := parseStat(string(stat))
		if alive && of == session && group != session && !slices.Contains(groups, group) {
			groups = append(groups, group)
		}
	}
	return groups
}

// parseStat reads a line of /proc/PID/stat. The second field is a name in
// parentheses, which may hold anything.
func parseStat(stat string) (group, session int, alive bool) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) < 4 {
		return 0, 0, false
	}
	group, err1 := strconv.Atoi(fields[2])
	session, err2 := strconv.Atoi(fields[3])
	alive = fields[0] != "Z" && fields[0] != "X"
	return group, session, alive && err1 == nil && err2 == nil && group > 1
}

func (r *reaper) collectAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if os.Getpid() == 1 {
		for r.collectOne(-1) {
			continue
		}
		return
	}
	for pid := range r.children { // other code in this process may have children of its own
		r.collectOne(pid)
	}
}

func (r *reaper) collectOne(pid int) bool {
	var status syscall.WaitStatus
	for {
		got, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil || got <= 0 {
			return false
		}
		if exited := r.children[got]; exited != nil {
			delete(r.children, got)
			exited(status)
		}
		return true
	}
}

// close stops collecting. There must be no more children.
func (r *reaper) close() {
	signal.Stop(r.signals)
	close(r.signals)
	<-r.done
}
