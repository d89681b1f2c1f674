package guest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/creack/pty"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

const (
	chunk         = 32 << 10 // bytes of one output event
	terminalChunk = 16 << 10
	// outputSilence is how long after the end of a process its output, if others
	// still hold it open, must be still before it counts as complete.
	outputSilence = 200 * time.Millisecond
	// reopenInterval is how often a terminal that its process has closed is looked at
	// again. To close our end before the process has ended would kill it: that is
	// a hang-up.
	reopenInterval = 20 * time.Millisecond
	// keepExits is how long a late client still hears of a process's end.
	keepExits = 30 * time.Second
	maxExits  = 1000
)

// child is a process the guest started.
type child struct {
	pid     int
	uid     int
	tag     *string
	config  *process.ProcessConfig
	command *command
	// neverBlocked says that no client holds the process back: it named the command.
	neverBlocked bool

	terminal *os.File // nil without one
	inputMu  sync.Mutex
	input    *os.File // nil without

	mu          sync.Mutex
	subscribers map[*subscriber]bool
	timedOut    bool
	outOfMemory bool // killed for it

	end     *process.ProcessEvent_EndEvent // set before ended is closed
	endedAt time.Time                      // set when it is retired
	ended   chan struct{}                  // closed when the process has ended and its output is complete
}

// subscriber is a client that follows a process.
type subscriber struct {
	mu     sync.Mutex
	send   func(*process.ProcessEvent) error
	closed bool
	sent   chan struct{} // has room for one: tells that something was sent
}

func newSubscriber(send func(*process.ProcessEvent) error) *subscriber {
	return &subscriber{send: send, sent: make(chan struct{}, 1)}
}

// sendEvent sends an event, unless the client is gone. It blocks while the client
// does not read, which holds the process back.
func (s *subscriber) sendEvent(e *process.ProcessEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sendEventLocked(e)
}

// sendFirstEvent sends a first event, once subscribe has seen to it that all others come after it:
// who has the first one misses nothing from then on.
func (s *subscriber) sendFirstEvent(e *process.ProcessEvent, subscribe func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	subscribe()
	s.sendEventLocked(e)
}

func (s *subscriber) sendEventLocked(e *process.ProcessEvent) {
	if s.closed {
		return
	}
	if err := s.send(e); err != nil {
		s.closed = true
	}
	select {
	case s.sent <- struct{}{}:
	default:
	}
}

// close returns when nothing is being sent and nothing will be.
func (s *subscriber) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
}

// processes are all that the guest started and, for a while, those that ended.
type processes struct {
	reaper *reaper
	self   identity
	null   *os.File // an empty input for all
	// nullErr is why there is none.
	nullErr error
	groups  programGroups
	// killFirst says that it is the machine's kernel that kills when memory is out. The
	// largest program may still be ending when it looks again, and find only the guest.
	killFirst bool
	commands  *commandList
	wg        sync.WaitGroup

	mu sync.Mutex
	// launchers are for the processes of sessions.
	launchers launchers
	byPID     map[int]*child
	exits     []*child // ended, oldest first
	closed    bool
	killed    lastKill
}

// newProcesses keeps what does not fit into memory of processes' output in a
// nameless file in logDir.
func newProcesses(logDir string) *processes {
	ps := &processes{
		reaper: newReaper(), self: ownIdentity(), groups: noGroups(),
		commands: newCommands(logDir), byPID: make(map[int]*child), launchers: make(launchers),
	}
	ps.null, ps.nullErr = os.Open(os.DevNull)
	return ps
}

// startPlan is a process about to be started.
type startPlan struct {
	user    user
	program string
	args    []string
	env     []string
	dir     string
	stdin   bool
	size    *pty.Winsize // nil without a terminal
	command string       // its id
	// neverBlocked as in child
	neverBlocked bool
}

// startProcess starts a process that first, if not nil, follows from its beginning.
func (ps *processes) startProcess(p startPlan, req *process.StartRequest, first *subscriber) (*child, error) {
	c := &child{
		tag: req.Tag, config: req.GetProcess(), neverBlocked: p.neverBlocked,
		subscribers: make(map[*subscriber]bool), ended: make(chan struct{}),
	}
	if first != nil {
		c.subscribers[first] = true
	}
	if ps.nullErr != nil {
		return nil, ps.nullErr
	}
	streams, err := openStreams(p, ps.null)
	if err != nil {
		return nil, err
	}
	defer streams.closeTheirs()
	exited := make(chan syscall.WaitStatus, 1)
	attr := &syscall.ProcAttr{
		Dir:   p.dir,
		Env:   p.env,
		Files: streams.theirs,
		Sys: &syscall.SysProcAttr{
			Setsid: true, Setctty: p.size != nil, Ctty: 0,
			Credential:  ps.self.credentialFor(p.user),
			UseCgroupFD: ps.groups.usual != noGroup, CgroupFD: ps.groups.usual,
		},
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.closed {
		streams.closeOurs()
		return nil, errors.New("the guest is ending")
	}
	if ps.commands.findCommand(p.command) != nil {
		streams.closeOurs()
		return nil, fmt.Errorf("%w: %s", errCommandExists, p.command)
	}
	c.pid, err = ps.reaper.startChild(
		func() (int, error) {
			if p.user.isSession() {
				return ps.launchers.startProcess(p, func(program string, args []string) (int, error) { return ps.forkProgram(program, args, attr) })
			}
			return ps.forkProgram(p.program, p.args, attr)
		},
		func(ws syscall.WaitStatus) { exited <- ws })
	if err != nil {
		streams.closeOurs()
		return nil, &startError{p.args[0], err}
	}
	c.terminal, c.input, c.uid = streams.terminal, streams.input, p.user.uid
	c.command = ps.commands.addCommand(p.command, c.pid, req)
	ps.byPID[c.pid] = c
	ps.wg.Go(func() { ps.followProcess(c, streams, exited) })
	return c, nil
}

// forkProgram starts a process, at the limit of processes in the group that has room left.
func (ps *processes) forkProgram(program string, args []string, attr *syscall.ProcAttr) (int, error) {
	pid, err := syscall.ForkExec(program, args, attr)
	if errors.Is(err, syscall.EAGAIN) && ps.groups.spare != noGroup {
		attr.Sys.CgroupFD = ps.groups.spare
		pid, err = syscall.ForkExec(program, args, attr)
	}
	if err == nil && ps.killFirst {
		killFirst(pid)
	}
	return pid, err
}

// killFirst has the machine's kernel kill a process, and what that starts, rather than
// the guest when memory is out. The process may have ended.
func killFirst(pid int) {
	const some = "500" // half of the memory more than it has
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte(some), 0)
}

// identity is whom this program runs as.
type identity struct {
	uid, gid int
	groups   []int
}

func ownIdentity() identity {
	groups, err := os.Getgroups()
	if err != nil {
		groups = []int{-1} // equal to nobody's
	}
	return identity{os.Getuid(), os.Getgid(), groups}
}

// credentialFor is nil when nothing changes: that spares a process three system
// calls, and a guest that is not root can start processes too.
func (own identity) credentialFor(u user) *syscall.Credential {
	same := u.gid == own.gid && slices.Equal(u.groups, own.groups)
	if u.uid == own.uid && (u.uid != 0 || same) {
		return nil
	}
	c := &syscall.Credential{Uid: uint32(u.uid), Gid: uint32(u.gid)}
	for _, g := range u.groups {
		c.Groups = append(c.Groups, uint32(g))
	}
	return c
}

// followProcess sees a process through: output first, then its end.
func (ps *processes) followProcess(c *child, s *streams, exited <-chan syscall.WaitStatus) {
	announced := &process.ProcessEvent{Event: &process.ProcessEvent_Start{
		Start: &process.ProcessEvent_StartEvent{Pid: uint32(c.pid)},
	}}
	c.publishEvent(announced)
	var outputs sync.WaitGroup
	over := make(chan struct{})
	for _, o := range s.outputs {
		outputs.Go(func() { c.copyOutput(o, over, &ps.wg) })
	}
	ws := <-exited
	close(over)
	for _, o := range s.outputs {
		_ = o.file.SetReadDeadline(time.Now().Add(outputSilence)) // wakes a reader that waits for others
	}
	outputs.Wait()
	c.recordEnd(ws)
	ps.retireProcess(c)
}

// copyOutput journals and sends what o holds until it ends, or until the process has ended
// (over is closed) and o is still. What comes later, from others who hold it
// open, is read and dropped: else they would die of a broken pipe.
func (c *child) copyOutput(o output, over <-chan struct{}, wg *sync.WaitGroup) {
	buf := make([]byte, o.chunk)
	for {
		n, err := o.file.Read(buf)
		if n > 0 {
			c.addOutput(o, buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = o.file.SetReadDeadline(time.Time{})
			// On a busy machine the time may be over before anybody has looked.
			if n := readNow(o.file, buf); n > 0 {
				c.addOutput(o, buf[:n])
				_ = o.file.SetReadDeadline(time.Now().Add(outputSilence))
				continue
			}
			wg.Go(func() {
				_, _ = io.Copy(io.Discard, o.file)
				_ = o.file.Close()
			})
			return
		}
		if errors.Is(err, syscall.EIO) && !isOver(over, reopenInterval) {
			continue // nobody has the terminal open just now
		}
		if err != nil { // EOF, or for a terminal EIO
			_ = o.file.Close()
			return
		}
		if isOver(over, 0) {
			_ = o.file.SetReadDeadline(time.Now().Add(outputSilence))
		}
	}
}

// addOutput takes a piece of output. It is journaled before anybody can hold it back.
func (c *child) addOutput(o output, b []byte) {
	c.command.log.Append(o.stream, b)
	c.publishEvent(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: o.event(b)}})
}

// readNow reads what is there without waiting, and returns 0 if there is nothing.
func readNow(f *os.File, buf []byte) (n int) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0
	}
	err = raw.Read(func(fd uintptr) bool {
		n, _ = syscall.Read(int(fd), buf) // an error is nothing to read
		return true
	})
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// isOver reports whether a process has ended, or ends within some time.
func isOver(over <-chan struct{}, within time.Duration) bool {
	select {
	case <-over:
		return true
	default:
	}
	if within == 0 {
		return false
	}
	select {
	case <-over:
		return true
	case <-time.After(within):
		return false
	}
}

func (c *child) publishEvent(e *process.ProcessEvent) {
	c.mu.Lock()
	list := make([]*subscriber, 0, len(c.subscribers))
	for s := range c.subscribers {
		list = append(list, s)
	}
	c.mu.Unlock()
	for _, s := range list {
		s.sendEvent(e)
	}
}

// recordEnd tells how the process ended.
func (c *child) recordEnd(ws syscall.WaitStatus) {
	c.inputMu.Lock()
	if c.input != nil {
		_ = c.input.Close()
		c.input = nil
	}
	c.inputMu.Unlock()
	end := &process.ProcessEvent_EndEvent{ExitCode: int32(ws.ExitStatus()), Exited: ws.Exited()}
	switch {
	case ws.Signaled():
		end.ExitCode = -1
		end.Status = "signal: " + ws.Signal().String()
	default:
		end.Status = fmt.Sprintf("exit status %d", ws.ExitStatus())
	}
	if end.ExitCode != 0 {
		end.Error = &end.Status
	}
	c.mu.Lock()
	if c.outOfMemory && ws.Signaled() {
		reason := outOfMemory
		end.Error = &reason
	}
	timedOut := c.timedOut
	c.mu.Unlock()
	c.end = end
	c.command.setEnd(end, timedOut)
	close(c.ended)
}

// retireProcess keeps an ended process for late clients, within bounds: its number,
// tag and end.
func (ps *processes) retireProcess(c *child) {
	ps.commands.addEnded(c.command)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byPID, c.pid)
	ps.launchers.releaseProcess(c.uid)
	c.config = nil // a client may have made it megabytes long
	ps.exits = append(ps.exits, c)
	now := time.Now()
	c.endedAt = now
	// Whoever ends later cleans up: a timer for each would keep them all.
	ps.exits = slices.DeleteFunc(ps.exits, func(e *child) bool { return now.Sub(e.endedAt) > keepExits })
	if len(ps.exits) > maxExits {
		ps.exits = slices.Delete(ps.exits, 0, len(ps.exits)-maxExits)
	}
}

// findProcess returns the process a client means.
func (ps *processes) findProcess(s *process.ProcessSelector) (*child, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	switch by := s.GetSelector().(type) {
	case *process.ProcessSelector_Pid:
		if c := ps.byPID[int(by.Pid)]; c != nil {
			return c, nil
		}
		for _, c := range slices.Backward(ps.exits) {
			if c.pid == int(by.Pid) {
				return c, nil
			}
		}
		return nil, fmt.Errorf("process with pid %d not found", by.Pid)
	case *process.ProcessSelector_Tag:
		for _, c := range ps.byPID {
			if c.tag != nil && *c.tag == by.Tag {
				return c, nil
			}
		}
		for _, c := range slices.Backward(ps.exits) { // the latest of that name
			if c.tag != nil && *c.tag == by.Tag {
				return c, nil
			}
		}
		return nil, fmt.Errorf("process with tag %s not found", by.Tag)
	}
	return nil, errors.New("no process selected")
}

// close kills everything and waits.
func (ps *processes) close() {
	ps.mu.Lock()
	ps.closed = true
	list := make([]*child, 0, len(ps.byPID))
	for _, c := range ps.byPID {
		list = append(list, c)
	}
	ps.mu.Unlock()
	for _, c := range list {
		_ = ps.reaper.signalChild(c.pid, syscall.SIGKILL) // it may just have ended
	}
	ps.wg.Wait()
	ps.reaper.close()
	_ = ps.null.Close()           // it was only read
	_ = ps.commands.store.Close() // it ends with us
}

// writeInput passes input on. It returns when all of it is taken or ctx ends.
func (c *child) writeInput(ctx context.Context, data []byte) error {
	c.inputMu.Lock()
	defer c.inputMu.Unlock()
	f := c.input
	if c.terminal != nil {
		f = c.terminal
	}
	if f == nil {
		return errors.New("stdin is not open")
	}
	stop := context.AfterFunc(ctx, func() { _ = f.SetWriteDeadline(time.Now()) })
	defer func() {
		if !stop() {
			_ = f.SetWriteDeadline(time.Time{})
		}
	}()
	if c.terminal != nil {
		return writeKeys(f, data)
	}
	_, err := f.Write(data)
	return err
}

func (c *child) closeInput() error {
	c.inputMu.Lock()
	defer c.inputMu.Unlock()
	if c.terminal != nil {
		return errors.New("a terminal's input is ended by Ctrl-D")
	}
	if c.input == nil {
		return nil
	}
	err := c.input.Close()
	c.input = nil
	return err
}
