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
	// outputSilence is how long output must be silent after the end of its process to count as complete, if other
	// processes still hold it open.
	outputSilence = 200 * time.Millisecond
	// reopenInterval is how often the guest checks a terminal that its process has closed. Closing the guest's end
	// before the process has ended would kill the process with a hang-up.
	reopenInterval = 20 * time.Millisecond
	// keepExits is how long the guest reports the end of a process to clients that connect late.
	keepExits = 30 * time.Second
	maxExits  = 1000
)

// child is a process that the guest started.
type child struct {
	pid     int
	uid     int
	tag     *string
	config  *process.ProcessConfig
	command *command
	// neverBlocked says that clients read the command's log, so a slow client does not block the process. It is set
	// when the client chose the command's ID.
	neverBlocked bool

	terminal *os.File // nil without a terminal
	inputMu  sync.Mutex
	input    *os.File // nil without

	mu          sync.Mutex
	subscribers map[*subscriber]bool
	timedOut    bool
	outOfMemory bool // killed because memory ran out

	end     *process.ProcessEvent_EndEvent // set before ended is closed
	endedAt time.Time                      // set by retireProcess
	ended   chan struct{}                  // closed when the process has ended and its output is complete
}

// processes are the running processes that the guest started, and for a while those that have ended.
type processes struct {
	reaper *reaper
	self   identity
	null   *os.File // an empty standard input for all processes
	// nullErr is the error of opening null.
	nullErr error
	groups  programGroups
	// killFirst says that the machine's kernel kills programs when memory runs out. It must prefer every program to
	// the guest: the largest program may still be ending when the kernel looks for the next one.
	killFirst bool
	commands  *commandList
	wg        sync.WaitGroup

	mu sync.Mutex
	// launchers start the processes of sessions.
	launchers launchers
	byPID     map[int]*child
	exits     []*child // ended, oldest first
	closed    bool
	killed    recentKills
}

// newProcesses returns an empty list. Output of commands that exceeds memory goes into an unnamed file in logDir.
func newProcesses(logDir string) *processes {
	ps := &processes{
		reaper: newReaper(), self: ownIdentity(), groups: noGroups(),
		commands: newCommands(logDir), byPID: make(map[int]*child), launchers: make(launchers),
	}
	ps.null, ps.nullErr = os.Open(os.DevNull)
	return ps
}

// startPlan describes a process to start.
type startPlan struct {
	user    user
	program string
	args    []string
	env     []string
	dir     string
	stdin   bool
	size    *pty.Winsize // nil without a terminal
	command string       // command ID
	// neverBlocked: see child.
	neverBlocked bool
}

// startProcess starts a process; first, if not nil, follows it from its beginning.
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

// forkProgram starts a process. If the group for programs is full, it uses the spare group.
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

// killFirst makes the machine's kernel prefer a process and its children to the guest when memory runs out. The
// process may have ended.
func killFirst(pid int) {
	const some = "500" // counts as half of the memory more than it uses
	_ = os.WriteFile(filepath.Join("/proc", strconv.Itoa(pid), "oom_score_adj"), []byte(some), 0)
}

// identity is the user and groups that this process runs as.
type identity struct {
	uid, gid int
	groups   []int
}

func ownIdentity() identity {
	groups, err := os.Getgroups()
	if err != nil {
		groups = []int{-1} // equal to no user's groups
	}
	return identity{os.Getuid(), os.Getgid(), groups}
}

// credentialFor returns the credential for a user, or nil if nothing changes: that saves the new process three system
// calls, and lets a guest that is not root start processes.
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

// followProcess waits for the output of a process and then for its end.
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
		_ = o.file.SetReadDeadline(time.Now().Add(outputSilence)) // ends a read that other processes keep waiting
	}
	outputs.Wait()
	c.recordEnd(ws)
	ps.retireProcess(c)
}

// copyOutput logs and sends the output of o until it ends, or until the process has ended (over is closed) and o is
// silent. Later output of other processes that hold o open is read and dropped; otherwise a broken pipe would end
// them.
func (c *child) copyOutput(o output, over <-chan struct{}, wg *sync.WaitGroup) {
	buf := make([]byte, o.chunk)
	for {
		n, err := o.file.Read(buf)
		if n > 0 {
			c.addOutput(o, buf[:n])
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			_ = o.file.SetReadDeadline(time.Time{})
			// On a busy machine the deadline may pass before anything was read.
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
			continue // no process has the terminal open at the moment
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

// addOutput logs a piece of output, then sends it to subscribers, which may block.
func (c *child) addOutput(o output, b []byte) {
	c.command.log.Append(o.stream, b)
	c.publishEvent(&process.ProcessEvent{Event: &process.ProcessEvent_Data{Data: o.event(b)}})
}

// readNow reads available data without waiting. It returns 0 if no data is available.
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

// isOver reports whether a process has ended, or ends within a duration.
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

// recordEnd records how the process ended.
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

// retireProcess keeps an ended process for late clients, within bounds: its PID, tag and end.
func (ps *processes) retireProcess(c *child) {
	ps.commands.addEnded(c.command)
	ps.mu.Lock()
	defer ps.mu.Unlock()
	delete(ps.byPID, c.pid)
	ps.launchers.releaseProcess(c.uid)
	c.config = nil // it may be megabytes long
	ps.exits = append(ps.exits, c)
	now := time.Now()
	c.endedAt = now
	// The next process that ends cleans up: timers for all would keep them in memory.
	ps.exits = slices.DeleteFunc(ps.exits, func(e *child) bool { return now.Sub(e.endedAt) > keepExits })
	if len(ps.exits) > maxExits {
		ps.exits = slices.Delete(ps.exits, 0, len(ps.exits)-maxExits)
	}
}

// findProcess returns the process that a client selects.
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

// close kills all processes and waits for them.
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
	_ = ps.commands.store.Close() // the log ends with the guest
}

// writeInput writes to the input of the process. It returns when all of it is written or ctx ends.
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
		return errors.New("end the input of a terminal with Ctrl-D")
	}
	if c.input == nil {
		return nil
	}
	err := c.input.Close()
	c.input = nil
	return err
}
