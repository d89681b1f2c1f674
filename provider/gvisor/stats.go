package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// measure measures the sandbox from outside: by the machine's control groups where they exist,
// otherwise by the sandbox's own kernel.
func (sb *engineSandbox) measure() (sandpit.Stats, error) {
	kernel, l, guard, limits := sb.measuredParts()
	if err := sb.endedError(); err != nil {
		return sandpit.Stats{}, err
	}
	if kernel == nil || l == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unavailable, "sandbox %s is not running", sb.id)
	}
	s := sandpit.Stats{At: time.Now(), Limits: limits}
	err := errors.Join(sb.measureCPU(kernel, l, &s), sb.measureMemory(kernel, l, &s), sb.measurePIDs(kernel, &s))
	s.OOMKills += guard.countKills()
	if ended := sb.endedError(); ended != nil {
		return s, ended
	}
	if err == nil {
		return s, nil
	}
	sb.mu.Lock() // held while it is destroyed
	defer sb.mu.Unlock()
	return s, sb.kernelErrorLocked("measure", err)
}

// measuredParts returns what measure reads. The sandbox may be destroyed meanwhile: its container
// loses the kernel then, so the kernel is taken from it here.
func (sb *engineSandbox) measuredParts() (*sandbox.Sandbox, *limits, *memoryGuard, sandpit.Resources) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.container == nil || sb.limits == nil {
		return nil, nil, nil, sandpit.Resources{}
	}
	return sb.container.Sandbox, sb.limits, sb.guard, sb.limits.enforced
}

func (sb *engineSandbox) measureCPU(kernel *sandbox.Sandbox, l *limits, s *sandpit.Stats) error {
	if dir := l.groups[cgroup.CPUTime]; dir != "" && !l.groups.IsV2(cgroup.CPUTime) {
		ns, err := cgroup.ReadNumber(filepath.Join(dir, "cpuacct.usage"))
		s.CPU = time.Duration(ns)
		return err
	}
	if dir := l.groups[cgroup.CPU]; dir != "" && l.groups.IsV2(cgroup.CPU) {
		us, err := cgroup.ReadKey(filepath.Join(dir, "cpu.stat"), "usage_usec")
		s.CPU = time.Duration(us) * time.Microsecond
		return err
	}
	var err error
	s.CPU, err = processTime(kernel.Getpid())
	return err
}

func (sb *engineSandbox) measureMemory(kernel *sandbox.Sandbox, l *limits, s *sandpit.Stats) error {
	dir := l.groups[cgroup.Memory]
	if dir == "" {
		event, err := kernel.Event(string(sb.id))
		if err == nil {
			s.Memory = int64(event.Event.Data.Memory.Usage.Usage) //nolint:gosec // no machine has that much
		}
		return err
	}
	current, idle, peak := "memory.usage_in_bytes", "total_inactive_file", "memory.max_usage_in_bytes"
	if l.groups.IsV2(cgroup.Memory) {
		current, idle, peak = "memory.current", "inactive_file", "memory.peak"
	}
	used, err := cgroup.ReadNumber(filepath.Join(dir, current))
	if err != nil {
		return err
	}
	// Cached files that can be reclaimed at any time are not in use.
	reclaimable, err := cgroup.ReadKey(filepath.Join(dir, "memory.stat"), idle)
	if err != nil {
		return err
	}
	s.Memory = max(0, used-reclaimable)
	if s.MemoryPeak, err = cgroup.ReadNumber(filepath.Join(dir, peak)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // memory.peak came with Linux 5.19
	}
	s.OOMKills, err = l.countKills()
	return err
}

func (sb *engineSandbox) measurePIDs(kernel *sandbox.Sandbox, s *sandpit.Stats) error {
	text, err := kernel.CgroupsReadControlFile(control.CgroupControlFile{
		Controller: string(cgroup.PIDs), Path: "/" + string(sb.group) + "/" + guest.ProgramsGroup, Name: "pids.current",
	})
	if err != nil {
		return err
	}
	s.PIDs, err = strconv.Atoi(strings.TrimSpace(text))
	return err
}

// processTime returns the CPU time of a process and its descendants, including those that have
// ended.
func processTime(pid int) (time.Duration, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	data, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const firstTime, lastTime, ticks = 11, 14, 100 // utime, stime, cutime, cstime; in hundredths of a second on every machine
	if len(fields) <= lastTime {
		return 0, fmt.Errorf("read %s: too short", proc)
	}
	var sum time.Duration
	for _, f := range fields[firstTime : lastTime+1] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read %s: %w", proc, err)
		}
		sum += time.Duration(n) * time.Second / ticks
	}
	lists, err := filepath.Glob(filepath.Join(proc, "task", "*", "children"))
	if err != nil {
		return sum, err
	}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has just ended
		}
		for f := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				return sum, err
			}
			if t, err := processTime(child); err == nil { // otherwise it has just ended
				sum += t
			}
		}
	}
	return sum, nil
}
