package providertest

import (
	"bytes"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

func crashChecks() []check {
	return []check{
		{"list and attach", attachAfterCrash},
		{"follow what ran before", followAfterCrash},
		{"both see the end", bothSeeTheEnd},
		{"the same id from two programs", idAcrossPrograms},
		{"bad handles", badHandles},
	}
}

// reopen returns a second provider beside p.
func (c *trial) reopen(p sandpit.Provider) sandpit.Provider {
	c.Helper()
	if c.Reopen == nil {
		c.Skip("this provider's state cannot be opened again here")
	}
	return c.Reopen(c.T, p)
}

func attachAfterCrash(c *trial) {
	spec := c.Spec.Clone()
	spec.Name = "found again"
	spec.Labels = map[string]string{"who": "the first"}
	spec.Env = map[string]string{"KEPT": "yes"}
	box := c.createWith(c.provider, spec)
	c.shellIn(box, "echo by the first > left")

	second := c.reopen(c.provider)
	found, ok := c.placement(second, box.ID())
	if !ok {
		c.Fatal("the second provider does not list it")
	}
	equal(c, "name", found.Spec.Name, spec.Name)
	equal(c, "label", found.Spec.Labels["who"], "the first")
	for name, handle := range map[string][]byte{"listed": found.Handle, "its own": box.Handle()} {
		attached, err := second.Attach(c.ctx(), handle)
		c.must(err, "attach by the handle "+name)
		equal(c, "id", attached.ID(), box.ID())
		equal(c, "what the first has left", c.shellIn(attached, "cat left"), "by the first\n")
		equal(c, "environment", c.shellIn(attached, `echo "$KEPT"`), "yes\n")
	}
	equal(c, "the first's own", c.shellIn(box, "echo works still"), "works still\n")
}

func followAfterCrash(c *trial) {
	box := c.newBox()
	cmd := shellCommand("while ! test -e go; do sleep 0.05; done; echo late; exit 7")
	cmd.Tag = "before"
	c.startIn(box, cmd)
	attached, err := c.reopen(c.provider).Attach(c.ctx(), box.Handle())
	c.must(err, "attach")
	list, err := attached.Guest().ListProcesses(c.ctx())
	c.must(err, "list processes")
	if len(list) != 1 || list[0].Tag != "before" {
		c.Fatalf("processes: %+v, want the one that was started", list)
	}
	var out bytes.Buffer
	p, err := attached.Guest().Connect(c.ctx(), list[0].PID, sandpit.Streams{Stdout: &out})
	c.must(err, "connect")
	c.shellIn(attached, ": > go")
	equal(c, "exit code", c.wait(p).Code, 7)
	equal(c, "output", out.String(), "late\n")
}

func bothSeeTheEnd(c *trial) {
	box := c.newBox()
	second := c.reopen(c.provider)
	attached, err := second.Attach(c.ctx(), box.Handle())
	c.must(err, "attach")
	ctx := c.ctx()
	var wg sync.WaitGroup
	for _, i := range []sandpit.Instance{box, attached} {
		wg.Go(func() {
			if exit, err := i.Wait(ctx); err != nil || exit.Reason == "" {
				c.Errorf("wait: %+v, %v", exit, err)
			}
		})
	}
	c.must(attached.Destroy(c.ctx()), "destroy by the second")
	c.promptly("wait", wg.Wait)
	for _, i := range []sandpit.Instance{box, attached} {
		_, err := i.Guest().Start(c.ctx(), sandpit.Command{Args: []string{"true"}})
		c.wantCode(err, "start after destroy", sandpit.Gone)
	}
	for _, p := range []sandpit.Provider{c.provider, second} {
		if _, ok := c.placement(p, box.ID()); ok {
			c.Error("it is listed after destroy")
		}
	}
	c.must(box.Destroy(c.ctx()), "destroy by the first")
	_, err = second.Attach(c.ctx(), box.Handle())
	c.wantCode(err, "attach after destroy", sandpit.NotFound)
}

func idAcrossPrograms(c *trial) {
	box := c.newBox()
	second := c.reopen(c.provider)
	_, err := second.Create(c.ctx(), box.ID(), c.Spec)
	c.wantCode(err, "create with the id of the first one's", sandpit.AlreadyExists)
	equal(c, "the first one's", c.shellIn(box, "echo unharmed"), "unharmed\n")
}

func badHandles(c *trial) {
	whole := c.newBox().Handle()
	handles := [][]byte{
		nil,
		{},
		[]byte("x"), []byte("{}"), []byte("null"), []byte("[]"), []byte(`"../../etc/passwd"`),
		{0, 1, 2, 0xff},
		bytes.Repeat([]byte("a"), 1<<20), whole[:len(whole)-1], append(bytes.Clone(whole), "{}"...),
	}
	for _, handle := range handles {
		_, err := c.provider.Attach(c.ctx(), handle)
		if len(handle) > 100 {
			handle = handle[:100]
		}
		c.wantCode(err, "handle "+string(handle), sandpit.Invalid)
	}
}
