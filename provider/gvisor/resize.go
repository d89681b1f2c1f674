package gvisor

import (
	"context"
	"errors"
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.Resizer = (*Instance)(nil)

// Resize implements sandpit.Resizer. The memory and CPU time of a running sandbox can grow at once.
// Until the next start, programs find the old size in /proc/meminfo and memory.max, see the old
// number of processors, and do not get more of them than the kernel was started with. Everything else is for
// stopped sandboxes; the disk only grows.
func (i *Instance) Resize(ctx context.Context, r sandpit.Resources) error {
	if err := i.lifecycle.resize(ctx, r); err != nil {
		return fmt.Errorf("resize sandbox %s: %w", i.id, err)
	}
	return nil
}

func (l *lifecycle) resize(ctx context.Context, r sandpit.Resources) error {
	if err := r.Validate(); err != nil {
		return err
	}
	if err := CheckLimits(r); err != nil {
		return err
	}
	if !l.states.canStop() {
		return l.resizeRunning(ctx, r)
	}
	lock, err := l.states.lock(ctx, l.id)
	if err != nil {
		return err
	}
	defer lock.Close()
	if l.states.stopped.Has(string(l.id)) {
		return l.resizeStopped(r)
	}
	return l.resizeRunning(ctx, r)
}

// resizeStopped changes the record of a stopped sandbox, from which it starts.
func (l *lifecycle) resizeStopped(r sandpit.Resources) error {
	state, err := l.states.stopped.Read(string(l.id))
	if err != nil {
		return err
	}
	if now := state.Record.Limits.Disk; r.Disk != 0 && r.Disk < now {
		return sandpit.Errorf(sandpit.Unsupported, "the disk of %d bytes cannot be made smaller", now)
	}
	return l.states.stopped.Rewrite(string(l.id), resizeState(r))
}

// resizeState returns the change of a saved state with the limits of r.
func resizeState(r sandpit.Resources) func(layerState) layerState {
	return func(s layerState) layerState {
		s.Record = s.Record.withLimits(r)
		return s
	}
}

// withLimits returns the record with the limits of r that are not zero.
func (rec record) withLimits(r sandpit.Resources) record {
	kernel := rec.Limits.Kernel
	rec.Spec.Resources = orDefaults(r, rec.Spec.Resources)
	rec.Limits = newLimitsRequest(rec.Spec.Resources, rec.Limits.Resources)
	rec.Limits.Kernel = kernel
	return rec
}

// resizeRunning changes the limits in the engine, and then the records: that of the sandbox, and that
// of its checkpoint, with which it may be started again after a crash.
func (l *lifecycle) resizeRunning(ctx context.Context, r sandpit.Resources) error {
	dir, err := l.provider.locateSandbox(ctx, l.id)
	if err != nil {
		return err
	}
	engine := engineClient{dir, l.id}
	rec, err := engine.record()
	if err != nil {
		return err
	}
	if err := checkGrowth(rec.Limits.Resources, r); err != nil {
		return err
	}
	resized := rec.withLimits(r)
	if _, err := engine.run(ctx, request{Op: opResize, Limits: &resized.Limits.Resources}); err != nil {
		return err
	}
	if l.states.canStop() && l.states.checkpoints.Has(string(l.id)) {
		err = l.states.checkpoints.Rewrite(string(l.id), resizeState(r))
	}
	if err == nil {
		err = rewriteRecord(dir, resized)
	}
	if err == nil {
		return nil
	}
	undoCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	_, undoErr := engine.run(undoCtx, request{Op: opResize, Limits: &rec.Limits.Resources})
	return errors.Join(err, undoErr)
}

// checkGrowth refuses what cannot be changed while a sandbox runs.
func checkGrowth(now, r sandpit.Resources) error {
	for _, limit := range []struct {
		what     string
		isShrunk bool
	}{{"memory", r.Memory != 0 && r.Memory < now.Memory}, {"CPU time", r.CPUs != 0 && r.CPUs < now.CPUs}} {
		if limit.isShrunk {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the %s of a running sandbox can only grow", limit.what), stopHint)
		}
	}
	for _, limit := range []struct {
		what      string
		isChanged bool
	}{{"size of the disk", r.Disk != 0 && r.Disk != now.Disk}, {"number of processes", r.PIDs != 0 && r.PIDs != now.PIDs}} {
		if limit.isChanged {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "the %s of a running sandbox cannot be changed", limit.what), stopHint)
		}
	}
	return nil
}

const stopHint = "stop the sandbox first"

// resize enforces other limits of memory and CPU time from now on.
func (sb *engineSandbox) resize(r *sandpit.Resources) error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if err := sb.checkRunningLocked(); err != nil {
		return err
	}
	switch {
	case r == nil:
		return sandpit.Errorf(sandpit.Invalid, "resize: the limits are missing")
	case sb.isSaved || sb.limits.raised:
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is being started or stopped", sb.id)
	}
	before := sb.limits.enforced
	if err := sb.setCPULocked(r.CPUs); err != nil {
		return err
	}
	if err := sb.setMemoryLocked(r.Memory); err != nil {
		return errors.Join(err, sb.setCPULocked(before.CPUs))
	}
	return nil
}

// setCPULocked changes the limit of CPU time if there is one. The caller holds mu.
func (sb *engineSandbox) setCPULocked(cpus float64) error {
	l := sb.limits
	before := l.enforced.CPUs
	if before == 0 || cpus == before {
		return nil
	}
	if n := countProcessors(cpus); n > l.processors {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox %s was started with %d processors and cannot use %d", sb.id, l.processors, n), stopHint)
	}
	l.enforced.CPUs = cpus
	if err := l.limitCPU(); err != nil {
		l.enforced.CPUs = before
		return err
	}
	return nil
}

// setMemoryLocked changes the limit of memory if there is one. The caller holds mu.
func (sb *engineSandbox) setMemoryLocked(bytes int64) error {
	l := sb.limits
	before := l.enforced.Memory
	if before == 0 || bytes == before {
		return nil
	}
	l.enforced.Memory = bytes
	err := l.setMemoryLimit(l.killLimit() + memoryReserve)
	if err == nil && sb.guard != nil {
		err = sb.guard.setLimit(l.killLimit())
	}
	if err != nil {
		l.enforced.Memory = before
		return errors.Join(fmt.Errorf("limit memory: %w", err), l.setMemoryLimit(l.killLimit()+memoryReserve))
	}
	return nil
}
