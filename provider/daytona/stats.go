package daytona

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// statsScript prints what the sandbox uses, a word and numbers in each line: the time of the
// processor in microseconds, memory, its peak, and processes, from the control group or, without one,
// from the processes; then the network's bytes.
const statsScript = `g=/sys/fs/cgroup
if [ -r $g/cpu.stat ]; then echo cpu $(sed -n 's/^usage_usec //p' $g/cpu.stat); fi
[ -r $g/memory.current ] && echo memory $(cat $g/memory.current)
[ -r $g/memory.peak ] && echo peak $(cat $g/memory.peak)
[ -r $g/pids.current ] && echo pids $(cat $g/pids.current)
awk '/^oom_kill /{print "oom", $2}' $g/memory.events 2>/dev/null
set -- /proc/[0-9]*; echo processes $#
cat /proc/[0-9]*/stat 2>/dev/null | sed 's/^.*) //' | awk '{ t += $12 + $13; r += $22 } END { print "ticks", t + 0; print "pages", r + 0 }'
awk -F'[: ]+' '/:/ && $2 != "lo" { r += $3; s += $11 } END { print "net", r + 0, s + 0 }' /proc/net/dev 2>/dev/null
df -Pk / 2>/dev/null | awk 'NR == 2 { print "disk", $3 }'
:`

// Stats implements sandpit.Statser. Daytona measures nothing, so that the figures are those that the
// sandbox itself reports.
func (i *Instance) Stats(ctx context.Context) (sandpit.Stats, error) {
	s, err := i.b.measure(ctx)
	if err != nil {
		return s, fmt.Errorf("measure sandbox %s: %w", i.b.id, err)
	}
	return s, nil
}

func (b *sandbox) measure(ctx context.Context) (s sandpit.Stats, err error) {
	now, err := b.readBox(ctx)
	if err != nil {
		return s, err
	}
	s.At = time.Now()
	s.Limits = sandpit.Resources{CPUs: max(0, now.CPU), Memory: int64(max(0, now.Memory) * gibibyte), Disk: int64(max(0, now.Disk) * gibibyte)}
	if now.State != stateStarted {
		return s, nil // nothing runs
	}
	out, err := b.execute(ctx, statsScript, launchTime)
	if err != nil {
		return s, err
	}
	readStats(out.Result, &s)
	return s, nil
}

// The units of the kernel's figures.
const (
	tickTime      = 10 * time.Millisecond
	pageSizeBytes = 4 << 10
)

// readStats reads the output of statsScript.
func readStats(text string, s *sandpit.Stats) {
	found := make(map[string][]int64)
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		var numbers []int64
		for _, word := range words[1:] {
			n, err := strconv.ParseFloat(word, 64) // awk prints large numbers with an exponent
			if err != nil || n < 0 || n > 1<<62 {
				break
			}
			numbers = append(numbers, int64(n))
		}
		if len(numbers) > 0 {
			found[words[0]] = numbers
		}
	}
	first := func(names ...string) int64 {
		for _, name := range names {
			if n := found[name]; len(n) > 0 && n[0] > 0 {
				return n[0]
			}
		}
		return 0
	}
	s.CPU = time.Duration(first("cpu")) * time.Microsecond
	if s.CPU == 0 {
		s.CPU = time.Duration(first("ticks")) * tickTime
	}
	if s.Memory = first("memory"); s.Memory == 0 {
		s.Memory = first("pages") * pageSizeBytes
	}
	s.MemoryPeak, s.OOMKills = first("peak"), first("oom")
	s.PIDs = int(first("pids", "processes"))
	s.Disk = first("disk") << 10
	if net := found["net"]; len(net) == 2 {
		s.Received, s.Sent = net[0], net[1]
	}
}
