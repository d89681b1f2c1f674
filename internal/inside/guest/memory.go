package guest

import (
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// outOfMemory is the error text for a process that was killed because the sandbox had no memory left. Its status is
// that of any killed process.
const outOfMemory = "out of memory: killed"

// The memory of a killed program is freed gradually, while and after it ends. Until then another one is killed only if
// it is about as large, so that small programs survive. A kernel that gets little of the processors needs seconds.
//
// The guard on the machine repeats its order while memory is short, so an order may be older than the last kill. For
// killDelay after a kill orders are ignored.
const (
	killDelay    = 100 * time.Millisecond
	killPause    = 10 * time.Second
	killFraction = 4
	exitLimit    = 10 * time.Second // for a killed program to end
)

// recentKills are the programs that were killed for their memory and may not have freed it yet.
type recentKills struct {
	pid   int   // of the last one
	pages int64 // of the largest one
	at    time.Time
	seen  time.Time // when the last one had not ended yet
}

// isSettling reports whether a program was killed just now.
func (k *recentKills) isSettling() bool { return time.Since(k.at) < killDelay }

// chooseVictim returns the program to kill, if one is to be killed.
func (k *recentKills) chooseVictim(all []processMemory) (victim processMemory, found bool) {
	now := time.Now()
	isDying := func(p processMemory) bool { return p.pid == k.pid && p.pages > 0 && now.Sub(k.at) < exitLimit }
	if slices.ContainsFunc(all, isDying) {
		k.seen = now
		all = slices.DeleteFunc(all, isDying)
	}
	if now.Sub(k.seen) >= killPause {
		k.pages = 0
	}
	victim = largestProcess(all)
	if victim.pid == 0 || victim.pages < k.pages/killFraction {
		return victim, false
	}
	*k = recentKills{pid: victim.pid, pages: max(victim.pages, k.pages), at: now, seen: now}
	return victim, true
}

// processMemory is a process and how much memory it uses.
type processMemory struct {
	pid   int
	pages int64
	ours  bool // it runs the guest's executable
}

// killLargest kills the program that uses the most memory, unless one was killed just now.
func (ps *processes) killLargest() {
	ps.mu.Lock()
	settling := ps.killed.isSettling()
	ps.mu.Unlock()
	if settling {
		return
	}
	all := listProcesses(os.Getpid())
	ps.mu.Lock()
	defer ps.mu.Unlock()
	victim, found := ps.killed.chooseVictim(all)
	if !found {
		return
	}
	if c := ps.byPID[victim.pid]; c != nil {
		c.mu.Lock()
		c.outOfMemory = true
		c.mu.Unlock()
	}
	_ = syscall.Kill(victim.pid, syscall.SIGKILL) // it may just have ended
}

// largestProcess returns the process that uses the most memory, the zero value if there is no process. A process of
// the guest's executable, such as the interpreter, serves others and uses little: it is chosen only if there is no
// other process.
func largestProcess(all []processMemory) (found processMemory) {
	for _, h := range all {
		if found.pid == 0 || found.ours && !h.ours || found.ours == h.ours && h.pages > found.pages {
			found = h
		}
	}
	return found
}

// listProcesses returns all processes except self.
func listProcesses(self int) (all []processMemory) {
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, err := proc.Readdirnames(-1)
	if err != nil {
		return nil
	}
	own, ownErr := os.Stat("/proc/self/exe")
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
		pages, err := strconv.ParseInt(fields[1], 10, 64)
		if err != nil {
			continue
		}
		exe, exeErr := os.Stat("/proc/" + name + "/exe")
		all = append(all, processMemory{n, pages, ownErr == nil && exeErr == nil && os.SameFile(own, exe)})
	}
	return all
}
