package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// Stop implements sandpit.Stopper.
func (i *Instance) Stop(ctx context.Context) error {
	b := i.b
	if err := b.lockInState(ctx, running); err != nil {
		return fmt.Errorf("stop sandbox %s: %w", b.id, err)
	}
	defer b.unlock()
	rec, err := b.p.records.readRecord(b.id, b.container)
	if err == nil {
		err = b.keepsFiles(ctx)
	}
	if err != nil {
		return fmt.Errorf("stop sandbox %s: %w", b.id, err)
	}
	rec.Stopped = true // from now on the end of the container is not the end of the sandbox
	if err := b.p.records.writeRecord(rec); err != nil {
		return err
	}
	b.setState(stopping)
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	grace := int(math.Ceil(b.p.o.StopGrace.Seconds()))
	_, err = b.p.engine.api.ContainerStop(limited, b.container, client.ContainerStopOptions{Timeout: &grace})
	err = b.p.engine.wrapError(ctx, "stop sandbox "+string(b.id), err)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.Errorf(sandpit.Gone, "%w", err)
	}
	clean, done := b.p.engine.cleanupContext(ctx)
	defer done()
	b.setState(running) // refreshState corrects it
	if refreshed := b.refreshState(clean); refreshed != nil {
		return refreshed
	}
	if err != nil && b.currentState() == running { // it keeps running
		rec.Stopped = false
		if written := b.p.records.writeRecord(rec); written != nil {
			return written
		}
	}
	return err
}

// keepsFiles returns an error if the files of the container are lost with its process. By default,
// gVisor keeps changed files in a file of its own, which only its process uses.
func (b *sandbox) keepsFiles(ctx context.Context) error {
	if !isGVisor(b.p.o.Runtime) {
		return nil
	}
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	_, err := b.p.engine.api.ContainerStatPath(limited, b.container, client.ContainerStatPathOptions{Path: "/.gvisor.filestore." + b.container})
	if err == nil {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the runtime %s loses the files of a container when it ends", b.p.o.Runtime),
			"give it the argument --overlay2=none, in runtimeArgs of Docker's daemon.json")
	}
	if isNotFound(err) {
		return nil
	}
	return b.p.engine.wrapError(ctx, "look for gVisor's files", err)
}

// Start implements sandpit.Stopper.
func (i *Instance) Start(ctx context.Context) error {
	b := i.b
	if err := b.lockInState(ctx, stopped); err != nil {
		return fmt.Errorf("start sandbox %s: %w", b.id, err)
	}
	defer b.unlock()
	rec, err := b.p.records.readRecord(b.id, b.container)
	if err == nil {
		err = b.startContainer(ctx, i, rec)
	}
	if err != nil {
		return fmt.Errorf("start sandbox %s: %w", b.id, err)
	}
	return nil
}

// Pause implements sandpit.Pauser.
func (i *Instance) Pause(ctx context.Context) error {
	return i.b.changeState(ctx, "pause", running, paused, func(ctx context.Context) error {
		_, err := i.b.p.engine.api.ContainerPause(ctx, i.b.container, client.ContainerPauseOptions{})
		return err
	})
}

// Resume implements sandpit.Pauser.
func (i *Instance) Resume(ctx context.Context) error {
	return i.b.changeState(ctx, "resume", paused, running, func(ctx context.Context) error {
		_, err := i.b.p.engine.api.ContainerUnpause(ctx, i.b.container, client.ContainerUnpauseOptions{})
		return err
	})
}

// changeState moves the sandbox from one state to another with do.
func (b *sandbox) changeState(ctx context.Context, doing string, from, to state, do func(context.Context) error) error {
	doing += " sandbox " + string(b.id)
	if err := b.lockInState(ctx, from); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	defer b.unlock()
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	if err := do(limited); err != nil {
		return b.p.engine.wrapError(ctx, doing, err)
	}
	b.recordChange(to)
	return nil
}

// maxStats bounds a response of the engine, in bytes.
const maxStats = 1 << 20

// Stats implements sandpit.Statser.
func (i *Instance) Stats(ctx context.Context) (sandpit.Stats, error) {
	s, err := i.b.measureStats(ctx)
	if err != nil {
		return s, fmt.Errorf("measure sandbox %s: %w", i.b.id, err)
	}
	return s, nil
}

func (b *sandbox) measureStats(ctx context.Context) (sandpit.Stats, error) {
	if err := b.refreshState(ctx); err != nil {
		return sandpit.Stats{}, err
	}
	if now := b.currentState(); now == over {
		return sandpit.Stats{}, b.stateError(now)
	}
	limited, cancel := b.p.engine.callContext(ctx)
	defer cancel()
	res, err := b.p.engine.api.ContainerStats(limited, b.container, client.ContainerStatsOptions{})
	if err != nil {
		return sandpit.Stats{}, b.p.engine.wrapError(ctx, "ask the engine", err)
	}
	defer res.Body.Close()
	var m container.StatsResponse
	if err := json.NewDecoder(io.LimitReader(res.Body, maxStats)).Decode(&m); err != nil {
		return sandpit.Stats{}, b.p.engine.wrapError(ctx, "read the engine's response", err)
	}
	c, err := b.p.engine.api.ContainerInspect(limited, b.container, client.ContainerInspectOptions{Size: true})
	if err != nil {
		return sandpit.Stats{}, b.p.engine.wrapError(ctx, "ask the engine for the disk", err)
	}
	s := sandpit.Stats{
		At: time.Now(), CPU: time.Duration(toInt64(m.CPUStats.CPUUsage.TotalUsage)), Memory: memoryInUse(m.MemoryStats),
		MemoryPeak: toInt64(m.MemoryStats.MaxUsage), PIDs: int(toInt64(m.PidsStats.Current)),
	}
	b.mu.Lock()
	s.OOMKills = b.ooms
	b.mu.Unlock()
	if size := c.Container.SizeRw; size != nil {
		s.Disk = max(0, *size)
	}
	for _, n := range m.Networks {
		s.Received += toInt64(n.RxBytes)
		s.Sent += toInt64(n.TxBytes)
	}
	if h := c.Container.HostConfig; h != nil {
		s.Limits = sandpit.Resources{Memory: h.Memory, CPUs: float64(h.NanoCPUs) / 1e9}
		if h.PidsLimit != nil && *h.PidsLimit > guestThreads {
			s.Limits.PIDs = int(*h.PidsLimit) - guestThreads
		}
		if rec, err := b.p.records.readRecord(b.id, b.container); err == nil && h.StorageOpt[diskOption] != "" {
			s.Limits.Disk = max(rec.Spec.Resources.Disk, b.p.o.Defaults.Disk)
			if rec.Spec.Resources.Disk != 0 {
				s.Limits.Disk = rec.Spec.Resources.Disk
			}
		}
	}
	return s, nil
}

func toInt64(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// memoryInUse returns the memory without cached files that the kernel can drop, in bytes. It
// supports both versions of control groups.
func memoryInUse(m container.MemoryStats) int64 {
	for _, name := range []string{"total_inactive_file", "inactive_file"} {
		if cached, ok := m.Stats[name]; ok && cached < m.Usage {
			return toInt64(m.Usage - cached)
		}
	}
	return toInt64(m.Usage)
}
