package guest

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// reaper collects the exit statuses of processes. As the first process of a
// sandbox it also collects those of orphans, which are its children too.
//
// Processes must be started under its lock: else an exit could be collected
// before anybody knows the process.
type reaper struct {
	mu       sync.Mutex
	children map[int]func(syscall.WaitStatus) // by pid, called once

	signals chan os.Signal
	done    chan struct{}
}

func newReaper() *reaper {
	r := &reaper{
		children: make(map[int]func(syscall.WaitStatus)),
		signals:  make(chan os.Signal, 1), // one that waits stands for all that follow
		done:     make(chan struct{}),
	}
	signal.Notify(r.signals, syscall.SIGCHLD)
	go func() {
		defer close(r.done)
		for range r.signals {
			r.collect()
		}
	}()
	return r
}

// start runs f, which starts a process, and has exited called with its status.
func (r *reaper) start(f func() (pid int, err error), exited func(syscall.WaitStatus)) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := f()
	if err == nil {
		r.children[pid] = exited
	}
	return pid, err
}

// signal sends a signal to the process group of a child that has not been
// collected, so that its number cannot be another's yet.
func (r *reaper) signal(pid int, sig syscall.Signal) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.children[pid] == nil {
		return os.ErrProcessDone
	}
	return syscall.Kill(-pid, sig)
}

func (r *reaper) collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if os.Getpid() == 1 {
		for r.collectOne(-1) {
			continue
		}
		return
	}
	for pid := range r.children { // others in this process may have children of their own
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
