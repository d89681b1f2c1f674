package applet

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Processes is the applet that lists processes. It needs no ps in the image.
const Processes = "processes"

// ProcessesRequest says which.
type ProcessesRequest struct {
	// UIDs are whose processes are listed. Default: everybody's.
	UIDs []int `json:"uids,omitempty"`
}

// ProcessList is the answer to it.
type ProcessList struct {
	Processes []ProcessInfo `json:"processes"`
	// Omitted is how many more there are.
	Omitted int `json:"omitted,omitempty"`
}

// ProcessInfo is one process.
type ProcessInfo struct {
	PID  int `json:"pid"`
	PPID int `json:"ppid"`
	UID  int `json:"uid"`
	// State is the kernel's letter: R runs, S sleeps, T is stopped, Z has ended.
	State string `json:"state"`
	// CPU is what it has used, in seconds, and Memory what it holds, in bytes.
	CPU    float64 `json:"cpu_seconds"`
	Memory int64   `json:"memory_bytes"`
	// Command is its arguments, cut at MaxCommand bytes.
	Command string `json:"command"`
}

// MaxCommand is how much is told of the arguments of a process, in bytes.
const MaxCommand = 4096

const (
	maxProcesses = 5000
	// ticks is how many there are in a second, for every program on Linux.
	ticks = 100
)

func listProcesses(ctx context.Context, r ProcessesRequest) (ProcessList, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return ProcessList{}, err
	}
	var list ProcessList
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		info, ok := describeProcess(pid)
		switch {
		case !ok, len(r.UIDs) > 0 && !slices.Contains(r.UIDs, info.UID), pid == os.Getpid():
		case len(list.Processes) == maxProcesses:
			list.Omitted++
		default:
			list.Processes = append(list.Processes, info)
		}
		if ctx.Err() != nil {
			return ProcessList{}, ctx.Err()
		}
	}
	slices.SortFunc(list.Processes, func(a, b ProcessInfo) int { return a.PID - b.PID })
	return list, nil
}

// describeProcess is false for a process that has ended meanwhile.
func describeProcess(pid int) (ProcessInfo, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		return ProcessInfo{}, false
	}
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return ProcessInfo{}, false
	}
	info, ok := parseStat(string(stat))
	info.PID, info.UID = pid, int(st.Uid)
	if args, err := os.ReadFile(filepath.Join(dir, "cmdline")); err == nil && len(args) > 0 {
		args = args[:min(len(args), MaxCommand)]
		info.Command = strings.ToValidUTF8(string(bytes.TrimRight(bytes.ReplaceAll(args, []byte{0}, []byte{' '}), " ")), "?")
	}
	return info, ok
}

// parseStat reads /proc/PID/stat. A program chooses its own name, which stands in
// parentheses and may hold some.
func parseStat(line string) (ProcessInfo, bool) {
	open, shut := strings.IndexByte(line, '('), strings.LastIndexByte(line, ')')
	if open < 0 || shut < open {
		return ProcessInfo{}, false
	}
	fields := strings.Fields(line[shut+1:]) // the first is the third of the file
	const state, ppid, utime, stime, rss = 0, 1, 11, 12, 21
	if len(fields) <= rss {
		return ProcessInfo{}, false
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(fields[i], 10, 64) // 0 for what no kernel writes
		return n
	}
	return ProcessInfo{
		State: fields[state], PPID: int(number(ppid)), CPU: float64(number(utime)+number(stime)) / ticks,
		Memory: number(rss) * int64(os.Getpagesize()), Command: "[" + line[open+1:shut] + "]",
	}, true
}
