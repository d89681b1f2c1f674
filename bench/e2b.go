package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"
)

//go:embed e2b.mjs
var e2bScript []byte

const e2bFile = "e2b.mjs"

// e2bs measures sandpit through E2B's SDK: a server with a full pool, and one without a pool, whose
// sandboxes have the network that the SDK requests.
func (k *kit) e2bs(ctx context.Context) error {
	if !k.o.wants(nameE2B) {
		return nil
	}
	dir, err := k.installSDK(ctx, "conformance/e2b", e2bFile, e2bScript)
	if err != nil {
		k.report.skip("E2B's SDK", err.Error())
		k.note("without E2B's SDK: %v", err)
		return nil
	}
	warm := fmt.Sprintf("[[pool]]\nimage = %q\nsize = %d\n", k.root.path, poolSize)
	return errors.Join(
		k.withE2B(ctx, dir, "warm", "allow_internet_access = false\n"+warm, k.warmE2B),
		k.withE2B(ctx, dir, "cold", "", k.coldE2B),
		k.withE2B(ctx, dir, "code", "allow_internet_access = false\n", k.codeE2B),
	)
}

// withE2B measures with a new server, with settings of E2B's section.
func (k *kit) withE2B(ctx context.Context, dir, name, settings string, do func(context.Context, *served, *node) error) (err error) {
	s, url, key, err := k.openServer(ctx, "e2b-"+name, fmt.Sprintf("[manager]\nmax_sandboxes = 300\n[e2b]\ntemplates = { base = %q, code = \"host\" }\n%s", k.root.path, settings))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close(ctx)) }()
	n, err := openNode(ctx, dir, e2bFile, "E2B_", "E2B_API_URL="+url, "E2B_SANDBOX_URL="+url, "E2B_API_KEY="+key)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	return do(ctx, s, n)
}

// settled is how long a pool must be full before it is measured: by then the last spare has started,
// and the previous sandbox is deleted.
const settled = 500 * time.Millisecond

// warmE2B measures a server with a full pool.
func (k *kit) warmE2B(ctx context.Context, s *served, n *node) error {
	life := series{kit: k, n: k.o.samples(30), metrics: []metric{{metricE2BWarm, unitMS}}}
	life.add(byE2B, func() ([]float64, error) {
		if err := errors.Join(s.full(ctx), pauseFor(ctx, settled)); err != nil {
			return nil, err
		}
		return n.do("life")
	})
	errs := []error{life.run(ctx)}
	if _, err := n.do("open"); err != nil {
		return errors.Join(append(errs, err)...)
	}
	errs = append(errs, k.callNode(ctx, n, byE2B, []nodeCall{
		{metricE2BRun, unitMS, 100, "run"}, {metricE2BWrite, unitMBps, 20, "write"}, {metricE2BRead, unitMBps, 20, "read"},
	}))
	_, err := n.do("close")
	return errors.Join(append(errs, err)...)
}

// coldE2B measures creating sandboxes without a pool.
func (k *kit) coldE2B(ctx context.Context, _ *served, n *node) error {
	life := series{kit: k, n: k.o.samples(20), metrics: []metric{{metricE2BCold, unitMS}}}
	life.add(byE2B, func() ([]float64, error) { return n.do("life") })
	hundred := series{kit: k, n: k.o.samples(3), metrics: []metric{{metricE2BHundred, unitMS}}}
	if !k.o.quick {
		hundred.add(byE2B, func() ([]float64, error) { return n.do("hundred") })
	}
	return errors.Join(life.run(ctx), hundred.run(ctx))
}

// codeE2B measures the first run of code in new sandboxes. They start from a snapshot in which the
// interpreter already runs.
func (k *kit) codeE2B(ctx context.Context, _ *served, n *node) error {
	if _, err := n.do("kernels"); err != nil {
		k.report.skip(metricE2BCode, err.Error())
		k.note("without a code interpreter, which needs IPython: %v", err)
		return nil
	}
	code := series{kit: k, n: k.o.samples(20), metrics: []metric{{metricE2BCode, unitMS}}}
	code.add(byE2B, func() ([]float64, error) { return n.do("code") })
	return code.run(ctx)
}
