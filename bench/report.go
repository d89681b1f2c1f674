package main

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

// publish writes a report to the destinations in the options.
func publish(r *report, o options, stdout io.Writer) error {
	errs := []error{writeText(stdout, r)}
	if o.json != "" {
		errs = append(errs, toFile(o.json, r, writeJSON))
	}
	if o.markdown != "" {
		errs = append(errs, toFile(o.markdown, r, func(w io.Writer, r *report) error { return writeMarkdown(w, r, o) }))
	}
	return errors.Join(errs...)
}

func toFile(path string, r *report, write func(io.Writer, *report) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f, r), f.Close())
}

// writeText writes a report for a terminal: ratios and targets first.
func writeText(to io.Writer, r *report) error {
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, t := range tables(r) {
		fmt.Fprintln(w, strings.Join(t.head, "\t"))
		for _, row := range t.rows {
			fmt.Fprintln(w, strings.Join(row, "\t"))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// writeJSON writes one line for each finding: {"machine":…}, {"result":…},
// {"ratio":…}, {"target":…}, {"skip":…}.
func writeJSON(to io.Writer, r *report) error {
	enc := json.NewEncoder(to)
	var errs []error
	put := func(kind string, value any) { errs = append(errs, enc.Encode(map[string]any{kind: value})) }
	put("machine", r.Machine)
	for _, x := range r.Results {
		put("result", x)
	}
	for _, m := range r.metrics() {
		for _, c := range r.comparisons(m) {
			put("ratio", c)
		}
	}
	for _, t := range r.Targets {
		put("target", t)
	}
	for _, s := range r.Skips {
		put("skip", s)
	}
	return errors.Join(errs...)
}

//go:embed remarks.md
var remarks string

// writeMarkdown writes a report as a page of documentation.
func writeMarkdown(to io.Writer, r *report, o options) error {
	var b strings.Builder
	b.WriteString("# Benchmarks\n\n")
	fmt.Fprintf(&b, "One run of the kit in `bench/`, made on %s by\n\n    %s\n\nwhich writes this page. Do not edit it by hand.\n\n",
		r.Machine.Date, commandLine(o))
	b.WriteString(remarks)
	for _, t := range tables(r) {
		if len(t.rows) == 0 {
			continue
		}
		fmt.Fprintf(&b, "\n## %s\n\n", t.title)
		writeRow(&b, t.head)
		rule := make([]string, len(t.head))
		for i := range rule {
			rule[i] = "---"
		}
		writeRow(&b, rule)
		for _, row := range t.rows {
			writeRow(&b, row)
		}
	}
	_, err := io.WriteString(to, b.String())
	return err
}

func writeRow(b *strings.Builder, cells []string) {
	b.WriteString("|")
	for _, c := range cells {
		b.WriteString(" " + strings.ReplaceAll(c, "|", `\|`) + " |")
	}
	b.WriteString("\n")
}

// commandLine returns the command line of this run.
func commandLine(o options) string {
	parts := []string{"go run ./bench"}
	if o.n > 0 {
		parts = append(parts, "-n", strconv.Itoa(o.n))
	}
	if len(o.only) > 0 {
		parts = append(parts, "-only", strings.Join(o.only, ","))
	}
	if o.quick {
		parts = append(parts, "-quick")
	}
	if o.noDocker {
		parts = append(parts, "-no-docker")
	}
	if o.rootfs != "" {
		parts = append(parts, "-rootfs", o.rootfs)
	}
	return strings.Join(append(parts, "-md", o.markdown), " ")
}
