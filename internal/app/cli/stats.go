package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
)

// statsTime bounds the last measurement.
const statsTime = 5 * time.Second

// watchUsage warns while the command runs, until stop is called.
func (a *app) watchUsage(ctx context.Context, statser sandpit.Statser) (stop func()) {
	if statser == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		watch := usage.Watch{Sandbox: statser, Warn: func(w usage.Warning) { fmt.Fprintln(a.Err, "sandpit:", w) }}
		_, _ = watch.Run(ctx) // a sandbox that cannot be measured has ended, and that is told elsewhere
	}()
	return func() {
		cancel()
		<-done
	}
}

// tellUsage says what the sandbox used, if that was asked for, and why something
// was killed.
func (a *app) tellUsage(ctx context.Context, o runOptions, statser sandpit.Statser, begin time.Time, status sandpit.ExitStatus) {
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
			size(s.Limits.Memory))
	}
	if o.stats {
		fmt.Fprintf(a.Err, "sandpit: time %s, CPU %s%s, memory %s%s%s, disk %s%s, processes %d%s\n",
			time.Since(begin).Round(time.Millisecond), s.CPU.Round(time.Millisecond), ofCPUs(s.Limits.CPUs),
			size(s.Memory), peak(s.MemoryPeak), of(s.Limits.Memory, size), size(s.Disk), of(s.Limits.Disk, size),
			s.PIDs, of(int64(s.Limits.PIDs), func(n int64) string { return strconv.FormatInt(n, 10) }))
	}
}

// of says what the limit is.
func of(limit int64, show func(int64) string) string {
	if limit == 0 {
		return " (no limit)"
	}
	return " of " + show(limit)
}

func ofCPUs(limit float64) string {
	if limit == 0 {
		return " (no limit)"
	}
	return " of " + strconv.FormatFloat(limit, 'g', -1, 64) + " CPUs"
}

func peak(bytes int64) string {
	if bytes == 0 {
		return ""
	}
	return " (at most " + size(bytes) + ")"
}

// size shows bytes as a person would write them.
func size(bytes int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	value, i := float64(bytes), 0
	for value >= 1024 && i < len(units)-1 {
		value, i = value/1024, i+1
	}
	return strconv.FormatFloat(math.Round(value*10)/10, 'f', -1, 64) + " " + units[i]
}
