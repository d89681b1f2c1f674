package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// crowd creates many boxes of one contestant.
type crowd struct {
	contestant

	counts []int
	// memory returns the memory of the boxes' own processes and that of their common ones, in
	// bytes.
	memory func(ctx context.Context, boxes []box) (own, common int64, err error)
}

// crowds measures many boxes at once, one contestant at a time.
func (k *kit) crowds(ctx context.Context) error {
	if !k.o.wants(nameMemory) && !k.o.wants(nameBurst) {
		return nil
	}
	errs := []error{k.sandpitCrowd(ctx)}
	if k.docker != nil {
		errs = append(errs, k.crowd(ctx, crowd{
			contestant: k.docker.contestant(),
			counts:     []int{k.o.sizes().crowdOther},
			memory:     dockerMemory,
		}))
	}
	return errors.Join(errs...)
}

func (k *kit) sandpitCrowd(ctx context.Context) (err error) {
	provider, err := openProvider(filepath.Join(k.dir, "crowd"), k.images(), k.engine)
	if err != nil {
		return withHint(err)
	}
	defer func() { err = errors.Join(err, provider.Close()) }()
	return k.crowd(ctx, crowd{
		contestant: newSandpit(bySandpit, provider, k.root.path),
		counts:     k.o.sizes().crowd,
		memory:     sandpitMemory,
	})
}

func (k *kit) crowd(ctx context.Context, c crowd) error {
	b, err := c.start(ctx) // warms up
	if err == nil {
		err = b.Destroy(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	var errs []error
	if k.o.wants(nameBurst) {
		errs = append(errs, k.burst(ctx, c))
	}
	if k.o.wants(nameMemory) {
		errs = append(errs, k.fill(ctx, c))
	}
	return errors.Join(errs...)
}

// burst creates many boxes at once.
func (k *kit) burst(ctx context.Context, c crowd) error {
	n := k.o.sizes().burst
	k.note("%d boxes of %s at once", n, c.name)
	took, boxes, errs := make([]float64, n), make([]box, n), make([]error, n)
	start := time.Now()
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			boxes[i], errs[i] = c.start(ctx)
			took[i] = ms(time.Since(start))
		})
	}
	all.Wait()
	whole := ms(time.Since(start))
	boxes = slices.DeleteFunc(boxes, func(b box) bool { return b == nil })
	gone := destroyAll(ctx, boxes)
	if failed := n - len(boxes); failed > 0 {
		errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
		what := fmt.Sprintf("%d creates at once, %s", n, c.name)
		k.report.skip(what, fmt.Sprintf("%d failed: %v", failed, errs[0]))
		return fmt.Errorf("%s: %d failed, the first so: %w", what, failed, errors.Join(errs[0], gone))
	}
	if gone != nil {
		return fmt.Errorf("%s: %w", c.name, gone)
	}
	k.report.add(
		result{Metric: fmt.Sprintf("%d creates at once, each", n), Contestant: c.name, Unit: unitMS, stats: summarize(took)},
		single(fmt.Sprintf("%d creates at once, all", n), c.name, unitMS, whole))
	return nil
}

// fill creates boxes one after another and measures their memory while they are idle.
func (k *kit) fill(ctx context.Context, c crowd) (err error) {
	most := slices.Max(c.counts)
	k.note("%d boxes of %s, one after another", most, c.name)
	time.Sleep(k.o.sizes().settle)
	before, err := available()
	if err != nil {
		return err
	}
	var boxes []box
	defer func() { err = errors.Join(err, destroyAll(ctx, boxes)) }()
	var took []float64
	for range most {
		start := time.Now()
		b, err := c.start(ctx)
		if err != nil {
			what := fmt.Sprintf("box %d of %d, %s", len(boxes)+1, most, c.name)
			k.report.skip(what, "failed: "+err.Error())
			return fmt.Errorf("%s: %w", what, err)
		}
		took = append(took, ms(time.Since(start)))
		boxes = append(boxes, b)
		if slices.Contains(c.counts, len(boxes)) {
			if err := k.memory(ctx, c, boxes, before); err != nil {
				return err
			}
		}
	}
	some := min(20, most/2)
	k.report.add(
		result{Metric: metricEarly, Contestant: c.name, Unit: unitMS, stats: summarize(took[:some])},
		result{Metric: metricLateCreate, Contestant: c.name, Unit: unitMS, stats: summarize(took[most-some:])})
	return nil
}

// memory adds the memory of each box.
func (k *kit) memory(ctx context.Context, c crowd, boxes []box, before int64) error {
	time.Sleep(k.o.sizes().settle)
	now, err := available()
	if err != nil {
		return err
	}
	n := len(boxes)
	each := func(bytes int64) float64 { return float64(bytes) / float64(n) / mega }
	k.report.add(single(atBoxes("memory per idle box, loss of MemAvailable", n), c.name, unitMB, each(before-now)))
	own, common, err := c.memory(ctx, boxes)
	if err != nil {
		k.report.skip(atBoxes(metricPSS, n)+", "+c.name, err.Error())
		return nil
	}
	k.report.add(
		single(atBoxes(metricPSS, n), c.name, unitMB, each(own)),
		single(atBoxes("common processes, PSS divided by boxes", n), c.name, unitMB, each(common)))
	return nil
}

// destroyAll destroys boxes, a few at a time.
func destroyAll(ctx context.Context, boxes []box) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	const atOnce = 8
	errs := make([]error, len(boxes))
	var all sync.WaitGroup
	turns := make(chan struct{}, atOnce)
	for i, b := range boxes {
		turns <- struct{}{}
		all.Go(func() {
			errs[i] = b.Destroy(ctx)
			<-turns
		})
	}
	all.Wait()
	return errors.Join(errs...)
}

// sandpitMemory measures the processes below this one: the reaper and the engine are common, the
// others are boxes.
func sandpitMemory(context.Context, []box) (own, common int64, err error) {
	all, err := processes()
	if err != nil {
		return 0, 0, err
	}
	var ours, shared []process
	for _, p := range below(all, os.Getpid()) {
		if p.name == "sandpit-reaper" || p.name == "sandpit-engine" {
			shared = append(shared, p)
		} else {
			ours = append(ours, p)
		}
	}
	if len(shared) == 0 || len(ours) == 0 {
		return 0, 0, errors.New("sandpit's processes cannot be found")
	}
	return sumBoth(ours, shared)
}

// dockerMemory measures the containers' processes and the shim of each; the daemons are common.
func dockerMemory(ctx context.Context, boxes []box) (own, common int64, err error) {
	all, err := processes()
	if err != nil {
		return 0, 0, err
	}
	var ours []process
	for _, b := range boxes {
		container, ok := b.(*dockerBox)
		if !ok {
			return 0, 0, fmt.Errorf("not a container: %T", b)
		}
		pid, err := container.pid(ctx)
		if err != nil {
			return 0, 0, err
		}
		i := slices.IndexFunc(all, func(p process) bool { return p.pid == pid })
		if i < 0 {
			return 0, 0, fmt.Errorf("process %d of a container cannot be seen", pid)
		}
		shim := slices.IndexFunc(all, func(p process) bool { return p.pid == all[i].parent })
		if shim < 0 {
			return 0, 0, fmt.Errorf("process %d of a container has no shim", pid)
		}
		ours = append(append(ours, all[shim]), below(all, all[shim].pid)...)
	}
	var daemons []process
	for _, p := range all {
		if p.name == "dockerd" || p.name == "containerd" {
			daemons = append(daemons, p)
		}
	}
	return sumBoth(ours, daemons)
}

func sumBoth(own, common []process) (ownPSS, commonPSS int64, err error) {
	ownPSS, err = sumPSS(own)
	if err != nil {
		return 0, 0, err
	}
	commonPSS, err = sumPSS(common)
	return ownPSS, commonPSS, err
}
