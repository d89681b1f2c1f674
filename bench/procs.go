package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is a line of the machine's process table.
type process struct {
	pid, parent int
	name        string // base of its argv[0]; "" for a kernel thread
}

// processes reads the machine's process table.
func processes() ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var list []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := readProcess(pid)
		switch {
		case vanished(err):
		case err != nil:
			return nil, err
		default:
			list = append(list, p)
		}
	}
	return list, nil
}

func readProcess(pid int) (process, error) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return process{}, err
	}
	parent, err := parseParent(stat)
	if err != nil {
		return process{}, fmt.Errorf("%s/stat: %w", dir, err)
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return process{}, err
	}
	name, _, _ := strings.Cut(string(cmdline), "\x00")
	return process{pid: pid, parent: parent, name: filepath.Base(name)}, nil
}

// parseParent returns the parent in a stat line. The name in parentheses before it is chosen by the
// process.
func parseParent(stat []byte) (int, error) {
	end := bytes.LastIndexByte(stat, ')')
	fields := strings.Fields(string(stat[end+1:]))
	if end < 0 || len(fields) < 2 {
		return 0, fmt.Errorf("unreadable: %q", stat)
	}
	return strconv.Atoi(fields[1])
}

func vanished(err error) bool { return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) }

// below returns the processes that root started, directly or not, without root.
func below(all []process, root int) []process {
	children := map[int][]process{}
	for _, p := range all {
		children[p.parent] = append(children[p.parent], p)
	}
	var found []process
	for next := children[root]; len(next) > 0; {
		p := next[0]
		next = append(next[1:], children[p.pid]...)
		found = append(found, p)
	}
	return found
}

// sumPSS returns the proportional set size of processes in bytes: shared memory is divided among its
// users. An address space that several of the processes share counts once, because each of them
// reports all of it: gVisor runs each thread of a program inside in such a process.
func sumPSS(list []process) (int64, error) {
	spaces, err := addressSpaces(list)
	if err != nil {
		return 0, err
	}
	var sum int64
	for _, p := range spaces {
		n, err := kilobytes(fmt.Sprintf("/proc/%d/smaps_rollup", p.pid), "Pss")
		if vanished(err) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("memory of process %d: %w", p.pid, err)
		}
		sum += n
	}
	return sum, nil
}

// addressSpaces returns one process for each address space of the processes.
func addressSpaces(list []process) ([]process, error) {
	var failed error
	compare := func(a, b process) int {
		order, err := compareMemory(a.pid, b.pid)
		if err != nil && !vanished(err) {
			failed = err
		}
		return order
	}
	sorted := slices.SortedFunc(slices.Values(list), compare)
	return slices.CompactFunc(sorted, func(a, b process) bool { return compare(a, b) == 0 }), failed
}

// compareMemory orders two processes by their address spaces: 0 means that they share one. If one of
// them has ended, the order is that of their numbers.
func compareMemory(a, b int) (int, error) {
	const addressSpace = 1 // KCMP_VM
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), addressSpace, 0, 0, 0)
	switch {
	case errno != 0:
		return cmp.Compare(a, b), fmt.Errorf("compare the memory of processes %d and %d: %w", a, b, errno)
	case order == 1:
		return -1, nil
	case order == 2:
		return 1, nil
	case order == 0:
		return 0, nil
	}
	return 0, fmt.Errorf("compare the memory of processes %d and %d: they have no order", a, b)
}

// available returns the available memory, in bytes.
func available() (int64, error) { return kilobytes("/proc/meminfo", "MemAvailable") }

// kilobytes returns a line "Key: number kB" of a file of /proc, in bytes.
func kilobytes(path, key string) (int64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return parseKilobytes(data, key)
}

func parseKilobytes(data []byte, key string) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(data))
	for lines.Scan() {
		name, rest, ok := strings.Cut(lines.Text(), ":")
		if !ok || name != key {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
		return n << 10, err
	}
	return 0, fmt.Errorf("no line %s", key)
}
