package telemetry

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Provider returns p with its calls counted under a name. The instances are p's own,
// so that all of their abilities are seen; those of p itself are found by sandpit.As.
func (m *Metrics) Provider(name string, p sandpit.Provider) sandpit.Provider {
	return measured{Provider: p, name: name, metrics: m}
}

type measured struct {
	sandpit.Provider

	name    string
	metrics *Metrics
}

// Unwrap shows sandpit.As what is inside.
func (p measured) Unwrap() any { return p.Provider }

func (p measured) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (i sandpit.Instance, err error) {
	defer p.recordCall("create", time.Now(), &err)
	return p.Provider.Create(ctx, id, spec)
}

func (p measured) List(ctx context.Context) (list []sandpit.Placement, err error) {
	defer p.recordCall("list", time.Now(), &err)
	return p.Provider.List(ctx)
}

func (p measured) Attach(ctx context.Context, handle []byte) (i sandpit.Instance, err error) {
	defer p.recordCall("attach", time.Now(), &err)
	return p.Provider.Attach(ctx, handle)
}

func (p measured) recordCall(call string, begin time.Time, err *error) {
	p.metrics.calls.WithLabelValues(p.name, call, codeOf(*err)).Inc()
	p.metrics.callTime.WithLabelValues(p.name, call).Observe(time.Since(begin).Seconds())
}
