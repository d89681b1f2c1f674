package usage_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
)

// script tells one measurement after the other.
type script struct {
	list []sandpit.Stats
	err  error
}

func (s *script) Stats(context.Context) (sandpit.Stats, error) {
	if len(s.list) == 0 {
		return sandpit.Stats{}, s.err
	}
	next := s.list[0]
	s.list = s.list[1:]
	return next, nil
}

var limits = sandpit.Resources{Memory: 1000, CPUs: 2, Disk: 100, PIDs: 10}

func TestWatch(t *testing.T) {
	t.Parallel()
	begin := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	memory := func(bytes ...int64) (list []sandpit.Stats) {
		for i, b := range bytes {
			list = append(list, sandpit.Stats{At: begin.Add(time.Duration(i) * time.Second), Memory: b, Limits: limits})
		}
		return list
	}
	busy := func(share ...float64) (list []sandpit.Stats) {
		var sum time.Duration
		for i, s := range share {
			sum += time.Duration(s * 2 * float64(time.Second))
			list = append(list, sandpit.Stats{At: begin.Add(time.Duration(i) * time.Second), CPU: sum, Limits: limits})
		}
		return list
	}
	for name, tc := range map[string]struct {
		stats []sandpit.Stats
		want  []string
	}{
		"calm":          {memory(100, 899, 899), nil},
		"once":          {memory(900, 950, 1000, 850, 920), []string{"high use: memory at 90 % of the limit"}},
		"again":         {memory(900, 700, 910), []string{"high use: memory at 90 % of the limit", "high use: memory at 91 % of the limit"}},
		"no limit":      {[]sandpit.Stats{{At: begin, Memory: 1 << 40, Disk: 1 << 40, PIDs: 1 << 20, CPU: time.Hour}}, nil},
		"a busy moment": {busy(0, 1, 1, 1, 1, 0.5, 1, 1), nil},
		"busy":          {busy(0, 1, 1, 1, 1, 1, 1, 1), []string{"high use: CPU at 100 % of the limit"}},
		"disk, pids": {
			[]sandpit.Stats{{At: begin, Disk: 99, Limits: limits}, {At: begin, PIDs: 10, Limits: limits}},
			[]string{"high use: disk at 99 % of the limit", "high use: processes at 100 % of the limit"},
		},
		"out of memory": {
			[]sandpit.Stats{{At: begin, Limits: limits}, {At: begin, OOMKills: 2, Limits: limits}, {At: begin, OOMKills: 2, Limits: limits}},
			[]string{"memory ran out: a process was killed"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var got []string
				gone := errors.New("gone")
				watch := usage.Watch{Sandbox: &script{tc.stats, gone}, Warn: func(w usage.Warning) { got = append(got, w.String()) }}
				last, err := watch.Run(t.Context())
				if !errors.Is(err, gone) {
					t.Errorf("error = %v, want what measuring says", err)
				}
				if diff := cmp.Diff(tc.stats[len(tc.stats)-1], last); diff != "" {
					t.Errorf("last (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("warnings (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestWatchEndsWithContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		stats := make([]sandpit.Stats, 100)
		for i := range stats {
			stats[i].PIDs = i
		}
		last, err := usage.Watch{Sandbox: &script{list: stats}}.Run(ctx)
		if err != nil || last.PIDs != 2 {
			t.Errorf("last %d, error %v; want 2 after 4 seconds, and none", last.PIDs, err)
		}
	})
}
