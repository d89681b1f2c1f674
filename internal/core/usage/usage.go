// Package usage watches what a sandbox uses of its limits and warns before it
// hits them.
package usage

import (
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Kind is what there is a limit of.
type Kind string

// The kinds.
const (
	Memory Kind = "memory"
	CPU    Kind = "CPU"
	Disk   Kind = "disk"
	PIDs   Kind = "processes"
	// OutOfMemory is a limit that was hit: something was killed.
	OutOfMemory Kind = "out of memory"
)

// Warning says that a sandbox comes close to a limit, once each time it does.
type Warning struct {
	At   time.Time
	Kind Kind
	// Share is how much of the limit is used, 1 being all of it.
	Share float64
	Stats sandpit.Stats
}

// String returns the warning as a sentence for people.
func (w Warning) String() string {
	if w.Kind == OutOfMemory {
		return "memory ran out: a process was killed"
	}
	return fmt.Sprintf("high use: %s at %.0f %% of the limit", w.Kind, 100*w.Share)
}

// Watch measures a sandbox again and again.
type Watch struct {
	Sandbox sandpit.Statser
	// Interval lies between two measurements. Default: 2 s.
	Interval time.Duration
	// High is the share of a limit from which on there is a warning; the next one
	// comes when the use was below by a tenth meanwhile. Default: 0.9.
	High float64
	// Patience is how many measurements in a row CPU must be high: programs that
	// compute use all they get. Default: 5.
	Patience int
	// Warn is called with warnings, one at a time.
	Warn func(Warning)
}

// Run measures until ctx ends, which is not an error, or until measuring fails, as it does
// when the sandbox has ended. It returns the last measurement.
func (w Watch) Run(ctx context.Context) (sandpit.Stats, error) {
	if w.Interval == 0 {
		w.Interval = 2 * time.Second
	}
	if w.High == 0 {
		w.High = 0.9
	}
	if w.Patience == 0 {
		w.Patience = 5
	}
	ticker := time.NewTicker(w.Interval)
	defer ticker.Stop()
	judge := NewJudge(map[Kind]float64{Memory: w.High, CPU: w.High, Disk: w.High, PIDs: w.High}, w.Patience)
	var last sandpit.Stats
	for {
		s, err := w.Sandbox.Stats(ctx)
		if ctx.Err() != nil {
			return last, nil
		}
		if err != nil {
			return last, err
		}
		for _, warning := range judge.Look(s) {
			w.Warn(warning)
		}
		last = s
		select {
		case <-ctx.Done():
			return last, nil
		case <-ticker.C:
		}
	}
}

// Shares returns how much of each limit is used, CPU between the two
// measurements and the others at the second one. A resource without a limit is omitted.
func Shares(before, now sandpit.Stats) map[Kind]float64 {
	shares := make(map[Kind]float64)
	limits := now.Limits
	if limits.Memory > 0 {
		shares[Memory] = float64(now.Memory) / float64(limits.Memory)
	}
	if limits.Disk > 0 {
		shares[Disk] = float64(now.Disk) / float64(limits.Disk)
	}
	if limits.PIDs > 0 {
		shares[PIDs] = float64(now.PIDs) / float64(limits.PIDs)
	}
	if elapsed := now.At.Sub(before.At); limits.CPUs > 0 && !before.At.IsZero() && elapsed > 0 {
		shares[CPU] = float64(now.CPU-before.CPU) / float64(elapsed) / limits.CPUs
	}
	return shares
}
