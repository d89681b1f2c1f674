package main

import (
	"context"
	"errors"
	"fmt"
)

// series takes samples of contestants in turns.
type series struct {
	kit     *kit
	n       int
	metrics []metric
	runners []runner
}

// runner is one contestant in a series. A sample has a figure for each metric.
type runner struct {
	name    string
	sample  func() ([]float64, error)
	samples [][]float64
	err     error
}

func (s *series) add(name string, sample func() ([]float64, error)) {
	s.runners = append(s.runners, runner{name: name, sample: sample})
}

// run takes the samples: one to warm up, which does not count, then n. A contestant that fails drops
// out; its error is reported, and returned at the end if it is one of sandpit's.
func (s *series) run(ctx context.Context) error {
	if len(s.runners) == 0 {
		return nil
	}
	s.kit.note("%s", s.metrics[0].name)
	for round := range s.n + 1 {
		for i := range s.runners {
			if err := ctx.Err(); err != nil {
				return err
			}
			s.runners[i].take(round > 0)
		}
	}
	var errs []error
	for _, r := range s.runners {
		if r.err != nil {
			s.kit.report.skip(s.metrics[0].name+", "+r.name, "failed: "+r.err.Error())
			errs = append(errs, fmt.Errorf("%s: %s: %w", s.metrics[0].name, r.name, r.err))
			continue
		}
		for i, m := range s.metrics {
			s.kit.report.add(result{Metric: m.name, Contestant: r.name, Unit: m.unit, stats: summarize(column(r.samples, i))})
		}
	}
	return errors.Join(errs...)
}

func (r *runner) take(counts bool) {
	if r.err != nil {
		return
	}
	figures, err := r.sample()
	if err != nil {
		r.err = err
		return
	}
	if counts {
		r.samples = append(r.samples, figures)
	}
}

func column(rows [][]float64, i int) []float64 {
	var c []float64
	for _, row := range rows {
		c = append(c, row[i])
	}
	return c
}
