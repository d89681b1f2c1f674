package main

import "fmt"

// Metrics that targets are about; the others have their names where they are
// measured.
const (
	metricFirst      = "new box to first output"
	metricExec       = "exec true"
	metricPSS        = "memory per idle box, sum of PSS"
	metricLateCreate = "create, last boxes"
	metricEarly      = "create, first boxes"
)

// targetBoxes is how many boxes the target about memory is for.
const targetBoxes = 100

// target is what the project wants of a figure.
type target struct {
	What string  `json:"target"`
	Most float64 `json:"most"`
	// Got is meaningful if Known: the figures it takes may not have been measured.
	Got   float64 `json:"got"`
	Known bool    `json:"known"`
	Pass  bool    `json:"pass"`
}

// judge compares a report with the targets.
func judge(r *report) []target {
	between := func(a, of, b, to string) (float64, bool) {
		x, have := r.find(a, of)
		y, had := r.find(b, to)
		q, ok := ratio(x.P50, y.P50)
		return q, have && had && ok
	}
	first, firstKnown := between(metricFirst, bySandpit, metricFirst, byDocker)
	pool, poolKnown := between(metricFirst, bySandpitPool, metricFirst, byDocker)
	exec, execKnown := between(metricExec, bySandpit, metricExec, byDocker)
	late, lateKnown := between(metricLateCreate, bySandpit, metricEarly, bySandpit)
	pss, pssKnown := r.find(atBoxes(metricPSS, targetBoxes), bySandpit)
	return []target{
		check("new box to first output, of docker run", 0.5, first, firstKnown),
		check("box of a warm pool to first output, of docker run", 0.05, pool, poolKnown),
		check("exec of true, of docker exec", 0.15, exec, execKnown),
		check(fmt.Sprintf("MB of PSS for an idle box, at %d boxes", targetBoxes), 16, pss.P50, pssKnown),
		check("create with many boxes there, of the first creates", 1.3, late, lateKnown),
	}
}

func check(what string, most, got float64, known bool) target {
	return target{What: what, Most: most, Got: got, Known: known, Pass: known && got <= most}
}

// missed reports whether a target that was measured is missed.
func missed(targets []target) bool {
	for _, t := range targets {
		if t.Known && !t.Pass {
			return true
		}
	}
	return false
}

// atBoxes names a metric that was measured with a number of boxes there.
func atBoxes(metric string, boxes int) string { return fmt.Sprintf("%s (%d boxes)", metric, boxes) }
