package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// kit is one run.
type kit struct {
	o      options
	stderr io.Writer
	dir    string // of this run, removed at its end
	engine string
	root   rootFS
	docker *docker // nil without a daemon
	report report
}

// Names of workloads for -only, besides those of boxWorkloads.
const (
	nameFirst    = "first"
	nameDestroy  = "destroy"
	nameMemory   = "memory"
	nameBurst    = "burst"
	nameShells   = "shells"
	nameNetwork  = "network"
	namePreviews = "previews"
	nameE2B      = "e2b"
	nameDaytona  = "daytona"
	nameMCP      = "mcp"
	nameAgent    = "agent"

	nameNeighbours = "neighbours"
	nameSaved      = "saved"
	nameTemplates  = "templates"
)

// cleanTimeout bounds the cleanup of a run.
const cleanTimeout = 2 * time.Minute

// measure runs the measurements of the options. It also returns its results with an error.
func measure(ctx context.Context, o options, stderr io.Writer) (r *report, err error) {
	k := &kit{o: o, stderr: stderr}
	if k.dir, err = os.MkdirTemp("", "sandpit-bench-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(k.dir)) }()
	if err := k.prepare(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if k.docker == nil {
			return
		}
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		err = errors.Join(err, k.docker.Close(clean))
	}()
	err = errors.Join(k.inTurns(ctx), k.e2bs(ctx), k.daytonas(ctx), k.mcps(ctx), k.agents(ctx), k.templates(ctx), k.crowds(ctx), k.neighbours(ctx))
	k.report.Machine.LoadAtEnd = loadAverage()
	k.report.Targets = slices.Concat(judge(&k.report), judgeSDKs(&k.report), neighbourTargets(&k.report))
	return &k.report, err
}

func (k *kit) note(format string, args ...any) { fmt.Fprintf(k.stderr, "bench: "+format+"\n", args...) }

// prepare creates everything that is not measured.
func (k *kit) prepare(ctx context.Context) error {
	k.report.Machine = readMachine(ctx)
	var err error
	if k.engine = k.o.engine; k.engine == "" {
		k.note("building the engine")
		if k.engine, err = buildEngine(ctx, k.dir); err != nil {
			return err
		}
	}
	k.root = rootFS{k.o.rootfs, "given: " + filepath.Base(k.o.rootfs)}
	if k.o.rootfs == "" {
		if k.root, err = makeRootFS(ctx, k.dir, k.o.quick, func(s string) { k.note("%s", s) }); err != nil {
			return err
		}
	}
	k.report.Machine.RootFS = k.root.what
	if err := makeSources(k.dir, k.o.sizes()); err != nil {
		return err
	}
	if k.o.noDocker {
		k.report.skip("docker", "-no-docker")
		return nil
	}
	if k.docker, err = openDocker(ctx, k.root.path); err != nil {
		k.report.skip("docker", err.Error())
		k.note("without docker: %v", err)
		return nil
	}
	k.report.Machine.Docker = dockerFacts(ctx)
	return nil
}

// inTurns runs the measurements in which contestants take turns.
func (k *kit) inTurns(ctx context.Context) (err error) {
	provider, err := openProvider(filepath.Join(k.dir, "sandpit"), k.images(), k.engine)
	if err != nil {
		return withHint(err)
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	list := []contestant{
		newSandpit(bySandpit, provider, k.root.path),
		newSandpitCLI(k.engine, filepath.Join(k.dir, "cli"), k.root.path),
	}
	if k.o.wants(nameFirst) {
		pooled, openErr := k.openManaged(ctx)
		if openErr != nil {
			return openErr
		}
		defer func() { err = errors.Join(err, pooled.close(ctx)) }()
		list = append(list, pooled.contestant())
	}
	server, err := k.openServed(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.close(ctx)) }()
	list = append(list, server.contestant())
	if k.docker != nil {
		list = append(list, k.docker.contestant())
		api, err := openDockerAPI(ctx, k.docker)
		if err != nil {
			k.report.skip(byDockerAPI, err.Error())
		} else {
			defer api.Close()
			list = append(list, api.contestant())
		}
		ours, openErr := openDockerProvider(ctx, filepath.Join(k.dir, "docker"), k.engine)
		if openErr != nil {
			return withHint(openErr)
		}
		defer func() { err = errors.Join(err, ours.Close()) }()
		list = append(list, newSandpitDocker(ours, k.docker))
	}
	host, how, err := newHost(ctx, filepath.Join(k.dir, "host"), k.root.path)
	if err != nil {
		return err
	}
	k.report.Machine.Host = how
	list = append(list, host)
	return errors.Join(k.lives(ctx, list), k.destroys(ctx, list), k.inBoxes(ctx, list), k.shells(ctx, server), k.network(ctx, provider), k.previews(ctx, provider, server),
		k.saved(ctx, provider, filepath.Join(k.dir, "sandpit")))
}

func (k *kit) images() string { return filepath.Join(k.dir, "images") }

// lives measures boxes from their creation to their first output and their end.
func (k *kit) lives(ctx context.Context, list []contestant) error {
	if !k.o.wants(nameFirst) {
		return nil
	}
	series := series{kit: k, n: k.o.samples(30), metrics: []metric{{metricFirst, unitMS}, {"box made, used and removed", unitMS}}}
	for _, c := range list {
		if c.life == nil {
			continue
		}
		series.add(c.name, func() ([]float64, error) {
			l, err := c.life(ctx)
			return []float64{ms(l.first), ms(l.whole)}, err
		})
	}
	return series.run(ctx)
}

// destroys measures creating a long-lived box, and its end.
func (k *kit) destroys(ctx context.Context, list []contestant) error {
	if !k.o.wants(nameDestroy) {
		return nil
	}
	series := series{kit: k, n: k.o.samples(20), metrics: []metric{{metricCreate, unitMS}, {"destroy", unitMS}}}
	for _, c := range list {
		if c.start == nil || c.runsOnly || c.name == byHost {
			continue
		}
		series.add(c.name, func() ([]float64, error) {
			start := time.Now()
			b, err := c.start(ctx)
			if err != nil {
				return nil, err
			}
			made := time.Since(start)
			took, err := timed(func() error { return b.Destroy(ctx) })
			return []float64{ms(made), ms(took)}, err
		})
	}
	return series.run(ctx)
}

// inBoxes runs the workloads in long-lived boxes.
func (k *kit) inBoxes(ctx context.Context, list []contestant) (err error) {
	work := slices.DeleteFunc(boxWorkloads(k.o.sizes(), k.dir), func(w workload) bool { return !k.o.wants(w.name) })
	if len(work) == 0 {
		return nil
	}
	boxes := map[string]box{}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		for _, b := range boxes {
			err = errors.Join(err, b.Destroy(clean))
		}
	}()
	for _, c := range list {
		if c.start == nil {
			continue
		}
		if boxes[c.name], err = c.start(ctx); err != nil {
			delete(boxes, c.name)
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	var errs []error
	for _, w := range work {
		errs = append(errs, k.work(ctx, w, list, boxes))
	}
	return errors.Join(errs...)
}

// work measures one workload in all boxes.
func (k *kit) work(ctx context.Context, w workload, list []contestant, boxes map[string]box) error {
	series := series{kit: k, n: k.o.samples(w.n), metrics: w.metrics}
	for _, c := range list {
		b := boxes[c.name]
		if b == nil || w.copies && c.runsOnly {
			continue
		}
		if w.probe != nil {
			if err := w.probe(ctx, b); err != nil {
				k.report.skip(w.metrics[0].name+", "+c.name, w.why+": "+err.Error())
				continue
			}
		}
		series.add(c.name, func() ([]float64, error) { return w.sample(ctx, b) })
	}
	return series.run(ctx)
}
