package e2b

import (
	"context"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// cpuMeter adds up the use of processors, which the cloud reports as a momentary percentage.
type cpuMeter struct {
	mu   sync.Mutex
	last time.Time
	used time.Duration
}

// add adds the use since the last measurement, assuming that it was constant.
func (c *cpuMeter) add(at time.Time, processors float64) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	passed := time.Second
	if !c.last.IsZero() {
		passed = at.Sub(c.last)
	}
	if passed > 0 {
		c.used += time.Duration(float64(passed) * processors)
		c.last = at
	}
	return c.used
}

// Stats implements sandpit.Statser. CPU is an estimate: the cloud reports momentary percentages, which are added up over
// the time between measurements. The cloud reports no number of processes.
func (i *Instance) Stats(ctx context.Context) (sandpit.Stats, error) {
	if i.b.isEnded() {
		return sandpit.Stats{}, i.b.goneError()
	}
	list, err := i.b.p.api.measureSandbox(ctx, i.b.h.ID, i.b.h.Cloud)
	if err != nil {
		return sandpit.Stats{}, i.b.asGone(err)
	}
	if len(list) == 0 {
		return sandpit.Stats{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "measure sandbox %s: the cloud has no measurement yet", i.b.h.ID),
			"try again in half a minute")
	}
	m := list[len(list)-1]
	for _, one := range list {
		if one.Unix > m.Unix {
			m = one
		}
	}
	at := time.Unix(m.Unix, 0)
	if m.Unix <= 0 || m.CPU < 0 || m.Memory < 0 || m.Disk < 0 || m.CPUs < 0 {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Internal, "measure sandbox %s: the cloud returned an invalid measurement", i.b.h.ID)
	}
	return sandpit.Stats{
		At: at, CPU: i.b.cpu.add(at, m.CPU/100), Memory: m.Memory, Disk: m.Disk,
		Limits: sandpit.Resources{Memory: max(0, m.MemoryAll), CPUs: m.CPUs, Disk: max(0, m.DiskAll)},
	}, nil
}
