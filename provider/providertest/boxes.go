package providertest

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// guestCalls are calls that fail when the sandbox does not run.
func guestCalls() []named[func(context.Context, sandpit.Instance) error] {
	type call = func(context.Context, sandpit.Instance) error
	return []named[call]{
		{"start", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().Start(ctx, sandpit.Command{Args: []string{"true"}})
			return err
		}},
		{"list processes", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().ListProcesses(ctx)
			return err
		}},
		{"connect", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().Connect(ctx, 1, sandpit.Streams{})
			return err
		}},
		{"read a file", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().ReadFile(ctx, "", "/etc/passwd")
			return err
		}},
		{"write a file", func(ctx context.Context, i sandpit.Instance) error {
			return i.Guest().WriteFile(ctx, "", "f", strings.NewReader("x"), sandpit.WriteOptions{})
		}},
		{"stat", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().Stat(ctx, "", "/")
			return err
		}},
		{"list a directory", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().ListDir(ctx, "", "/", 1)
			return err
		}},
		{"read a tree", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().ReadTree(ctx, "", "/etc")
			return err
		}},
		{"watch", func(ctx context.Context, i sandpit.Instance) error {
			_, err := i.Guest().Watch(ctx, "", "/", sandpit.WatchOptions{})
			return err
		}},
		{"http", func(ctx context.Context, i sandpit.Instance) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox/", nil)
			if err != nil {
				return err
			}
			res, err := i.HTTP(1).RoundTrip(r)
			if err == nil {
				_ = res.Body.Close()
			}
			return err
		}},
		{"dial", func(ctx context.Context, i sandpit.Instance) error {
			d, ok := i.(sandpit.Dialer)
			if !ok {
				_, err := i.Guest().Stat(ctx, "", "/")
				return err
			}
			conn, err := d.Dial(ctx, 1)
			if err == nil {
				_ = conn.Close()
			}
			return err
		}},
	}
}

func specInside(c *trial) {
	spec := c.Spec.Clone()
	spec.Env = map[string]string{"GREETING": "good day = 'ä'\n"}
	spec.WorkDir = "/made/for/this"
	spec.Hostname = "some-host"
	if c.Isolated {
		spec.User = "1234:2345"
	}
	box := c.createWith(c.provider, spec)
	equal(c, "environment", c.shellIn(box, `printf %s "$GREETING"`), spec.Env["GREETING"])
	dir := c.shellIn(box, "pwd")
	if !c.Isolated {
		if !strings.HasSuffix(dir, spec.WorkDir+"\n") {
			c.Errorf("working directory: got %q, want one that ends in %s", dir, spec.WorkDir)
		}
		return
	}
	equal(c, "working directory", dir, spec.WorkDir+"\n")
	equal(c, "host name", c.shellIn(box, "cat /proc/sys/kernel/hostname"), "some-host\n")
	equal(c, "user", c.shellIn(box, "id -u; id -g"), "1234\n2345\n")
	c.shellIn(box, "echo mine > here") // the directory was created for the user
}

func sandboxesApart(c *trial) {
	a, b := c.newBox(), c.newBox()
	c.shellIn(a, "echo mine > left-by-a; (sleep 1000 >/dev/null 2>&1 &)")
	equal(c, "the other's files", c.shellIn(b, "ls"), "")
	if c.Isolated {
		c.shellIn(a, "echo mine > /tmp/left-by-a")
		equal(c, "the other's files", c.shellIn(b, "ls /tmp"), "")
		const sleepers = `for f in /proc/[0-9]*/comm; do cat "$f"; done 2>/dev/null | grep -c sleep; :`
		equal(c, "the other's processes", c.shellIn(b, sleepers), "0\n")
	}
	if !strings.HasPrefix(string(a.ID()), "s") || a.ID() == b.ID() {
		c.Errorf("ids %s and %s", a.ID(), b.ID())
	}
	c.must(a.Destroy(c.ctx()), "destroy one")
	equal(c, "the other one", c.shellIn(b, "echo unharmed"), "unharmed\n")
}

func manyAtOnce(c *trial) {
	const boxes = 8
	ctx := c.ctx()
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() {
			if err := one(ctx, c.provider, c.Spec, i); err != nil {
				c.Errorf("sandbox %d: %v", i, err)
			}
		})
	}
	c.promptly("many sandboxes", wg.Wait)
}

// one creates, uses and destroys a sandbox.
func one(ctx context.Context, p sandpit.Provider, spec sandpit.Spec, number int) error {
	spec = spec.Clone()
	spec.Env = map[string]string{"NUMBER": strconv.Itoa(number)}
	box, err := p.Create(ctx, sandpit.NewID(), spec)
	if err != nil {
		return err
	}
	var out strings.Builder
	cmd := shellCommand(`printf %s "$NUMBER"`)
	cmd.Stdout = &out
	process, err := box.Guest().Start(ctx, cmd)
	if err == nil {
		_, err = process.Wait(ctx)
	}
	if err == nil && out.String() != strconv.Itoa(number) {
		err = fmt.Errorf("it says %q, want its own number", out.String())
	}
	if destroyed := box.Destroy(ctx); err == nil {
		err = destroyed
	}
	return err
}
