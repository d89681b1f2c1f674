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

// IDHeader carries the id of a command: in a request to start it the one that it
// shall have, in the answer the one that it has.
const IDHeader = "Sandpit-Command-Id"

const (
	// maxEndedCommands is how many commands that have ended are remembered.
	maxEndedCommands = 10_000
	// What is remembered of each: bytes of its arguments and of its tag, and how many
	// arguments.
	maxArgBytes = 256
	maxEndedTag = 256
	maxArgs     = 16
)

var (
	errCommandExists  = errors.New("a command of this id was started before")
	errUnknownCommand = errors.New("there is no command of this id")
	errStillRunning   = errors.New("the command runs")
	errOffsetTooLarge = errors.New("the command has put out less than that")
)

// command is what is remembered of a process, also when it has ended.
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

// commandList is all that the guest started, as far as they are remembered.
type commandList struct {
	store    *commandlog.Store
	maxEnded int // of those that have ended

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

// commandID returns the id that a request gives to its command, or a new one;
// chosen says that it was given.
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

// findCommand returns the command of an id, or nil.
func (l *commandList) findCommand(id string) *command {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byID[id]
}

// addCommand begins to remember a command. There must be none of its id, and who calls it
// sees to it that nobody else adds one.
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

// cutArgs returns as much of a command's arguments as is remembered, and whether
// that is less than all.
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

// setEnd says how a command has ended. Its log is complete.
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

// addEnded counts a command among those that have ended, of which the oldest are
// forgotten.
func (l *commandList) addEnded(c *command) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.byID[c.id] != c { // somebody has made it forgotten meanwhile
		c.log.Discard()
		return
	}
	l.byTime = append(l.byTime, c)
	for len(l.byTime) > l.maxEnded {
		l.dropCommand(l.byTime[0])
	}
}

// dropCommand forgets a command that has ended.
func (l *commandList) dropCommand(c *command) {
	delete(l.byID, c.id)
	l.byTime = slices.DeleteFunc(l.byTime, func(other *command) bool { return other == c })
	c.log.Discard()
}

// forgetCommand is drop for a client.
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

// forgetAll forgets every command. What still runs is not kept when it ends.
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

// listCommands returns every command, in the order of their starts.
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

// toProto returns what is told of a command.
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
