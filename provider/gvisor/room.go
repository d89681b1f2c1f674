package gvisor

import (
	"errors"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// While a layer is saved or brought back, the sandbox's kernel needs memory that no
// program inside has asked for: some kilobytes for each file. It must not be killed
// for that, so the second limit is higher then, and the guard of the first one sleeps.
// Nothing inside runs at that time but the guest. Afterwards a kernel that was started
// with files keeps what it has read of them, which is what limitsRequest.Kernel is for.
const (
	roomFactor   = 4
	roomPatience = 20 * time.Second // for memory to be given back
	roomPeriod   = 50 * time.Millisecond
)

// firstLimit is where programs are killed, in bytes.
func (l *limits) firstLimit() int64 { return l.enforced.Memory + l.kernel }

// giveRoom lifts the limits of memory for a while.
func (l *limits) giveRoom() error {
	if l.enforced.Memory == 0 || l.roomy {
		return nil
	}
	l.roomy = true
	most := roomFactor*l.firstLimit() + memoryReserve
	return l.liftMemory(most)
}

// takeRoom sets the limits again, as soon as what is in use allows it.
//
// Exhausted: it does not.
func (l *limits) takeRoom() error {
	if !l.roomy {
		return nil
	}
	for limit := time.Now().Add(roomPatience); ; time.Sleep(roomPeriod) {
		_, kept, err := l.memoryUse()
		if err != nil {
			return err
		}
		err = unix.EBUSY
		if kept <= l.firstLimit() {
			err = l.holdMemory(l.firstLimit() + memoryReserve)
		}
		if !errors.Is(err, unix.EBUSY) {
			l.roomy = err != nil
			return err
		}
		if time.Now().After(limit) {
			return sandpit.Errorf(sandpit.Exhausted, "to know its files the sandbox needs %d bytes of memory, and may have %d", kept, l.firstLimit())
		}
	}
}

// holdMemory sets the second of the two limits described in memory.go.
func (l *limits) holdMemory(second int64) error {
	value := strconv.FormatInt(second, 10)
	if l.unified(memoryController) {
		return errors.Join(
			l.set(memoryController, "", "memory.max", value),
			ignoreMissing(l.set(memoryController, "", "memory.swap.max", "0")))
	}
	// The limit with swap is never the lower one.
	if err := l.set(memoryController, "memory.limit_in_bytes", "", value); err != nil {
		return err
	}
	return ignoreMissing(l.set(memoryController, "memory.memsw.limit_in_bytes", "", value))
}

// liftMemory raises the second limit.
func (l *limits) liftMemory(most int64) error {
	if l.unified(memoryController) {
		return l.holdMemory(most)
	}
	value := strconv.FormatInt(most, 10)
	if err := ignoreMissing(l.set(memoryController, "memory.memsw.limit_in_bytes", "", value)); err != nil {
		return err
	}
	return l.set(memoryController, "memory.limit_in_bytes", "", value)
}

// ignoreMissing is for what a kernel that does not account for swap lacks.
func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
