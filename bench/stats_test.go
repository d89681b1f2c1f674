package main

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSummarize(t *testing.T) {
	t.Parallel()
	hundred := make([]float64, 101)
	for i := range hundred {
		hundred[i] = float64(100 - i) // unsorted
	}
	for name, tc := range map[string]struct {
		samples []float64
		want    stats
	}{
		"none":    {nil, stats{}},
		"one":     {[]float64{3}, stats{N: 1, Min: 3, P50: 3, P90: 3, P99: 3, Max: 3}},
		"two":     {[]float64{4, 2}, stats{N: 2, Min: 2, P50: 3, P90: 3.8, P99: 3.98, Max: 4}},
		"hundred": {hundred, stats{N: 101, Min: 0, P50: 50, P90: 90, P99: 99, Max: 100}},
		"outlier": {[]float64{1, 1, 1, 1, 1000}, stats{N: 5, Min: 1, P50: 1, P90: 600.4, P99: 960.04, Max: 1000}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) < 1e-9 })
			if diff := cmp.Diff(tc.want, summarize(tc.samples), near); diff != "" {
				t.Error(diff)
			}
		})
	}
	if hundred[0] != 100 {
		t.Error("the samples were sorted in place")
	}
}

func TestRatio(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		a, b, want float64
		ok         bool
	}{
		{1, 2, 0.5, true},
		{0, 2, 0, false},
		{1, 0, 0, false},
		{-1, 2, 0, false}, // a loss of memory that was a gain
	} {
		if got, ok := ratio(tc.a, tc.b); got != tc.want || ok != tc.ok {
			t.Errorf("ratio(%v, %v) = %v, %v", tc.a, tc.b, got, ok)
		}
	}
}
