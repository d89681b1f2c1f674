package main

import (
	"math"
	"slices"
)

// stats are the statistics of samples, in their unit.
type stats struct {
	N   int     `json:"n"`
	Min float64 `json:"min"`
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
	Max float64 `json:"max"`
}

// The minimum numbers of samples for which a percentile differs from the maximum.
const (
	leastForP90 = 10
	leastForP99 = 100
)

func summarize(samples []float64) stats {
	if len(samples) == 0 {
		return stats{}
	}
	s := slices.Sorted(slices.Values(samples))
	return stats{
		N: len(s), Min: s[0], Max: s[len(s)-1],
		P50: percentile(s, 50), P90: percentile(s, 90), P99: percentile(s, 99),
	}
}

// percentile returns the p-th percentile of sorted samples, with linear interpolation. It returns 0
// without samples.
func percentile(sorted []float64, p float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := p / 100 * float64(len(sorted)-1)
	low := int(math.Floor(at))
	if low+1 >= len(sorted) {
		return sorted[len(sorted)-1]
	}
	return sorted[low] + (at-float64(low))*(sorted[low+1]-sorted[low])
}

// ratio returns a/b, and false if it has no meaning.
func ratio(a, b float64) (float64, bool) {
	if a <= 0 || b <= 0 {
		return 0, false
	}
	return a / b, true
}
