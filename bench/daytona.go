package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
)

//go:embed daytona.mjs
var daytonaScript []byte

const daytonaFile = "daytona.mjs"

// daytonas measures sandpit through Daytona's SDK: a server with a full pool of its default image,
// and one without a pool.
func (k *kit) daytonas(ctx context.Context) error {
	if !k.o.wants(nameDaytona) {
		return nil
	}
	dir, err := k.installSDK(ctx, "conformance/daytona", daytonaFile, daytonaScript)
	if err != nil {
		k.report.skip("Daytona's SDK", err.Error())
		k.note("without Daytona's SDK: %v", err)
		return nil
	}
	return errors.Join(
		k.withDaytona(ctx, dir, "warm", fmt.Sprintf("[[pool]]\nimage = %q\nsize = %d\nnetwork_enabled = true\n", k.root.path, poolSize), k.warmDaytona),
		k.withDaytona(ctx, dir, "cold", "", k.coldDaytona),
	)
}

// withDaytona measures with a new server whose default image is the root file system.
func (k *kit) withDaytona(ctx context.Context, dir, name, settings string, do func(context.Context, *served, *node) error) (err error) {
	s, url, key, err := k.openServer(ctx, "daytona-"+name, fmt.Sprintf("[sandbox]\nimage = %q\n%s", k.root.path, settings))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	n, err := openNode(ctx, dir, daytonaFile, "DAYTONA_", "DAYTONA_API_URL="+url+"/api", "DAYTONA_API_KEY="+key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	return do(ctx, s, n)
}

// warmDaytona measures a server with a full pool.
func (k *kit) warmDaytona(ctx context.Context, s *served, n *node) error {
	life := series{kit: k, n: k.o.samples(30), metrics: []metric{{metricDaytonaWarm, unitMS}}}
	life.add(byDaytona, func() ([]float64, error) {
		if err := errors.Join(s.full(ctx), pauseFor(ctx, settled)); err != nil {
			return nil, err
		}
		return n.do("life")
	})
	return life.run(ctx)
}

// coldDaytona measures a server without a pool, and the calls that need none.
func (k *kit) coldDaytona(ctx context.Context, _ *served, n *node) error {
	errs := []error{k.callNode(ctx, n, byDaytona, []nodeCall{{metricDaytonaCold, unitMS, 20, "life"}})}
	if _, err := n.do("open"); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, k.callNode(ctx, n, byDaytona, []nodeCall{
		{metricDaytonaRun, unitMS, 100, "run"},
		{metricDaytonaWrite, unitMBps, 20, "write"},
		{metricDaytonaRead, unitMBps, 20, "read"},
		{metricDaytonaStart, unitMS, 20, "restart"},
	}))
	_, err := n.do("close")
	return errors.Join(append(errs, err)...)
}
