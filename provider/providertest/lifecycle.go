package providertest

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func lifecycleChecks() []check {
	return []check{
		{"create and use and destroy", createUseDestroy},
		{"destroy is idempotent", destroyTwice},
		{"destroy by many at once", destroyByMany},
		{"destroy ends what runs", destroyEndsProcesses},
		{"destroyed sandboxes are gone", goneAfterDestroy},
		{"wait by many", waitByMany},
		{"an id is taken once", idTakenOnce},
		{"an id is free after destroy", idFreeAgain},
		{"ids that cannot be", badIDs},
		{"specs that cannot be", badSpecs},
		{"list returns specs", listReturnsSpecs},
		{"list and handle contain no secrets", noSecrets},
		{"the spec stays the caller's", specIsAValue},
		{"what the spec says is so inside", specInside},
		{"sandboxes are apart", sandboxesApart},
		{"killed from outside", killedFromOutside},
		{"many at once", manyAtOnce},
		{"closing twice", closeTwice},
	}
}

func createUseDestroy(c *trial) {
	id := sandpit.NewID()
	box, err := c.provider.Create(c.ctx(), id, c.Spec)
	c.must(err, "create")
	c.destroyAtEnd(box)
	equal(c, "id", box.ID(), id)
	if first, second := box.Guest(), box.Guest(); first != second {
		c.Error("the guest is another on the second call")
	}
	if n := len(box.Handle()); n == 0 || n > 4<<10 {
		c.Errorf("the handle has %d bytes, want 1 to 4096", n)
	}
	equal(c, "output", c.shellIn(box, "echo hello"), "hello\n")
	if _, ok := c.placement(c.provider, id); !ok {
		c.Error("it is not listed")
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	if _, ok := c.placement(c.provider, id); ok {
		c.Error("it is listed after destroy")
	}
	exit, err := box.Wait(c.ctx())
	c.must(err, "wait after destroy")
	if exit.Reason == "" {
		c.Errorf("the exit has no reason: %+v", exit)
	}
	_, err = c.provider.Attach(c.ctx(), box.Handle())
	c.wantCode(err, "attach after destroy", sandpit.NotFound)
}

func destroyTwice(c *trial) {
	box := c.newBox()
	for range 3 {
		if err := box.Destroy(c.ctx()); err != nil {
			c.Errorf("destroy: %v", err)
		}
	}
}

func destroyByMany(c *trial) {
	box := c.newBox()
	other, err := c.provider.Attach(c.ctx(), box.Handle())
	c.must(err, "attach")
	ctx := c.ctx()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			if err := []sandpit.Instance{box, other}[i%2].Destroy(ctx); err != nil {
				c.Errorf("destroy: %v", err)
			}
		})
	}
	c.promptly("destroy by many", wg.Wait)
	if _, ok := c.placement(c.provider, box.ID()); ok {
		c.Error("it is listed after destroy")
	}
}

func destroyEndsProcesses(c *trial) {
	box := c.newBox()
	p, err := box.Guest().Start(c.ctx(), sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(err, "start")
	c.must(box.Destroy(c.ctx()), "destroy")
	_, err = p.Wait(c.ctx())
	c.wantCode(err, "wait for a process of a destroyed sandbox", sandpit.Gone)
}

func goneAfterDestroy(c *trial) {
	box := c.newBox()
	watcher, err := box.Guest().Watch(c.ctx(), "", c.workDirOf(box), sandpit.WatchOptions{})
	c.must(err, "watch")
	c.must(box.Destroy(c.ctx()), "destroy")
	for _, call := range guestCalls() {
		c.wantCode(call.value(c.ctx(), box), call.name, sandpit.Gone)
	}
	_, err = watcher.Next(c.ctx())
	c.wantCode(err, "the next event", sandpit.Gone)
	c.must(watcher.Close(), "close the watcher")
}

func waitByMany(c *trial) {
	box := c.newBox()
	ctx, cancel := context.WithTimeout(c.ctx(), 50*time.Millisecond)
	_, err := box.Wait(ctx)
	cancel()
	c.wantCode(err, "wait with a deadline", sandpit.Timeout)
	ctx = c.ctx()
	exits := make([]sandpit.Exit, 5)
	var wg sync.WaitGroup
	for i := range exits {
		wg.Go(func() {
			var err error
			if exits[i], err = box.Wait(ctx); err != nil {
				c.Errorf("wait: %v", err)
			}
		})
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	c.promptly("wait by many", wg.Wait)
	late, err := box.Wait(c.ctx())
	c.must(err, "wait after the end")
	for _, exit := range append(exits, late) {
		if exit.Reason == "" {
			c.Errorf("an exit has no reason: %+v", exit)
		}
	}
}

func idTakenOnce(c *trial) {
	id, ctx := sandpit.NewID(), c.ctx()
	boxes := make([]sandpit.Instance, 3)
	errs := make([]error, len(boxes))
	var wg sync.WaitGroup
	for i := range boxes {
		wg.Go(func() { boxes[i], errs[i] = c.provider.Create(ctx, id, c.Spec) })
	}
	c.promptly("create", wg.Wait)
	var winner sandpit.Instance
	for i, err := range errs {
		switch {
		case err != nil:
			c.wantCode(err, "the same id", sandpit.AlreadyExists)
		case winner != nil:
			c.Error("the same id was given away twice")
		default:
			winner = boxes[i]
		}
	}
	if winner == nil {
		c.Fatal("no call got the id")
	}
	c.destroyAtEnd(winner)
	_, err := c.provider.Create(c.ctx(), id, c.Spec)
	c.wantCode(err, "the same id again", sandpit.AlreadyExists)
	equal(c, "the first one", c.shellIn(winner, "echo unharmed"), "unharmed\n")
}

func idFreeAgain(c *trial) {
	box := c.newBox()
	c.must(box.Destroy(c.ctx()), "destroy")
	again, err := c.provider.Create(c.ctx(), box.ID(), c.Spec)
	c.must(err, "create with the id of one that was destroyed")
	c.destroyAtEnd(again)
	c.must(box.Destroy(c.ctx()), "destroy the first again")
}

func badIDs(c *trial) {
	for _, id := range []sandpit.ID{"", "x", "../../../../etc/passwd", "SAAAAAAAAAAAAAAAAAAA", "saaaaaaaaaaaaaaaaaa\n", sandpit.NewID() + "a"} {
		_, err := c.provider.Create(c.ctx(), id, c.Spec)
		c.wantCode(err, "id "+string(id), sandpit.Invalid)
	}
}

func badSpecs(c *trial) {
	for name, change := range map[string]func(*sandpit.Spec){
		"environment name with an equals sign": func(s *sandpit.Spec) { s.Env = map[string]string{"A=B": "c"} },
		"environment without a name":           func(s *sandpit.Spec) { s.Env = map[string]string{"": "c"} },
		"environment with a NUL byte":          func(s *sandpit.Spec) { s.Env = map[string]string{"A": "b\x00c"} },
		"relative working directory":           func(s *sandpit.Spec) { s.WorkDir = "work" },
		"host name with a space":               func(s *sandpit.Spec) { s.Hostname = "a b" },
		"unknown user":                         func(s *sandpit.Spec) { s.User = "nobody-knows" },
	} {
		spec := c.Spec.Clone()
		change(&spec)
		id := sandpit.NewID()
		_, err := c.provider.Create(c.ctx(), id, spec)
		c.wantCode(err, name, sandpit.Invalid)
		if _, ok := c.placement(c.provider, id); ok {
			c.Errorf("%s: it is listed", name)
		}
	}
}

func listReturnsSpecs(c *trial) {
	spec := c.Spec.Clone()
	spec.Name = "a name, with ünicode"
	spec.Labels = map[string]string{"owner": "me", "empty": ""}
	before := time.Now()
	box := c.createWith(c.provider, spec)
	after := time.Now()
	got, ok := c.placement(c.provider, box.ID())
	if !ok {
		c.Fatal("it is not listed")
	}
	equal(c, "name", got.Spec.Name, spec.Name)
	equal(c, "number of labels", len(got.Spec.Labels), len(spec.Labels))
	for k, v := range spec.Labels {
		if value, ok := got.Spec.Labels[k]; !ok || value != v {
			c.Errorf("label %s: got %q, want %q", k, value, v)
		}
	}
	const slack = time.Minute // another machine's clock may be used
	if got.CreatedAt.Before(before.Add(-slack)) || got.CreatedAt.After(after.Add(slack)) {
		c.Errorf("created at %s, want about %s", got.CreatedAt, before)
	}
	attached, err := c.provider.Attach(c.ctx(), got.Handle)
	c.must(err, "attach by the listed handle")
	equal(c, "id", attached.ID(), box.ID())
}

func noSecrets(c *trial) {
	const secret = "hush-hush-7e1f" //nolint:gosec // made up
	spec := c.Spec.Clone()
	spec.Env = map[string]string{"KEY": secret}
	box := c.createWith(c.provider, spec)
	equal(c, "the variable inside", c.shellIn(box, `printf %s "$KEY"`), secret)
	listed, _ := c.placement(c.provider, box.ID())
	text, err := json.Marshal(listed)
	c.must(err, "encode")
	if strings.Contains(string(text), secret) {
		c.Errorf("the list contains a secret: %s", text)
	}
	for _, handle := range [][]byte{box.Handle(), listed.Handle} {
		if strings.Contains(string(handle), secret) {
			c.Errorf("the handle contains a secret: %q", handle)
		}
	}
}

func specIsAValue(c *trial) {
	spec := c.Spec.Clone()
	spec.Labels = map[string]string{"a": "before"}
	box := c.createWith(c.provider, spec)
	spec.Labels["a"], spec.Labels["b"] = "after", "after"
	got, _ := c.placement(c.provider, box.ID())
	equal(c, "label", got.Spec.Labels["a"], "before")
	if got.Spec.Labels != nil {
		got.Spec.Labels["a"] = "changed in the list"
	}
	got, _ = c.placement(c.provider, box.ID())
	equal(c, "label", got.Spec.Labels["a"], "before")
	equal(c, "number of labels", len(got.Spec.Labels), 1)
}

func killedFromOutside(c *trial) {
	if c.Kill == nil {
		c.Skip("this provider's sandboxes cannot be killed from outside here")
	}
	p := c.New(c.T)
	box := c.createWith(p, c.Spec)
	sleeper, err := box.Guest().Start(c.ctx(), sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(err, "start")
	c.Kill(c.T, p, box.ID())
	exit, err := box.Wait(c.ctx())
	c.must(err, "wait")
	if exit.Reason == "" {
		c.Errorf("the exit has no reason: %+v", exit)
	}
	_, err = sleeper.Wait(c.ctx())
	c.wantCode(err, "wait for a process in it", sandpit.Gone)
	for _, call := range guestCalls() {
		c.wantCode(call.value(c.ctx(), box), call.name, sandpit.Gone)
	}
	c.must(box.Destroy(c.ctx()), "destroy what is left")
	if _, ok := c.placement(p, box.ID()); ok {
		c.Error("it is listed after destroy")
	}
	equal(c, "another one", c.shellIn(c.createWith(p, c.Spec), "echo works"), "works\n")
}

func closeTwice(c *trial) {
	p := c.New(c.T)
	box, err := p.Create(c.ctx(), sandpit.NewID(), c.Spec)
	c.must(err, "create")
	c.must(box.Destroy(c.ctx()), "destroy")
	c.must(p.Close(), "close")
	c.must(p.Close(), "close again")
	if _, err = p.Create(c.ctx(), sandpit.NewID(), c.Spec); err == nil {
		c.Error("a closed provider makes sandboxes")
	}
}
