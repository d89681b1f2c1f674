package mcpclient

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// hostProcesses starts the programs of servers with Server.Host: on this machine, as the user of this
// process.
type hostProcesses struct{}

// outputWait bounds the wait for output of programs that a server has left.
const outputWait = 2 * time.Second

// hostEnvironment returns the variables of this process that programs get. Others may be secrets.
func hostEnvironment() map[string]string {
	env := map[string]string{}
	for _, name := range []string{"HOME", "LANG", "PATH", "TMPDIR", "USER"} {
		if value, ok := os.LookupEnv(name); ok { //nolint:forbidigo // what programs of this machine need, not settings
			env[name] = value
		}
	}
	return env
}

// Start implements starter. The program outlives ctx.
func (hostProcesses) Start(ctx context.Context, c sandpit.Command) (sandpit.Process, error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.Args[0], c.Args[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = c.Dir, []string{}, c.Stdout, c.Stderr, outputWait
	for name, value := range c.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	input, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	switch {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return nil, sandpit.Errorf(sandpit.NotFound, "start the program on this machine: %w", err)
	case err != nil:
		return nil, sandpit.Errorf(sandpit.Unavailable, "start the program on this machine: %w", err)
	}
	p := &hostProcess{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_, _ = io.Copy(input, c.Stdin) // the program has ended, or its input has
		_ = input.Close()              // also closed by Wait
	}()
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // the status is in cmd.ProcessState
	}()
	return p, nil
}

// signalBase is added to the number of a signal that ended a process, as in a shell.
const signalBase = 128

// hostProcess is a program with everything that it starts in its session.
type hostProcess struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// PID implements sandpit.Process.
func (p *hostProcess) PID() int { return p.cmd.Process.Pid }

// ID implements sandpit.Process.
func (*hostProcess) ID() string { return "" }

// Signal implements sandpit.Process. It reaches the process group, which may outlive the program.
func (p *hostProcess) Signal(_ context.Context, s sandpit.Signal) error {
	err := syscall.Kill(-p.PID(), syscall.Signal(s))
	if errors.Is(err, syscall.ESRCH) {
		return sandpit.Errorf(sandpit.Gone, "the program has ended")
	}
	return err
}

// Resize implements sandpit.Process.
func (*hostProcess) Resize(context.Context, sandpit.TerminalSize) error {
	return sandpit.Errorf(sandpit.Conflict, "the program has no terminal")
}

// Wait implements sandpit.Process.
func (p *hostProcess) Wait(ctx context.Context) (sandpit.ExitStatus, error) {
	select {
	case <-p.ended:
	case <-ctx.Done():
		return sandpit.ExitStatus{}, ctx.Err()
	}
	status, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return sandpit.ExitStatus{Code: signalBase + int(status.Signal()), Signaled: true}, nil
	}
	return sandpit.ExitStatus{Code: p.cmd.ProcessState.ExitCode()}, nil
}
