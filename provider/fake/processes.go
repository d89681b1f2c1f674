package fake

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// markVariable is in the environment of all processes of a sandbox, so that detached ones are found
// too.
const markVariable = "SANDPIT_FAKE_BOX"

// findMarked returns the living processes of the sandbox with this directory.
func findMarked(dir string) []int { return markedBy(dir + "\x00") }

// markedBy returns the living processes whose mark begins with a prefix.
func markedBy(beginning string) []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	mark := []byte(markVariable + "=" + beginning)
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", e.Name(), "environ"))
		if err != nil {
			continue // another user's, or ended meanwhile
		}
		if bytes.HasPrefix(env, mark) || bytes.Contains(env, append([]byte{0}, mark...)) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// maxRounds bounds the repetitions while processes start others.
const maxRounds = 50

// signalAll sends a signal to all processes of a sandbox, including those that are started meanwhile.
func signalAll(dir string, sig syscall.Signal) {
	seen := make(map[int]bool)
	for range maxRounds {
		fresh := false
		for _, pid := range findMarked(dir) {
			if !seen[pid] {
				seen[pid], fresh = true, true
				_ = syscall.Kill(pid, sig) // it may just have ended
			}
		}
		if !fresh {
			return
		}
	}
}

// endLimit is how long killed processes may take to end. On a busy machine they wait for a processor.
const endLimit = 10 * time.Second

// endAll kills all processes of a sandbox and waits until they have ended.
func endAll(dir string) {
	for limit := time.Now().Add(endLimit); time.Now().Before(limit); time.Sleep(time.Millisecond) {
		signalAll(dir, syscall.SIGKILL)
		if len(findMarked(dir)) == 0 {
			return
		}
	}
}

// ticksPerSecond is the unit of times in /proc, the same on every Linux.
const ticksPerSecond = 100

// measureUsage returns the processor time and the memory, in bytes, of the living processes.
func measureUsage(pids []int) (cpu time.Duration, memory int64) {
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			continue // ended meanwhile
		}
		// The second field is a name in parentheses, which may contain any character.
		fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
		const user, system, pages = 11, 12, 21
		if len(fields) <= pages {
			continue
		}
		for _, i := range []int{user, system} {
			ticks, _ := strconv.ParseInt(fields[i], 10, 64) // the kernel writes numbers
			cpu += time.Duration(ticks) * time.Second / ticksPerSecond
		}
		n, _ := strconv.ParseInt(fields[pages], 10, 64)
		memory += n * int64(os.Getpagesize())
	}
	return cpu, memory
}

// diskUsage returns the size of all files in a directory, in bytes. It skips files that are removed
// meanwhile.
func diskUsage(dir string) int64 {
	var size int64
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
			size += info.Size()
		}
		return nil
	})
	return size
}
