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

// ProcessesRequest selects processes.
type ProcessesRequest struct {
	// UIDs are the users whose processes are listed. Default: all users.
	UIDs []int `json:"uids,omitempty"`
}

// ProcessList is the answer of Processes.
type ProcessList struct {
	Processes []ProcessInfo `json:"processes"`
	// Omitted is how many processes are left out of the list.
	Omitted int `json:"omitted,omitempty"`
}

// ProcessInfo is one process.
type ProcessInfo struct {
	PID  int `json:"pid"`
	PPID int `json:"ppid"`
	UID  int `json:"uid"`
	// State is the kernel's letter: R running, S sleeping, T stopped, Z ended.
	State string `json:"state"`
	// CPU is the used processor time in seconds, Memory the used memory in bytes.
	CPU    float64 `json:"cpu_seconds"`
	Memory int64   `json:"memory_bytes"`
	// Command is the arguments, cut at MaxCommand bytes.
	Command string `json:"command"`
}

// MaxCommand is how much of the arguments of a process is returned, in bytes.
const MaxCommand = 4096

const (
	maxProcesses = 5000
	// ticks is the number of clock ticks in a second that Linux reports to programs.
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

// describeProcess returns false for a process that has ended meanwhile.
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

// parseStat parses /proc/PID/stat. The name in parentheses is chosen by the program and may itself contain
// parentheses.
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
		n, _ := strconv.ParseInt(fields[i], 10, 64) // 0 for values that no kernel writes
		return n
	}
	return ProcessInfo{
		State: fields[state], PPID: int(number(ppid)), CPU: float64(number(utime)+number(stime)) / ticks,
		Memory: number(rss) * int64(os.Getpagesize()), Command: "[" + line[open+1:shut] + "]",
	}, true
}
