package docker

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.Reviver = (*Instance)(nil)

// Revive implements sandpit.Reviver. It starts the container again.
func (i *Instance) Revive(ctx context.Context) (sandpit.Instance, error) {
	if err := i.b.refreshState(ctx); err != nil {
		return nil, fmt.Errorf("recreate sandbox %s: %w", i.b.id, err)
	}
	if i.b.currentState() == stopped { // an earlier recovery was interrupted
		return i, i.Start(ctx)
	}
	inst, err := i.b.reviveSandbox(ctx)
	if err != nil {
		return nil, fmt.Errorf("recreate sandbox %s: %w", i.b.id, err)
	}
	return inst, nil
}

func (b *sandbox) reviveSandbox(ctx context.Context) (*Instance, error) {
	p := b.p
	if b.currentState() != over {
		return nil, sandpit.Errorf(sandpit.Conflict, "the sandbox has not ended")
	}
	rec, err := p.records.readRecord(b.id, b.container)
	if err != nil {
		return nil, err
	}
	c, err := p.engine.inspectContainer(ctx, b.container)
	if err != nil {
		return nil, err
	}
	// The sandbox counts as stopped until its guest is ready.
	rec.Stopped = true
	if err := p.records.writeRecord(rec); err != nil {
		return nil, err
	}
	p.sandboxes.removeSandbox(b)
	if c.State.Running { // another program started it
		return p.attachSandbox(ctx, handle{b.id, b.container})
	}
	fresh, err := p.sandboxes.ensureSandbox(p, b.id, b.container)
	if err != nil {
		return nil, err
	}
	if err := fresh.lock(ctx); err != nil {
		return nil, err
	}
	defer fresh.unlock()
	inst := newInstance(fresh, rec.Token)
	err = fresh.startContainer(ctx, inst, rec)
	if sandpit.CodeOf(err) == sandpit.Conflict {
		err = sandpit.Errorf(sandpit.NotFound, "the container is being removed: %w", err)
	}
	return inst, err
}

// killedCode is the exit code of a first process that SIGKILL ended.
const killedCode = 128 + 9

// exitOf returns how a container ended. isKilled is set if the engine was asked to kill it: OOMKilled
// alone is not enough, because it is also set when any program inside was ever killed.
func exitOf(s container.State, isKilled bool) sandpit.Exit {
	exit := sandpit.Exit{Known: true, Code: s.ExitCode}
	switch {
	case s.OOMKilled && s.ExitCode == killedCode && !isKilled:
		exit.Reason = "killed: out of memory"
	case s.Error != "":
		exit.Reason = "could not run: " + shortenText(s.Error)
	case s.ExitCode == killedCode:
		exit.Reason = "killed by another program"
	case s.ExitCode == 0: // the guest received SIGTERM
		exit.Reason = "stopped by another program, or with its docker engine (exit status 0)"
	default:
		exit.Reason = "its first process exited with status " + strconv.Itoa(s.ExitCode)
	}
	return exit
}

// exitReason returns how the container ended. The reason also says if the engine was lost since the
// container was last seen running.
func (b *sandbox) exitReason(s container.State) sandpit.Exit {
	if s.OOMKilled && s.ExitCode == killedCode {
		b.awaitDeath()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	exit := exitOf(s, b.killed)
	if b.p.events.breaks.Load() != b.breaks {
		exit.Reason = "it ended while the docker engine was restarted or out of reach: " + exit.Reason
	}
	return exit
}

// markRunning notes that the sandbox runs.
func (b *sandbox) markRunning() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.breaks = b.p.events.breaks.Load()
}

// noteSignal records whether the engine was asked to kill the container.
func (b *sandbox) noteSignal(signal string) {
	if signal != "9" && signal != "KILL" && signal != "SIGKILL" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed = true
}

// noteStart clears the previous end of the container.
func (b *sandbox) noteStart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed, b.died = false, nil
	select {
	case <-b.dead:
	default:
	}
}

// deathEvent is how long the event of an end that is already visible may take.
const deathEvent = 2 * time.Second

// awaitDeath waits for the event of the container's end, which follows that of a requested kill.
func (b *sandbox) awaitDeath() {
	late := time.NewTimer(deathEvent)
	defer late.Stop()
	select {
	case <-b.dead:
	case <-late.C:
	case <-b.p.engine.calls.over:
	}
}

// noteDeath records how the first process ended, in case the container is removed before the engine
// is asked.
func (b *sandbox) noteDeath(m events.Message) {
	code, err := strconv.Atoi(m.Actor.Attributes["exitCode"])
	if err != nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.died = &container.State{ExitCode: code, OOMKilled: b.ooms > 0}
	select {
	case b.dead <- struct{}{}:
	default:
	}
}

// vanishedExit returns the end of a sandbox whose container was removed. The engine removes those of
// an ephemeral provider when they end.
func (b *sandbox) vanishedExit() sandpit.Exit {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.p.o.Ephemeral && b.died != nil {
		return exitOf(*b.died, b.killed)
	}
	return sandpit.Exit{Reason: "its container was removed by another program"}
}

// labelEphemeral marks the containers of ephemeral providers.
const labelEphemeral = "dev.sandpit.ephemeral"

// unstarted is the age at which a container that never ran counts as abandoned.
const unstarted = 15 * time.Minute

// sweepUnstarted removes containers that killed ephemeral providers created and did not start. The
// engine removes started ones.
func (p *Provider) sweepUnstarted() {
	limited, cancel := p.engine.callContext(context.Background())
	defer cancel()
	res, err := p.engine.api.ContainerList(limited, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelEphemeral).Add("status", string(container.StateCreated)),
	})
	if err != nil {
		return // a later provider retries
	}
	for _, c := range res.Items {
		if time.Since(time.Unix(c.Created, 0)) > unstarted && isSandbox(c) {
			_ = p.engine.removeContainer(limited, c.ID) // a later provider retries
		}
	}
}

// isSandbox reports whether a container has the name that belongs to its labels. Labels alone are no
// proof, because a container also has those of its image.
func isSandbox(c container.Summary) bool {
	id := sandpit.ID(c.Labels[labelID])
	return id.Validate() == nil && slices.Contains(c.Names, "/"+containerName(id))
}

// Check returns an error if sandboxes cannot be created now.
//
// Unavailable: the engine does not answer, or refuses this user. Unsupported: it does not run Linux.
func (p *Provider) Check(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, min(p.o.CallTimeout, checkTime))
	defer cancel()
	if _, err := p.engine.api.Ping(limited, client.PingOptions{}); err != nil {
		return p.engine.wrapError(ctx, "reach the docker engine", err)
	}
	_, err := p.engine.readFacts(limited)
	return err
}

// checkTime is how long an engine may take to answer a check.
const checkTime = 10 * time.Second

// Endpoint returns the engine's address, without a password.
func (p *Provider) Endpoint() string { return p.o.Endpoint.String() }

// Version returns the engine's name and version, for people.
func (p *Provider) Version(ctx context.Context) (string, error) {
	limited, cancel := context.WithTimeout(ctx, min(p.o.CallTimeout, checkTime))
	defer cancel()
	v, err := p.engine.api.ServerVersion(limited, client.ServerVersionOptions{})
	if err != nil {
		return "", p.engine.wrapError(ctx, "ask for the version", err)
	}
	name := cmp.Or(v.Platform.Name, "engine")
	return fmt.Sprintf("%s %s (%s/%s)", shortenText(name), shortenText(v.Version), shortenText(v.Os), shortenText(v.Arch)), nil
}
