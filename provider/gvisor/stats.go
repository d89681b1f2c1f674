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
	"gvisor.dev/gvisor/runsc/container"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/guest"
)

// stats measures the sandbox from outside. The machine's control groups count
// what there are groups for; the sandbox's own kernel is asked for the rest.
func (b *box) stats() (sandpit.Stats, error) {
	b.mu.Lock()
	c, l, guard := b.container, b.limits, b.guard
	b.mu.Unlock()
	if err := b.endedError(); err != nil {
		return sandpit.Stats{}, err
	}
	if c == nil || l == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unavailable, "sandbox %s is not running", b.id)
	}
	s := sandpit.Stats{At: time.Now(), Limits: l.enforced}
	err := errors.Join(b.measureCPU(c, l, &s), b.measureMemory(c, l, &s), b.measurePIDs(c, &s))
	s.OOMKills += guard.killed()
	if ended := b.endedError(); ended != nil {
		return s, ended
	}
	if err != nil {
		return s, fmt.Errorf("measure sandbox %s: %w", b.id, err)
	}
	return s, nil
}

func (b *box) measureCPU(c *container.Container, l *limits, s *sandpit.Stats) error {
	if dir := l.groups[cpuTimeCounter]; dir != "" && !l.unified(cpuTimeCounter) {
		ns, err := readGroup(filepath.Join(dir, "cpuacct.usage"))
		s.CPU = time.Duration(ns)
		return err
	}
	if dir := l.groups[cpuController]; dir != "" && l.unified(cpuController) {
		us, err := readKey(filepath.Join(dir, "cpu.stat"), "usage_usec")
		s.CPU = time.Duration(us) * time.Microsecond
		return err
	}
	var err error
	s.CPU, err = processTime(c.SandboxPid())
	return err
}

func (b *box) measureMemory(c *container.Container, l *limits, s *sandpit.Stats) error {
	dir := l.groups[memoryController]
	if dir == "" {
		event, err := c.Event()
		if err == nil {
			s.Memory = int64(event.Event.Data.Memory.Usage.Usage) //nolint:gosec // no machine has that much
		}
		return err
	}
	current, idle, peak := "memory.usage_in_bytes", "total_inactive_file", "memory.max_usage_in_bytes"
	if l.unified(memoryController) {
		current, idle, peak = "memory.current", "inactive_file", "memory.peak"
	}
	used, err := readGroup(filepath.Join(dir, current))
	if err != nil {
		return err
	}
	// Files that were read once and can be dropped at any time are not in use.
	reclaimable, err := readKey(filepath.Join(dir, "memory.stat"), idle)
	if err != nil {
		return err
	}
	s.Memory = max(0, used-reclaimable)
	if s.MemoryPeak, err = readGroup(filepath.Join(dir, peak)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err // memory.peak came with Linux 5.19
	}
	s.OOMKills, err = l.outOfMemory()
	return err
}

func (b *box) measurePIDs(c *container.Container, s *sandpit.Stats) error {
	text, err := c.Sandbox.CgroupsReadControlFile(control.CgroupControlFile{
		Controller: string(pidsController), Path: "/" + string(b.group) + "/" + guest.ProgramsGroup, Name: "pids.current",
	})
	if err != nil {
		return err
	}
	s.PIDs, err = strconv.Atoi(strings.TrimSpace(text))
	return err
}

// processTime returns what a process and those below it have used of CPUs, those
// that ended included.
func processTime(pid int) (time.Duration, error) {
	proc := filepath.Join("/proc", strconv.Itoa(pid))
	data, err := os.ReadFile(filepath.Join(proc, "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is a name in parentheses and may hold anything.
	_, rest, _ := strings.Cut(string(data[strings.LastIndexByte(string(data), ')')+1:]), " ")
	fields := strings.Fields(rest)
	const firstTime, lastTime, ticks = 11, 14, 100 // utime, stime, cutime, cstime; Linux has always told in hundredths
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
			continue // a thread that has just ended
		}
		for f := range strings.FieldsSeq(string(text)) {
			child, err := strconv.Atoi(f)
			if err != nil {
				return sum, err
			}
			if t, err := processTime(child); err == nil { // else it has just ended
				sum += t
			}
		}
	}
	return sum, nil
}
