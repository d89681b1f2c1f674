package providertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func cancelChecks() []check {
	return []check{
		{"create", cancelCreate},
		{"destroy", cancelDestroy},
		{"start", cancelStart},
		{"process", cancelProcess},
		{"read a file", cancelRead},
		{"write a file", cancelWrite},
		{"trees", cancelTrees},
		{"dial", cancelDial},
		{"watch", cancelWatch},
	}
}

// soon returns a context that is canceled after a delay.
func (c *trial) soon(after time.Duration) context.Context {
	ctx, cancel := context.WithCancel(c.ctx())
	if after == 0 {
		cancel()
		return ctx
	}
	timer := time.AfterFunc(after, cancel)
	c.Cleanup(func() { timer.Stop(); cancel() })
	return ctx
}

// cancelCreate cancels at every step of a creation. Create fails and leaves nothing, or it succeeds.
func cancelCreate(c *trial) {
	made, delays := 0, []int{0, 1, 2, 5, 10, 20, 40, 60, 80, 100, 200, 400}
	for _, ms := range delays {
		doing := fmt.Sprintf("create, given up after %d ms", ms)
		id := sandpit.NewID()
		box, err := c.provider.Create(c.soon(time.Duration(ms)*time.Millisecond), id, c.Spec)
		_, listed := c.placement(c.provider, id)
		if err != nil {
			c.wantCode(err, doing, sandpit.Canceled)
			if listed {
				c.Errorf("%s: it is listed", doing)
			}
			continue
		}
		made++
		c.must(box.Destroy(c.ctx()), "destroy")
		if ms == 0 {
			c.Errorf("%s: it was made", doing)
		}
	}
	c.Logf("%d of %d were quicker", made, len(delays))
	equal(c, "output", c.shellIn(c.newBox(), "echo works"), "works\n")
}

func cancelDestroy(c *trial) {
	box := c.newBox()
	for _, ms := range []int{0, 1, 5} {
		if err := box.Destroy(c.soon(time.Duration(ms) * time.Millisecond)); err != nil {
			c.wantCode(err, "destroy, given up", sandpit.Canceled)
		}
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	if _, ok := c.placement(c.provider, box.ID()); ok {
		c.Error("it is listed after destroy")
	}
}

func cancelStart(c *trial) {
	dir := c.dir()
	for _, ms := range []int{0, 0, 1, 2, 5, 10, 20} {
		cmd := shellCommand(`echo started >> "$1/log"; echo out; sleep 0.05`, dir)
		var out strings.Builder
		cmd.Stdout = &out
		p, err := c.guest().Start(c.soon(time.Duration(ms)*time.Millisecond), cmd)
		if err != nil {
			c.wantCode(err, "start, given up", sandpit.Canceled)
			continue
		}
		if ms == 0 {
			c.Error("a process was started for a canceled call")
		}
		if _, err := p.Wait(c.ctx()); err != nil {
			c.wantCode(err, "wait, given up", sandpit.Canceled)
		}
	}
	equal(c, "output", c.shell("echo works"), "works\n")
}

// cancelProcess cancels waiting, and then following.
func cancelProcess(c *trial) {
	follow, giveUp := context.WithCancel(c.ctx())
	defer giveUp()
	p, err := c.guest().Start(follow, sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(err, "start")
	_, err = p.Wait(c.soon(20 * time.Millisecond))
	c.wantCode(err, "wait, given up", sandpit.Canceled)
	giveUp()
	_, err = p.Wait(c.ctx())
	c.wantCode(err, "wait for a process without a follower", sandpit.Canceled)
	if !c.isListed(p.PID()) {
		c.Error("the process has ended with its caller")
	}
	c.must(p.Signal(c.ctx(), sandpit.SIGKILL), "kill")
	again, err := c.guest().Connect(c.ctx(), p.PID(), sandpit.Streams{})
	c.must(err, "connect")
	equal(c, "exit code", c.wait(again).Code, 137)
}

func cancelRead(c *trial) {
	name := c.dir() + "/big"
	c.shell(`head -c 67108864 /dev/zero > "$1"`, name)
	for _, ms := range []int{0, 1, 5, 20} {
		r, err := c.guest().ReadFile(c.soon(time.Duration(ms)*time.Millisecond), "", name)
		if err == nil {
			time.Sleep(time.Duration(ms) * time.Millisecond) // more data waits than buffers can hold
			_, err = io.Copy(io.Discard, r)
			c.must(r.Close(), "close")
		}
		c.wantCode(err, fmt.Sprintf("read, given up after %d ms", ms), sandpit.Canceled)
	}
	r, err := c.guest().ReadFile(c.ctx(), "", name)
	c.must(err, "read")
	_, err = io.CopyN(io.Discard, r, 100)
	c.must(errors.Join(err, r.Close()), "close before the end")
}

// blocked is a reader that never returns.
type blocked struct{ closed chan struct{} }

func (b blocked) Read([]byte) (int, error) {
	<-b.closed
	return 0, io.ErrClosedPipe
}

func (c *trial) blocked(first string) io.Reader {
	b := blocked{make(chan struct{})}
	c.Cleanup(func() { close(b.closed) })
	return io.MultiReader(strings.NewReader(first), b)
}

func cancelWrite(c *trial) {
	name := c.dir() + "/file"
	c.put(name, "before")
	c.promptly("write, given up", func() {
		err := c.guest().WriteFile(c.soon(50*time.Millisecond), "", name, c.blocked("after"), sandpit.WriteOptions{})
		c.wantCode(err, "write, given up", sandpit.Canceled)
	})
	equal(c, "the file", c.get(name), "before")
	failing := io.MultiReader(strings.NewReader("after"), failingReader{})
	if err := c.guest().WriteFile(c.ctx(), "", name, failing, sandpit.WriteOptions{}); !errors.Is(err, errFailing) {
		c.Errorf("write what cannot be read: %v, want the reader's error", err)
	}
	equal(c, "the file", c.get(name), "before")
}

var errFailing = errors.New("the content cannot be read")

type failingReader struct{}

func (failingReader) Read([]byte) (int, error) { return 0, errFailing }

func cancelTrees(c *trial) {
	dir := c.dir()
	c.shell(`head -c 67108864 /dev/zero > "$1/big"`, dir)
	r, err := c.guest().ReadTree(c.soon(10*time.Millisecond), "", dir)
	if err == nil {
		time.Sleep(20 * time.Millisecond)
		_, err = io.Copy(io.Discard, r)
		c.must(r.Close(), "close")
	}
	c.wantCode(err, "read a tree, given up", sandpit.Canceled)
	c.promptly("write a tree, given up", func() {
		err := c.guest().WriteTree(c.soon(50*time.Millisecond), "", dir+"/new", c.blocked(""))
		c.wantCode(err, "write a tree, given up", sandpit.Canceled)
	})
}

func cancelDial(c *trial) {
	d := ability[sandpit.Dialer](c, c.box, "Dialer")
	conn, err := d.Dial(c.soon(0), 1)
	if err == nil {
		_ = conn.Close()
	}
	c.wantCode(err, "dial, given up", sandpit.Canceled)
}

func cancelWatch(c *trial) {
	dir := c.dir()
	watching, giveUp := context.WithCancel(c.ctx())
	defer giveUp()
	w, err := c.guest().Watch(watching, "", dir, sandpit.WatchOptions{})
	c.must(err, "watch")
	_, err = w.Next(c.soon(20 * time.Millisecond))
	c.wantCode(err, "next, given up", sandpit.Canceled)
	c.put(dir+"/file", "x")
	e, err := w.Next(c.ctx())
	c.must(err, "the next event")
	equal(c, "event", e.Type, sandpit.FileCreated)
	giveUp()
	c.eventually("the end of the watch", func() bool {
		_, err := w.Next(c.ctx())
		if err != nil {
			c.wantCode(err, "watch, given up", sandpit.Canceled)
		}
		return err != nil
	})
	c.must(w.Close(), "close")
	_, err = c.guest().Watch(c.soon(0), "", dir, sandpit.WatchOptions{})
	c.wantCode(err, "watch with a canceled context", sandpit.Canceled)
}
