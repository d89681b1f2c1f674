package main

import "slices"

// Names of the contestants.
const (
	bySandpit       = "sandpit"
	bySandpitCLI    = "sandpit-cli"
	bySandpitPool   = "sandpit-pool"
	bySandpitHTTP   = "sandpit-http"
	bySandpitDocker = "sandpit-docker"
	byE2B           = "sandpit-e2b"
	byDaytona       = "sandpit-daytona"
	byMCP           = "sandpit-mcp"
	byMCPHTTP       = "sandpit-mcp-http"
	byExec          = "sandpit-exec" // a program without a shell
	byDocker        = "docker"
	byDockerAPI     = "docker-api"
	byHost          = "host"
)

// result is one metric of one contestant.
type result struct {
	Metric     string `json:"metric"`
	Contestant string `json:"contestant"`
	Unit       string `json:"unit"`
	// Shown is a figure measured once for a number of boxes, without n and percentiles.
	Single bool `json:"single,omitempty"`
	stats
}

// single returns a result that was measured once.
func single(metric, contestant, unit string, value float64) result {
	r := result{Metric: metric, Contestant: contestant, Unit: unit, Single: true, stats: summarize([]float64{value})}
	return r
}

// skip is a skipped measurement and its reason.
type skip struct {
	What string `json:"skipped"`
	Why  string `json:"why"`
}

// report is the result of one run.
type report struct {
	Machine machine
	Results []result
	Skips   []skip
	Targets []target
}

func (r *report) add(results ...result) { r.Results = append(r.Results, results...) }

func (r *report) skip(what, why string) { r.Skips = append(r.Skips, skip{what, why}) }

// find returns the result of a contestant for a metric.
func (r *report) find(metric, contestant string) (result, bool) {
	i := slices.IndexFunc(r.Results, func(x result) bool { return x.Metric == metric && x.Contestant == contestant })
	if i < 0 {
		return result{}, false
	}
	return r.Results[i], true
}

// comparison compares sandpit's median with another's. Below 1 is better for time and memory, above
// 1 for speeds.
type comparison struct {
	Metric string  `json:"metric"`
	Of     string  `json:"of"`
	To     string  `json:"to"`
	Ratio  float64 `json:"ratio"`
}

// rivals are the contestants with which each of sandpit's is compared.
var rivals = []struct{ of, to string }{
	{bySandpit, byDocker},
	{bySandpit, byDockerAPI},
	{bySandpit, byHost},
	{bySandpitCLI, byDocker},
	{bySandpitPool, byDocker},
	{bySandpitDocker, byDocker},
}

// comparisons returns the ratios of one metric, in the order of rivals.
func (r *report) comparisons(metric string) []comparison {
	var list []comparison
	for _, pair := range rivals {
		ours, have := r.find(metric, pair.of)
		theirs, had := r.find(metric, pair.to)
		if !have || !had {
			continue
		}
		if q, ok := ratio(ours.P50, theirs.P50); ok {
			list = append(list, comparison{Metric: metric, Of: pair.of, To: pair.to, Ratio: q})
		}
	}
	return list
}

// metrics returns the names of the metrics in order of appearance.
func (r *report) metrics() []string {
	var names []string
	for _, x := range r.Results {
		if !slices.Contains(names, x.Metric) {
			names = append(names, x.Metric)
		}
	}
	return names
}
