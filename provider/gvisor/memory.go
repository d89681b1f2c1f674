package gvisor

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// When a sandbox's memory runs out, the machine's kernel would kill the process that looks
// largest to it. That is often the sandbox's own kernel, because only the mapped part of the
// programs' memory counts for them. So there are two limits. At the first, the sandbox's own,
// the guest is ordered to kill the largest program, because the guest knows their sizes. At the
// second, which is a little higher, the machine's kernel kills: that is for a guest that is too
// slow or does not obey. Above half of the limit, programs are marked to be killed first, and the
// largest before the others.
const (
	memoryReserve = 128 << 20              // bytes between the two limits
	markPeriod    = 100 * time.Millisecond // between marks of new programs, above half of the limit
	killPeriod    = 10 * time.Millisecond  // between checks of the use, above the limit
	fastestGrowth = 2 << 20                // bytes of memory that programs fill in a millisecond
	killDelay     = time.Second            // for a killed program to release its memory
	growDelay     = killDelay / 10         // the same, if the use has grown meanwhile
	killFirst     = "1000"                 // oom_score_adj of the largest program
	killNext      = "500"                  // of the others: as if they used half of the limit more
)

// memoryGuard watches one sandbox's memory.
type memoryGuard struct {
	limits   *limits
	limit    atomic.Int64
	disabled atomic.Bool // no program is killed
	alarm    string      // see setAlarm
	conduit  *os.File
	kernel   []int          // processes that are not programs
	marks    map[int]string // the oom_score_adj of each program
	events   *os.File       // see memoryEvents
	kills    atomic.Int64

	// The last order to kill since the use was below the limit.
	orderedAt    time.Time
	orderedBytes int64 // in use then

	quit chan struct{}
	done chan struct{}
}

// startMemoryGuard begins to watch a sandbox whose guest has started and in which no other
// program runs yet.
func startMemoryGuard(l *limits, conduit *os.File) (*memoryGuard, error) {
	g := &memoryGuard{limits: l, marks: map[int]string{}, quit: make(chan struct{}), done: make(chan struct{})}
	g.limit.Store(l.killLimit())
	var err error
	if g.kernel, err = l.groups.Processes(cgroup.Memory); err != nil {
		return nil, err
	}
	if g.conduit, err = duplicateFile(conduit); err != nil {
		return nil, err
	}
	if g.events, err = l.takeEvents(); err != nil {
		_ = g.conduit.Close()
		return nil, fmt.Errorf("watch the sandbox's memory: %w", err)
	}
	go g.watch()
	return g, nil
}

// stop ends the guard and waits for its end. A nil guard is stopped.
func (g *memoryGuard) stop() {
	if g == nil {
		return
	}
	close(g.quit)
	_ = g.events.Close()
	<-g.done
	_ = g.conduit.Close()
}

// setDisabled decides whether the guard has programs killed.
func (g *memoryGuard) setDisabled(disabled bool) {
	if g != nil {
		g.disabled.Store(disabled)
	}
}

// setLimit replaces the limit, which is that of the control group already.
func (g *memoryGuard) setLimit(limit int64) error {
	if !g.limits.groups.IsV2(cgroup.Memory) { // version 2 has alarms instead
		raw, err := g.events.SyscallConn()
		if err != nil {
			return err
		}
		var added error
		err = raw.Control(func(fd uintptr) { added = g.limits.addThresholds(int(fd), limit) })
		if err = errors.Join(err, added); err != nil {
			return fmt.Errorf("watch the sandbox's memory: %w", err)
		}
	}
	g.limit.Store(limit)
	return nil
}

// countKills returns how often memory ran out and the guest was ordered to kill a program.
func (g *memoryGuard) countKills() int64 {
	if g == nil {
		return 0
	}
	return g.kills.Load()
}

func (g *memoryGuard) watch() {
	defer close(g.done)
	woken, ended := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(ended)
		for buf := make([]byte, 4096); ; {
			if _, err := g.events.Read(buf); err != nil {
				return // stopped
			}
			select {
			case woken <- struct{}{}:
			default:
			}
		}
	}()
	defer func() { <-ended }()
	for {
		var again <-chan time.Time
		if wait := g.checkUse(); wait > 0 {
			again = time.After(wait)
		}
		events := woken
		if !g.orderedAt.IsZero() {
			events = nil // a killed program needs time to release its memory
		}
		select {
		case <-again:
		case <-events:
		case <-g.quit:
			return
		}
	}
}

// checkUse marks and kills as the use of memory requires. It returns when to check again at the
// latest; 0: after the next event.
func (g *memoryGuard) checkUse() time.Duration {
	used, needed, err := g.limits.memoryUse()
	if err != nil {
		g.orderedAt = time.Time{}
		return 0 // the sandbox is gone
	}
	limit := g.limit.Load()
	alarmed := g.setAlarm(used, limit)
	if used <= limit/2 {
		g.orderedAt = time.Time{}
		if !alarmed {
			return markPeriod // without events, check periodically
		}
		return 0
	}
	if needed <= limit || g.disabled.Load() { // the rest are copies of files, which are reclaimed
		g.markPrograms()
		g.orderedAt = time.Time{}
		return timeToFill(limit - needed)
	}
	// A killed program releases its memory gradually. Another one is killed only if that is
	// not enough.
	delay := killDelay
	if needed > g.orderedBytes {
		delay = growDelay
	}
	if g.orderedAt.IsZero() || time.Since(g.orderedAt) > delay {
		g.orderedAt, g.orderedBytes = time.Now(), needed
		g.kills.Add(1)
		_ = guest.OrderKill(g.conduit) // if the guest does not obey, the machine's kernel kills
	}
	g.markPrograms()
	return killPeriod
}

// timeToFill returns when to check again if so many bytes are left. The event at the limit is not
// enough: it counts copies of files.
func timeToFill(left int64) time.Duration {
	return max(killPeriod, min(markPeriod, time.Duration(left/fastestGrowth)*time.Millisecond))
}

// setAlarm causes an event when the use exceeds half of the limit, or the limit. It reports
// whether there will be one. With version 2 the alarm is memory.high, which must be above the
// use: beyond it the machine's kernel delays each thread that allocates memory, for up to two
// seconds at a time. These are threads of the sandbox's kernel: the guest could not kill in time,
// and what it has killed would not end.
func (g *memoryGuard) setAlarm(used, limit int64) bool {
	alarm := "max"
	switch {
	case used <= limit/2:
		alarm = strconv.FormatInt(limit/2, 10)
	case used <= limit && !g.disabled.Load():
		alarm = strconv.FormatInt(limit, 10)
	}
	if alarm != g.alarm {
		if err := g.limits.setAlarm(alarm); err != nil {
			return false // retried by the next check
		}
		g.alarm = alarm
	}
	return true
}

// markPrograms has the machine's kernel kill programs first, and of these the largest. The kernel
// would compare what is mapped at this moment. A program that fills memory has little of that,
// because gVisor maps anew what it extends; but the address space in which gVisor runs it is as
// large as the memory that it has used. Programs that have ended need no mark, and one that cannot
// be marked is only less likely to be killed.
func (g *memoryGuard) markPrograms() {
	pids, _ := g.limits.groups.Processes(cgroup.Memory)
	pids = slices.DeleteFunc(pids, func(pid int) bool { return slices.Contains(g.kernel, pid) })
	sizes := make(map[int]int64, len(pids))
	var largest int64
	for _, pid := range pids {
		sizes[pid] = addressSpace(pid)
		largest = max(largest, sizes[pid])
	}
	for _, pid := range pids {
		mark := killNext
		if sizes[pid] == largest {
			mark = killFirst
		}
		if g.marks[pid] != mark {
			_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte(mark), 0)
			g.marks[pid] = mark
		}
	}
	maps.DeleteFunc(g.marks, func(pid int, _ string) bool { _, found := sizes[pid]; return !found })
}

// addressSpace returns how many pages the address space of a process has. 0: it has ended.
func addressSpace(pid int) int64 {
	statm, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "statm"))
	if err != nil {
		return 0
	}
	first, _, _ := strings.Cut(string(statm), " ")
	pages, _ := strconv.ParseInt(first, 10, 64)
	return pages
}

// memoryUse returns the bytes in use, and those of them that are not copies of files.
func (l *limits) memoryUse() (used, needed int64, err error) {
	current, prefix := "memory.usage_in_bytes", "total_"
	if l.groups.IsV2(cgroup.Memory) {
		current, prefix = "memory.current", ""
	}
	if used, err = cgroup.ReadNumber(l.groups.Path(cgroup.Memory, current)); err != nil {
		return 0, 0, err
	}
	needed = used
	for _, list := range []string{"inactive_file", "active_file"} {
		n, err := cgroup.ReadKey(l.groups.Path(cgroup.Memory, "memory.stat"), prefix+list)
		if err != nil {
			return 0, 0, err
		}
		needed -= n
	}
	return used, max(needed, 0), nil
}

// memoryEvents is a file that becomes readable when the use of memory exceeds half of a sandbox's
// limit, with version 2 only if the alarm is set. It is opened in the background: with version 1
// that takes the machine's kernel 20 ms and more, in which the sandbox can start.
type memoryEvents struct {
	opened chan struct{} // closed when file or err is set
	file   *os.File
	err    error
}

func (l *limits) openEvents() {
	e := &memoryEvents{opened: make(chan struct{})}
	l.events = e
	l.background.Go(func() {
		defer close(e.opened)
		if l.groups.IsV2(cgroup.Memory) {
			e.file, e.err = l.openEventsV2()
		} else {
			e.file, e.err = l.openEventsV1()
		}
	})
}

// takeEvents waits for the file, which then belongs to the caller.
func (l *limits) takeEvents() (*os.File, error) {
	e := l.events
	l.events = nil
	<-e.opened
	return e.file, e.err
}

// closeEvents closes the file unless it was taken.
func (l *limits) closeEvents() {
	if l.events == nil {
		return
	}
	if f, err := l.takeEvents(); err == nil {
		_ = f.Close()
	}
}

func (l *limits) openEventsV1() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	events := os.NewFile(uintptr(fd), "memory events")
	if err := l.addThresholds(fd, l.killLimit()); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	return events, nil
}

// addThresholds causes events of version 1 at half of a limit, and at the limit.
func (l *limits) addThresholds(events int, limit int64) error {
	usage, err := os.Open(l.groups.Path(cgroup.Memory, "memory.usage_in_bytes"))
	if err != nil {
		return err
	}
	defer usage.Close()
	for _, threshold := range []int64{limit / 2, limit} {
		order := fmt.Sprintf("%d %d %d", events, usage.Fd(), threshold)
		if err := cgroup.Write(l.groups.Path(cgroup.Memory, "cgroup.event_control"), order); err != nil {
			return err
		}
	}
	return nil
}

// setAlarm sets memory.high of version 2. When a group uses more, its memory.events changes.
// Version 1 needs no alarm: see openEventsV1.
func (l *limits) setAlarm(bytes string) error {
	return l.groups.Set(cgroup.Memory, "", "memory.high", bytes)
}

// openEventsV2 returns the events that follow setAlarm.
func (l *limits) openEventsV2() (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	events := os.NewFile(uintptr(fd), "memory events")
	if _, err := unix.InotifyAddWatch(fd, l.groups.Path(cgroup.Memory, "memory.events"), unix.IN_MODIFY); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	return events, nil
}
