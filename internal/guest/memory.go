package guest

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// outOfMemory is the error that the end of a process carries when it was killed
// because the sandbox's memory had run out. Its status is that of any other
// process that was killed.
const outOfMemory = "out of memory: killed"

// What a killed program held comes free little by little. Meanwhile another one
// is killed only if it is about as large: not whoever is left.
const (
	killPause    = time.Second
	killFraction = 4
)

// lastKill is the program that was killed last for its memory.
type lastKill struct {
	at    time.Time
	pages int64
}

// killLargest kills the program that holds the most memory.
func (ps *processes) killLargest() {
	pid, pages := largest(os.Getpid())
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if pid == 0 || time.Since(ps.killed.at) < killPause && pages < ps.killed.pages/killFraction {
		return
	}
	ps.killed = lastKill{time.Now(), pages}
	if c := ps.byPID[pid]; c != nil {
		c.mu.Lock()
		c.outOfMemory = true
		c.mu.Unlock()
	}
	_ = syscall.Kill(pid, syscall.SIGKILL) // it may just have ended
}

// largest returns the process with the most memory, this one left aside, or 0.
func largest(self int) (pid int, most int64) {
	proc, err := os.Open("/proc")
	if err != nil {
		return 0, 0
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return 0, 0
	}
	most = -1
	for _, name := range names {
		n, err := strconv.Atoi(name)
		if err != nil || n == self {
			continue
		}
		statm, err := os.ReadFile("/proc/" + name + "/statm")
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(statm)) // in pages: all, those in memory, …
		if len(fields) < 2 {
			continue
		}
		if pages, err := strconv.ParseInt(fields[1], 10, 64); err == nil && pages > most {
			pid, most = n, pages
		}
	}
	return pid, most
}
