package providertest

import (
	"context"
	"io"
	"math"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

func connectChecks() []check {
	return []check{
		{"list what runs", listRunning},
		{"outlive the caller", outlivesCaller},
		{"input from the next caller", inputFromNext},
		{"after the end", connectLate},
		{"missing process", connectMissing},
		{"many follow one", manyFollow},
	}
}

// findProcess returns how a process is listed.
func findProcess(c *trial, is func(sandpit.ProcessInfo) bool) (sandpit.ProcessInfo, bool) {
	c.Helper()
	list, err := c.guest().ListProcesses(c.ctx())
	c.must(err, "list processes")
	if i := slices.IndexFunc(list, is); i >= 0 {
		return list[i], true
	}
	return sandpit.ProcessInfo{}, false
}

// isListed reports whether a process is listed.
func (c *trial) isListed(pid int) bool {
	c.Helper()
	_, ok := findProcess(c, func(p sandpit.ProcessInfo) bool { return p.PID == pid })
	return ok
}

func findTagged(c *trial, tag string) (sandpit.ProcessInfo, bool) {
	c.Helper()
	return findProcess(c, func(p sandpit.ProcessInfo) bool { return p.Tag == tag })
}

// newTag returns a tag that no other check uses.
func newTag() string { return "tag " + string(sandpit.NewID()) }

func listRunning(c *trial) {
	dir, tag := c.dir(), newTag()
	p := c.start(sandpit.Command{Args: []string{"sleep", "1000"}, Env: map[string]string{"A": "1"}, Dir: dir, Tag: tag})
	info, ok := findTagged(c, tag)
	if !ok {
		c.Fatal("the process is not listed")
	}
	equal(c, "pid", info.PID, p.PID())
	equal(c, "arguments", strings.Join(info.Args, "|"), "sleep|1000")
	equal(c, "environment", info.Env["A"], "1")
	equal(c, "number of variables", len(info.Env), 1)
	equal(c, "directory", info.Dir, dir)
	c.must(p.Signal(c.ctx(), sandpit.SIGKILL), "kill")
	c.wait(p)
	c.eventually("the end of the process in the list", func() bool { return !c.isListed(p.PID()) })
}

func outlivesCaller(c *trial) {
	dir, tag := c.dir(), newTag()
	ctx, giveUp := context.WithCancel(c.ctx())
	cmd := shellCommand(`echo early; while ! test -e "$1/go"; do sleep 0.05; done; echo late; echo loud >&2; exit 7`, dir)
	cmd.Tag = tag
	r, w := io.Pipe()
	cmd.Stdout = w
	p, err := c.guest().Start(ctx, cmd)
	c.must(err, "start")
	early := make([]byte, len("early\n"))
	_, err = io.ReadFull(r, early)
	c.must(err, "read the output")
	giveUp()
	_ = r.Close()
	_, err = p.Wait(c.ctx())
	c.wantCode(err, "wait for what is followed no more", sandpit.Canceled)

	info, ok := findTagged(c, tag)
	if !ok {
		c.Fatal("the process has ended with its caller")
	}
	var stdout, stderr strings.Builder
	again, err := c.guest().Connect(c.ctx(), info.PID, sandpit.Streams{Stdout: &stdout, Stderr: &stderr})
	c.must(err, "connect")
	equal(c, "pid", again.PID(), info.PID)
	c.put(dir+"/go", "")
	equal(c, "exit status", c.wait(again), sandpit.ExitStatus{Code: 7})
	equal(c, "output", stdout.String(), "late\n")
	equal(c, "errors", stderr.String(), "loud\n")
}

func inputFromNext(c *trial) {
	ctx, giveUp := context.WithCancel(c.ctx())
	defer giveUp()
	first := c.blocked("")
	p, err := c.guest().Start(ctx, sandpit.Command{Args: []string{"cat"}, Stdin: first})
	c.must(err, "start")
	giveUp()
	_, err = p.Wait(c.ctx())
	c.wantCode(err, "wait for what is followed no more", sandpit.Canceled)
	var out strings.Builder
	again, err := c.guest().Connect(c.ctx(), p.PID(), sandpit.Streams{Stdin: strings.NewReader("from the next"), Stdout: &out})
	c.must(err, "connect")
	c.killAtEnd(again)
	equal(c, "exit status", c.wait(again), sandpit.ExitStatus{})
	equal(c, "output", out.String(), "from the next")
}

func connectLate(c *trial) {
	p := c.start(shellCommand("echo unheard; exit 42"))
	c.wait(p)
	for range 2 {
		var out strings.Builder
		late, err := c.guest().Connect(c.ctx(), p.PID(), sandpit.Streams{Stdin: strings.NewReader("input"), Stdout: &out})
		c.must(err, "connect after the end")
		equal(c, "exit status", c.wait(late), sandpit.ExitStatus{Code: 42})
		equal(c, "output", out.String(), "")
		c.wantCode(late.Signal(c.ctx(), sandpit.SIGTERM), "signal what has ended", sandpit.Gone)
	}
}

func connectMissing(c *trial) {
	for _, pid := range []int{0, -1, math.MinInt, 1 << 30, math.MaxInt32, math.MaxInt} {
		_, err := c.guest().Connect(c.ctx(), pid, sandpit.Streams{})
		c.wantCode(err, "connect to a missing process", sandpit.NotFound)
	}
}

func manyFollow(c *trial) {
	dir := c.dir()
	p := c.start(shellCommand(`while ! test -e "$1/go"; do sleep 0.05; done; for i in 1 2 3; do echo "$i"; done`, dir))
	const followers = 5
	var outs [followers]strings.Builder
	var wg sync.WaitGroup
	for i := range outs {
		follower, err := c.guest().Connect(c.ctx(), p.PID(), sandpit.Streams{Stdout: &outs[i]})
		c.must(err, "connect")
		ctx := c.ctx()
		wg.Go(func() {
			if _, err := follower.Wait(ctx); err != nil {
				c.Errorf("wait: %v", err)
			}
		})
	}
	c.put(dir+"/go", "")
	c.wait(p)
	c.promptly("the followers", wg.Wait)
	for i := range outs {
		equal(c, "output of a follower", outs[i].String(), "1\n2\n3\n")
	}
}
