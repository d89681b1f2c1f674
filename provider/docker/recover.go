package docker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/events"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.Reviver = (*Instance)(nil)

// Revive implements sandpit.Reviver: the container is started again.
func (i *Instance) Revive(ctx context.Context) (sandpit.Instance, error) {
	if err := i.b.refreshState(ctx); err != nil {
		return nil, fmt.Errorf("revive sandbox %s: %w", i.b.id, err)
	}
	if i.b.currentState() == stopped { // by one who did not come to the end
		return i, i.Start(ctx)
	}
	inst, err := i.b.reviveSandbox(ctx)
	if err != nil {
		return nil, fmt.Errorf("revive sandbox %s: %w", i.b.id, err)
	}
	return inst, nil
}

func (b *sandbox) reviveSandbox(ctx context.Context) (*Instance, error) {
	p := b.p
	if b.currentState() != over {
		return nil, sandpit.Errorf(sandpit.Conflict, "it has not ended")
	}
	rec, err := p.readRecord(b.id, b.container)
	if err != nil {
		return nil, err
	}
	c, err := p.inspectContainer(ctx, b.container)
	if err != nil {
		return nil, err
	}
	// From here on it is a stopped one, whoever looks, until its guest is ready.
	rec.Stopped = true
	if err := p.writeRecord(rec); err != nil {
		return nil, err
	}
	p.forgetSandbox(b)
	if c.State.Running { // somebody has started it
		return p.attachSandbox(ctx, handle{b.id, b.container})
	}
	fresh, err := p.sandboxOf(b.id, b.container)
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
		err = sandpit.Errorf(sandpit.NotFound, "it is just being removed: %w", err)
	}
	return inst, err
}

// killedCode is the exit code of a first process that SIGKILL ended.
const killedCode = 128 + 9

// exitOf says how a container ended. isKilled says that the engine was asked to kill it: the
// state has OOMKilled also when only another program inside was killed, at any time before.
func exitOf(s container.State, isKilled bool) sandpit.Exit {
	exit := sandpit.Exit{Known: true, Code: s.ExitCode}
	switch {
	case s.OOMKilled && s.ExitCode == killedCode && !isKilled:
		exit.Reason = "killed: out of memory"
	case s.Error != "":
		exit.Reason = "it could not run: " + shortenText(s.Error)
	case s.ExitCode == killedCode:
		exit.Reason = "killed by somebody else"
	case s.ExitCode == 0: // the guest was asked to end
		exit.Reason = "stopped by somebody else, or with its docker engine (exit status 0)"
	default:
		exit.Reason = "its first process ended with exit status " + strconv.Itoa(s.ExitCode)
	}
	return exit
}

// exitReason is how a container has ended that was seen running when the engine had gone
// away so many times.
func (b *sandbox) exitReason(s container.State) sandpit.Exit {
	if s.OOMKilled && s.ExitCode == killedCode {
		b.awaitDeath()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	exit := exitOf(s, b.killed)
	if b.p.breaks.Load() != b.breaks {
		exit.Reason = "it ended while the docker engine was restarted or out of reach: " + exit.Reason
	}
	return exit
}

// markRunning notes that the sandbox runs.
func (b *sandbox) markRunning() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.breaks = b.p.breaks.Load()
}

// noteSignal remembers that the engine was asked to kill the container.
func (b *sandbox) noteSignal(signal string) {
	if signal != "9" && signal != "KILL" && signal != "SIGKILL" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed = true
}

// noteStart forgets how the container ended before.
func (b *sandbox) noteStart() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.killed, b.died = false, nil
	select {
	case <-b.dead:
	default:
	}
}

// deathEvent is how long an engine may take to report an end that can be seen already.
const deathEvent = 2 * time.Second

// awaitDeath waits until the engine has reported the end of the container, and so whatever it
// was asked before.
func (b *sandbox) awaitDeath() {
	late := time.NewTimer(deathEvent)
	defer late.Stop()
	select {
	case <-b.dead:
	case <-late.C:
	case <-b.p.calls.over:
	}
}

// noteDeath remembers how the first process ended, for when the container is gone
// before the engine can be asked.
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

// vanishedExit is the end of a sandbox without a container. The engine itself removes
// those of an ephemeral provider as soon as they end.
func (b *sandbox) vanishedExit() sandpit.Exit {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.p.o.Ephemeral && b.died != nil {
		return exitOf(*b.died, b.killed)
	}
	return sandpit.Exit{Reason: "its container was removed by somebody else"}
}

// makeRecordDir makes the place where records are.
func (p *Provider) makeRecordDir() error {
	if p.o.Ephemeral {
		return nil
	}
	if err := os.Mkdir(p.recordsDir(), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the state directory: %w", err)
	}
	return nil
}

// labelEphemeral marks the containers of ephemeral providers.
const labelEphemeral = "dev.sandpit.ephemeral"

// unstarted is how old a container may be that was never started. Whoever made it
// was killed.
const unstarted = 15 * time.Minute

// sweepUnstarted removes what ephemeral providers have made that were killed before they could
// start it: from then on the engine does so.
func (p *Provider) sweepUnstarted() {
	limited, cancel := p.callContext(context.Background())
	defer cancel()
	res, err := p.api.ContainerList(limited, client.ContainerListOptions{
		All: true, Filters: make(client.Filters).Add("label", labelEphemeral).Add("status", string(container.StateCreated)),
	})
	if err != nil {
		return // another one does it later
	}
	for _, c := range res.Items {
		if time.Since(time.Unix(c.Created, 0)) > unstarted && isSandbox(c) {
			_ = p.removeContainer(limited, c.ID) // or another one later
		}
	}
}

// isSandbox reports whether a container is called as that of its sandbox is. Labels alone
// say little: anybody's container has those of its image, which may have any.
func isSandbox(c container.Summary) bool {
	id := sandpit.ID(c.Labels[labelID])
	return id.Validate() == nil && slices.Contains(c.Names, "/"+containerName(id))
}

// Check reports why no sandboxes can be made now, if so.
//
// Unavailable: the engine does not answer, or not to this user. Unsupported: it runs no
// Linux.
func (p *Provider) Check(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, min(p.o.CallTimeout, checkTime))
	defer cancel()
	if _, err := p.api.Ping(limited, client.PingOptions{}); err != nil {
		return p.engineError(ctx, "reach the docker engine", err)
	}
	_, err := p.engineFacts(limited)
	return err
}

// checkTime is how long an engine may take to say that it is there.
const checkTime = 10 * time.Second

// Endpoint is the engine's address, without a password.
func (p *Provider) Endpoint() string { return p.o.Endpoint.String() }

// Version is what the engine says of itself, for people.
func (p *Provider) Version(ctx context.Context) (string, error) {
	limited, cancel := context.WithTimeout(ctx, min(p.o.CallTimeout, checkTime))
	defer cancel()
	v, err := p.api.ServerVersion(limited, client.ServerVersionOptions{})
	if err != nil {
		return "", p.engineError(ctx, "ask for the version", err)
	}
	name := cmp.Or(v.Platform.Name, "engine")
	return fmt.Sprintf("%s %s (%s/%s)", shortenText(name), shortenText(v.Version), shortenText(v.Os), shortenText(v.Arch)), nil
}
