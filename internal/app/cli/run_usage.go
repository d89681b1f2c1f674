package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
)

// statsTime bounds the last measurement.
const statsTime = 5 * time.Second

// watchUsage prints warnings while the command runs, until stop is called.
func watchUsage(ctx context.Context, a *app, statser sandpit.Statser) (stop func()) {
	if statser == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch := usage.Watch{Sandbox: statser, Warn: func(w usage.Warning) { fmt.Fprintln(a.Err, "sandpit:", w) }}
		_, _ = watch.Run(ctx) // a sandbox that cannot be measured has ended, which is reported elsewhere
	}()
	return func() {
		cancel()
		<-done
	}
}

// printUsage prints the resource usage if requested, and whether a process was killed for lack of
// memory.
func (o *runCommand) printUsage(ctx context.Context, a *app, statser sandpit.Statser, begin time.Time, status sandpit.ExitStatus) {
	if statser == nil || !o.stats && status.Code == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), statsTime)
	defer cancel()
	s, err := statser.Stats(ctx)
	if err != nil {
		if o.stats {
			fmt.Fprintln(a.Err, "sandpit:", err)
		}
		return
	}
	if s.OOMKills > 0 || status.OutOfMemory {
		fmt.Fprintf(a.Err, "sandpit: out of memory: a process was killed at the limit of %s (choose another with --memory)\n",
			formatBytes(s.Limits.Memory))
	}
	if o.stats {
		fmt.Fprintf(a.Err, "sandpit: time %s, CPU %s%s, memory %s%s%s, disk %s%s, processes %d%s\n",
			time.Since(begin).Round(time.Millisecond), s.CPU.Round(time.Millisecond), formatCPULimit(s.Limits.CPUs),
			formatBytes(s.Memory), formatPeak(s.MemoryPeak), formatLimit(s.Limits.Memory, formatBytes), formatBytes(s.Disk), formatLimit(s.Limits.Disk, formatBytes),
			s.PIDs, formatLimit(int64(s.Limits.PIDs), func(n int64) string { return strconv.FormatInt(n, 10) }))
	}
}
