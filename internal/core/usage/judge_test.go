package usage_test

import (
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
)

// TestSustained tells what has been high for long, and forgets it when it is not.
func TestSustained(t *testing.T) {
	t.Parallel()
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	j := usage.NewJudge(map[usage.Kind]float64{usage.Memory: 0.9}, 1)
	for second, tc := range []struct {
		memory int64
		disk   int64
		warned int
		want   bool // for two seconds
	}{
		{950, 100, 1, false},
		{950, 100, 0, false},
		{900, 100, 0, true},
		{899, 0, 0, false},
		{1000, 0, 0, false},
		{1000, 0, 0, false},
		{1000, 0, 0, true},
		{100, 0, 0, false},
		{901, 0, 1, false},
	} {
		got := j.Look(sandpit.Stats{At: begin.Add(time.Duration(second) * time.Second), Memory: tc.memory, Disk: tc.disk, Limits: limits})
		if len(got) != tc.warned {
			t.Errorf("second %d: warnings %v, want %d", second, got, tc.warned)
		}
		w, long := j.Sustained(2 * time.Second)
		if long != tc.want || long && (w.Kind != usage.Memory || w.Share != float64(tc.memory)/1000) {
			t.Errorf("second %d: %+v, %t; want %t", second, w, long, tc.want)
		}
	}
}

// TestFirstMeasurement does not take what was killed before for news.
func TestFirstMeasurement(t *testing.T) {
	t.Parallel()
	j := usage.NewJudge(nil, 1)
	for k, kills := range []int64{3, 3, 4} {
		want := k / 2
		if got := j.Look(sandpit.Stats{At: time.Unix(int64(k), 0), OOMKills: kills}); len(got) != want {
			t.Errorf("measurement %d: %v, want %d", k, got, want)
		}
	}
}
