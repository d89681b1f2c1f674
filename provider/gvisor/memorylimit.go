package gvisor

import (
	"errors"
	"os"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// While a layer is saved or loaded, the sandbox's kernel needs memory for itself: some kilobytes
// for each file. It must not be killed for that, so the second limit is raised then, and the guard
// of the first is disabled. Only the guest runs inside at that time. Afterwards a kernel that was
// started with files keeps part of what it has read, for which limitsRequest.Kernel is.
const (
	raiseFactor  = 4
	lowerTimeout = 20 * time.Second // for memory to be released
	lowerPeriod  = 50 * time.Millisecond
)

// killLimit is how many bytes of memory may be in use before programs are killed.
func (l *limits) killLimit() int64 { return l.enforced.Memory + l.kernel }

// raiseMemory raises the second limit of memory until lowerMemory is called.
func (l *limits) raiseMemory() error {
	if l.enforced.Memory == 0 || l.raised {
		return nil
	}
	l.raised = true
	return l.setMemoryLimit(raiseFactor*l.killLimit() + memoryReserve)
}

// lowerMemory sets the limit again as soon as the use of memory permits it.
//
// Exhausted: too much memory stays in use.
func (l *limits) lowerMemory() error {
	if !l.raised {
		return nil
	}
	for deadline := time.Now().Add(lowerTimeout); ; time.Sleep(lowerPeriod) {
		_, needed, err := l.memoryUse()
		if err != nil {
			return err
		}
		err = unix.EBUSY
		if needed <= l.killLimit() {
			err = l.setMemoryLimit(l.killLimit() + memoryReserve)
		}
		if !errors.Is(err, unix.EBUSY) {
			l.raised = err != nil
			return err
		}
		if time.Now().After(deadline) {
			return sandpit.Errorf(sandpit.Exhausted, "to describe its files the sandbox needs %d bytes of memory, the limit is %d", needed, l.killLimit())
		}
	}
}

// setMemoryLimit sets the second of the two limits described in memory.go, in bytes.
func (l *limits) setMemoryLimit(bytes int64) error {
	value := strconv.FormatInt(bytes, 10)
	if l.groups.IsV2(cgroup.Memory) {
		return errors.Join(
			l.groups.Set(cgroup.Memory, "", "memory.max", value),
			ignoreMissing(l.groups.Set(cgroup.Memory, "", "memory.swap.max", "0")))
	}
	const limit, withSwap = "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"
	present, err := cgroup.ReadNumber(l.groups.Path(cgroup.Memory, limit))
	if err != nil {
		return err
	}
	order := []string{limit, withSwap}
	if bytes > present { // the limit with swap is never the lower one
		slices.Reverse(order)
	}
	for _, file := range order {
		err := l.groups.Set(cgroup.Memory, file, "", value)
		if file == withSwap {
			err = ignoreMissing(err)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// ignoreMissing ignores files that a kernel without accounting of swap does not have.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
