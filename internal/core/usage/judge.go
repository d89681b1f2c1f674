package usage

import (
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// rearm is by how much a use must fall below the share that was warned of before there is
// another warning.
const rearm = 0.1

// Judge looks at the measurements of one sandbox and says what is high. It is not for
// concurrent use.
type Judge struct {
	high     map[Kind]float64
	patience int
	last     sandpit.Stats
	seen     map[Kind]*streak
}

// streak is a use that stays high.
type streak struct {
	measured int // in a row
	warned   bool
	since    time.Time
	share    float64 // of the last measurement
}

// NewJudge returns a Judge that warns from these shares of the limits on; it ignores a kind
// without one. CPU must be high in that many measurements in a row.
func NewJudge(high map[Kind]float64, patience int) *Judge {
	return &Judge{high: high, patience: patience, seen: make(map[Kind]*streak)}
}

// Look takes the next measurement and returns what it warns of: each kind once, until its
// use has fallen by a tenth of the limit below its share, and each time something was
// killed because memory ran out.
func (j *Judge) Look(now sandpit.Stats) []Warning {
	before := j.last
	j.last = now
	var list []Warning
	if now.OOMKills > before.OOMKills && !before.At.IsZero() {
		list = append(list, Warning{At: now.At, Kind: OutOfMemory, Share: 1, Stats: now})
	}
	shares := Shares(before, now)
	for _, kind := range []Kind{Memory, CPU, Disk, PIDs} {
		share, measured := shares[kind]
		if high, watched := j.high[kind]; watched && measured && j.streakOf(kind).addMeasurement(now.At, share, high, j.neededMeasurements(kind)) {
			list = append(list, Warning{At: now.At, Kind: kind, Share: share, Stats: now})
		}
	}
	return list
}

// neededMeasurements is how many measurements in a row make a use high.
func (j *Judge) neededMeasurements(kind Kind) int {
	if kind == CPU {
		return max(1, j.patience)
	}
	return 1
}

func (j *Judge) streakOf(kind Kind) *streak {
	if j.seen[kind] == nil {
		j.seen[kind] = &streak{}
	}
	return j.seen[kind]
}

// addMeasurement reports whether there is something to warn of.
func (s *streak) addMeasurement(at time.Time, share, high float64, needed int) bool {
	s.share = share
	if share < high {
		s.measured = 0
		s.warned = s.warned && share >= high-rearm
		return false
	}
	if s.measured++; s.measured == 1 {
		s.since = at
	}
	if s.warned || s.measured < needed {
		return false
	}
	s.warned = true
	return true
}

// Sustained returns what has been high without a break for so long, and was warned of.
func (j *Judge) Sustained(long time.Duration) (Warning, bool) {
	kinds := []Kind{Memory, CPU, Disk, PIDs}
	k := slices.IndexFunc(kinds, func(kind Kind) bool {
		s := j.seen[kind]
		return s != nil && s.warned && s.measured > 0 && j.last.At.Sub(s.since) >= long
	})
	if k < 0 {
		return Warning{}, false
	}
	return Warning{At: j.last.At, Kind: kinds[k], Share: j.seen[kinds[k]].share, Stats: j.last}, true
}
