package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// manyForks is how many copies are created at once.
const manyForks = 10

// savedMetrics are the metrics of one sample of savedSample, in its order.
func savedMetrics() []metric {
	return []metric{
		{metricResume, unitMS},
		{metricWake, unitMS},
		{"pause on disk, idle", unitMS},
		{metricSnapshot, unitMS},
		{metricFork, unitMS},
		{fmt.Sprintf(metricForks, manyForks), unitMS},
		{metricStopStart, unitMS},
		{"checkpoint of 100 MB of files", unitMS},
		{metricFrozen, unitMB},
		{metricFrozenDisk, unitMB},
	}
}

// saved measures saving the memory and the files of boxes.
func (k *kit) saved(ctx context.Context, p *gvisor.Provider, dir string) (err error) {
	if !k.o.wants(nameSaved) {
		return nil
	}
	b := savedBench{p: p, dir: dir}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
		defer cancel()
		for _, inst := range b.boxes {
			err = errors.Join(err, inst.Destroy(clean))
		}
	}()
	mega := k.o.sizes().bigFile >> 20
	if b.idle, err = b.start(ctx, k.root.path, ""); err != nil {
		return err
	}
	// /dev/shm is memory and not in any file.
	if b.dirty, err = b.start(ctx, k.root.path, fmt.Sprintf("dd if=/dev/urandom of=/dev/shm/dirty bs=1048576 count=%d", mega)); err != nil {
		return err
	}
	if b.full, err = b.start(ctx, k.root.path, fmt.Sprintf("dd if=/dev/urandom of=/full bs=1048576 count=%d", mega)); err != nil {
		return err
	}
	s := series{kit: k, n: k.o.samples(20), metrics: savedMetrics()}
	s.add(bySandpit, func() ([]float64, error) { return b.sample(ctx) })
	return s.run(ctx)
}

// savedBench has boxes to save: an idle one, one with much memory and one with large files.
type savedBench struct {
	p                 *gvisor.Provider
	dir               string // the provider's
	boxes             []*gvisor.Instance
	idle, dirty, full *gvisor.Instance
}

func (b *savedBench) start(ctx context.Context, root, fill string) (*gvisor.Instance, error) {
	inst, err := b.create(ctx, sandpit.Image(root))
	if err != nil {
		return nil, err
	}
	b.boxes = append(b.boxes, inst)
	if fill != "" {
		err = runIn(ctx, inst, "sh", "-c", fill+" 2>/dev/null")
	}
	return inst, err
}

func (b *savedBench) create(ctx context.Context, image sandpit.Image) (*gvisor.Instance, error) {
	made, err := b.p.Create(ctx, sandpit.NewID(), sandpit.Spec{Image: image})
	if err != nil {
		return nil, withHint(err)
	}
	inst, ok := made.(*gvisor.Instance)
	if !ok {
		return nil, fmt.Errorf("a box is a %T", made)
	}
	return inst, nil
}

func runIn(ctx context.Context, inst sandpit.Instance, args ...string) error {
	w, err := workspace.New(inst.Guest(), workspace.Options{})
	if err != nil {
		return err
	}
	return (&sandpitBox{inst: inst, w: w}).Run(ctx, args...)
}

// sample measures everything once.
func (b *savedBench) sample(ctx context.Context) ([]float64, error) {
	var figures []float64
	var errs []error
	note := func(do func() error) {
		took, err := timed(do)
		figures, errs = append(figures, ms(took)), append(errs, err)
	}
	errs = append(errs, b.idle.Pause(ctx))
	note(func() error { return b.idle.Resume(ctx) })
	suspended, err := timed(func() error { return b.idle.Suspend(ctx) })
	memory, memoryErr := memoryOf(b.idle.ID())
	disk, diskErr := ownBytes(filepath.Join(b.dir, "suspended", string(b.idle.ID())))
	errs = append(errs, err, memoryErr, diskErr)
	note(func() error { return errors.Join(b.idle.Resume(ctx), runIn(ctx, b.idle, "true")) })
	figures = append(figures, ms(suspended))

	id := sandpit.NewSnapshotID()
	note(func() error {
		_, err := b.dirty.Snapshot(ctx, id)
		return err
	})
	note(func() error { return b.forks(ctx, id, 1) })
	errs = append(errs, b.end(ctx))
	note(func() error { return b.forks(ctx, id, manyForks) })
	errs = append(errs, b.end(ctx), b.p.RemoveSnapshot(ctx, id))
	note(func() error {
		return errors.Join(b.full.Stop(ctx), b.full.Start(ctx), runIn(ctx, b.full, "true"))
	})
	note(func() error { return b.full.Checkpoint(ctx) })
	const mega = 1 << 20
	return append(figures, float64(memory)/mega, float64(disk)/mega), errors.Join(errs...)
}

// forks creates copies at once, and returns when each has run its first command.
func (b *savedBench) forks(ctx context.Context, id sandpit.SnapshotID, n int) error {
	made, errs := make([]*gvisor.Instance, n), make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			if made[i], errs[i] = b.create(ctx, sandpit.SnapshotImage(id)); errs[i] == nil {
				errs[i] = runIn(ctx, made[i], "true")
			}
		})
	}
	group.Wait()
	for _, inst := range made {
		if inst != nil {
			b.boxes = append(b.boxes, inst)
		}
	}
	return errors.Join(errs...)
}

// lasting is how many boxes are not copies.
const lasting = 3

// end removes the copies.
func (b *savedBench) end(ctx context.Context) error {
	var errs []error
	for _, inst := range b.boxes[lasting:] {
		errs = append(errs, inst.Destroy(ctx))
	}
	b.boxes = b.boxes[:lasting]
	return errors.Join(errs...)
}

// memoryOf returns the memory of a box's processes, in bytes.
func memoryOf(id sandpit.ID) (int64, error) {
	all, err := processes()
	if err != nil {
		return 0, err
	}
	var own []process
	for _, p := range all {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p.pid))
		if err != nil && !vanished(err) {
			return 0, err
		}
		if strings.HasPrefix(p.name, "runsc-") && bytes.Contains(line, []byte(id)) {
			own = append(own, p)
		}
	}
	return sumPSS(own)
}

// ownBytes returns the size of the files of a saved box without the image and the guest, which boxes
// share.
func ownBytes(dir string) (sum int64, err error) {
	err = filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || strings.HasSuffix(e.Name(), ".erofs") {
			return err
		}
		info, err := e.Info()
		if err == nil {
			sum += info.Size()
		}
		return err
	})
	return sum, err
}
