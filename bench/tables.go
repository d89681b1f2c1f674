package main

import (
	"fmt"
	"strconv"
)

// table is a part of a report as a reader sees it.
type table struct {
	title string
	head  []string
	rows  [][]string
}

// tables returns the parts of a report, the most informative first.
func tables(r *report) []table {
	return []table{targetTable(r), ratioTable(r), resultTable(r), machineTable(r), skipTable(r)}
}

func targetTable(r *report) table {
	t := table{title: "Targets", head: []string{"target", "at most", "measured", ""}}
	for _, x := range r.Targets {
		row := []string{x.What, number(x.Most), "-", "not measured"}
		if x.Known {
			row[2], row[3] = number(x.Got), "missed"
		}
		if x.Pass {
			row[3] = "met"
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// ratioTable returns sandpit's medians divided by the others'.
func ratioTable(r *report) table {
	t := table{title: "Ratios", head: []string{"sandpit's median divided by", "unit"}}
	for _, pair := range rivals {
		head := pair.to + "'s"
		if pair.of != bySandpit {
			head = pair.of + " by " + head
		}
		t.head = append(t.head, head)
	}
	for _, m := range r.metrics() {
		list := r.comparisons(m)
		if len(list) == 0 {
			continue
		}
		row := []string{m, r.unit(m)}
		for _, pair := range rivals {
			cell := "-"
			for _, c := range list {
				if c.Of == pair.of && c.To == pair.to {
					cell = number(c.Ratio)
				}
			}
			row = append(row, cell)
		}
		t.rows = append(t.rows, row)
	}
	return t
}

func (r *report) unit(metric string) string {
	for _, x := range r.Results {
		if x.Metric == metric {
			return x.Unit
		}
	}
	return ""
}

func resultTable(r *report) table {
	t := table{title: "Figures", head: []string{"what", "contestant", "unit", "n", "min", "p50", "p90", "p99", "max"}}
	for _, m := range r.metrics() {
		for _, x := range r.Results {
			if x.Metric == m {
				t.rows = append(t.rows, append([]string{m, x.Contestant, x.Unit}, figures(x)...))
			}
		}
	}
	return t
}

// figures returns n, min, p50, p90, p99 and max; a meaningless figure is "-".
func figures(x result) []string {
	if x.Single {
		return []string{"1", "-", number(x.P50), "-", "-", "-"}
	}
	p90, p99 := "-", "-"
	if x.N >= leastForP90 {
		p90 = number(x.P90)
	}
	if x.N >= leastForP99 {
		p99 = number(x.P99)
	}
	return []string{strconv.Itoa(x.N), number(x.Min), number(x.P50), p90, p99, number(x.Max)}
}

func machineTable(r *report) table {
	t := table{title: "Machine", head: []string{"fact", "value"}}
	for _, f := range r.Machine.facts() {
		t.rows = append(t.rows, []string{f[0], f[1]})
	}
	return t
}

func skipTable(r *report) table {
	t := table{title: "Not measured", head: []string{"not measured", "why"}}
	for _, s := range r.Skips {
		t.rows = append(t.rows, []string{s.What, s.Why})
	}
	return t
}

// number formats a figure with about three significant digits.
func number(v float64) string {
	switch {
	case v >= 100 || v <= -100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10 || v <= -10:
		return fmt.Sprintf("%.1f", v)
	default:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
}
