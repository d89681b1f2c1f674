package gvisor

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// What happens when a sandbox's memory runs out. The machine's kernel would kill
// the process that looks largest to it, and that is often the sandbox's own
// kernel: of the memory of programs it sees only the part that is mapped at that
// moment. So there are two limits. At the first one, the sandbox's, the guest is
// told to kill the largest program, for inside everything is known. At the second
// one, a little higher, the machine's kernel does it: that is for a guest that is
// too slow or does not obey. From half of the limit on, programs are marked as the
// ones to be killed first.
const (
	memoryReserve = 64 << 20               // bytes between the two limits
	markPeriod    = 100 * time.Millisecond // for new programs, above half of the limit
	killPeriod    = 20 * time.Millisecond  // for the use to fall, above the limit
	killPatience  = time.Second            // for what was killed to give back its memory
	killFirst     = "1000"                 // oom_score_adj
)

// memoryGuard watches one sandbox's memory.
type memoryGuard struct {
	limits  *limits
	most    int64
	asleep  atomic.Bool // nobody is to be killed
	armed   bool        // see armAlarm
	conduit *os.File
	marked  []int    // processes that need no mark: they have one, or are not programs
	events  *os.File // see memoryEvents
	kills   atomic.Int64

	// The last order to kill since the use was below the limit.
	ordered   time.Time
	orderedAt int64 // bytes in use then

	quit chan struct{}
	done chan struct{}
}

// startMemoryGuard begins to watch a sandbox whose guest has started and in which
// no other program runs yet.
func startMemoryGuard(l *limits, conduit *os.File) (*memoryGuard, error) {
	g := &memoryGuard{limits: l, most: l.firstLimit(), quit: make(chan struct{}), done: make(chan struct{})}
	var err error
	if g.marked, err = groupProcesses(l.groups[memoryController]); err != nil {
		return nil, err
	}
	if g.conduit, err = duplicate(conduit); err != nil {
		return nil, err
	}
	if g.events, err = l.takeEvents(); err != nil {
		_ = g.conduit.Close()
		return nil, fmt.Errorf("watch the sandbox's memory: %w", err)
	}
	go g.run()
	return g, nil
}

// stop ends the watching and waits for it.
func (g *memoryGuard) stop() {
	if g == nil {
		return
	}
	close(g.quit)
	_ = g.events.Close()
	<-g.done
	_ = g.conduit.Close()
}

// sleep has nobody be killed by the guard, until it is woken.
func (g *memoryGuard) sleep(asleep bool) {
	if g != nil {
		g.asleep.Store(asleep)
	}
}

// killed returns how often memory ran out and a program was to be killed.
func (g *memoryGuard) killed() int64 {
	if g == nil {
		return 0
	}
	return g.kills.Load()
}

func (g *memoryGuard) run() {
	defer close(g.done)
	buf := make([]byte, 4096)
	for {
		for wait := g.relieve(); wait > 0; wait = g.relieve() {
			select {
			case <-time.After(wait):
			case <-g.quit:
				return
			}
		}
		if _, err := g.events.Read(buf); err != nil {
			return // stopped
		}
	}
}

// relieve does what must be done now and returns when to look again, 0 for not
// before the next event.
func (g *memoryGuard) relieve() time.Duration {
	used, kept, err := g.limits.memoryUse()
	if err != nil {
		return 0 // the sandbox is gone
	}
	if used <= g.most/2 {
		return g.armAlarm()
	}
	g.disarmAlarm()
	if kept <= g.most || g.asleep.Load() { // what lies above are copies of files, and gives way
		g.mark()
		g.ordered = time.Time{}
		return markPeriod
	}
	// What was killed gives its memory back little by little. Another one must go
	// only if that does not help.
	if g.ordered.IsZero() || kept > g.orderedAt || time.Since(g.ordered) > killPatience {
		g.ordered, g.orderedAt = time.Now(), kept
		g.kills.Add(1)
		_ = guest.OrderKill(g.conduit) // if it takes no orders, the machine's kernel kills
	}
	g.mark()
	return killPeriod
}

// armAlarm sets memory.high of version 2 to half of the limit, so that an event comes
// when more is used. It returns when to look again if that fails, and 0 otherwise.
func (g *memoryGuard) armAlarm() time.Duration {
	if g.armed {
		return 0
	}
	if err := g.limits.setAlarm(strconv.FormatInt(g.most/2, 10)); err != nil {
		return markPeriod // without events, look again and again
	}
	g.armed = true
	return 0
}

// disarmAlarm lifts memory.high at once. Above it the machine's kernel puts each thread
// that takes memory to sleep, for up to two seconds at a time. These are threads of the
// sandbox's kernel: the guest could not kill in time, and what it has killed would not end.
func (g *memoryGuard) disarmAlarm() {
	if g.armed {
		g.armed = g.limits.setAlarm("max") != nil // if not, it is tried again
	}
}

// mark has the machine's kernel look at programs first. What has ended
// meanwhile needs no mark, and what cannot be marked is only less likely to go.
func (g *memoryGuard) mark() {
	pids, _ := groupProcesses(g.limits.groups[memoryController])
	for _, pid := range pids {
		if !slices.Contains(g.marked, pid) {
			_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte(killFirst), 0)
			g.marked = append(g.marked, pid)
		}
	}
	g.marked = slices.DeleteFunc(g.marked, func(pid int) bool { return !slices.Contains(pids, pid) })
}

func groupProcesses(dir string) ([]int, error) {
	data, err := os.ReadFile(filepath.Join(dir, procsFile))
	if err != nil {
		return nil, err
	}
	var pids []int
	for f := range strings.FieldsSeq(string(data)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// memoryUse returns the bytes that count, and those of them that are not copies
// of files.
func (l *limits) memoryUse() (used, kept int64, err error) {
	dir, current, prefix := l.groups[memoryController], "memory.usage_in_bytes", "total_"
	if l.unified(memoryController) {
		current, prefix = "memory.current", ""
	}
	if used, err = readGroup(filepath.Join(dir, current)); err != nil {
		return 0, 0, err
	}
	kept = used
	for _, list := range []string{"inactive_file", "active_file"} {
		n, err := readKey(filepath.Join(dir, "memory.stat"), prefix+list)
		if err != nil {
			return 0, 0, err
		}
		kept -= n
	}
	return used, max(kept, 0), nil
}

// memoryEvents is a file that becomes readable when the use of memory passes half of a
// sandbox's limit, with version 2 only if the alarm is set. It is opened in the
// background: with version 1 that takes the machine's kernel 20 ms and more, in which the
// sandbox can start.
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
		if l.unified(memoryController) {
			e.file, e.err = l.eventsV2()
		} else {
			e.file, e.err = l.eventsV1()
		}
	})
}

// takeEvents waits for the file, which then is the caller's.
func (l *limits) takeEvents() (*os.File, error) {
	e := l.events
	l.events = nil
	<-e.opened
	return e.file, e.err
}

// dropEvents closes the file unless somebody took it.
func (l *limits) dropEvents() {
	if l.events == nil {
		return
	}
	if f, err := l.takeEvents(); err == nil {
		_ = f.Close()
	}
}

func (l *limits) eventsV1() (*os.File, error) {
	dir := l.groups[memoryController]
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return nil, err
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	events := os.NewFile(uintptr(fd), "memory events")
	for _, threshold := range []int64{l.firstLimit() / 2, l.firstLimit()} {
		order := fmt.Sprintf("%d %d %d", fd, usage.Fd(), threshold)
		if err := writeGroup(filepath.Join(dir, "cgroup.event_control"), order); err != nil {
			return nil, errors.Join(err, events.Close())
		}
	}
	return events, nil
}

// setAlarm sets memory.high of version 2. When a group uses more, its memory.events
// changes. Version 1 needs no alarm: see eventsV1.
func (l *limits) setAlarm(bytes string) error {
	return l.set(memoryController, "", "memory.high", bytes)
}

// eventsV2 returns the events that follow setAlarm.
func (l *limits) eventsV2() (*os.File, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	events := os.NewFile(uintptr(fd), "memory events")
	if _, err := unix.InotifyAddWatch(fd, filepath.Join(l.groups[memoryController], "memory.events"), unix.IN_MODIFY); err != nil {
		return nil, errors.Join(err, events.Close())
	}
	return events, nil
}
