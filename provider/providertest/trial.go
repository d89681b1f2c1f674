package providertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// trial is one running check. Its methods are what the checks of several files use; what those of one
// file need is a function of that file.
type trial struct {
	*testing.T
	*suite
}

// ctx returns a context that ends before the check counts as hanging.
func (c *trial) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.Context(), c.Patience)
	c.Cleanup(cancel)
	return ctx
}

// guest returns the guest of the shared sandbox.
func (c *trial) guest() sandpit.Guest { return c.box.Guest() }

// must ends the check if err is not nil.
func (c *trial) must(err error, doing string) {
	c.Helper()
	if err != nil {
		c.Fatalf("%s: %v (%s; hint: %s)", doing, err, sandpit.CodeOf(err), sandpit.HintOf(err))
	}
}

// wantCode fails the check unless err has one of these codes.
func (c *trial) wantCode(err error, doing string, want ...sandpit.Code) {
	c.Helper()
	if got := sandpit.CodeOf(err); !slices.Contains(want, got) {
		c.Errorf("%s: got the error %v, code %q; want the code %q", clip(doing), clip(fmt.Sprint(err)), got, want)
	}
}

// equal fails the check unless both are equal.
func equal[T comparable](c *trial, what string, got, want T) {
	c.Helper()
	if got != want {
		c.Errorf("%s: got %v, want %v", what, short(got), short(want))
	}
}

// clip shortens long texts for messages.
func clip(text string) string {
	const maxLength = 500
	return textlen.Shorten(text, maxLength)
}

// short formats a value for a message.
func short(v any) string {
	if text, ok := v.(string); ok {
		return strconv.Quote(clip(text))
	}
	return fmt.Sprint(v)
}

// eventually waits until is returns true, and fails the check if it never does.
func (c *trial) eventually(what string, is func() bool) {
	c.Helper()
	ctx := c.ctx()
	for !is() {
		select {
		case <-ctx.Done():
			c.Fatalf("never came: %s", what)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// promptly fails the check if do takes longer than a step may, without waiting for its end.
func (c *trial) promptly(what string, do func()) {
	c.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		do()
	}()
	select {
	case <-done:
	case <-time.After(c.Patience):
		c.Fatalf("hangs: %s", what)
	}
}

// newBox creates a sandbox, and destroys it when the check ends.
func (c *trial) newBox() sandpit.Instance {
	c.Helper()
	return c.createWith(c.provider, c.Spec)
}

func (c *trial) createWith(p sandpit.Provider, spec sandpit.Spec) sandpit.Instance {
	c.Helper()
	box, err := p.Create(c.ctx(), sandpit.NewID(), spec)
	c.must(err, "create a sandbox")
	c.destroyAtEnd(box)
	return box
}

// cleanupContext returns a context for the cleanup of a check.
func (c *trial) cleanupContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(c.Context()), c.Patience)
}

func (c *trial) destroyAtEnd(box sandpit.Instance) {
	c.Cleanup(func() {
		ctx, cancel := c.cleanupContext()
		defer cancel()
		if err := box.Destroy(ctx); err != nil {
			c.Errorf("destroy %s at the end: %v", box.ID(), err)
		}
	})
}

// result is a command that has ended.
type result struct {
	stdout, stderr string
	status         sandpit.ExitStatus
}

// exec runs a command in the shared sandbox.
func (c *trial) exec(cmd sandpit.Command) result {
	c.Helper()
	return c.execIn(c.box, cmd)
}

func (c *trial) execIn(box sandpit.Instance, cmd sandpit.Command) result {
	c.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	status := c.wait(c.startIn(box, cmd))
	return result{stdout.String(), stderr.String(), status}
}

// start starts a command in the shared sandbox and kills it when the check ends.
func (c *trial) start(cmd sandpit.Command) sandpit.Process {
	c.Helper()
	return c.startIn(c.box, cmd)
}

func (c *trial) startIn(box sandpit.Instance, cmd sandpit.Command) sandpit.Process {
	c.Helper()
	p, err := box.Guest().Start(c.ctx(), cmd)
	c.must(err, "start "+strings.Join(cmd.Args, " "))
	c.killAtEnd(p)
	return p
}

func (c *trial) killAtEnd(p sandpit.Process) {
	c.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(c.Context()), c.Patience)
		defer cancel()
		if err := p.Signal(ctx, sandpit.SIGKILL); err == nil { // otherwise it has ended, as it should
			_, _ = p.Wait(ctx)
		}
	})
}

func (c *trial) wait(p sandpit.Process) sandpit.ExitStatus {
	c.Helper()
	status, err := p.Wait(c.ctx())
	c.must(err, "wait for the process")
	return status
}

// shell runs a script in the shared sandbox and returns what it prints. It must
// succeed and print nothing to its standard error.
func (c *trial) shell(script string, args ...string) string {
	c.Helper()
	return c.shellIn(c.box, script, args...)
}

func (c *trial) shellIn(box sandpit.Instance, script string, args ...string) string {
	c.Helper()
	r := c.execIn(box, shellCommand(script, args...))
	if r.status.Code != 0 || r.stderr != "" {
		c.Fatalf("script %s: %s\n%s%s", script, r.status, r.stdout, r.stderr)
	}
	return r.stdout
}

// shellCommand returns a command that runs a shell script; args are $1 and so on.
func shellCommand(script string, args ...string) sandpit.Command {
	return sandpit.Command{Args: append([]string{"sh", "-c", script, "sh"}, args...)}
}

// workDirOf returns the working directory of a sandbox's commands.
func (c *trial) workDirOf(box sandpit.Instance) string {
	c.Helper()
	return strings.TrimSuffix(c.shellIn(box, "pwd"), "\n")
}

// dir creates a directory for this check in the shared sandbox.
func (c *trial) dir() string {
	c.Helper()
	return c.dirIn(c.box, c.workDir)
}

func (c *trial) dirIn(box sandpit.Instance, parent string) string {
	c.Helper()
	dir := path.Join(parent, "check-"+string(sandpit.NewID()))
	c.must(box.Guest().MakeDir(c.ctx(), "", dir), "make a directory")
	return dir
}

// put writes a file in the shared sandbox.
func (c *trial) put(name, content string) {
	c.Helper()
	err := c.guest().WriteFile(c.ctx(), "", name, strings.NewReader(content), sandpit.WriteOptions{})
	c.must(err, "write "+name)
}

// get reads a file in the shared sandbox.
func (c *trial) get(name string) string {
	c.Helper()
	r, err := c.guest().ReadFile(c.ctx(), "", name)
	return c.readAll(r, err)
}

func (c *trial) readAll(r io.ReadCloser, err error) string {
	c.Helper()
	c.must(err, "open")
	data, err := io.ReadAll(r)
	c.must(errors.Join(err, r.Close()), "read")
	return string(data)
}

// hasProgram reports whether the shared sandbox has a program.
func (c *trial) hasProgram(program string) bool {
	c.Helper()
	return c.exec(shellCommand(`command -v "$1"`, program)).status.Code == 0
}

// isAlive reports whether a process of the shared sandbox runs.
func (c *trial) isAlive(pid string) bool {
	c.Helper()
	const script = `test -d "/proc/$1" && ! grep -q '^State:.[ZX]' "/proc/$1/status"`
	return c.exec(shellCommand(script, pid)).status.Code == 0
}

// placement returns the entry of a sandbox in a provider's list.
func (c *trial) placement(p sandpit.Provider, id sandpit.ID) (found sandpit.Placement, ok bool) {
	c.Helper()
	list, err := p.List(c.ctx())
	c.must(err, "list the sandboxes")
	for _, one := range list {
		if one.ID != id {
			continue
		}
		if ok {
			c.Errorf("sandbox %s is listed twice", id)
		}
		found, ok = one, true
	}
	return found, ok
}
