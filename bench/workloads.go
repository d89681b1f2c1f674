package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Units of metrics.
const (
	unitMS   = "ms"
	unitMBps = "MB/s"
	unitMB   = "MB"
	unitNone = "number"
)

const mega = 1e6

// sizes are the amounts of work.
type sizes struct {
	bigFile    int64 // bytes
	smallFiles int
	syscalls   int
	loops      int
	crowd      []int // numbers of boxes at which memory is measured, ascending
	crowdOther int   // the same for contestants that take longer to fill it
	burst      int
	settle     time.Duration // before memory is measured
}

var (
	fullSizes = sizes{
		bigFile: 100 * mega, smallFiles: 10_000, syscalls: 200_000, loops: 300_000,
		crowd: []int{50, 100, 200}, crowdOther: 50, burst: 50, settle: 3 * time.Second,
	}
	quickSizes = sizes{
		bigFile: mega, smallFiles: 100, syscalls: 1000, loops: 1000,
		crowd: []int{2, 4}, crowdOther: 2, burst: 4, settle: 100 * time.Millisecond,
	}
)

// workload is something that is measured sample by sample.
type workload struct {
	name    string // for -only
	metrics []metric
	n       int // default number of samples
	// why is what is missing if probe fails.
	probe func(ctx context.Context, b box) error
	why   string
	// copies is true if boxes must be able to copy.
	copies bool
	// sample runs it once in a box and returns a figure for each metric.
	sample func(ctx context.Context, b box) ([]float64, error)
}

type metric struct{ name, unit string }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// timed returns how long f took.
func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

// boxWorkloads run in long-lived boxes. Their files are in dir.
func boxWorkloads(s sizes, dir string) []workload {
	static := func(program string, args ...string) []string {
		return append([]string{staticDir + "/" + program}, args...)
	}
	list := []workload{
		command("exec", metricExec, 100, []string{"true"}, "no program true"),
		command("exec", "exec true, static program", 100, static("true"), "no "+staticDir),
		command("syscalls", fmt.Sprintf("%d system calls", 2*s.syscalls), 10,
			static("dd", "if=/dev/zero", "of=/dev/null", "bs=1", "count="+strconv.Itoa(s.syscalls)), "no "+staticDir),
		command("compute", fmt.Sprintf("%d rounds of a shell loop", s.loops), 10,
			static("sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do i=$((i+1)); done", s.loops)), "no "+staticDir),
		command("python", "python3 -c 1", 15, []string{"python3", "-c", "1"}, "no python3 in the root file system"),
		compile(filepath.Join(dir, "hello.c")),
		bigFile(dir, s.bigFile),
		tree(dir, s.smallFiles),
	}
	return list
}

// command is a workload that runs one program.
func command(name, metricName string, n int, args []string, why string) workload {
	return workload{
		name: name, n: n, why: why,
		metrics: []metric{{metricName, unitMS}},
		probe:   func(ctx context.Context, b box) error { return b.Run(ctx, args...) },
		sample: func(ctx context.Context, b box) ([]float64, error) {
			took, err := timed(func() error { return b.Run(ctx, args...) })
			return []float64{ms(took)}, err
		},
	}
}

// compile is a workload that compiles and links the source.
func compile(source string) workload {
	const inside = "/tmp/hello.c"
	w := command("compile", "cc hello.c", 10, []string{"cc", "-O1", "-o", "/tmp/hello", inside}, "no cc in the root file system")
	w.copies = true
	probe := w.probe
	w.probe = func(ctx context.Context, b box) error {
		if err := b.CopyIn(ctx, source, inside); err != nil {
			return err
		}
		return probe(ctx, b)
	}
	return w
}

// bigFile is a workload that copies one file in and out.
func bigFile(dir string, size int64) workload {
	source, back := filepath.Join(dir, "big"), filepath.Join(dir, "big-back")
	name := fmt.Sprintf("%d MB", size/mega)
	speed := func(d time.Duration) float64 { return float64(size) / mega / d.Seconds() }
	return workload{
		name: "file", n: 7, copies: true,
		metrics: []metric{{"upload " + name, unitMBps}, {"download " + name, unitMBps}},
		sample: func(ctx context.Context, b box) ([]float64, error) {
			in, out, err := thereAndBack(ctx, b, source, back)
			if err != nil {
				return nil, err
			}
			info, err := os.Stat(back)
			if err == nil && info.Size() != size {
				err = fmt.Errorf("%d bytes came back, want %d", info.Size(), size)
			}
			return []float64{speed(in), speed(out)}, err
		},
	}
}

// tree is a workload that copies a directory of small files in and out.
func tree(dir string, files int) workload {
	source, back := filepath.Join(dir, "tree"), filepath.Join(dir, "tree-back")
	name := fmt.Sprintf("%d small files", files)
	return workload{
		name: "tree", n: 5, copies: true,
		metrics: []metric{{name + " in", unitMS}, {name + " out", unitMS}},
		sample: func(ctx context.Context, b box) ([]float64, error) {
			in, out, err := thereAndBack(ctx, b, source, back)
			if err != nil {
				return nil, err
			}
			last := filepath.Join(back, treeFile(files-1))
			if info, err := os.Stat(last); err != nil || info.Size() != smallFile {
				return nil, fmt.Errorf("%s did not come back whole: %w", last, err)
			}
			return []float64{ms(in), ms(out)}, nil
		},
	}
}

// thereAndBack copies source into the box and back out to back, and returns how long each took. It
// removes the copy from the box, untimed.
func thereAndBack(ctx context.Context, b box, source, back string) (in, out time.Duration, err error) {
	const inside = "/tmp/copied"
	if err := os.RemoveAll(back); err != nil {
		return 0, 0, err
	}
	if in, err = timed(func() error { return b.CopyIn(ctx, source, inside) }); err != nil {
		return 0, 0, err
	}
	if out, err = timed(func() error { return b.CopyOut(ctx, inside, back) }); err != nil {
		return 0, 0, err
	}
	return in, out, b.Run(ctx, "rm", "-rf", inside)
}

const smallFile = 100 // bytes

// treeFile returns the name of one of many files, a hundred in each directory.
func treeFile(i int) string { return fmt.Sprintf("d%d/f%d", i/100, i) }

// makeSources creates the files that workloads copy.
func makeSources(dir string, s sizes) error {
	hello := "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n"
	if err := os.WriteFile(filepath.Join(dir, "hello.c"), []byte(hello), 0o600); err != nil {
		return err
	}
	big := make([]byte, s.bigFile)
	for i := range big {
		big[i] = byte(i * 7 >> 3)
	}
	if err := os.WriteFile(filepath.Join(dir, "big"), big, 0o600); err != nil {
		return err
	}
	for i := range s.smallFiles {
		path := filepath.Join(dir, "tree", treeFile(i))
		if i%100 == 0 {
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return err
			}
		}
		if err := os.WriteFile(path, big[:smallFile], 0o600); err != nil {
			return err
		}
	}
	return nil
}
