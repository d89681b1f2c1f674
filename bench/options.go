package main

import (
	"flag"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
)

// options are the options of the command line.
type options struct {
	n        int
	only     []string
	quick    bool
	json     string
	markdown string
	noDocker bool
	engine   string
	rootfs   string
	check    bool
}

const usage = `Measure sandpit beside Docker and beside this machine itself.

  go run ./bench                                 everything, some minutes
  go run ./bench -quick                          everything, small: does it work?
  go run ./bench -only exec,memory -n 200        two workloads, 200 samples each
  go run ./bench -json run.jsonl                 also as JSON, a line each
  go run ./bench -md docs/benchmarks.md          also as a page of documentation

It needs a root file system: busybox-static, and mmdebstrap for Python and a
compiler, or any tar by -rootfs. Docker takes part where its daemon answers.
As root the same files run without a sandbox too. What mmdebstrap makes is kept
in the user's cache directory; nothing else stays.

`

// parse reads the command line. It returns flag.ErrHelp after it printed the requested help.
func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	var only string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Usage = func() {
		_, _ = io.WriteString(stderr, usage)
		f.PrintDefaults()
	}
	f.IntVar(&o.n, "n", 0, "take `N` samples of each workload (default: as many as fit the workload)")
	f.StringVar(&only, "only", "", "measure these `NAME,...` alone: "+strings.Join(names(), ", "))
	f.BoolVar(&o.quick, "quick", false, "few samples of small workloads: the figures mean nothing")
	f.StringVar(&o.json, "json", "", "write JSON lines to `FILE`")
	f.StringVar(&o.markdown, "md", "", "write a page in Markdown to `FILE`")
	f.BoolVar(&o.noDocker, "no-docker", false, "leave Docker out")
	f.StringVar(&o.engine, "engine", "", "use this static sandpit (default: build one)")
	f.StringVar(&o.rootfs, "rootfs", "", "use this `TAR` as root file system (default: make one)")
	f.BoolVar(&o.check, "check", false, "exit with 1 if a target is missed")
	if err := f.Parse(args); err != nil {
		return options{}, err
	}
	if f.NArg() > 0 {
		return options{}, fmt.Errorf("unexpected argument %q; see -help", f.Arg(0))
	}
	if o.n < 0 {
		return options{}, fmt.Errorf("-n %d: must not be negative", o.n)
	}
	for _, path := range []*string{&o.engine, &o.rootfs} {
		if *path == "" {
			continue
		}
		abs, err := filepath.Abs(*path)
		if err != nil {
			return options{}, err
		}
		*path = abs
	}
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	for _, name := range o.only {
		if !slices.Contains(names(), name) {
			return options{}, fmt.Errorf("-only %s: there are %s", name, strings.Join(names(), ", "))
		}
	}
	return o, nil
}

// names returns the values that -only accepts.
func names() []string {
	list := []string{nameFirst, nameDestroy}
	for _, w := range boxWorkloads(fullSizes, "") {
		list = append(list, w.name)
	}
	return slices.Compact(append(list, nameShells, nameNetwork, namePreviews, nameSaved, nameTemplates, nameE2B, nameDaytona, nameMCP, nameAgent, nameMemory, nameBurst, nameNeighbours))
}

func (o options) wants(name string) bool { return len(o.only) == 0 || slices.Contains(o.only, name) }

// samples returns how many samples to take, by default usual.
func (o options) samples(usual int) int {
	switch {
	case o.n > 0:
		return o.n
	case o.quick:
		return min(usual, 3)
	default:
		return usual
	}
}

func (o options) sizes() sizes {
	if o.quick {
		return quickSizes
	}
	return fullSizes
}
