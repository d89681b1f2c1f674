package providertest

import (
	"context"
	"io"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func signalChecks() []check {
	return []check{
		{"signals end a process", signalsEnd},
		{"own signal", killedBySelf},
		{"a process may catch one", caughtSignal},
		{"signals reach what it started", signalsGroup},
		{"after the end", signalLate},
		{"invalid ones", badSignals},
		{"timeout", timeout},
		{"timeout ends all that it started", timeoutGroup},
		{"timeout that is not reached", timeoutUnused},
		{"the caller's deadline is not the process's", callersDeadline},
	}
}

func signalsEnd(c *trial) {
	for _, s := range []sandpit.Signal{sandpit.SIGTERM, sandpit.SIGKILL} {
		p := c.start(sandpit.Command{Args: []string{"sleep", "1000"}})
		c.must(p.Signal(c.ctx(), s), "signal")
		equal(c, "status", c.wait(p), sandpit.ExitStatus{Code: 128 + int(s), Signaled: true})
	}
}

func killedBySelf(c *trial) {
	for name, code := range map[string]int{"KILL": 137, "TERM": 143, "INT": 130, "SEGV": 139, "PIPE": 141} {
		r := c.exec(shellCommand(`kill -s "$1" $$; sleep 1000`, name))
		equal(c, "status of "+name, r.status, sandpit.ExitStatus{Code: code, Signaled: true})
	}
}

// startReady starts a script and returns when it has printed "ready".
func (c *trial) startReady(cmd sandpit.Command) (p sandpit.Process, first string) {
	c.Helper()
	r, w := io.Pipe()
	cmd.Stdout = w
	p = c.start(cmd)
	var text strings.Builder
	one := make([]byte, 1)
	for !strings.HasSuffix(text.String(), "ready\n") {
		if _, err := r.Read(one); err != nil {
			c.Fatalf("read the output: %v", err)
		}
		text.Write(one)
	}
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		_, _ = io.Copy(io.Discard, r)
	}()
	c.Cleanup(func() {
		_ = w.Close()
		<-drained
	})
	return p, strings.TrimSuffix(text.String(), "ready\n")
}

func caughtSignal(c *trial) {
	p, _ := c.startReady(shellCommand(`trap 'exit 3' TERM; echo ready; while :; do sleep 0.05; done`))
	c.must(p.Signal(c.ctx(), sandpit.SIGTERM), "signal")
	equal(c, "status", c.wait(p), sandpit.ExitStatus{Code: 3})
}

// family is a shell that starts others and prints their numbers.
const family = `trap '' TERM; sleep 1000 & echo $!; sh -c 'sleep 1001 & wait' & echo $!; echo ready; wait`

func signalsGroup(c *trial) {
	p, pids := c.startReady(shellCommand(family))
	c.must(p.Signal(c.ctx(), sandpit.SIGKILL), "signal")
	equal(c, "status", c.wait(p), sandpit.ExitStatus{Code: 137, Signaled: true})
	awaitAllEnd(c, pids)
}

func awaitAllEnd(c *trial, pids string) {
	c.Helper()
	fields := strings.Fields(pids)
	if len(fields) < 2 {
		c.Fatalf("the script printed the processes %q", pids)
	}
	for _, pid := range fields {
		c.eventually("the end of process "+pid, func() bool { return !c.isAlive(pid) })
	}
}

func signalLate(c *trial) {
	p := c.start(sandpit.Command{Args: []string{"true"}})
	c.wait(p)
	c.wantCode(p.Signal(c.ctx(), sandpit.SIGTERM), "signal what has ended", sandpit.Gone)
}

func badSignals(c *trial) {
	p := c.start(sandpit.Command{Args: []string{"sleep", "1000"}})
	for _, s := range []sandpit.Signal{0, -1, 64, 1000} {
		c.wantCode(p.Signal(c.ctx(), s), "invalid signal", sandpit.Invalid)
	}
	if !c.isListed(p.PID()) {
		c.Error("an invalid signal has ended the process")
	}
}

func timeout(c *trial) {
	begin := time.Now()
	p := c.start(sandpit.Command{Args: []string{"sleep", "1000"}, Timeout: 200 * time.Millisecond})
	_, err := p.Wait(c.ctx())
	c.wantCode(err, "wait for a process with a timeout", sandpit.Timeout)
	if took := time.Since(begin); took < 200*time.Millisecond || took > c.Patience/2 {
		c.Errorf("it took %s, want about 200 ms", took)
	}
	c.eventually("the end of the process", func() bool { return !c.isListed(p.PID()) })
}

func timeoutGroup(c *trial) {
	cmd := shellCommand(family)
	cmd.Timeout = 500 * time.Millisecond
	p, pids := c.startReady(cmd)
	_, err := p.Wait(c.ctx())
	c.wantCode(err, "wait for a process with a timeout", sandpit.Timeout)
	awaitAllEnd(c, pids)
}

func timeoutUnused(c *trial) {
	cmd := shellCommand("exit 5")
	cmd.Timeout = time.Hour
	equal(c, "status", c.exec(cmd).status, sandpit.ExitStatus{Code: 5})
}

func callersDeadline(c *trial) {
	ctx, cancel := context.WithTimeout(c.ctx(), time.Second)
	defer cancel()
	p, err := c.guest().Start(ctx, sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(err, "start")
	c.killAtEnd(p)
	_, err = p.Wait(c.ctx())
	c.wantCode(err, "wait for what is followed no more", sandpit.Timeout)
	time.Sleep(200 * time.Millisecond)
	if !c.isListed(p.PID()) {
		c.Error("the process has ended with its caller's deadline")
	}
}
