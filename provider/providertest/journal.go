package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func journalChecks() []check {
	return []check{
		{"ids", commandIDs},
		{"list and forget", listAndForget},
		{"missing command", journalNothing},
		{"cut again and again", cutAgain},
		{"cut from the start", cutFromStart},
		{"replay after the end", replayEnded},
		{"order of both streams", orderOfBoth},
		{"without waiting", followNoWait},
		{"a terminal is one stream", journaledTerminal},
		{"timeout", journaledTimeout},
		{"independent readers", readersIndependent},
		{"dropped output is reported", droppedReported},
		{"disk full", journalDiskFull},
		{"the sandbox ends", followGone},
	}
}

// journal returns the journal of the shared sandbox.
func (c *trial) journal() sandpit.Journal {
	c.Helper()
	return journalOf(c, c.box)
}

func journalOf(c *trial, box sandpit.Instance) sandpit.Journal {
	c.Helper()
	j, ok := sandpit.As[sandpit.Journal](box.Guest())
	if !ok {
		c.Skip("this provider's guest keeps no journal")
	}
	return j
}

// long is ctx with more time, for many bytes.
func (c *trial) long() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), max(c.Patience, 2*time.Minute))
	c.Cleanup(cancel)
	return ctx
}

func newCommandID() string { return "check." + string(sandpit.NewID()) }

// launchCommand starts a command in the shared sandbox that outlives its followers.
func launchCommand(c *trial, cmd sandpit.Command) (id string) {
	c.Helper()
	c.journal()
	if cmd.ID == "" {
		cmd.ID = newCommandID()
	}
	return c.start(cmd).ID()
}

// followResult is what a follower received.
type followResult struct {
	stdout, stderr bytes.Buffer
	sandpit.Followed
}

func follow(ctx context.Context, j sandpit.Journal, id string, from sandpit.Offsets) (*followResult, error) {
	h := &followResult{}
	var err error
	h.Followed, err = j.Follow(ctx, id, sandpit.FollowOptions{From: from, Stdout: &h.stdout, Stderr: &h.stderr})
	return h, err
}

// follow follows a command of the shared sandbox to its end.
func (c *trial) follow(id string, from sandpit.Offsets) *followResult {
	c.Helper()
	h, err := follow(c.long(), c.journal(), id, from)
	c.must(err, "follow")
	return h
}

func commandIDs(c *trial) {
	c.journal()
	p, other := c.start(shellCommand("exit 3")), c.start(shellCommand("exit 4"))
	if sandpit.ValidateCommandID(p.ID()) != nil || p.ID() == other.ID() {
		c.Errorf("the guest has chosen the ids %q and %q", p.ID(), other.ID())
	}
	equal(c, "exit code by a chosen id", c.follow(p.ID(), sandpit.Offsets{}).Command.Status.Code, 3)
	byNumber, err := c.guest().Connect(c.ctx(), p.PID(), sandpit.Streams{})
	c.must(err, "connect")
	equal(c, "id of a command found by its number", byNumber.ID(), p.ID())

	cmd := sandpit.Command{Args: []string{"cat"}, ID: newCommandID(), Stdin: c.blocked("")}
	named := c.start(cmd)
	equal(c, "id", named.ID(), cmd.ID)
	_, err = c.guest().Start(c.ctx(), cmd)
	c.wantCode(err, "start it again while it runs", sandpit.AlreadyExists)
	c.must(named.Signal(c.ctx(), sandpit.SIGKILL), "kill")
	equal(c, "exit code", c.wait(named).Code, 137)
	_, err = c.guest().Start(c.ctx(), cmd)
	c.wantCode(err, "start it again when it has ended", sandpit.AlreadyExists)

	never := newCommandID()
	_, err = c.guest().Start(c.ctx(), sandpit.Command{Args: []string{"/no/such/program"}, ID: never})
	c.wantCode(err, "start a missing program", sandpit.NotFound)
	_, err = c.journal().GetCommand(c.ctx(), never)
	c.wantCode(err, "get what never started", sandpit.NotFound)
	for _, id := range []string{"-x", "a b", "a/b", "ä", ".", "a\x00", strings.Repeat("x", 65)} {
		_, err := c.guest().Start(c.ctx(), sandpit.Command{Args: []string{"true"}, ID: id})
		c.wantCode(err, "start as "+id, sandpit.Invalid)
	}
}

func listAndForget(c *trial) {
	j := c.journal()
	const long = 100
	args := append([]string{"sh", "-c", "echo out; echo err >&2; exit 9"}, slices.Repeat([]string{"argument"}, long)...)
	first := launchCommand(c, sandpit.Command{Args: args, Tag: "a tag"})
	second := launchCommand(c, sandpit.Command{Args: []string{"cat"}, Stdin: c.blocked("")})
	c.follow(first, sandpit.Offsets{})
	list, err := j.ListCommands(c.ctx())
	c.must(err, "list commands")
	at := func(id string) int {
		return slices.IndexFunc(list, func(i sandpit.CommandInfo) bool { return i.ID == id })
	}
	if at(first) < 0 || at(second) < at(first) {
		c.Fatalf("they are listed at %d and %d", at(first), at(second))
	}
	info, running := list[at(first)], list[at(second)]
	equal(c, "exit code", info.Status, sandpit.ExitStatus{Code: 9})
	equal(c, "tag", info.Tag, "a tag")
	equal(c, "whether it has ended", info.Ended, true)
	equal(c, "whether it runs", running.Ended, false)
	equal(c, "output", info.Stdout, sandpit.Journaled{Size: 4})
	equal(c, "errors", info.Stderr, sandpit.Journaled{Size: 4})
	if !info.ArgsCut || len(info.Args) > long || !slices.Equal(info.Args[:3], args[:3]) {
		c.Errorf("arguments: %t, %q", info.ArgsCut, info.Args)
	}
	if info.PID == running.PID || info.StartedAt.IsZero() || info.EndedAt.Before(info.StartedAt) {
		c.Errorf("reported: %+v, %+v", info, running)
	}

	c.wantCode(j.ForgetCommand(c.ctx(), second), "forget what runs", sandpit.Conflict)
	c.must(j.ForgetCommand(c.ctx(), first), "forget")
	c.wantCode(j.ForgetCommand(c.ctx(), first), "forget again", sandpit.NotFound)
	_, err = j.GetCommand(c.ctx(), first)
	c.wantCode(err, "get what is forgotten", sandpit.NotFound)
	again := shellCommand("exit 6")
	again.ID = first
	equal(c, "the id", launchCommand(c, again), first)
	equal(c, "exit code of the next", c.follow(first, sandpit.Offsets{}).Command.Status.Code, 6)
}

func journalNothing(c *trial) {
	j := c.journal()
	id := launchCommand(c, shellCommand("echo out"))
	c.follow(id, sandpit.Offsets{})
	for _, unknown := range []string{newCommandID(), "", "a b", strings.Repeat("x", 1000)} {
		_, err := j.GetCommand(c.ctx(), unknown)
		c.wantCode(err, "get an unknown command", sandpit.NotFound)
		_, err = j.Follow(c.ctx(), unknown, sandpit.FollowOptions{})
		c.wantCode(err, "follow an unknown command", sandpit.NotFound)
		c.wantCode(j.ForgetCommand(c.ctx(), unknown), "forget an unknown command", sandpit.NotFound)
	}
	for _, from := range []sandpit.Offsets{{Stdout: 5}, {Stderr: 1}, {Stdout: -1}, {Stderr: -1}, {Stdout: 1 << 62, Stderr: 1 << 62}} {
		_, err := j.Follow(c.ctx(), id, sandpit.FollowOptions{From: from})
		c.wantCode(err, fmt.Sprintf("follow from %+v", from), sandpit.Invalid)
	}
}

const (
	cutLines  = 3000
	cutScript = `i=0; while [ $i -lt 3000 ]; do echo "out $i"; echo "err $i" >&2; i=$((i+1)); done; exit 5`
)

func cutOutput(word string) string {
	var b strings.Builder
	for i := range cutLines {
		fmt.Fprintln(&b, word, i)
	}
	return b.String()
}

var errCut = errors.New("cut")

// cutter accepts a number of bytes, then cuts the connection and refuses the rest.
type cutter struct {
	to   *bytes.Buffer
	left *int
	cut  func()
}

func (w cutter) Write(b []byte) (int, error) {
	n := min(len(b), *w.left)
	w.to.Write(b[:n])
	*w.left -= n
	if n < len(b) {
		w.cut()
		return n, errCut
	}
	return n, nil
}

// cutAgain follows a command while its connection is cut at random points, and continues each time
// at the same offset.
func cutAgain(c *trial) {
	j := c.journal()
	id := launchCommand(c, shellCommand(cutScript))
	seed := uint64(time.Now().UnixNano())
	c.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // nothing secret
	var stdout, stderr bytes.Buffer
	var followed sandpit.Followed
	cuts := 0
	for ctx := c.long(); ; cuts++ {
		left := rng.IntN(4000)
		cutCtx, cut := context.WithCancel(ctx)
		if cuts%3 == 0 { // at any moment, outside of a Write
			time.AfterFunc(time.Duration(rng.IntN(5000))*time.Microsecond, cut)
		}
		var err error
		followed, err = j.Follow(cutCtx, id, sandpit.FollowOptions{
			From: followed.Next, Stdout: cutter{&stdout, &left, cut}, Stderr: cutter{&stderr, &left, cut},
		})
		cut()
		equal(c, "where it continues", followed.Next, sandpit.Offsets{Stdout: int64(stdout.Len()), Stderr: int64(stderr.Len())})
		if err == nil {
			break
		}
		if !errors.Is(err, errCut) {
			c.wantCode(err, "follow and be cut off", sandpit.Canceled)
		}
		if c.Failed() {
			return
		}
	}
	if cuts < 10 {
		c.Errorf("it was cut %d times only", cuts)
	}
	equal(c, "output", stdout.String(), cutOutput("out"))
	equal(c, "errors", stderr.String(), cutOutput("err"))
	equal(c, "status", followed.Command.Status, sandpit.ExitStatus{Code: 5})
	equal(c, "missing", followed.Missing, sandpit.Offsets{})
}

// cutFromStart cuts the stream that started a command.
func cutFromStart(c *trial) {
	c.journal()
	ctx, cut := context.WithCancel(c.long())
	defer cut()
	left := 3000
	var stdout, stderr bytes.Buffer
	cmd := shellCommand(cutScript)
	cmd.ID, cmd.Stdout, cmd.Stderr = newCommandID(), cutter{&stdout, &left, cut}, &stderr
	p, err := c.guest().Start(ctx, cmd)
	c.must(err, "start")
	c.killAtEnd(p)
	if _, err = p.Wait(c.long()); !errors.Is(err, errCut) {
		c.wantCode(err, "wait for what is followed no more", sandpit.Canceled)
	}
	rest := c.follow(cmd.ID, sandpit.Offsets{Stdout: int64(stdout.Len()), Stderr: int64(stderr.Len())})
	equal(c, "output", stdout.String()+rest.stdout.String(), cutOutput("out"))
	equal(c, "errors", stderr.String()+rest.stderr.String(), cutOutput("err"))
	equal(c, "status", rest.Command.Status, sandpit.ExitStatus{Code: 5})
}

func replayEnded(c *trial) {
	p := c.start(shellCommand("echo to the output; echo to the errors >&2; exit 42"))
	c.wait(p)
	const out, errs = "to the output\n", "to the errors\n"
	for _, from := range []sandpit.Offsets{{}, {Stdout: 3}, {Stderr: 5}, {Stdout: 14, Stderr: 1}, {Stdout: 14, Stderr: 14}} {
		h := c.follow(p.ID(), from)
		equal(c, "output", h.stdout.String(), out[from.Stdout:])
		equal(c, "errors", h.stderr.String(), errs[from.Stderr:])
		equal(c, "status", h.Command.Status, sandpit.ExitStatus{Code: 42})
		equal(c, "next", h.Next, sandpit.Offsets{Stdout: 14, Stderr: 14})
	}
	signaled := c.start(sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(signaled.Signal(c.ctx(), sandpit.SIGTERM), "signal")
	equal(c, "status", c.follow(signaled.ID(), sandpit.Offsets{}).Command.Status, sandpit.ExitStatus{Code: 143, Signaled: true})
}

// orderOfBoth has a command write to one stream only after its output on the other arrived.
func orderOfBoth(c *trial) {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	id := newCommandID()
	script := `while read -r n; do if [ $((n % 2)) = 0 ]; then echo "$n"; else echo "$n" >&2; fi; done`
	cmd := shellCommand(script)
	cmd.ID, cmd.Stdin, cmd.Stdout, cmd.Stderr = id, inR, outW, outW
	c.journal()
	p := c.start(cmd)
	var want strings.Builder
	for i := range 10 {
		line := strconv.Itoa(i) + "\n"
		want.WriteString(line)
		_, err := io.WriteString(inW, line)
		c.must(err, "write")
		_, err = io.ReadFull(outR, make([]byte, len(line)))
		c.must(err, "read")
	}
	c.must(inW.Close(), "close the input")
	c.wait(p)
	var both bytes.Buffer
	_, err := c.journal().Follow(c.ctx(), id, sandpit.FollowOptions{Stdout: &both, Stderr: &both})
	c.must(err, "follow")
	equal(c, "both streams", both.String(), want.String())
}

func followNoWait(c *trial) {
	dir := c.dir()
	id := launchCommand(c, shellCommand(`echo early; : > "$1/said"; while ! test -e "$1/go"; do sleep 0.05; done; echo late`, dir))
	c.eventually("the first output", func() bool {
		_, err := c.guest().Stat(c.ctx(), "", dir+"/said")
		return err == nil
	})
	var out bytes.Buffer
	var followed sandpit.Followed
	c.eventually("the output", func() bool { // it may be under way
		var err error
		followed, err = c.journal().Follow(c.ctx(), id, sandpit.FollowOptions{From: followed.Next, Stdout: &out, NoWait: true})
		c.must(err, "follow")
		return out.Len() > 0
	})
	equal(c, "output", out.String(), "early\n")
	equal(c, "whether it has ended", followed.Command.Ended, false)
	c.put(dir+"/go", "")
	equal(c, "the rest", c.follow(id, followed.Next).stdout.String(), "late\n")
	followed, err := c.journal().Follow(c.ctx(), id, sandpit.FollowOptions{NoWait: true})
	c.must(err, "follow")
	equal(c, "whether it has ended", followed.Command.Ended, true)
}

func journaledTerminal(c *trial) {
	cmd := shellCommand("echo out; echo err >&2; exit 3")
	cmd.Terminal = &sandpit.TerminalSize{Cols: 80, Rows: 24}
	h := c.follow(launchCommand(c, cmd), sandpit.Offsets{})
	equal(c, "output", h.stdout.String(), "out\r\nerr\r\n")
	equal(c, "errors", h.stderr.String(), "")
	equal(c, "whether it has a terminal", h.Command.Terminal, true)
	equal(c, "exit code", h.Command.Status.Code, 3)
}

func journaledTimeout(c *trial) {
	c.journal()
	cmd := shellCommand("echo early; sleep 1000")
	cmd.ID, cmd.Timeout = newCommandID(), 2*time.Second
	_, err := c.start(cmd).Wait(c.long())
	c.wantCode(err, "wait for what takes too long", sandpit.Timeout)
	h := c.follow(cmd.ID, sandpit.Offsets{})
	equal(c, "output", h.stdout.String(), "early\n")
	equal(c, "whether its time was over", h.Command.TimedOut, true)
	equal(c, "exit code", h.Command.Status.Code, 137)
}
