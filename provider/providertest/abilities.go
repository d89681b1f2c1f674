package providertest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

func abilityChecks() []check {
	return []check{
		{"claim", claim},
		{"claim what cannot be", claimRefused},
		{"stop and start", stopAndStart},
		{"stopped ones are found again", startAfterCrash},
		{"destroy while stopped", destroyWhileStopped},
		{"pause and resume", pauseAndResume},
		{"destroy while paused", destroyWhilePaused},
		{"snapshot", snapshotAndCreate},
		{"resize", resize},
		{"stats", stats},
		{"network policy", networkPolicy},
		{"state that can change", readState},
		{"renew", renew},
		{"abilities of what is gone", abilitiesGone},
	}
}

// ability returns an ability of an instance, or skips the check.
func ability[T any](c *trial, box sandpit.Instance, name string) T {
	c.Helper()
	able, ok := box.(T)
	if !ok {
		c.Skipf("this provider has no %s", name)
	}
	return able
}

// claim claims a sandbox and checks that its earlier users have lost access.
func claim(c *trial) {
	box := c.newBox()
	claimer := ability[sandpit.Claimer](c, box, "Claimer")
	stranger, err := c.provider.Attach(c.ctx(), box.Handle()) // with the current key
	c.must(err, "attach")
	made, ok := c.placement(c.provider, box.ID())
	if !ok {
		c.Fatal("the sandbox is not listed")
	}
	spec := made.Spec.Clone()
	spec.Labels = map[string]string{"claimed": "yes"}
	spec.Env = map[string]string{"CLAIMED": "by a caller"}
	c.shellIn(box, "echo of the warm-up")
	stays, err := box.Guest().Start(c.ctx(), sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(err, "start a process that stays")

	c.must(claimer.Claim(c.ctx(), spec), "claim")
	if journal, ok := sandpit.As[sandpit.Journal](box.Guest()); ok {
		list, err := journal.ListCommands(c.ctx())
		c.must(err, "list the commands")
		equal(c, "commands of the earlier users", len(list), 0)
		_, err = journal.GetCommand(c.ctx(), stays.ID())
		c.wantCode(err, "look at one that runs", sandpit.NotFound)
	}
	equal(c, "environment", c.shellIn(box, `echo "$CLAIMED"`), "by a caller\n")
	_, err = stranger.Guest().ListProcesses(c.ctx())
	c.wantCode(err, "with the key from before", sandpit.Unauthenticated)
	again, err := c.provider.Attach(c.ctx(), box.Handle())
	c.must(err, "attach")
	equal(c, "environment", c.shellIn(again, `echo "$CLAIMED"`), "by a caller\n")
	listed, _ := c.placement(c.provider, box.ID())
	equal(c, "labels", fmt.Sprint(listed.Spec.Labels), fmt.Sprint(spec.Labels))
	equal(c, "variables that are listed", len(listed.Spec.Env), 0)
}

// claimRefused requests changes of what cannot change after a sandbox is created.
func claimRefused(c *trial) {
	box := c.newBox()
	claimer := ability[sandpit.Claimer](c, box, "Claimer")
	made, _ := c.placement(c.provider, box.ID())
	for what, change := range map[string]func(*sandpit.Spec){
		"image":     func(s *sandpit.Spec) { s.Image = "another" },
		"limits":    func(s *sandpit.Spec) { s.Resources.PIDs += 5 },
		"host name": func(s *sandpit.Spec) { s.Hostname = "another" },
	} {
		spec := made.Spec.Clone()
		change(&spec)
		c.wantCode(claimer.Claim(c.ctx(), spec), "claim with another "+what, sandpit.Invalid)
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	c.wantCode(claimer.Claim(c.ctx(), made.Spec), "claim what is gone", sandpit.Gone, sandpit.NotFound)
}

func stopAndStart(c *trial) {
	box := c.newBox()
	stopper := ability[sandpit.Stopper](c, box, "Stopper")
	dir := c.dirIn(box, c.workDirOf(box))
	c.shellIn(box, `echo kept > "$1/file"`, dir)
	sleeper, err := box.Guest().Start(c.ctx(), sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(err, "start a process")
	c.wantCode(stopper.Start(c.ctx()), "start what runs", sandpit.Conflict)

	c.must(stopper.Stop(c.ctx()), "stop")
	_, err = sleeper.Wait(c.ctx())
	c.wantCode(err, "wait for a process of a stopped sandbox", sandpit.Gone, sandpit.Conflict)
	c.wantCode(stopper.Stop(c.ctx()), "stop what is stopped", sandpit.Conflict)
	for _, call := range guestCalls() {
		c.wantCode(call.value(c.ctx(), box), call.name+" while stopped", sandpit.Conflict)
	}
	if _, ok := c.placement(c.provider, box.ID()); !ok {
		c.Error("a stopped sandbox is not listed")
	}
	ctx, cancel := context.WithTimeout(c.ctx(), 50*time.Millisecond)
	defer cancel()
	_, err = box.Wait(ctx)
	c.wantCode(err, "wait for the end of a stopped sandbox", sandpit.Timeout)

	c.must(stopper.Start(c.ctx()), "start")
	equal(c, "file", c.shellIn(box, `cat "$1/file"`, dir), "kept\n")
	list, err := box.Guest().ListProcesses(c.ctx())
	c.must(err, "list processes")
	equal(c, "processes after start", len(list), 0)
	attached, err := c.provider.Attach(c.ctx(), box.Handle())
	c.must(err, "attach")
	equal(c, "file", c.shellIn(attached, `cat "$1/file"`, dir), "kept\n")
}

// startAfterCrash has a second provider start a sandbox that the first has stopped.
func startAfterCrash(c *trial) {
	spec := c.Spec.Clone()
	spec.Labels = map[string]string{"who": "the first"}
	spec.Env = map[string]string{"KEPT": "yes"}
	box := c.createWith(c.provider, spec)
	stopper := ability[sandpit.Stopper](c, box, "Stopper")
	c.shellIn(box, "echo by the first > left")
	c.must(stopper.Stop(c.ctx()), "stop")
	second := c.reopen(c.provider)
	found, ok := c.placement(second, box.ID())
	if !ok {
		c.Fatal("the second provider does not list it")
	}
	equal(c, "label", found.Spec.Labels["who"], "the first")
	equal(c, "variables that are listed", len(found.Spec.Env), 0)
	_, err := second.Create(c.ctx(), box.ID(), spec)
	c.wantCode(err, "create with the id of a stopped one", sandpit.AlreadyExists)
	for name, handle := range map[string][]byte{"listed": found.Handle, "its own": box.Handle()} {
		attached, err := second.Attach(c.ctx(), handle)
		c.must(err, "attach by the handle "+name)
		theirs := ability[sandpit.Stopper](c, attached, "Stopper")
		c.wantCode(theirs.Stop(c.ctx()), "stop what is stopped", sandpit.Conflict)
		c.must(theirs.Start(c.ctx()), "start")
		for who, i := range map[string]sandpit.Instance{"the second": attached, "the first": box} {
			equal(c, "what the first has left, for "+who, c.shellIn(i, `cat left; echo "$KEPT"`), "by the first\nyes\n")
		}
		c.must(stopper.Stop(c.ctx()), "stop")
	}
}

func destroyWhileStopped(c *trial) {
	box := c.newBox()
	stopper := ability[sandpit.Stopper](c, box, "Stopper")
	c.must(stopper.Stop(c.ctx()), "stop")
	c.must(box.Destroy(c.ctx()), "destroy")
	c.wantCode(stopper.Start(c.ctx()), "start what is gone", sandpit.Gone)
	if _, ok := c.placement(c.provider, box.ID()); ok {
		c.Error("it is listed after destroy")
	}
}

// counter counts the bytes that are written to it.
type counter struct {
	mu sync.Mutex
	n  int
}

func (w *counter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n += len(b)
	return len(b), nil
}

func (w *counter) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.n
}

func pauseAndResume(c *trial) {
	box := c.newBox()
	pauser := ability[sandpit.Pauser](c, box, "Pauser")
	c.wantCode(pauser.Resume(c.ctx()), "resume what runs", sandpit.Conflict)
	var ticks counter
	cmd := shellCommand("while :; do echo; sleep 0.02; done")
	cmd.Stdout = &ticks
	process := c.startIn(box, cmd)
	c.eventually("ticks", func() bool { return ticks.count() > 2 })

	c.must(pauser.Pause(c.ctx()), "pause")
	c.wantCode(pauser.Pause(c.ctx()), "pause what is paused", sandpit.Conflict)
	time.Sleep(100 * time.Millisecond) // for data under way
	before := ticks.count()
	time.Sleep(300 * time.Millisecond)
	equal(c, "ticks while paused", ticks.count(), before)
	for _, call := range guestCalls() {
		ctx, cancel := context.WithTimeout(c.ctx(), 100*time.Millisecond)
		err := call.value(ctx, box)
		cancel()
		c.wantCode(err, call.name+" while paused", sandpit.Conflict, sandpit.Timeout)
	}

	c.must(pauser.Resume(c.ctx()), "resume")
	c.eventually("ticks after resume", func() bool { return ticks.count() > before+2 })
	c.must(process.Signal(c.ctx(), sandpit.SIGKILL), "kill")
	equal(c, "exit code", c.wait(process).Code, 137)
	equal(c, "output", c.shellIn(box, "echo works"), "works\n")
}

func destroyWhilePaused(c *trial) {
	box := c.newBox()
	pauser := ability[sandpit.Pauser](c, box, "Pauser")
	c.startIn(box, sandpit.Command{Args: []string{"sleep", "1000"}})
	c.must(pauser.Pause(c.ctx()), "pause")
	c.must(box.Destroy(c.ctx()), "destroy")
	c.wantCode(pauser.Resume(c.ctx()), "resume what is gone", sandpit.Gone)
}

func snapshotAndCreate(c *trial) {
	box := c.newBox()
	snapshotter := ability[sandpit.Snapshotter](c, box, "Snapshotter")
	c.shellIn(box, `echo kept > file; chmod 640 file; ln -s file link`)
	id := sandpit.NewSnapshotID()
	saved, err := snapshotter.Snapshot(c.ctx(), id)
	c.must(err, "save a snapshot")
	if saved.ID != id || saved.Spec.Env != nil || saved.Sandbox != box.ID() || saved.CreatedAt.IsZero() || saved.Size <= 0 {
		c.Errorf("snapshot: %+v", saved)
	}
	c.shellIn(box, "echo changed > file") // it keeps running
	spec := c.Spec.Clone()
	spec.Image = sandpit.SnapshotImage(saved.ID)
	for range 2 {
		made := c.createWith(c.provider, spec)
		equal(c, "file", c.shellIn(made, `cat link; stat -c %a file`), "kept\n640\n")
		c.shellIn(made, "echo mine > file")
	}
	equal(c, "file of the first", c.shellIn(box, "cat file"), "changed\n")
}

func resize(c *trial) {
	const mebibyte = 1 << 20
	spec := c.Spec.Clone()
	spec.Resources = sandpit.Resources{Memory: 256 * mebibyte, CPUs: 0.5}
	box, err := c.provider.Create(c.ctx(), sandpit.NewID(), spec)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.Skipf("no limits: %v", err)
	}
	c.must(err, "create a sandbox with limits")
	c.destroyAtEnd(box)
	resizer := ability[sandpit.Resizer](c, box, "Resizer")
	c.wantCode(resizer.Resize(c.ctx(), sandpit.Resources{Memory: -1}), "less than no memory", sandpit.Invalid)
	c.must(resizer.Resize(c.ctx(), sandpit.Resources{}), "change nothing")
	c.must(resizer.Resize(c.ctx(), sandpit.Resources{Memory: 512 * mebibyte, CPUs: 1}), "grow")
	want := sandpit.Resources{Memory: 512 * mebibyte, CPUs: 1}
	checkListed := func() {
		c.Helper()
		if listed, ok := c.placement(c.provider, box.ID()); !ok || listed.Spec.Resources != want {
			c.Errorf("listed with the limits %+v, want %+v", listed.Spec.Resources, want)
		}
	}
	checkListed()
	for name, r := range map[string]sandpit.Resources{"memory": {Memory: 256 * mebibyte}, "processors": {CPUs: 0.5}} {
		c.wantCode(resizer.Resize(c.ctx(), r), "lower the "+name+" of what runs", sandpit.Conflict)
	}
	checkListed()
	equal(c, "output", c.shellIn(box, "echo works"), "works\n")
	stopper := ability[sandpit.Stopper](c, box, "Stopper")
	c.must(stopper.Stop(c.ctx()), "stop")
	want = sandpit.Resources{Memory: 128 * mebibyte, CPUs: 0.5}
	c.must(resizer.Resize(c.ctx(), want), "lower the limits of what is stopped")
	checkListed()
	c.must(stopper.Start(c.ctx()), "start")
	checkListed()
	equal(c, "output", c.shellIn(box, "echo works"), "works\n")
}

func stats(c *trial) {
	box := c.newBox()
	statser := ability[sandpit.Statser](c, box, "Statser")
	c.startIn(box, shellCommand("while :; do :; done"))
	c.eventually("use of the processor", func() bool {
		s, err := statser.Stats(c.ctx())
		c.must(err, "measure")
		if s.At.IsZero() || s.CPU < 0 || s.Memory < 0 || s.Disk < 0 || s.PIDs < 0 {
			c.Fatalf("stats: %+v", s)
		}
		return s.CPU > 0 && s.Memory > 0 && s.PIDs > 0
	})
}

func networkPolicy(c *trial) {
	offline := c.newBox()
	policer := ability[sandpit.NetworkPolicer](c, offline, "NetworkPolicer")
	c.wantCode(policer.SetNetworkPolicy(c.ctx(), sandpit.NetworkPolicy{Online: true}), "put it online", sandpit.Conflict)
	c.must(policer.SetNetworkPolicy(c.ctx(), sandpit.NetworkPolicy{}), "leave it offline")
	spec := c.Spec.Clone()
	spec.Network.Online = true
	online, err := c.provider.Create(c.ctx(), sandpit.NewID(), spec)
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		c.wantCode(policer.SetNetworkPolicy(c.ctx(), sandpit.NetworkPolicy{Allow: []string{""}}), "an empty rule", sandpit.Invalid)
		return
	}
	c.must(err, "create an online sandbox")
	c.destroyAtEnd(online)
	policer = ability[sandpit.NetworkPolicer](c, online, "NetworkPolicer")
	c.wantCode(policer.SetNetworkPolicy(c.ctx(), sandpit.NetworkPolicy{Online: true, Allow: []string{""}}), "an empty rule", sandpit.Invalid)
	c.wantCode(policer.SetNetworkPolicy(c.ctx(), sandpit.NetworkPolicy{}), "take it offline", sandpit.Conflict)
	for _, p := range []sandpit.NetworkPolicy{{Online: true, Deny: []string{"10.0.0.0/8"}}, {Online: true, Allow: []string{"*.example.org:443"}}, {Online: true}} {
		c.must(policer.SetNetworkPolicy(c.ctx(), p), "set the policy")
		made, ok := c.placement(c.provider, online.ID())
		if !ok || !slices.Equal(made.Spec.Network.Allow, p.Allow) || !slices.Equal(made.Spec.Network.Deny, p.Deny) {
			c.Errorf("listed with the policy %+v, want %+v", made.Spec.Network, p)
		}
	}
	equal(c, "output", c.shellIn(online, "echo works"), "works\n")
}

// readState compares the state that the provider reports with what was done.
func readState(c *trial) {
	box := c.newBox()
	reader := ability[sandpit.StateReader](c, box, "StateReader")
	want := func(want sandpit.State) {
		c.Helper()
		got, err := reader.ReadState(c.ctx())
		c.must(err, "read the state")
		equal(c, "state", got, want)
		made, _ := c.placement(c.provider, box.ID())
		if made.State != "" {
			equal(c, "state in the list", made.State, want)
		}
	}
	want(sandpit.StateRunning)
	if p, ok := box.(sandpit.Pauser); ok {
		c.must(p.Pause(c.ctx()), "pause")
		want(sandpit.StatePaused)
		c.must(p.Resume(c.ctx()), "resume")
		want(sandpit.StateRunning)
	}
	if s, ok := box.(sandpit.Stopper); ok {
		c.must(s.Stop(c.ctx()), "stop")
		want(sandpit.StateStopped)
	}
	c.must(box.Destroy(c.ctx()), "destroy")
	_, err := reader.ReadState(c.ctx())
	c.wantCode(err, "read the state of what is gone", sandpit.NotFound)
}

// renew postpones the end of a sandbox.
func renew(c *trial) {
	box := c.newBox()
	renewer := ability[sandpit.Renewer](c, box, "Renewer")
	c.must(renewer.Renew(c.ctx(), sandpit.Expiry{Deadline: time.Now().Add(10 * time.Minute)}), "renew")
	c.must(renewer.Renew(c.ctx(), sandpit.Expiry{}), "renew without a deadline")
	equal(c, "output", c.shellIn(box, "echo works"), "works\n")
}

// abilitiesGone uses every ability of a sandbox that has ended.
func abilitiesGone(c *trial) {
	box := c.newBox()
	c.must(box.Destroy(c.ctx()), "destroy")
	ctx, calls := c.ctx(), map[string]error{}
	if b, ok := box.(sandpit.Stopper); ok {
		calls["stop"], calls["start"] = b.Stop(ctx), b.Start(ctx)
	}
	if b, ok := box.(sandpit.Pauser); ok {
		calls["pause"], calls["resume"] = b.Pause(ctx), b.Resume(ctx)
	}
	if b, ok := box.(sandpit.Snapshotter); ok {
		_, calls["snapshot"] = b.Snapshot(ctx, sandpit.NewSnapshotID())
	}
	if b, ok := box.(sandpit.Resizer); ok {
		calls["resize"] = b.Resize(ctx, sandpit.Resources{})
	}
	if b, ok := box.(sandpit.Statser); ok {
		_, calls["stats"] = b.Stats(ctx)
	}
	if b, ok := box.(sandpit.NetworkPolicer); ok {
		calls["set the network policy"] = b.SetNetworkPolicy(ctx, sandpit.NetworkPolicy{})
	}
	if b, ok := box.(sandpit.Renewer); ok {
		calls["renew"] = b.Renew(ctx, sandpit.Expiry{})
	}
	if len(calls) == 0 {
		c.Skip("this provider has no optional abilities of this kind")
	}
	for doing, err := range calls {
		c.wantCode(err, doing+" what is gone", sandpit.Gone)
	}
}
