package guest

import (
	"crypto/rand"
	"errors"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/commandlog"
	"github.com/sandpit-dev/sandpit/internal/inside/watch"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/commands"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// IDHeader carries the ID of a command: the requested one in a request to start it, the actual one in the response.
const IDHeader = "Sandpit-Command-Id"

const (
	// maxEndedCommands is how many ended commands the guest remembers.
	maxEndedCommands = 10_000
	// maxArgBytes, maxEndedTag and maxArgs bound what the guest remembers of each command: bytes of its arguments,
	// bytes of its tag, and the number of its arguments.
	maxArgBytes = 256
	maxEndedTag = 256
	maxArgs     = 16
)

var (
	errCommandExists  = errors.New("a command with this ID exists")
	errUnknownCommand = errors.New("no command with this ID")
	errStillRunning   = errors.New("the command is still running")
	errOffsetTooLarge = errors.New("the offset is beyond the output of the command")
)

// command is the record of a process. It outlives the process.
type command struct {
	id        string
	pid       int
	args      []string
	argsCut   bool
	terminal  bool
	startedAt time.Time
	number    int64 // in the order of their starts
	log       *commandlog.Log
	ended     chan struct{} // closed when it has ended and the log is complete

	mu       sync.Mutex
	tag      string
	end      *process.ProcessEvent_EndEvent // nil until it has ended
	timedOut bool
	endedAt  time.Time
}

// commandList holds the commands that the guest started, within bounds.
type commandList struct {
	store    *commandlog.Store
	maxEnded int // bound on ended commands

	mu     sync.Mutex
	count  int64
	byID   map[string]*command
	byTime []*command // ended, oldest first
}

func newCommands(dir string) *commandList {
	create := func() (*os.File, error) {
		root, err := os.OpenRoot(dir)
		if err != nil {
			return nil, err
		}
		defer root.Close()
		return commandlog.Nameless(root, watch.TempName(false))
	}
	return &commandList{
		store: commandlog.NewStore(commandlog.DefaultLimits(), create), maxEnded: maxEndedCommands, byID: make(map[string]*command),
	}
}

// commandID returns the ID that a request chooses for its command, or a new one; chosen reports whether the request
// chose it.
func commandID(header http.Header) (id string, chosen bool, err error) {
	id = header.Get(IDHeader)
	if id == "" {
		return strings.ToLower(rand.Text()), false, nil
	}
	if err := sandpit.ValidateCommandID(id); err != nil {
		return "", false, connect.NewError(connect.CodeInvalidArgument, err)
	}
	return id, true, nil
}

// findCommand returns the command with an ID, or nil.
func (l *commandList) findCommand(id string) *command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byID[id]
}

// addCommand records a new command. No command may have its ID; the caller prevents concurrent calls with the same
// ID.
func (l *commandList) addCommand(id string, pid int, req *process.StartRequest) *command {
	c := &command{
		id: id, pid: pid, terminal: req.GetPty() != nil, tag: req.GetTag(), startedAt: time.Now(),
		log: l.store.NewLog(), ended: make(chan struct{}),
	}
	c.args, c.argsCut = cutArgs(append([]string{req.GetProcess().GetCmd()}, req.GetProcess().GetArgs()...))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count++
	c.number = l.count
	l.byID[id] = c
	return c
}

// cutArgs returns the part of a command's arguments that is recorded; cut reports whether some were left out.
func cutArgs(args []string) (kept []string, cut bool) {
	left := maxArgBytes
	for i, arg := range args {
		if i == maxArgs || left == 0 {
			return kept, true
		}
		if len(arg) > left {
			return append(kept, strings.ToValidUTF8(strings.Clone(arg[:left]), "")), true
		}
		kept = append(kept, arg)
		left -= len(arg)
	}
	return kept, false
}

// setEnd records how a command ended. Its log must be complete.
func (c *command) setEnd(end *process.ProcessEvent_EndEvent, timedOut bool) {
	c.log.End()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end, c.timedOut, c.endedAt = end, timedOut, time.Now()
	if len(c.tag) > maxEndedTag {
		c.tag = ""
	}
	close(c.ended)
}

// addEnded adds a command to the ended ones and drops the oldest of them above the limit.
func (l *commandList) addEnded(c *command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[c.id] != c { // forgotten meanwhile
		c.log.Discard()
		return
	}
	l.byTime = append(l.byTime, c)
	for len(l.byTime) > l.maxEnded {
		l.dropCommand(l.byTime[0])
	}
}

// dropCommand removes an ended command and its log. The lock must be held.
func (l *commandList) dropCommand(c *command) {
	delete(l.byID, c.id)
	l.byTime = slices.DeleteFunc(l.byTime, func(other *command) bool { return other == c })
	c.log.Discard()
}

// forgetCommand removes an ended command at a client's request.
func (l *commandList) forgetCommand(id string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.byID[id]
	if c == nil {
		return errUnknownCommand
	}
	if !isOver(c.ended, 0) {
		return errStillRunning
	}
	l.dropCommand(c)
	return nil
}

// forgetAll removes every command. A running command is not recorded when it ends.
func (l *commandList) forgetAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.byID {
		if isOver(c.ended, 0) {
			c.log.Discard()
		}
	}
	clear(l.byID)
	l.byTime = nil
}

// listCommands returns all commands in the order of their starts.
func (l *commandList) listCommands() []*command {
	l.mu.Lock()
	list := make([]*command, 0, len(l.byID))
	for _, c := range l.byID {
		list = append(list, c)
	}
	l.mu.Unlock()
	slices.SortFunc(list, func(a, b *command) int { return int(a.number - b.number) })
	return list
}

// toProto returns the command as the protocol describes it.
func (c *command) toProto() *commands.Command {
	c.mu.Lock()
	defer c.mu.Unlock()
	size, missing := c.log.Amounts()
	d := &commands.Command{
		Id: c.id, Pid: uint32(c.pid), Args: c.args, ArgsCut: c.argsCut, Tag: c.tag, Terminal: c.terminal,
		StartedAt: c.startedAt.UnixMilli(),
		Stdout:    &commands.Amount{Size: size[commandlog.Stdout], Dropped: missing[commandlog.Stdout]},
		Stderr:    &commands.Amount{Size: size[commandlog.Stderr], Dropped: missing[commandlog.Stderr]},
	}
	if c.end != nil {
		d.Ended = &commands.Ended{
			ExitCode: c.end.GetExitCode(), Exited: c.end.GetExited(), Status: c.end.GetStatus(), Error: c.end.GetError(),
			TimedOut: c.timedOut, EndedAt: c.endedAt.UnixMilli(),
		}
	}
	return d
}
